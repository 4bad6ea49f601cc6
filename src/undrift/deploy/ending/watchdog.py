"""The process that ends a site whose own threads cannot run.

A call into C code that keeps Python's lock, such as a long search with a regular expression, keeps
every thread of the site from running. This process is told of every signal first, passes it on to
the site, and kills the site if that does not end. It is run as a script, without the package.
"""

import os
import select
import signal
import sys
import time

KILL_SECONDS = 4.0
"""How long after the signal the site is killed; it must end within 5 seconds."""


def main() -> None:
    """Pass signals on until the site ends; the arguments are its pid and name, and two pipes."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)  # they are for the site, whose end ends this process
    site, name, signals, forward = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    until, interrupted, last = float("inf"), False, signal.SIGTERM
    while True:
        left = None if until == float("inf") else max(0.0, until - time.monotonic())
        if not select.select([signals], [], [], left)[0]:
            break
        found = os.read(signals, 1)
        if not found:
            return  # the site has ended
        os.write(forward, found)
        arrived = found[0]
        if arrived == signal.SIGTERM or (arrived == signal.SIGINT and interrupted):
            until, last = min(until, time.monotonic() + KILL_SECONDS), signal.Signals(arrived)
        interrupted |= arrived == signal.SIGINT
    sentence = f"Site {name!r} did not react to {last.name} and is killed: what it was doing is "
    os.write(2, f"{sentence}left undone, and nothing of it was sent.\n".encode())
    os.kill(site, signal.SIGKILL)


if __name__ == "__main__":
    main()
