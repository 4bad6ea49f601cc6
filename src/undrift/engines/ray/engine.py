"""The Ray engine: long-lived workers, on this machine or a cluster, train blocks of clients."""

from __future__ import annotations

import time
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, islice
from typing import Any

import ray
import torch
from torch import Tensor

from undrift.core.client_metrics import ClientMetrics
from undrift.core.clients import ClientStates
from undrift.core.losses import Losses
from undrift.core.messages import Assignment, Reply
from undrift.core.method import Method
from undrift.core.round_result import RoundResult
from undrift.core.uploads.norm_bounds import NormLimits
from undrift.engines.base import Job, OwnModel, SimulationEngine
from undrift.engines.options import EngineOptions
from undrift.engines.ray.blocks import Block, block_size, make_blocks
from undrift.engines.ray.cluster import cluster_resource, connect, session_id
from undrift.engines.ray.serialization import serialize
from undrift.engines.ray.worker import (
    BlockRequest,
    Broadcast,
    EngineSetup,
    LossesSetup,
    SharedObject,
)
from undrift.engines.ray.worker_pool import RemoteCall, WorkerPool, worker_pool
from undrift.engines.thread_pool import cores
from undrift.nets.module_losses import ModuleLosses
from undrift.nets.passes import PassResult
from undrift.utils.errors import require

RANGES_PER_WORKER = 4
"""Into how many ranges of samples per worker an evaluated part is cut."""
GRADIENT_BLOCKS = 16
"""Into how many blocks of clients the gradient over all data is cut, for any number of workers."""
OWN_MODELS = 32
"""How many clients' own models are sent in one call."""
SHORT_SECONDS = 0.05
"""An evaluation that takes less time stays in the calling process."""
CLIENTS_IN_ERRORS = 5
"""How many clients of a block an error message lists."""

_object_numbers = count()
_placed: dict[str, tuple[str, Any, SharedObject]] = {}
"""The data and losses that were put into Ray's store last, with the session they belong to: runs
that follow each other share them."""


class RayEngine(SimulationEngine):
    """Trains blocks of clients on Ray's workers, and adds up their results.

    Neither the blocks nor the order in which their sums are added depend on the number of
    workers. Clients' states stay in this process: they are sent with a block and come back with
    its result, so that nothing is lost if a worker dies.

    Parameters
    ----------
    losses, job
        as for every engine
    options
        `workers`, `threads` of each, `address`, `gpus` of each, and the engine `inner` of each
    """

    def __init__(self, losses: Losses, job: Job, options: EngineOptions):
        self.losses = losses
        self.job = job
        self._x0 = losses.initial()
        require(
            self._x0.device.type == "cpu" or options.gpus > 0,
            f'The model is on {self._x0.device.type!r}: with engine = "ray" leave out the device '
            f"and set gpus, the share of a GPU that each worker has.",
        )
        self._pool = _pool_for(options)
        self._inner = replace(
            options, name=options.inner, threads=self._pool.threads, workers=None, address=None,
            gpus=0.0, inner="auto",
        )  # fmt: skip
        self._losses = _place_losses(losses)
        self._block_size = 0
        """clients per block; 0 until the workers' strategy is chosen"""
        self._inner_saved: dict[str, Any] = {}
        self._inner_strategy = ""
        self._setup = _share(EngineSetup(job, self._inner, {}))
        self.preferred_assignments = 2 * self._pool.workers
        self._timing = _EvaluationTiming()

    @property
    def strategy(self) -> str:  # type: ignore[override]
        """The workers and their strategy in a few words; empty until there is one."""
        workers, inner = self._pool.workers, self._inner_strategy
        return f"Ray, {workers} worker{'s' * (workers > 1)}: {inner}" if inner else ""

    def saved(self) -> dict[str, Any]:
        if not self._block_size:
            return {}
        return {**self._inner_saved, "block": self._block_size, "words": self._inner_strategy}

    def restore(self, saved: Mapping[str, Any]) -> None:
        if saved:
            inner = {n: v for n, v in saved.items() if n not in ("block", "words")}
            self._set_strategy(inner, str(saved["words"]), int(saved["block"]))

    # Clients' work

    def run(
        self,
        method: Method,
        assignments: Iterable[Assignment],
        states: ClientStates,
        round: int,
        diagnose: bool = True,
        limits: NormLimits | None = None,
    ) -> RoundResult:
        assignments = list(assignments)
        result = self.job.result(method, round, diagnose)
        if not assignments:
            return result
        calls_of_round = self._round_calls(method, assignments, states, round, diagnose, limits)
        calls = [
            calls_of_round.call("run_block", block)
            for block in make_blocks(self.job, assignments, self._block_size)
        ]
        for part in self._pool.results(calls, self._x0.device, shared=True):
            # Results are Ray's memory, which ends with this loop. Client states are copied out of
            # it; the sums only in the first result, to which those of the others are added.
            part.make_own(sums=result.replies.count == 0)
            result.merge(part)
        result.arrange([assignment.client.id for assignment in assignments])
        return result

    def replies(
        self,
        method: Method,
        assignments: Iterable[Assignment],
        states: ClientStates,
        diagnose: bool = True,
    ) -> Iterator[Reply]:
        assignments = list(assignments)
        if not assignments:
            return
        round = assignments[0].work.round
        calls_of_round = self._round_calls(method, assignments, states, round, diagnose)
        # One client per call: its reply must not depend on which others are asked with it.
        calls = [
            calls_of_round.call("replies", Block([assignment], 1.0)) for assignment in assignments
        ]
        for (reply,) in self._pool.results(calls, self._x0.device):
            yield reply

    def _round_calls(
        self,
        method: Method,
        assignments: Sequence[Assignment],
        states: ClientStates,
        round: int,
        diagnose: bool,
        limits: NormLimits | None = None,
    ) -> _RoundCalls:
        """What a round's calls share; in the first round, choose the workers' strategy."""
        downloads = {id(assignment.download): assignment.download for assignment in assignments}
        buffers = {id(assignment.buffers): assignment.buffers for assignment in assignments}
        broadcast = Broadcast(method, list(downloads.values()), list(buffers.values()), limits)
        shared = {**self._losses, "setup": self._setup, "broadcast": _share(broadcast)}
        numbers = {key: k for ids in (downloads, buffers) for k, key in enumerate(ids)}
        found = _RoundCalls(shared, numbers, states, round, diagnose)
        if not self._block_size:
            # One worker chooses for all, on the largest block that there may be: workers that
            # timed strategies themselves could choose different ones, and so different bits.
            largest = block_size(self.job, assignments, together=len(assignments))
            trial = make_blocks(self.job, assignments, largest)[0]
            (chosen,) = self._pool.results([found.call("choose_strategy", trial)])
            saved, strategy, together = chosen
            self._set_strategy(saved, strategy, block_size(self.job, assignments, together))
            found = replace(found, shared={**shared, "setup": self._setup})
        return found

    def _set_strategy(self, saved: Mapping[str, Any], strategy: str, size: int) -> None:
        """Let all workers use one strategy from here on."""
        self._inner_saved, self._inner_strategy, self._block_size = dict(saved), strategy, size
        self._setup = _share(EngineSetup(self.job, self._inner, self._inner_saved))

    # Evaluation

    def evaluate(
        self,
        x: Tensor,
        weights: Tensor,
        buffers: Mapping[str, Tensor],
        parts: Collection[str],
        clients: ClientMetrics | None = None,
        train_samples: int | None = None,
    ) -> dict[str, float]:
        losses, began = self.losses, time.perf_counter()
        in_pieces = isinstance(losses, ModuleLosses) and losses.evaluates_in_pieces
        on_workers = in_pieces and self._timing.on_workers
        if on_workers:
            assert isinstance(losses, ModuleLosses)
            model = _share((x, dict(buffers)))
            run_pass = partial(
                self._pass_on_workers, losses, model, weights, clients is not None, train_samples
            )
            found = losses.evaluate(x, weights, buffers, parts, run_pass, clients, train_samples)
        else:
            found = super().evaluate(x, weights, buffers, parts, clients, train_samples)
        self._timing.add(time.perf_counter() - began, on_workers)
        return found

    def _pass_on_workers(
        self,
        losses: ModuleLosses,
        model: SharedObject,
        weights: Tensor,
        by_client: bool,
        train_samples: int | None,
        name: str,
    ) -> PassResult:
        """Evaluate a part on the workers, each call a range of whole pieces."""
        pieces = losses.pieces(name, weights, train_samples)
        samples = max(1, len(pieces) // (RANGES_PER_WORKER * self._pool.workers)) * pieces.step
        shared = {**self._losses, "model": model}
        ranges = [(k, min(k + samples, pieces.stop)) for k in range(0, pieces.stop, samples)]
        calls = [
            RemoteCall(
                "evaluate_samples",
                shared,
                _constant(name, weights, *each, by_client, train_samples),
            )
            for each in ranges
        ]
        results = list(self._pool.results(calls, self._x0.device))
        return losses.join_results(name, weights, results, train_samples)

    def evaluate_own(
        self, models: Iterable[OwnModel], buffers: Mapping[str, Tensor]
    ) -> Iterator[dict[str, float]]:
        models = iter(models)
        several = list(iter(lambda: list(islice(models, OWN_MODELS)), []))
        calls = [
            RemoteCall("evaluate_own", self._losses, _constant(some, buffers)) for some in several
        ]
        for found in self._pool.results(calls):
            yield from found

    def total_gradient(self, x: Tensor, weights: Tensor) -> Tensor:
        shared = {**self._losses, "model": _share((x, {}))}
        calls = [
            RemoteCall("gradient", shared, _constant(some))
            for some in _blocks_of_weights(weights, self.losses.sizes)
        ]
        total = torch.zeros_like(x, dtype=torch.float64)
        for part in self._pool.results(calls):
            total += part.to(total)
        return total.to(x.dtype)


@dataclass(frozen=True)
class _RoundCalls:
    """Makes the calls of a round; holds what they have in common."""

    shared: Mapping[str, SharedObject]
    numbers: Mapping[int, int]
    """the numbers of downloads and of buffers in the `Broadcast`, by their `id`"""
    states: ClientStates
    round: int
    diagnose: bool

    def call(self, method: str, block: Block) -> RemoteCall:
        """A call with the work of a block."""
        listed = block.assignments[:CLIENTS_IN_ERRORS]
        who = ", ".join(repr(assignment.client.id) for assignment in listed)
        more = ", …" if len(block.assignments) > len(listed) else ""
        arguments = partial(self._request, block.assignments)
        return RemoteCall(method, self.shared, arguments, block.cost, f" (client {who}{more})")

    def _request(self, assignments: Sequence[Assignment]) -> tuple[BlockRequest]:
        """The argument of a call; the clients' states are read when the call is sent."""
        kept: dict[Hashable, Any] = {}
        if self.states.kinds:
            seen = self.states.seen()
            clients = [
                assignment.client.id for assignment in assignments if assignment.client.id in seen
            ]
            kept = {client: self.states.get(client) for client in clients}
        listed = [
            (e.client, e.work, self.numbers[id(e.download)], self.numbers[id(e.buffers)])
            for e in assignments
        ]
        return (BlockRequest(listed, self.states.kinds, kept, self.round, self.diagnose),)


class _EvaluationTiming:
    """Whether evaluation is faster on the workers: both are timed, and give the same bits."""

    def __init__(self) -> None:
        self._seconds: dict[bool, float] = {}
        """the shortest time on the workers (True) and in this process (False)"""

    @property
    def on_workers(self) -> bool:
        """Whether the workers should do the next evaluation."""
        here = self._seconds.get(False)
        if here is None or here < SHORT_SECONDS:
            return False
        return self._seconds.get(True, 0.0) < here

    def add(self, seconds: float, on_workers: bool) -> None:
        """Note how long an evaluation took; the shortest counts, as the first one is slower."""
        self._seconds[on_workers] = min(seconds, self._seconds.get(on_workers, seconds))


def _pool_for(options: EngineOptions) -> WorkerPool:
    """The worker pool that the options ask for, on this machine or on a cluster."""
    if options.address is None:
        workers = options.workers or max(1, cores() // (options.threads or 1))
        threads = options.threads or max(1, cores() // workers)
        connect(None, workers * threads, options.gpus)
    else:
        connect(options.address, 0, options.gpus)
        threads = options.threads or 1
        workers = options.workers or max(1, int(cluster_resource("CPU")) // threads)
    for share, name in ((threads, "CPU"), (options.gpus, "GPU")):
        has = cluster_resource(name)
        require(
            workers * share <= has,
            f"{workers} workers with {share:g} {name} each are more than the {has:g} that Ray has.",
        )
    return worker_pool(workers, threads, options.gpus)


def _place_losses(losses: Losses) -> dict[str, SharedObject]:
    """Put the losses into Ray's store, and the data separately, which several losses may share."""
    if not isinstance(losses, ModuleLosses):
        return {"losses": _place("losses", losses, lambda: losses)}
    data = _place("data", losses.data, lambda: losses.data)
    setup = _place(
        "losses", losses, lambda: LossesSetup(*losses.constructor_arguments(), losses.step)
    )
    return {"losses": setup, "data": data}


def _place(kind: str, owner: Any, make: Any) -> SharedObject:
    """The shared object of `owner`, made and put into Ray's store if it is not there yet."""
    before = _placed.get(kind)
    if before is None or before[0] != session_id() or before[1] is not owner:
        _placed.pop(kind, None)  # first, so that Ray's store never has to hold both
        _placed[kind] = session_id(), owner, _share(make())
    return _placed[kind][-1]


def _share(value: Any) -> SharedObject:
    """Put an object into Ray's store."""
    return SharedObject(next(_object_numbers), [ray.put(serialize(value))])


def _constant(*arguments: Any) -> Any:
    """A function that returns these arguments."""
    return lambda: arguments


def _blocks_of_weights(weights: Tensor, sizes: Tensor) -> list[Tensor]:
    """The weights cut into blocks of clients with about equally many samples each.

    Each block is `[N]`, with zero for the clients outside of it.
    """
    blocks = (sizes.cumsum(0) * GRADIENT_BLOCKS - 1) // int(sizes.sum())
    pieces = [torch.where(blocks == number, weights, 0.0) for number in range(GRADIENT_BLOCKS)]
    return [piece for piece in pieces if bool(piece.any())]
