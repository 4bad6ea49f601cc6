"""Threads for the engines, and how many cores this process may use."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Condition
from typing import ParamSpec, TypeVar

from undrift.utils.threads import prepare_thread

Arguments = ParamSpec("Arguments")
Value = TypeVar("Value")

_core_limit: int | None = None


def use_cores(number: int) -> None:
    """Limit this process to a number of cores; Ray's workers share a machine this way."""
    global _core_limit
    _core_limit = number


def cores() -> int:
    """How many cores this process may use."""
    if _core_limit is not None:
        return _core_limit
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def spare_threads(taken: int) -> Executor | None:
    """A pool with one thread for each core that is not taken, or None if all are."""
    spare = cores() - taken
    return _prepared_threads(spare) if spare > 0 else None


def _prepared_threads(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, initializer=prepare_thread)


class ThreadPool:
    """A pool of threads; a pool of one runs in the caller's thread, which saves the hand-over."""

    def __init__(self, threads: int):
        self._threads: ThreadPoolExecutor | None = None
        if threads > 1:
            self._threads = _prepared_threads(threads)

    def submit(
        self,
        work: Callable[Arguments, Value],
        *args: Arguments.args,
        **options: Arguments.kwargs,
    ) -> Future[Value]:
        """Run a function: at once in a pool of one, else as soon as a thread is free."""
        if self._threads is not None:
            return self._threads.submit(work, *args, **options)
        done: Future[Value] = Future()
        try:
            done.set_result(work(*args, **options))
        except BaseException as error:  # as in a real pool, `result()` raises it
            done.set_exception(error)
        return done


class Turns:
    """Lets threads do the last part of their work one after another, in the order of numbers.

    The work must be started in that order, too: a thread waits for all with smaller numbers.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._next = 0
        self._failed = False

    @contextmanager
    def of(self, number: int) -> Iterator[Callable[[], bool]]:
        """Work with a number: yields a function that waits for its turn.

        The function returns False if other work failed, since its turn may never come.
        """

        def wait() -> bool:
            with self._changed:
                self._changed.wait_for(lambda: self._failed or self._next == number)
                return not self._failed

        try:
            yield wait
        except BaseException:
            with self._changed:
                self._failed = True
                self._changed.notify_all()
            raise
        with self._changed:
            self._next += 1
            self._changed.notify_all()
