"""Trains one client per thread, each thread with its own copy of the module.

The vectorised engine uses it for clients that cannot be trained together with others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from concurrent.futures import Future
from threading import local

from undrift.core.clients import ClientStates
from undrift.core.messages import Assignment, Reply
from undrift.core.method import Method
from undrift.core.problem import Keep
from undrift.engines.base import Job, SimulationEngine
from undrift.engines.serial import SerialEngine
from undrift.engines.thread_pool import ThreadPool
from undrift.nets.module_losses import ModuleLosses


class ThreadedEngine(SimulationEngine):
    """Trains as many clients at the same time as there are threads.

    Replies come in the order of the assignments, so that the number of threads changes no bit.

    Parameters
    ----------
    losses, job
        as for every engine
    threads
        how many clients train at the same time
    """

    losses: ModuleLosses

    def __init__(self, losses: ModuleLosses, job: Job, threads: int):
        self.losses = losses
        self.job = job
        self.threads = threads
        self.preferred_assignments = threads
        self.strategy = f"a client per thread, {threads} threads"
        self._thread_local = local()
        self._pool = ThreadPool(threads)

    def replies(
        self,
        method: Method,
        assignments: Iterable[Assignment],
        states: ClientStates,
        diagnose: bool = True,
    ) -> Iterator[Reply]:
        running: deque[Future[Reply]] = deque()
        for assignment in assignments:
            # Client states are read in this thread only: the store is not safe for several.
            # One state is read ahead of the threads, so that none of them waits for the disk.
            state = SingleClientState(states.get(assignment.client.id))
            running.append(self._pool.submit(self._reply, method, assignment, state, diagnose))
            if len(running) > self.threads:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()

    def _reply(
        self, method: Method, assignment: Assignment, state: ClientStates, diagnose: bool
    ) -> Reply:
        if not hasattr(self._thread_local, "engine"):
            self._thread_local.engine = SerialEngine(self.losses.thread_copy(), self.job)
        (reply,) = self._thread_local.engine.replies(method, [assignment], state, diagnose)
        return reply


class SingleClientState(ClientStates):
    """The state of one client, as client states that hold nothing else."""

    def __init__(self, keep: Keep):
        self._keep = keep

    def get(self, client: Hashable) -> Keep:
        return self._keep
