"""Threads that work side by side."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from undrift.utils.threads import prepare_thread

Given = ParamSpec("Given")
Found = TypeVar("Found")


_cores: int | None = None


def use_cores(number: int) -> None:
    """Say how many cores this process may use, where others work beside it."""
    global _cores
    _cores = number


def cores() -> int:
    """How many cores this process may use."""
    if _cores is not None:
        return _cores
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def spare_threads(taken: int) -> Executor | None:
    """Threads on the cores that others leave idle, or None where there are none."""
    spare = cores() - taken
    return _one_each(spare) if spare > 0 else None


def _one_each(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, initializer=prepare_thread)


class Pool:
    """So many threads; one alone is the caller's own, since handing work over takes time."""

    def __init__(self, threads: int):
        self._threads: ThreadPoolExecutor | None = None
        if threads > 1:
            self._threads = _one_each(threads)

    def submit(
        self, work: Callable[Given, Found], *args: Given.args, **options: Given.kwargs
    ) -> Future[Found]:
        """Do something, now or as soon as a thread is free."""
        if self._threads is not None:
            return self._threads.submit(work, *args, **options)
        done: Future[Found] = Future()
        try:
            done.set_result(work(*args, **options))
        except BaseException as error:  # as with other threads, it is raised with the result
            done.set_exception(error)
        return done
