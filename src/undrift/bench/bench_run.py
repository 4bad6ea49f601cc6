"""The undrift side of a benchmark: a run of one method on a workload, timed round by round."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from torch import Tensor

from undrift.bench.timing import seconds_of, torch_threads
from undrift.bench.workloads import Workload
from undrift.core.clients import ClientStates
from undrift.core.evaluation import Evaluation
from undrift.core.losses import require_losses
from undrift.core.records import Record
from undrift.core.sampling import Uniform
from undrift.data.federated import FederatedData
from undrift.devices import Profiles
from undrift.engines import EngineOptions
from undrift.engines.strategies import Strategy
from undrift.local.solvers import Local
from undrift.loops import Loop, RunSpec, loop
from undrift.loops.measuring import measure
from undrift.loops.spec import EngineFactory
from undrift.methods import SCAFFOLD, FedAvg, FedDR, FedDyn, FedLGA, FedNova, FedProx, Method
from undrift.nets.criteria import FP32
from undrift.nets.module_losses import ModuleLosses
from undrift.runs.folder import RECORDS, STORE
from undrift.runs.states import StoredStates
from undrift.runs.storage import BYTES_PER_MB, FolderStorage, commit
from undrift.runs.store import Store
from undrift.utils.errors import require_choice

NEVER_ROUNDS = 10**9
"""More rounds than any benchmark does, so that no round is evaluated."""
WARM_UP_ROUNDS = 2
"""In the first round the engine chooses its strategy, in the second it first uses it."""

METHODS: dict[str, Callable[[], Method]] = {
    "FedAvg": FedAvg,
    "FedProx": partial(FedProx, mu=0.1),
    "SCAFFOLD": SCAFFOLD,
    "FedNova": FedNova,
    "FedDyn": partial(FedDyn, alpha=0.1),
    "FedDR": partial(FedDR, eta=1.0, alpha=1.0),
    "FedLGA": partial(FedLGA, cap=True),
}
"""The methods that can be timed, with parameters that suit every workload."""


class TemporaryStore:
    """A store in a temporary folder, to time what committing every round costs.

    It commits as `undrift run` does, with its default durability and memory.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="undrift-bench-")
        folder = Path(self._folder.name)
        keeping = FolderStorage(folder)
        self._store = Store(folder / STORE, {}, keeping.durability)
        self._memory = int(keeping.memory * BYTES_PER_MB)
        self._lines = (folder / RECORDS).open("a", encoding="utf-8")

    def states(self, kinds: Mapping[str, str | Tensor], x0: Tensor) -> StoredStates:
        """Return the client states of a run, kept in this store."""
        return StoredStates(kinds, x0, self._store, self._memory)

    def commit(self, run: Loop, record: Record) -> None:
        """Commit a round and append its record to the file of records."""
        commit(run, self._store, record)
        self._lines.write(record.to_json() + "\n")
        self._lines.flush()

    def close(self) -> None:
        """Close the store and remove its folder."""
        self._lines.close()
        self._store.close()
        self._folder.cleanup()


class BenchRun:
    """A run that is timed round by round.

    Parameters
    ----------
    workload, data
        the model and the data
    method, engine
        names of `METHODS` and `undrift.engines.ENGINES`; the engine may also be a strategy
    threads
        how many threads the engine may use; with Ray, the number of workers
    local, cohort
        replace the workload's local work and cohort size
    devices
        the device profiles of the clients, for rounds on the virtual clock
    precision
        one of `undrift.nets.criteria.PRECISIONS`
    committed
        commit every round to a store in a temporary folder, as `undrift run` does
    """

    def __init__(
        self,
        workload: Workload,
        data: FederatedData,
        method: str = "FedAvg",
        engine: str | Strategy = "auto",
        threads: int = 1,
        *,
        local: Local | None = None,
        cohort: int | None = None,
        devices: Profiles | None = None,
        precision: str = FP32,
        committed: bool = False,
    ):
        require_choice("method", method, METHODS)
        self.workload = workload
        self.method = method
        self.engine = engine if isinstance(engine, str) else engine.network
        self.threads = threads
        self._store = TemporaryStore() if committed else None
        states = ClientStates if self._store is None else self._store.states
        with torch_threads(threads):
            spec = RunSpec(
                METHODS[method](),
                ModuleLosses(workload.model(), data),
                local or workload.local(),
                Uniform(cohort or workload.cohort),
                NEVER_ROUNDS,
                evaluation=Evaluation(every=NEVER_ROUNDS),
                devices=devices,
            )
            self.loop: Loop = loop(spec, _engine(engine, threads, precision), states)
        self.steps = 0
        """steps of all clients in the last round"""

    @property
    def strategy(self) -> str:
        """The engine's description of its strategy; empty before the first round."""
        return self.loop.engine.strategy

    @property
    def threads_used(self) -> int:
        """The number of threads that the engine uses."""
        engine = self.loop.engine
        return int(engine.saved().get("threads", getattr(engine, "threads", 1)))

    def warm_up(self) -> None:
        """Do the rounds that are not timed."""
        for _ in range(WARM_UP_ROUNDS):
            self.round()

    def round(self) -> float:
        """Do one round and return its seconds."""
        with torch_threads(self.threads):
            return seconds_of(self._do)

    def step(self) -> float:
        """Do one round and return its seconds per step of a client."""
        return self.round() / self.steps

    def evaluate(self) -> float:
        """Evaluate the server's model and return the seconds."""
        with torch_threads(self.threads):
            return seconds_of(lambda: measure(self.loop))

    def train_loss(self, samples: int) -> float:
        """Return the server's training loss on some of the samples."""
        with torch_threads(self.threads):
            return measure(self.loop, samples)["train_loss"]

    def _do(self) -> None:
        record = self.loop.step()
        self.steps = record.steps
        if self._store is not None:
            self._store.commit(self.loop, record)

    def close(self) -> None:
        """Remove the store of a run with commits."""
        if self._store is not None:
            self._store.close()


def _engine(name: str | Strategy, threads: int, precision: str) -> EngineFactory:
    """Return what builds an engine with this number of threads, or workers with Ray."""
    if isinstance(name, Strategy):
        return lambda losses, job: name.engine(require_losses(losses), job)
    if name == "ray":
        return EngineOptions(name, threads=1, workers=threads, precision=precision)
    return EngineOptions(name, threads, precision=precision)
