"""Our side of a measurement: a run of a method on a workload, round by round."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from undrift.bench.temporary_store import TemporaryStore
from undrift.bench.timing import seconds_of, torch_threads
from undrift.bench.workloads import Workload
from undrift.core.evaluation import Evaluation
from undrift.core.sampling import Uniform
from undrift.data.federated import FederatedData
from undrift.engines import EngineOptions
from undrift.local.solvers import Local
from undrift.loops import Loop, loop
from undrift.loops.measuring import measure
from undrift.methods import SCAFFOLD, FedAvg, FedDR, FedDyn, FedLGA, FedNova, FedProx, Method
from undrift.nets.modules import ModuleLosses
from undrift.utils.errors import require_choice

FOR_EVER = 10**9
"""More rounds than are ever done, so that none is evaluated."""
UNCOUNTED = 2
"""First rounds: in one an engine chooses how to work, in the next it does so for the first time."""

METHODS: dict[str, Callable[[], Method]] = {
    "FedAvg": FedAvg,
    "FedProx": partial(FedProx, mu=0.1),
    "SCAFFOLD": SCAFFOLD,
    "FedNova": FedNova,
    "FedDyn": partial(FedDyn, alpha=0.1),
    "FedDR": partial(FedDR, eta=1.0, alpha=1.0),
    "FedLGA": partial(FedLGA, cap=True),
}
"""The methods that are timed, with parameters that suit every workload."""


class BenchRun:
    """A run that is timed, with as many threads as the engine cares to use.

    Parameters
    ----------
    workload, data
        what is trained
    method, engine
        their names
    threads
        how many an engine may use
    local, cohort
        instead of the workload's own
    committed
        whether every round is committed to a store in a temporary folder, as `undrift run` does
    """

    def __init__(
        self,
        workload: Workload,
        data: FederatedData,
        method: str = "FedAvg",
        engine: str = "auto",
        threads: int = 1,
        *,
        local: Local | None = None,
        cohort: int | None = None,
        committed: bool = False,
    ):
        require_choice("method", method, METHODS)
        self.workload = workload
        self.method = method
        self.engine = engine
        self.threads = threads
        self._kept = TemporaryStore() if committed else None
        options: dict[str, Any] = {} if self._kept is None else {"states": self._kept.states}
        with torch_threads(threads):
            self.loop: Loop = loop(
                METHODS[method](),
                ModuleLosses(workload.model(), data),
                local or workload.local(),
                Uniform(cohort or workload.cohort),
                FOR_EVER,
                evaluation=Evaluation(every=FOR_EVER),
                engine=_engine(engine, threads),
                **options,
            )
        self.steps = 0
        """of the last round, over all clients"""

    @property
    def strategy(self) -> str:
        """What the engine says of how it works."""
        return self.loop.engine.strategy

    @property
    def at_work(self) -> int:
        """How many threads the engine works with."""
        engine = self.loop.engine
        return int(engine.saved().get("threads", getattr(engine, "threads", 1)))

    def settle(self) -> None:
        """Do the first rounds, which do not count."""
        for _ in range(UNCOUNTED):
            self.round()

    def round(self) -> float:
        """One round; gives its seconds."""
        with torch_threads(self.threads):
            return seconds_of(self._do)

    def step(self) -> float:
        """One round; gives the seconds per step of a client."""
        return self.round() / self.steps

    def evaluate(self) -> float:
        """Evaluate the server's model; gives the seconds."""
        with torch_threads(self.threads):
            return seconds_of(lambda: measure(self.loop))

    def _do(self) -> None:
        record = self.loop.step()
        self.steps = record.steps
        if self._kept is not None:
            self._kept.commit(self.loop, record)

    def close(self) -> None:
        """Remove the store, if there is one."""
        if self._kept is not None:
            self._kept.close()


def _engine(name: str, threads: int) -> EngineOptions:
    """An engine that may use so many threads: with Ray, those of as many workers."""
    if name == "ray":
        return EngineOptions(name, threads=1, workers=threads)
    return EngineOptions(name, threads)
