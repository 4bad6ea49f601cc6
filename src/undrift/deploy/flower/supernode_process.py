"""The process of Flower's SuperNode, patched to poll more often and to survive killed servers.

The first command-line argument is the longest time that it sleeps, in seconds (Flower's own is
three); the others are Flower's. Time-outs do not depend on jumps of the machine's clock.
"""

from __future__ import annotations

import os
import sys
import time
from types import SimpleNamespace
from typing import Any

from undrift.deploy.flower.clocks import SUPERNODE_MODULES, current_offset, use_steady_clock
from undrift.deploy.flower.environment import poll_objects_often
from undrift.deploy.flower.processes import die_with_parent
from undrift.deploy.private_files import PRIVATE_UMASK


def main() -> None:
    """Run a SuperNode."""
    die_with_parent()
    os.umask(PRIVATE_UMASK)
    import flwr.supernode.start_client_internal as node
    from flwr.supernode.cli import flower_supernode

    poll_objects_often()
    use_steady_clock(SUPERNODE_MODULES, current_offset())
    max_seconds = float(sys.argv.pop(1))
    # A copy of the module `time` for Flower's module alone: others must sleep as long as they ask.
    own_time = SimpleNamespace(**{name: getattr(time, name) for name in dir(time)})
    own_time.sleep = lambda seconds: time.sleep(min(seconds, max_seconds))
    node.time = own_time  # type: ignore[assignment]
    patch_ended_runs(node)
    flower_supernode()


def patch_ended_runs(node: Any) -> None:
    """Patch the module of Flower's SuperNode so that it drops what belongs to a run that has ended.

    Unpatched, it has two faults when a server is killed in the middle of a request. It stops
    fetching the request but keeps its first part, and the site waits for the rest for hours. And it
    sends an answer only after it has received a request, so that the answer of an ended run is sent
    in place of the next one, and every later answer one request too late.
    """
    from flwr.supercore.run import RunNotRunningException

    pull_objects, pull_message = node.pull_objects, node._pull_and_store_message

    def pull_objects_or_fail(*arguments: Any, **options: Any) -> Any:
        try:
            return pull_objects(*arguments, **options)
        except RunNotRunningException:
            # A BaseException, which skips Flower's clean-up; an Exception triggers it.
            raise RuntimeError("its run has ended") from None

    def pull_message_or_send(*, state: Any, **options: Any) -> Any:
        run = pull_message(state=state, **options)
        # Anything but None has Flower send the answers that wait.
        return 0 if run is None and _has_unsent_answers(state) else run

    node.pull_objects, node._pull_and_store_message = pull_objects_or_fail, pull_message_or_send


def _has_unsent_answers(state: Any) -> bool:
    with state.lock_msg_store:
        return any(
            each.message.metadata.reply_to_message_id and not each.is_retrieved
            for each in state.msg_store.values()
        )


if __name__ == "__main__":
    main()
