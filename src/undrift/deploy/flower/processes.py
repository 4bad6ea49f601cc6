"""Starts and stops the processes of a deployment, and reads their logs."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

GRACE_SECONDS = 8.0
"""How long a process may take to end after SIGTERM before it is killed."""
KILL_SECONDS = 1.0
"""How long a killed process may take to disappear."""
PARENT = "UNDRIFT_PARENT"
"""The environment variable with the id of the process that started this one."""
LOG_TAIL_BYTES = 64_000
"""How much of the end of a log is read."""
SHOWN_CHARACTERS = 400
"""Error messages quote at most this much of a log."""


def start(
    module: str, arguments: Sequence[str], log: Path, variables: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a Python module as a process with these environment variables; its output is logged."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**variables, PARENT: str(os.getpid())},
            start_new_session=True,  # Ctrl-C reaches this process only, which then stops that one
        )


def stop(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """Terminate child processes, and kill those that do not end in time."""
    processes = [each for each in processes if each.poll() is None]
    for each in processes:
        each.terminate()
    until = time.monotonic() + GRACE_SECONDS
    for each in processes:
        try:
            each.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            each.kill()
            each.wait()


def stop_foreign(process: int) -> None:
    """Terminate a process that another one started, and kill it if it does not end in time."""
    for number, seconds in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, KILL_SECONDS)):
        try:
            os.kill(process, number)
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                time.sleep(0.1)
                os.kill(process, 0)  # signal 0 only checks whether it exists
        except ProcessLookupError:
            return


def die_with_parent() -> None:
    """Have the kernel end this process when its parent ends for any reason (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # 1 is PR_SET_PDEATHSIG
        parent = str(os.getppid())
        if os.environ.get(PARENT, parent) != parent:
            sys.exit(1)  # the parent ended before the call above


def free_port(besides: int | None = None) -> int:
    """A port of this machine that no process listens on, other than `besides`."""
    while True:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            found = int(one.getsockname()[1])
        if found != besides:
            return found


def log_lines(log: Path, since: int = 0) -> list[str]:
    """The last lines of a log from byte `since` on, without colours, blank lines and INFO lines."""
    try:
        with log.open("rb") as file:
            file.seek(max(since, file.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    lines = (re.sub(r"\x1b\[[0-9;]*m", "", line).strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("INFO")]


def last_lines(log: Path, number: int = 3, since: int = 0) -> str:
    """The last lines of a log, joined."""
    return " ".join(log_lines(log, since)[-number:])[-SHOWN_CHARACTERS:]


def last_error(log: Path) -> str:
    """The last error in a log with what follows it, or else the last lines."""
    lines = log_lines(log)
    errors = [number for number, line in enumerate(lines) if line.lower().startswith("error")]
    return " ".join(lines[errors[-1] :] if errors else lines[-3:])[:SHOWN_CHARACTERS]
