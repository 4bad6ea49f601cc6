"""Connects this process to Ray: started on this machine, or an existing cluster."""

from __future__ import annotations

import logging
import os
import socket
import warnings
from typing import Any

from undrift.utils.errors import UndriftError, first_line, require

CONNECT_TIMEOUT_SECONDS = 5.0
"""How long a cluster's address may take to answer."""

HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""The first bytes of an HTTP/2 client, and empty settings. A Ray head speaks gRPC, i.e. HTTP/2: it
answers with a settings frame, type 4."""

_local_cores: int | None = None
"""How many cores Ray has on this machine, if this process started it."""


def require_ray() -> None:
    """Raise an error that says how to install Ray, if it is not installed."""
    try:
        import ray  # noqa: F401
    except ImportError:
        raise UndriftError(
            "engine = \"ray\" needs Ray, which is not installed: pip install 'undrift[ray]'."
        ) from None


def connect(address: str | None, cores: int, gpus: float) -> None:
    """Start Ray on this machine with a number of cores, or join the cluster at an address.

    An existing connection is used, unless this process started Ray with fewer cores.
    """
    import ray

    global _local_cores
    if ray.is_initialized():
        fewer = _local_cores is not None and _local_cores < cores
        if address is not None or not fewer:
            return
        ray.shutdown()
    here: dict[str, Any] = {"num_cpus": cores, "include_dashboard": False}
    if gpus:
        here["num_gpus"] = None  # all of this machine's
    # No usage statistics are sent, and Ray prints no warnings between the progress bars.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # workers are not background jobs
    for monitoring in ("RAY_task_events_report_interval_ms", "RAY_enable_metrics_collection"):
        os.environ.setdefault(monitoring, "0")  # there is no dashboard that would show it
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
    _local_cores = None if address else cores
    # Ray prints messages about dead workers to the standard output, between a run's own lines;
    # the worker pool reports what matters.
    ray._private.worker.print_to_stdstream = lambda *messages, **options: None


def session_id() -> str:
    """Names the connection to Ray: objects put into another connection no longer exist."""
    import ray

    return str(ray.get_runtime_context().get_job_id() + ray.get_runtime_context().get_node_id())


def cluster_resource(name: str) -> float:
    """How many cores ("CPU") or GPUs ("GPU") all machines of the cluster have."""
    import ray

    return float(ray.cluster_resources().get(name, 0))


def require_reachable(address: str | None) -> None:
    """Raise an error within seconds if no Ray head answers at a cluster's address.

    `ray.init` would wait for minutes instead.
    """
    allowed = "'auto' (the cluster of this machine) or the head's 'host:port'"
    if address is None or address == "auto":
        return
    require(
        not address.startswith("ray://"),
        f"The address {address!r} is that of a Ray client, which is too slow for the models "
        f"of every round: run undrift on a machine of the cluster, with {allowed}.",
    )
    host, _, port = address.rpartition(":")
    require(
        bool(host) and port.isdigit() and 0 < int(port) < 65536,
        f"The cluster's address is {address!r}, but must be {allowed}.",
    )
    timeout = CONNECT_TIMEOUT_SECONDS
    try:
        with socket.create_connection((host, int(port)), timeout=timeout) as connection:
            connection.sendall(HTTP2_PREFACE)
            answer = connection.recv(9)
    except OSError as error:
        raise UndriftError(
            f"Nothing answers at the cluster's address {address!r} ({error.strerror or error}); it "
            f"must be {allowed}."
        ) from None
    require(
        answer[3:4] == b"\x04",
        f"The server at {address!r} is not the head of a Ray cluster; the address must be "
        f"{allowed}.",
    )
