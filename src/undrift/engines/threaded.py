"""One client per thread, each with a module of its own: for convolutions and recurrent layers."""

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
from undrift.engines.pool import Pool
from undrift.engines.serial import SerialEngine
from undrift.nets.modules import ModuleLosses


class ThreadedEngine(SimulationEngine):
    """Trains as many clients at the same time as there are threads.

    Replies come in the order of the errands, so that threads change nothing.

    Parameters
    ----------
    losses, job
        as for every engine
    threads
        how many clients work at the same time
    """

    losses: ModuleLosses

    def __init__(self, losses: ModuleLosses, job: Job, threads: int):
        self.losses = losses
        self.job = job
        self.threads = threads
        self.preferred_assignments = threads
        self.strategy = f"a client per thread, {threads} threads"
        self._own = local()
        self._pool = Pool(threads)

    def replies(
        self,
        method: Method,
        assignments: Iterable[Assignment],
        states: ClientStates,
        diagnose: bool = True,
    ) -> Iterator[Reply]:
        ahead: deque[Future[Reply]] = deque()
        for assignment in assignments:
            # States are read here, one ahead of the threads.
            mine = Remembered(states.get(assignment.client.id))
            ahead.append(self._pool.submit(self._reply, method, assignment, mine, diagnose))
            if len(ahead) > self.threads:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()

    def _reply(
        self, method: Method, assignment: Assignment, mine: ClientStates, diagnose: bool
    ) -> Reply:
        if not hasattr(self._own, "engine"):
            self._own.engine = SerialEngine(self.losses.twin(), self.job)
        (reply,) = self._own.engine.replies(method, [assignment], mine, diagnose)
        return reply


class Remembered(ClientStates):
    """What one client remembers."""

    def __init__(self, keep: Keep):
        self._keep = keep

    def get(self, client: Hashable) -> Keep:
        return self._keep
