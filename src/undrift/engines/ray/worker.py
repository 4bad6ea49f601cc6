"""The actor that runs in each of Ray's worker processes.

It holds the model, the data and an engine between calls; `worker_pool` calls its methods.
"""

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
from undrift.core.uploads.norm_bounds import NormLimits
from undrift.engines.base import Job, OwnModel, SimulationEngine
from undrift.engines.choosing import ChoosingEngine
from undrift.engines.options import EngineOptions
from undrift.engines.ray.serialization import SerializedObject, deserialize, serialize
from undrift.engines.thread_pool import use_cores
from undrift.nets.module_losses import ModuleLosses
from undrift.nets.passes import PassResult
from undrift.nets.personal import Personal
from undrift.utils.errors import UndriftError
from undrift.utils.threads import one_thread


class SharedObject(NamedTuple):
    """An object that several calls need, and that is sent to each machine once."""

    number: int
    """identifies it: a worker that holds the object with this number does not fetch it again"""
    refs: list[Any]
    """its reference in Ray's object store; in a list, because Ray would replace a reference that
    is an argument itself by the object"""


@dataclass(frozen=True)
class LossesSetup:
    """What a worker needs, besides the data, to build the losses of a model."""

    module: nn.Module
    loss: Any
    metrics: Any
    personal: Personal | None = None
    step: Any = None


@dataclass(frozen=True)
class EngineSetup:
    """What a worker needs, besides the losses, to build its engine."""

    job: Job
    options: EngineOptions
    saved: Mapping[str, Any]
    """what `Engine.saved` returned where the strategy was chosen"""


@dataclass(frozen=True)
class Broadcast:
    """What all clients of a round receive, each object once."""

    method: Method
    downloads: list[Download]
    buffers: list[Mapping[str, Tensor]]
    limits: NormLimits | None = None
    """the largest allowed norms of uploads"""


@dataclass(frozen=True)
class BlockRequest:
    """The work of a block of clients."""

    assignments: list[tuple[Client, Work, int, int]]
    """client, work, and the numbers of its download and its buffers in the `Broadcast`"""
    kinds: Mapping[str, str | Tensor]
    """the kinds of vectors that the method keeps for clients"""
    kept: dict[Hashable, Keep]
    """the states of the clients that took part before"""
    round: int
    diagnose: bool


@dataclass(frozen=True)
class RemoteError:
    """The error that ended a call, sent back in place of a result."""

    kind: type[UndriftError]
    message: str


class SentStates(ClientStates):
    """The client states that came with a block; any other client has not taken part yet."""

    def __init__(self, kinds: Mapping[str, str | Tensor], x0: Tensor, kept: dict[Hashable, Keep]):
        super().__init__(kinds, x0)
        self._kept = kept


class Worker:
    """Answers calls, one after another.

    Parameters
    ----------
    fetch
        returns an object of Ray's store by its reference
    threads
        how many threads it may use
    device
        where its models are placed
    """

    def __init__(self, fetch: Callable[[Any], SerializedObject], threads: int, device: str = "cpu"):
        torch.set_num_threads(threads)
        use_cores(threads)
        self._fetch = fetch
        self._device = torch.device(device)
        self._held: dict[str, tuple[Any, Any]] = {}
        """by kind, the number and the object that is held"""

    def about(self) -> dict[str, str]:
        """The versions of its libraries, its machine and its process."""
        import undrift

        return {
            "undrift": undrift.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "host": platform.node(),
            "process": str(os.getpid()),
        }

    def call(
        self, name: str, shared: Mapping[str, SharedObject], arguments: SerializedObject
    ) -> SerializedObject:
        """Call one of the methods below by its name.

        Errors for the user are returned, not raised: Ray would wrap them and print a traceback.
        """
        try:
            found = getattr(self, name)(shared, *deserialize(arguments, self._device))
        except UndriftError as error:
            found = RemoteError(type(error), str(error))
        return serialize(found)

    # The methods that can be called

    def choose_strategy(
        self, shared: Mapping[str, SharedObject], request: BlockRequest
    ) -> tuple[dict[str, Any], str, int]:
        """Choose a strategy on a block's work.

        Returns what `Engine.saved` gives, the strategy in words, and how many assignments the
        engine prefers to get at once.
        """
        engine, method = self._engine(shared), self._broadcast(shared).method
        if isinstance(engine, ChoosingEngine):
            with one_thread():
                engine.chosen_engine(method, *self._assignments(shared, request))
        return engine.saved(), engine.strategy, engine.preferred_assignments

    def run_block(self, shared: Mapping[str, SharedObject], request: BlockRequest) -> RoundResult:
        """The replies of a block, added up."""
        engine, sent = self._engine(shared), self._broadcast(shared)
        with one_thread():
            assignments, states = self._assignments(shared, request)
            return engine.run(
                sent.method, assignments, states, request.round, request.diagnose, sent.limits
            )

    def replies(self, shared: Mapping[str, SharedObject], request: BlockRequest) -> list[Reply]:
        """The replies of a block, one by one."""
        engine, method = self._engine(shared), self._broadcast(shared).method
        with one_thread():
            assignments, states = self._assignments(shared, request)
            return list(engine.replies(method, assignments, states, request.diagnose))

    def evaluate_samples(
        self,
        shared: Mapping[str, SharedObject],
        name: str,
        weights: Tensor,
        first: int,
        last: int,
        by_client: bool,
        train_samples: int | None,
    ) -> PassResult:
        """The pass of a model over some of a part's samples."""
        losses, (x, buffers) = self._losses(shared), self._model(shared)
        assert isinstance(losses, ModuleLosses)
        result = losses.evaluate_samples(
            name, x, weights.cpu(), buffers, first, last, by_client, train_samples
        )
        return result._replace(targets=None)  # the caller has the data

    def evaluate_own(
        self,
        shared: Mapping[str, SharedObject],
        models: list[OwnModel],
        buffers: Mapping[str, Tensor],
    ) -> list[dict[str, float]]:
        """Metrics of clients' own models."""
        losses = self._losses(shared)
        return [losses.evaluate_own(k, x, buffers, parts) for k, x, parts in models]

    def gradient(self, shared: Mapping[str, SharedObject], weights: Tensor) -> Tensor:
        """Σ q_k ∇f_k over the clients whose weight is not zero, in double precision."""
        losses, (x, _) = self._losses(shared), self._model(shared)
        with one_thread():
            return losses.total_gradient(x, weights.cpu()).double()

    # The objects it holds

    def _losses(self, shared: Mapping[str, SharedObject]) -> Losses:
        def make() -> Losses:
            found = self._fetched(shared["losses"])
            if not isinstance(found, LossesSetup):
                return found
            # All workers of a machine read the same copy of the data, in Ray's shared memory.
            data = self._hold(
                "data", shared["data"].number, lambda: self._fetched(shared["data"], share=True)
            )
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="The model has buffers")
                return ModuleLosses(
                    found.module,
                    data,
                    found.loss,
                    found.metrics,
                    device=self._device,
                    personal=found.personal,
                    step=found.step,
                )

        return self._hold("losses", shared["losses"].number, make)

    def _engine(self, shared: Mapping[str, SharedObject]) -> SimulationEngine:
        def make() -> SimulationEngine:
            losses, setup = self._losses(shared), self._fetched(shared["setup"])
            engine = setup.options(losses, setup.job)
            engine.restore(setup.saved)
            return engine

        number = shared["losses"].number, shared["setup"].number
        return self._hold("engine", number, make)

    def _broadcast(self, shared: Mapping[str, SharedObject]) -> Broadcast:
        return self._held_object("broadcast", shared)

    def _model(self, shared: Mapping[str, SharedObject]) -> tuple[Tensor, Mapping[str, Tensor]]:
        return self._held_object("model", shared)

    def _held_object(self, kind: str, shared: Mapping[str, SharedObject]) -> Any:
        return self._hold(kind, shared[kind].number, lambda: self._fetched(shared[kind]))

    def _hold(self, kind: str, number: Any, make: Callable[[], Any]) -> Any:
        """The object of a kind with this number; if another one is held, replace it."""
        if kind not in self._held or self._held[kind][0] != number:
            self._held.pop(kind, None)  # first, so that memory never has to hold both
            self._held[kind] = number, make()
        return self._held[kind][1]

    def _fetched(self, shared: SharedObject, share: bool = False) -> Any:
        device = torch.device("cpu") if share else self._device
        return deserialize(self._fetch(shared.refs[0]), device, share)

    def _assignments(
        self, shared: Mapping[str, SharedObject], request: BlockRequest
    ) -> tuple[list[Assignment], ClientStates]:
        """The assignments of a block with what was broadcast to them, and the clients' states."""
        sent = self._broadcast(shared)
        assignments = [
            Assignment(client, work, sent.downloads[down], sent.buffers[buffers])
            for client, work, down, buffers in request.assignments
        ]
        x0 = self._losses(shared).initial() if request.kinds else torch.empty(0)
        return assignments, SentStates(request.kinds, x0, request.kept)
