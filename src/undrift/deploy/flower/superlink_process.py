"""The process of Flower's SuperLink, with a guard in front of it, a ledger and a steady clock.

`guard` says which requests reach Flower, `orders` what sites may store, and `clocks` why time-outs
do not depend on the machine's clock.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

from undrift.deploy.flower.clocks import (
    SUPERLINK_MODULES,
    LifeSign,
    given_offset,
    use_steady_clock,
    widen_clock_tolerance,
)
from undrift.deploy.flower.superlink_side import database
from undrift.deploy.flower.superlink_side.deliveries import Deliveries, track_deliveries
from undrift.deploy.flower.superlink_side.guard import Guard, Limits, RegisteredKeys
from undrift.deploy.flower.superlink_side.orders import Ledger, guard_uploads
from undrift.deploy.flower.superlink_side.polls import Polls
from undrift.deploy.private_files import PRIVATE_UMASK

TOKEN = "UNDRIFT_SUPERLINK_TOKEN"
"""The environment variable with the token of the server."""
ALIVE = "UNDRIFT_SUPERLINK_ALIVE"
"""The environment variable with the file that a living server touches."""
KEYS = "UNDRIFT_SUPERLINK_KEYS"
"""The environment variable with the folder of the sites' public keys; empty for none."""
SITES = "UNDRIFT_SUPERLINK_SITES"
"""The environment variable with the number of sites."""
ORPHAN_SECONDS = 900.0
"""How long the process lives on without a server, so that one that was killed can come back."""
CHECK_SECONDS = 1.0
"""How often the process checks whether its server lives."""
HTTP = {
    "ws": "none",
    "access_log": False,
    "timeout_graceful_shutdown": 1,
    "h11_max_incomplete_event_size": 16384,
}
"""How requests are read: with heads of at most 16 kB, and without a line in the log for each, which
would let anybody fill the disk. At the end, questions of sites that wait are not waited for."""


def _end_without_server(alive: Path) -> None:
    """End this process when no server has touched the file for a while, or it was removed."""
    server = LifeSign(alive)
    while server.silent_seconds() <= ORPHAN_SECONDS:
        time.sleep(CHECK_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Run a SuperLink; the command-line arguments are Flower's."""
    os.umask(PRIVATE_UMASK)
    alive = Path(os.environ[ALIVE])
    threading.Thread(target=_end_without_server, args=(alive,), daemon=True).start()
    import uvicorn
    from flwr.superlink import extensions
    from flwr.superlink.cli import flower_superlink
    from flwr.superlink.servicer.fleet import fleet_handlers
    from flwr.superlink.servicer.runtime import runtime_handlers
    from starlette.middleware import Middleware

    from undrift.deploy.flower.superlink_side import connections

    connections.allow_many_files()
    use_steady_clock(SUPERLINK_MODULES, given_offset())
    widen_clock_tolerance()
    deliveries = wrap_handlers(fleet_handlers, runtime_handlers)
    sites = int(os.environ[SITES])
    keys, limits = None, Limits.on_one_machine(sites)
    if os.environ[KEYS]:
        keys, limits = RegisteredKeys(Path(os.environ[KEYS])), Limits()
    held, token = Polls(deliveries), os.environ[TOKEN]
    guard = Middleware(Guard, token=token, keys=keys, limits=limits, held=held)
    extensions.get_middleware = lambda: (guard,)
    run: Any = uvicorn.run
    http = {**HTTP, "http": connections.bounded_protocol(connections.most_waiting(sites))}
    uvicorn.run = lambda *arguments, **options: run(*arguments, **{**options, **http})
    flower_superlink()


def wrap_handlers(fleet: Any, runtime: Any) -> Deliveries:
    """Put undrift's rules around Flower's handlers of the sites and of the server."""
    database.use_one_at_a_time()
    # Inside the others, so that what they note is true also when a transaction fails.
    database.answer_in_one_transaction(fleet, database.SITE_HANDLERS)
    database.answer_in_one_transaction(runtime, database.SERVER_HANDLERS)
    deliveries = Deliveries()
    track_deliveries(deliveries, fleet, runtime)
    # Outermost: it decides what is allowed at all.
    guard_uploads(Ledger(), fleet, runtime)
    return deliveries


if __name__ == "__main__":
    main()
