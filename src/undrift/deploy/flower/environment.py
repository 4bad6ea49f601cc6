"""The environment variables of Flower's processes: no telemetry, no update check, no proxy."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from platformdirs import user_cache_path

from undrift.utils.errors import UndriftError, require

OBJECT_POLL_SECONDS = 0.05
"""The first pause between two checks for the parts of a message; Flower's default is one second."""
OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPERGRID_API_URL": "http://127.0.0.1:9",
    "FLWR_LOG_LEVEL": "WARNING",
}
"""Settings with which Flower connects to nothing but the server and its sites."""


def require_flower() -> None:
    """Raise an error that says what to install, if Flower is missing or another version."""
    configure_flower()
    try:
        import flwr
    except ImportError:
        raise UndriftError(
            "A deployment needs Flower, which is not installed: pip install 'undrift[flower]'."
        ) from None
    from undrift.deploy.flower.compatibility import version_difference

    difference = version_difference(flwr.__version__)
    require(difference is None, difference or "")


def configure_flower() -> None:
    """Set this process's environment for Flower; call it before the first import of `flwr`.

    Flower then sends no telemetry, writes no files to the user's home, and connects to this machine
    without a proxy.
    """
    os.environ.update(OFFLINE | without_proxy(os.environ))
    home = user_cache_path("undrift", appauthor=False) / "flower"
    os.environ.setdefault("FLWR_HOME", str(home))


def without_proxy(variables: Mapping[str, str], *hosts: str) -> dict[str, str]:
    """The variables NO_PROXY and no_proxy, extended by this machine and the given hosts."""
    lists = [variables.get(name, "") for name in ("no_proxy", "NO_PROXY")]
    every = [host.strip() for each in lists for host in each.split(",") if host.strip()]
    every += ["127.0.0.1", "localhost", "::1", *hosts]
    joined = ",".join(dict.fromkeys(every))
    return {"NO_PROXY": joined, "no_proxy": joined}


def poll_objects_often() -> None:
    """Shorten Flower's pause before it checks again for the missing parts of a message."""
    from flwr.supercore.inflatable import inflatable_utils as utils

    for pull in (utils.pull_objects, utils.pull_and_inflate_object_from_tree):
        defaults = pull.__kwdefaults__ or {}
        pull.__kwdefaults__ = {**defaults, "initial_backoff": OBJECT_POLL_SECONDS}


def environment(home: Path, **more: str) -> dict[str, str]:
    """The environment of a Flower process that keeps its own files in the folder `home`."""
    home.mkdir(parents=True, exist_ok=True)
    variables = {
        **os.environ,
        **OFFLINE,
        "FLWR_HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONUNBUFFERED": "1",
        **more,
    }
    return variables | without_proxy(variables)
