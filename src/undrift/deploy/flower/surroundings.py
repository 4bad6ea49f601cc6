"""Flower's processes: what they find around them, how they are started and ended."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from platformdirs import user_cache_path

from undrift.errors import UndriftError

GRACE = 8.0
"""Seconds in which a process may end by itself."""


def require_flower() -> None:
    """Say how to install Flower where it is absent."""
    quieten()
    try:
        import flwr  # noqa: F401
    except ImportError:
        raise UndriftError(
            "A deployment needs Flower, which is not installed: pip install 'undrift[flower]'."
        ) from None


def quieten() -> None:
    """Have Flower tell nobody anything, and leave no files in the user's home.

    It reads this when it is imported.
    """
    os.environ.update(_SILENT)
    own = user_cache_path("undrift", appauthor=False) / "flower"
    os.environ.setdefault("FLWR_HOME", str(own))


_SILENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPERGRID_API_URL": "http://127.0.0.1:9",
    "FLWR_LOG_LEVEL": "WARNING",
}


def look_often() -> None:
    """Look soon again for the parts of a message that are not there yet; Flower waits a second."""
    from flwr.supercore.inflatable import inflatable_utils as utils

    for pulls in (utils.pull_objects, utils.pull_and_inflate_object_from_tree):
        pulls.__kwdefaults__ = {**(pulls.__kwdefaults__ or {}), "initial_backoff": 0.05}


def environment(home: Path, **more: str) -> dict[str, str]:
    """What a process of Flower's has around it: a folder of its own, and nobody to talk to."""
    home.mkdir(parents=True, exist_ok=True)
    own = {
        **os.environ,
        **_SILENT,
        "FLWR_HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONUNBUFFERED": "1",
        **more,
    }
    local = "127.0.0.1,localhost"
    own["NO_PROXY"] = ",".join(filter(None, (own.get("NO_PROXY"), local)))
    return own


def start(
    module: str, arguments: Sequence[str], log: Path, around: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a module of ours as a process, with what it says in a file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as said:
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            env=dict(around),
            start_new_session=True,  # Ctrl-C is for us, who end it
        )


def stop(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """End processes, gently at first."""
    processes = [each for each in processes if each.poll() is None]
    for each in processes:
        each.terminate()
    until = time.monotonic() + GRACE
    for each in processes:
        try:
            each.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            each.kill()
            each.wait()


def end_process(process: int) -> None:
    """End a process that another one started, gently at first."""
    for number, seconds in ((signal.SIGTERM, GRACE), (signal.SIGKILL, 1.0)):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                os.kill(process, number if seconds else 0)
                seconds = 0.0
            except ProcessLookupError:
                return
            time.sleep(0.1)


def die_with_parent() -> None:
    """Have this process end when the one that started it does, however that ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def free_port(besides: int | None = None) -> int:
    """A port of this machine that nobody uses now, and that is not about to be used."""
    while True:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            found = int(one.getsockname()[1])
        if found != besides:
            return found


def last_lines(log: Path, number: int = 3) -> str:
    """The end of what a process said."""
    try:
        lines = log.read_text("utf-8", "replace").strip().splitlines()
    except OSError:
        return ""
    return " ".join(line.strip() for line in lines[-number:] if line.strip())[-400:]
