"""What a worker does: it holds the model, the data and an engine, and does tasks with them."""

from __future__ import annotations

import os
import platform
import warnings
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from undrift.core.clients import ClientStates
from undrift.core.losses import Losses
from undrift.core.messages import Assignment, Reply
from undrift.core.method import Method
from undrift.core.problem import Client, Download, Keep, Work
from undrift.core.round_result import RoundResult
from undrift.engines.auto import AutoEngine
from undrift.engines.base import Job, OwnModel, SimulationEngine
from undrift.engines.options import EngineOptions
from undrift.engines.pool import use_cores
from undrift.engines.ray.parcels import Parcel, pack, unpack
from undrift.nets.modules import ModuleLosses
from undrift.nets.passes import Seen
from undrift.utils.errors import UndriftError
from undrift.utils.threads import one_thread


class Shared(NamedTuple):
    """Something that several tasks need, and that is sent to a machine once."""

    number: int
    """which it is: a worker that holds this one need not fetch it again"""
    refs: list[Any]
    """where it is; in a list, so that Ray hands over the reference and not the object"""


@dataclass(frozen=True)
class Recipe:
    """What makes the losses of a model, besides the data."""

    module: nn.Module
    loss: Any
    metrics: Any


@dataclass(frozen=True)
class Setting:
    """What makes an engine, besides the losses."""

    job: Job
    options: EngineOptions
    saved: Mapping[str, Any]
    """what the engine goes on with"""


@dataclass(frozen=True)
class Broadcast:
    """What is sent to all clients of a round, each thing once."""

    method: Method
    downloads: list[Download]
    buffers: list[Mapping[str, Tensor]]


@dataclass(frozen=True)
class Order:
    """The work of some clients: whose, with which of what was sent, and what they remember."""

    assignments: list[tuple[Client, Work, int, int]]
    kinds: Mapping[str, str]
    kept: dict[Hashable, Keep]
    round: int
    diagnose: bool


@dataclass(frozen=True)
class Refusal:
    """The sentence with which a task ended, instead of a result."""

    kind: type[UndriftError]
    sentence: str


class Sent(ClientStates):
    """What some clients remember; whoever is not among them has not taken part yet."""

    def __init__(self, kinds: Mapping[str, str], x0: Tensor, kept: dict[Hashable, Keep]):
        super().__init__(kinds, x0)
        self._kept = kept


class Worker:
    """Does tasks, one after another.

    Parameters
    ----------
    fetch
        gets an object by its reference
    threads
        how many threads it may use
    device
        where its models are
    """

    def __init__(self, fetch: Callable[[Any], Parcel], threads: int, device: str = "cpu"):
        torch.set_num_threads(threads)
        use_cores(threads)
        self._fetch = fetch
        self._device = torch.device(device)
        self._held: dict[str, tuple[Any, Any]] = {}

    def about(self) -> dict[str, str]:
        """The versions with which it computes, and where."""
        import undrift

        return {
            "undrift": undrift.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "host": platform.node(),
            "process": str(os.getpid()),
        }

    def do(self, task: str, shared: Mapping[str, Shared], given: Parcel) -> Parcel:
        """Do a task of those below, by its name."""
        try:
            found = getattr(self, task)(shared, *unpack(given, self._device))
        except UndriftError as error:
            found = Refusal(type(error), str(error))
        return pack(found)

    # Tasks

    def choose(self, shared: Mapping[str, Shared], order: Order) -> tuple[dict[str, Any], str, int]:
        """How the engine works, chosen on some clients' work: to go on with, in words, and how
        many clients it likes to be given."""
        engine, method = self._engine(shared), self._broadcast(shared).method
        if isinstance(engine, AutoEngine):
            with one_thread():
                engine.settled(method, *self._errands(shared, order))
        return engine.saved(), engine.strategy, engine.preferred_assignments

    def add(self, shared: Mapping[str, Shared], order: Order) -> RoundResult:
        """The work of some clients, added up."""
        engine, method = self._engine(shared), self._broadcast(shared).method
        with one_thread():
            assignments, states = self._errands(shared, order)
            return engine.run(method, assignments, states, order.round, order.diagnose)

    def reply(self, shared: Mapping[str, Shared], order: Order) -> list[Reply]:
        """The work of some clients, one by one."""
        engine, method = self._engine(shared), self._broadcast(shared).method
        with one_thread():
            assignments, states = self._errands(shared, order)
            return list(engine.replies(method, assignments, states, order.diagnose))

    def look(
        self, shared: Mapping[str, Shared], name: str, weights: Tensor, first: int, last: int
    ) -> Seen:
        """What a model gives on some of a part's samples."""
        losses, (x, buffers) = self._losses(shared), self._model(shared)
        assert isinstance(losses, ModuleLosses)
        seen = losses.look(name, x, weights.cpu(), buffers, first, last)
        return seen._replace(targets=None)  # whoever asks has them

    def own(
        self, shared: Mapping[str, Shared], models: list[OwnModel], buffers: Mapping[str, Tensor]
    ) -> list[dict[str, float]]:
        """Metrics of clients' own models."""
        losses = self._losses(shared)
        return [losses.evaluate_own(k, x, buffers, parts) for k, x, parts in models]

    def gradient(self, shared: Mapping[str, Shared], weights: Tensor) -> Tensor:
        """Σ q_k ∇f_k over the clients whose weight is not zero, in double precision."""
        losses, (x, _) = self._losses(shared), self._model(shared)
        with one_thread():
            return losses.total_gradient(x, weights.cpu()).double()

    # What it holds

    def _losses(self, shared: Mapping[str, Shared]) -> Losses:
        def make() -> Losses:
            found = self._unpacked(shared["losses"])
            if not isinstance(found, Recipe):
                return found
            data = self._hold(
                "data", shared["data"].number, lambda: self._unpacked(shared["data"], share=True)
            )
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="The model has buffers")  # said before
                return ModuleLosses(
                    found.module, data, found.loss, found.metrics, device=self._device
                )

        return self._hold("losses", shared["losses"].number, make)

    def _engine(self, shared: Mapping[str, Shared]) -> SimulationEngine:
        def make() -> SimulationEngine:
            losses, setting = self._losses(shared), self._unpacked(shared["setting"])
            engine = setting.options(losses, setting.job)
            engine.restore(setting.saved)
            return engine

        number = shared["losses"].number, shared["setting"].number
        return self._hold("engine", number, make)

    def _broadcast(self, shared: Mapping[str, Shared]) -> Broadcast:
        return self._of("broadcast", shared)

    def _model(self, shared: Mapping[str, Shared]) -> tuple[Tensor, Mapping[str, Tensor]]:
        return self._of("model", shared)

    def _of(self, kind: str, shared: Mapping[str, Shared]) -> Any:
        return self._hold(kind, shared[kind].number, lambda: self._unpacked(shared[kind]))

    def _hold(self, kind: str, number: Any, make: Callable[[], Any]) -> Any:
        """The one of a kind with this number; it replaces the one that was held before."""
        if kind not in self._held or self._held[kind][0] != number:
            self._held.pop(kind, None)  # so that there are never two of them
            self._held[kind] = number, make()
        return self._held[kind][1]

    def _unpacked(self, shared: Shared, share: bool = False) -> Any:
        device = torch.device("cpu") if share else self._device
        return unpack(self._fetch(shared.refs[0]), device, share)

    def _errands(
        self, shared: Mapping[str, Shared], order: Order
    ) -> tuple[list[Assignment], ClientStates]:
        sent = self._broadcast(shared)
        assignments = [
            Assignment(client, work, sent.downloads[down], sent.buffers[buffers])
            for client, work, down, buffers in order.assignments
        ]
        x0 = self._losses(shared).initial() if order.kinds else torch.empty(0)
        return assignments, Sent(order.kinds, x0, order.kept)
