"""Flower's SuperNode, which looks more often for something to do; a process of its own.

The first argument is the most seconds that it sleeps (Flower's own are three); the others are its.
It also gets over a server that is killed in the middle of a request: see `mend`.
"""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace
from typing import Any

from undrift.deploy.flower.surroundings import die_with_parent, look_often


def main() -> None:
    """Run a SuperNode."""
    die_with_parent()
    import flwr.supernode.start_client_internal as node
    from flwr.supernode.cli import flower_supernode

    look_often()
    most = float(sys.argv.pop(1))
    own = SimpleNamespace(**{name: getattr(time, name) for name in dir(time)})
    own.sleep = lambda seconds: time.sleep(min(seconds, most))
    node.time = own  # type: ignore[assignment]
    mend(node)
    flower_supernode()


def mend(node: Any) -> None:
    """Have the module of Flower's SuperNode drop what belongs to a run that has ended.

    By itself it stops to fetch such a request but leaves it lying, so that the site's process waits
    for the rest of it for hours. And it sends an answer only after a request: that of a run that
    has ended would be sent in place of the next one, and so on with every answer after it.
    """
    from flwr.supercore.run import RunNotRunningException

    fetch, receive = node.pull_objects, node._pull_and_store_message

    def fetched(*arguments: Any, **options: Any) -> Any:
        try:
            return fetch(*arguments, **options)
        except RunNotRunningException:  # a BaseException, which passes by the cleaning up
            raise RuntimeError("its run has ended") from None

    def received(*, state: Any, **options: Any) -> Any:
        run = receive(state=state, **options)
        return 0 if run is None and _answers_wait(state) else run

    node.pull_objects, node._pull_and_store_message = fetched, received


def _answers_wait(state: Any) -> bool:
    with state.lock_msg_store:
        return any(
            each.message.metadata.reply_to_message_id and not each.is_retrieved
            for each in state.msg_store.values()
        )


if __name__ == "__main__":
    main()
