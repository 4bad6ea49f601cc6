"""Which engine computes the clients' work, and what it may use."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from undrift.core.losses import Federation, require_losses
from undrift.engines.auto import AutoEngine
from undrift.engines.base import Job, SimulationEngine
from undrift.engines.ray.cluster import require_answer, require_ray
from undrift.engines.serial import SerialEngine
from undrift.engines.strategies import candidates
from undrift.utils.errors import require, require_choice, require_range, require_type, require_whole
from undrift.utils.reprs import short_repr

ENGINES = {
    "auto": "the fastest way, timed on the first round's work and remembered",
    "vectorised": "many clients at once, by a fixed rule",
    "serial": "one client after another",
    "ray": "blocks of clients on the workers of a Ray cluster, or of this machine",
}
"""Every engine by name, with what it does."""


@dataclass(frozen=True)
class EngineOptions:
    """Which engine computes the clients' work, and what it may use.

    Parameters
    ----------
    name
        "auto", "vectorised", "serial" or "ray"
    threads
        how many threads it may use, or with Ray every worker; None: as many as torch does, or the
        cores of this machine divided by the workers
    chunk
        how many clients work at once; None: what suits the model
    memory
        the most megabytes for models at work, which bounds the chunk; with Ray, of every worker
    workers
        how many processes Ray is to start; None: one for every core or, with `threads`, for every
        so many
    address
        the Ray cluster to work on: "auto" for the one this machine belongs to, or the head's
        "host:port"; None: this machine alone
    gpus
        which share of a GPU each of Ray's workers has (0.25: four of them share one)
    inner
        the engine of each of Ray's workers: "auto", "vectorised" or "serial"
    """

    __repr__ = short_repr

    name: str = "auto"
    threads: int | None = None
    chunk: int | None = None
    memory: float = 1000
    workers: int | None = None
    address: str | None = None
    gpus: float = 0.0
    inner: str = "auto"

    def __post_init__(self) -> None:
        require_choice("engine", self.name, ENGINES)
        if self.threads is not None:
            require_whole("The engine's threads", self.threads, at_least=1)
        if self.chunk is not None:
            require_whole("The engine's chunk", self.chunk, at_least=1)
        require_range("The engine's memory", self.memory, above=0)
        if self.workers is not None:
            require_whole("The engine's workers", self.workers, at_least=1)
        if self.address is not None:
            require_type("The engine's address", self.address, str, "a text such as 'host:6379'")
        require_range("The engine's gpus", self.gpus, at_least=0)
        require_choice("The engine inside a worker", self.inner, [n for n in ENGINES if n != "ray"])
        for name, default in (("workers", None), ("address", None), ("gpus", 0), ("inner", "auto")):
            require(
                self.name == "ray" or getattr(self, name) == default,
                f"{name} is for engine = 'ray' only, and the engine is {self.name!r}.",
            )

    def require_ready(self) -> None:
        """Refuse what is not installed or does not answer, before anything is begun."""
        if self.name == "ray":
            require_ray()
            require_answer(self.address)

    def __call__(self, losses: Federation, job: Job) -> SimulationEngine:
        """Build the engine."""
        losses = require_losses(losses)
        if self.name == "ray":
            self.require_ready()
            from undrift.engines.ray.engine import RayEngine

            return RayEngine(losses, job, self)
        threads = self.threads or torch.get_num_threads()
        if self.name == "auto":
            return AutoEngine(losses, job, threads, self.memory, self.chunk)
        if self.name == "serial":
            return SerialEngine(losses, job)
        found = candidates(losses, len(job.roster), threads, self.memory, self.chunk)
        engine = found.strategies[0].engine(losses, job)
        if found.reason:
            engine.strategy = f"{engine.strategy} ({found.reason})"
        return engine


def engine_options(engine: str | EngineOptions) -> EngineOptions:
    """The options of an engine that is given by its name."""
    if isinstance(engine, str):
        return EngineOptions(engine)
    require_type("engine", engine, EngineOptions, "a name or ud.EngineOptions(…)")
    return engine
