"""Threads that work side by side."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from undrift.threads import prepare_thread

Given = ParamSpec("Given")
Found = TypeVar("Found")


def spare_threads(taken: int) -> Executor | None:
    """Threads on the cores that others leave idle, or None where there are none."""
    spare = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    spare = (spare or 1) - taken
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
