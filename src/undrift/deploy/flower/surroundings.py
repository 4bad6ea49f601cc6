"""Flower's processes: what they find around them, how they are started and ended."""

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

from platformdirs import user_cache_path

from undrift.utils.errors import UndriftError

GRACE = 8.0
"""Seconds in which a process may end by itself."""
PARENT = "UNDRIFT_PARENT"
"""What the environment says: which process started this one."""
END = 64_000
"""So many bytes at the end of what a process said are looked at."""


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

    It reads this when it is imported. What is on this machine is spoken to without a proxy.
    """
    os.environ.update(_SILENT | spoken_to_directly(os.environ))
    own = user_cache_path("undrift", appauthor=False) / "flower"
    os.environ.setdefault("FLWR_HOME", str(own))


_SILENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPERGRID_API_URL": "http://127.0.0.1:9",
    "FLWR_LOG_LEVEL": "WARNING",
}


def spoken_to_directly(around: Mapping[str, str], *hosts: str) -> dict[str, str]:
    """The environment's word on proxies, with this machine and some hosts as exceptions."""
    known = [around.get(name, "") for name in ("no_proxy", "NO_PROXY")]
    every = [host.strip() for each in known for host in each.split(",") if host.strip()]
    every += ["127.0.0.1", "localhost", "::1", *hosts]
    together = ",".join(dict.fromkeys(every))
    return {"NO_PROXY": together, "no_proxy": together}


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
    return own | spoken_to_directly(own)


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
            env={**around, PARENT: str(os.getpid())},
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
        parent = str(os.getppid())
        if os.environ.get(PARENT, parent) != parent:
            sys.exit(1)  # it ended before this one could ask


def free_port(besides: int | None = None) -> int:
    """A port of this machine that nobody uses now, and that is not about to be used."""
    while True:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            found = int(one.getsockname()[1])
        if found != besides:
            return found


def said(log: Path, since: int = 0) -> list[str]:
    """What matters of the end of what a process said: no colours, no blanks, no information."""
    try:
        with log.open("rb") as file:
            file.seek(max(since, file.seek(0, os.SEEK_END) - END))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    lines = (re.sub(r"\x1b\[[0-9;]*m", "", line).strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("INFO")]


def last_lines(log: Path, number: int = 3, since: int = 0) -> str:
    """The end of what a process said."""
    return " ".join(said(log, since)[-number:])[-400:]


def last_words(log: Path) -> str:
    """The error with which a process ended, or else the end of what it said."""
    lines = said(log)
    errors = [number for number, line in enumerate(lines) if line.lower().startswith("error")]
    return " ".join(lines[errors[-1] :] if errors else lines[-3:])[:400]
