"""Flower's SuperNode, which looks more often for something to do; a process of its own.

The first argument is the most seconds that it sleeps (Flower's own are three); the others are its.
"""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace

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
    flower_supernode()


if __name__ == "__main__":
    main()
