"""The user's choice of an engine and its limits, and how an engine is made from them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from undrift.core.losses import Federation, Losses, require_losses
from undrift.engines.auto import AutoEngine
from undrift.engines.base import Job, SimulationEngine
from undrift.engines.mixed_precision import mixed_engine, mixed_losses
from undrift.engines.ray.cluster import require_ray, require_reachable
from undrift.engines.serial import SerialEngine
from undrift.engines.strategies import candidates, slow_loss_message
from undrift.engines.tuned import TunedEngine
from undrift.local.base import Local
from undrift.nets.criteria import FP32, PRECISIONS
from undrift.utils.errors import (
    require,
    require_choice,
    require_range,
    require_type,
    require_whole,
    warn,
)
from undrift.utils.reprs import short_repr

ENGINES = {
    "auto": "the way that should be fastest, by a rule that reads no clock",
    "tuned": "the fastest way, timed on the first round's work and remembered",
    "vectorised": "many clients at once wherever the model allows it",
    "serial": "one client after another",
    "ray": "blocks of clients on the workers of a Ray cluster, or of this machine",
}
"""Every engine by name, with a description for help texts."""


@dataclass(frozen=True)
class EngineOptions:
    """Which engine computes the clients' work, and what it may use.

    Parameters
    ----------
    name
        "auto", "tuned", "vectorised", "serial" or "ray"
    threads
        how many threads the engine may use, with Ray each worker; None: as many as torch uses, or
        with Ray the cores of this machine divided by the workers
    chunk
        how many clients train at once; None: chosen to suit the model
    memory
        the most megabytes for the models of clients that train, which bounds the chunk; with Ray,
        for each worker
    workers
        how many worker processes Ray starts; None: one for every core, or one for every `threads`
        cores
    address
        the Ray cluster to use: "auto" for the one that this machine belongs to, or its head's
        "host:port"; None: this machine alone
    gpus
        the share of a GPU that each of Ray's workers gets (0.25: four workers share one)
    inner
        the engine inside each of Ray's workers: "auto", "tuned", "vectorised" or "serial"
    precision
        "fp32", or "bf16" for mixed precision: clients compute gradients in bfloat16, one client
        after another in each thread, while weights, updates, method and evaluation stay in float32.
        It changes results, so a resumed run must keep it. On a GPU it is meant to do the same, but
        was never tried there
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
    precision: str = FP32

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
        require_choice("The engine's precision", self.precision, PRECISIONS)
        require(
            self.precision == FP32 or self.chunk in (None, 1),
            f"With precision = {self.precision!r} a thread trains one client at a time, but chunk "
            f"is {self.chunk}: leave chunk out.",
        )
        for name, default in (("workers", None), ("address", None), ("gpus", 0), ("inner", "auto")):
            require(
                self.name == "ray" or getattr(self, name) == default,
                f"{name} is for engine = 'ray' only, but the engine is {self.name!r}.",
            )

    def require_ready(self) -> None:
        """Raise an error if Ray is not installed or its cluster does not answer."""
        if self.name == "ray":
            require_ray()
            require_reachable(self.address)

    def __call__(self, losses: Federation, job: Job) -> SimulationEngine:
        """Build the engine."""
        losses = require_losses(losses)
        if self.precision != FP32:
            losses = mixed_losses(losses, job.local, self.precision)
        if self.name == "ray":
            self.require_ready()
            from undrift.engines.ray.engine import RayEngine

            return RayEngine(losses, job, self)
        threads = self.threads or torch.get_num_threads()
        if self.precision != FP32:
            return mixed_engine(losses, job, 0 if self.name == "serial" else threads)
        if self.name in ("auto", "tuned"):
            kind = AutoEngine if self.name == "auto" else TunedEngine
            return kind(losses, job, threads, self.memory, self.chunk)
        if self.name == "serial":
            return SerialEngine(losses, job)
        clients = len(job.roster)
        found = candidates(losses, job.local, clients, threads, self.memory, self.chunk)
        engine = found.many_at_once.engine(losses, job)
        if found.reason:
            engine.strategy = f"{engine.strategy} ({found.reason})"
        return engine

    def warn_about_slow_loss(self, losses: Federation, local: Iterable[Local]) -> bool:
        """Warn if only the loss forces clients to train one by one; returns whether it warned.

        `local` is the local work of the runs. There is no warning if the user asked for clients
        one by one, or if their solvers allow nothing else.
        """
        one_by_one = "serial" in (self.name, self.inner) or self.chunk == 1
        if one_by_one or not isinstance(losses, Losses):
            return False
        solvers = [each.of(losses.ids[0]) for each in local]
        if not any(each.many_at_once for each in solvers):
            return False
        message = slow_loss_message(losses)
        if message is not None:
            warn(message)
        return message is not None


def engine_options(engine: str | EngineOptions) -> EngineOptions:
    """The options of an engine that is given by its name or by options."""
    if isinstance(engine, str):
        return EngineOptions(engine)
    require_type("engine", engine, EngineOptions, "a name or ud.EngineOptions(…)")
    return engine
