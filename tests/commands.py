"""The command line as a user calls it: in a process of its own, or quickly in this one."""

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from types import SimpleNamespace
from unittest import mock

from undrift.cli import main

LONGEST = 300
"""Seconds after which a command is taken to hang."""


def command(*arguments, cwd=None):
    """A process of its own, on a terminal of 80 columns without colours."""
    environment = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1"}
    return subprocess.run(
        [sys.executable, "-m", "undrift", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=environment,
        timeout=LONGEST,
    )


def called(*arguments, cwd):
    """The same without the seconds that a new process takes to import everything."""
    out, err = io.StringIO(), io.StringIO()
    status = 0
    before = os.getcwd()
    environment = {"COLUMNS": "80", "NO_COLOR": "1"}
    os.chdir(cwd)
    try:
        with (
            mock.patch.dict(os.environ, environment),
            mock.patch.object(sys, "argv", ["undrift", *arguments]),
            redirect_stdout(out),
            redirect_stderr(err),
        ):
            main()
    except SystemExit as end:
        status = end.code or 0
    finally:
        os.chdir(before)
    return SimpleNamespace(returncode=status, stdout=out.getvalue(), stderr=err.getvalue())
