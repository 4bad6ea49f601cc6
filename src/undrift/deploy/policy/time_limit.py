"""Ends a computation that takes longer than the site allows."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class TookTooLong(BaseException):
    """Raised inside a computation whose time is over.

    Not an `Exception`: the computation runs the user's code, which must not catch it.
    """


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TookTooLong` in the block once it has taken `seconds`.

    Python raises it between two of its instructions: no operation of torch is interrupted.
    """
    thread = ctypes.c_ulong(threading.get_ident())
    lock = threading.Lock()
    ended = fired = False

    def fire() -> None:
        nonlocal fired
        with lock:
            if not ended:
                fired = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(TookTooLong))

    timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), fire)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        with lock:
            ended = True
        if fired:
            # It may not have been delivered yet; it must not strike after the block.
            ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, None)
    if fired:
        raise TookTooLong
