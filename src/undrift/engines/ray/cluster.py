"""The machines that Ray works on: this one, or a cluster that is there already."""

from __future__ import annotations

import logging
import os
import socket
import warnings
from typing import Any

from undrift.utils.errors import UndriftError, first_line, require

SECONDS = 5.0
"""How long an address may take to answer."""

HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""How a client of HTTP/2 begins, which Ray's heads speak: it is answered by settings, type 4."""

_started_here: int | None = None
"""How many cores Ray was given on this machine, where this program started it."""


def require_ray() -> None:
    """Say how to install Ray where it is absent."""
    try:
        import ray  # noqa: F401
    except ImportError:
        raise UndriftError(
            "engine = \"ray\" needs Ray, which is not installed: pip install 'undrift[ray]'."
        ) from None


def connect(address: str | None, cores: int, gpus: float) -> None:
    """Start Ray on this machine with so many cores, or join the cluster at an address.

    Where the program is connected already, that is what is used, unless this started it for fewer.
    """
    import ray

    global _started_here
    if ray.is_initialized():
        fewer = _started_here is not None and _started_here < cores
        if address is not None or not fewer:
            return
        ray.shutdown()
    here: dict[str, Any] = {"num_cpus": cores, "include_dashboard": False}
    if gpus:
        here["num_gpus"] = None  # as many as there are
    # Nothing is told to anybody, and nothing is printed between the lines of the progress.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # the workers are who is to work
    for watching in ("RAY_task_events_report_interval_ms", "RAY_enable_metrics_collection"):
        os.environ.setdefault(watching, "0")  # nobody looks at what Ray would count
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.init(
                address=address or "local",
                logging_level=logging.ERROR,
                log_to_driver=False,
                **({} if address else here),
            )
    except Exception as error:
        where = f"The cluster at {address!r} cannot be joined" if address else "Ray does not start"
        raise UndriftError(f"{where}: {first_line(error)}.") from None
    _started_here = None if address else cores
    # What Ray says of workers that die goes to standard output, among a run's own lines; the run
    # itself says what matters of it.
    ray._private.worker.print_to_stdstream = lambda *said, **how: None


def session() -> str:
    """Which connection to Ray this is: what was sent by another one is gone."""
    import ray

    return str(ray.get_runtime_context().get_job_id() + ray.get_runtime_context().get_node_id())


def cluster_has(what: str) -> float:
    """How many cores ("CPU") or GPUs ("GPU") all machines have that work together."""
    import ray

    return float(ray.cluster_resources().get(what, 0))


def require_answer(address: str | None) -> None:
    """Refuse a cluster's address at which nobody answers, within seconds."""
    allowed = "'auto' (the cluster of this machine) or the head's 'host:port'"
    if address is None or address == "auto":
        return
    require(
        not address.startswith("ray://"),
        f"The address {address!r} is that of a Ray client, which is too slow for what travels in "
        f"every round: run undrift on a machine of the cluster, with {allowed}.",
    )
    host, _, port = address.rpartition(":")
    require(
        bool(host) and port.isdigit() and 0 < int(port) < 65536,
        f"The address {address!r} is not one: it must be {allowed}.",
    )
    try:
        with socket.create_connection((host, int(port)), timeout=SECONDS) as line:
            line.sendall(HELLO)
            answer = line.recv(9)
    except OSError as error:
        raise UndriftError(
            f"Nobody answers at the cluster's address {address!r} ({error.strerror or error}); it "
            f"must be {allowed}."
        ) from None
    require(
        answer[3:4] == b"\x04",
        f"What answers at {address!r} is not the head of a Ray cluster; the address must be "
        f"{allowed}.",
    )
