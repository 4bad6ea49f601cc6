"""The Ray engine: blocks of clients on long-lived workers, on this machine or on many."""

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

from undrift.core.clients import ClientStates
from undrift.core.losses import Losses
from undrift.core.messages import Assignment, Reply
from undrift.core.method import Method
from undrift.core.round_result import RoundResult
from undrift.engines.base import Job, OwnModel, SimulationEngine
from undrift.engines.options import EngineOptions
from undrift.engines.pool import cores
from undrift.engines.ray import blocks
from undrift.engines.ray.cluster import cluster_has, connect, session
from undrift.engines.ray.crew import Crew, Task, crew
from undrift.engines.ray.parcels import pack
from undrift.engines.ray.worker import Broadcast, Order, Recipe, Setting, Shared
from undrift.nets.modules import ModuleLosses
from undrift.nets.passes import Seen
from undrift.utils.errors import require

RANGES = 4
"""Into so many ranges of samples per worker a part is cut that is looked at."""
GRADIENTS = 16
"""Into so many blocks of clients the gradient over all data is cut."""
OWN = 32
"""So many clients' own models are sent at a time."""
SHORT = 0.05
"""Where looking at a model takes fewer seconds, nobody else is asked to."""

_numbers = count()
_placed: dict[str, tuple[str, Any, Shared]] = {}
"""The data and the losses that were sent last: runs that follow each other share them."""


class RayEngine(SimulationEngine):
    """Trains blocks of clients on workers that Ray starts, and adds up what they send back.

    The blocks, and the order in which their sums are added, do not depend on the number of
    workers. What clients remember stays with whoever runs this: it is sent with a block and comes
    back with its result, so that a worker that dies takes nothing with it.

    Parameters
    ----------
    losses, job
        as for every engine
    options
        `workers`, `threads` of each, `address`, `gpus` of each and the engine `inner`
    """

    def __init__(self, losses: Losses, job: Job, options: EngineOptions):
        self.losses = losses
        self.job = job
        self._x0 = losses.initial()
        require(
            self._x0.device.type == "cpu" or options.gpus > 0,
            f'The model is on {self._x0.device.type!r}: with engine = "ray" leave the device to '
            f"the workers, and say by gpus which share of a GPU each has.",
        )
        self._crew = _crew(options)
        self._inner = replace(
            options, name=options.inner, threads=self._crew.threads, workers=None, address=None,
            gpus=0.0, inner="auto",
        )  # fmt: skip
        self._losses = _place_losses(losses)
        self._block = 0
        self._inside: dict[str, Any] = {}
        self._words = ""
        self._setting = self._share(Setting(job, self._inner, {}))
        self.preferred_assignments = 2 * self._crew.workers
        self._looks = _Looks()

    @property
    def strategy(self) -> str:  # type: ignore[override]
        """How it works, in a few words, once it is known."""
        workers = self._crew.workers
        return f"Ray, {workers} worker{'s' * (workers > 1)}: {self._words}" if self._words else ""

    def saved(self) -> dict[str, Any]:
        if not self._block:
            return {}
        return {**self._inside, "block": self._block, "words": self._words}

    def restore(self, saved: Mapping[str, Any]) -> None:
        if saved:
            inside = {n: v for n, v in saved.items() if n not in ("block", "words")}
            self._settle(inside, str(saved["words"]), int(saved["block"]))

    # Clients' work

    def run(
        self,
        method: Method,
        assignments: Iterable[Assignment],
        states: ClientStates,
        round: int,
        diagnose: bool = True,
    ) -> RoundResult:
        assignments = list(assignments)
        result = self.job.result(method, round, diagnose)
        if not assignments:
            return result
        sending = self._sending(method, assignments, states, round, diagnose)
        tasks = [
            sending.task("add", each) for each in blocks.cut(self.job, assignments, self._block)
        ]
        for part in self._crew.results(tasks, self._x0.device, shared=True):
            part.make_own(sums=result.replies.count == 0)  # the others are added to the first
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
        sending = self._sending(method, assignments, states, assignments[0].work.round, diagnose)
        # One by one: what a client computes must not depend on who is asked beside it.
        tasks = [
            sending.task("reply", blocks.Block([assignment], 1.0)) for assignment in assignments
        ]
        for (reply,) in self._crew.results(tasks, self._x0.device):
            yield reply

    def _sending(
        self,
        method: Method,
        assignments: Sequence[Assignment],
        states: ClientStates,
        round: int,
        diagnose: bool,
    ) -> _Sending:
        """What a round's tasks need; in the first round, choose how the workers work."""
        downloads = {id(assignment.download): assignment.download for assignment in assignments}
        buffers = {id(assignment.buffers): assignment.buffers for assignment in assignments}
        broadcast = Broadcast(method, list(downloads.values()), list(buffers.values()))
        shared = {**self._losses, "setting": self._setting, "broadcast": self._share(broadcast)}
        places = {key: k for ids in (downloads, buffers) for k, key in enumerate(ids)}
        sending = _Sending(shared, places, states, round, diagnose)
        if not self._block:
            largest = blocks.size(self.job, assignments, together=len(assignments))
            trial = blocks.cut(self.job, assignments, largest)[0]
            (chosen,) = self._crew.results([sending.task("choose", trial)])
            saved, words, together = chosen
            self._settle(saved, words, blocks.size(self.job, assignments, together))
            sending = replace(sending, shared={**shared, "setting": self._setting})
        return sending

    def _settle(self, inside: Mapping[str, Any], words: str, block: int) -> None:
        """Let all workers work in one way from now on."""
        self._inside, self._words, self._block = dict(inside), words, block
        job = self.job
        self._setting = self._share(Setting(job, self._inner, self._inside))

    # Evaluation

    def evaluate(
        self,
        x: Tensor,
        weights: Tensor,
        buffers: Mapping[str, Tensor],
        parts: Collection[str],
    ) -> dict[str, float]:
        losses, began = self.losses, time.perf_counter()
        elsewhere = isinstance(losses, ModuleLosses) and losses.in_pieces and self._looks.elsewhere
        if elsewhere:
            assert isinstance(losses, ModuleLosses)
            look = partial(self._look, losses, self._share((x, dict(buffers))), weights)
            found = losses.evaluate(x, weights, buffers, parts, look)
        else:
            found = losses.evaluate(x, weights, buffers, parts)
        self._looks.took(time.perf_counter() - began, elsewhere)
        return found

    def _look(self, losses: ModuleLosses, model: Shared, weights: Tensor, name: str) -> Seen:
        """Let the workers look at a model, each at some of a part's samples."""
        pieces = losses.pieces(name, weights)
        number = max(1, len(pieces) // (RANGES * self._crew.workers)) * pieces.step
        shared = {**self._losses, "model": model}
        ranges = [(k, min(k + number, pieces.stop)) for k in range(0, pieces.stop, number)]
        tasks = [Task("look", shared, partial(_same, (name, weights, *each))) for each in ranges]
        return losses.joined(name, weights, list(self._crew.results(tasks, self._x0.device)))

    def evaluate_own(
        self, models: Iterable[OwnModel], buffers: Mapping[str, Tensor]
    ) -> Iterator[dict[str, float]]:
        models = iter(models)
        several = list(iter(lambda: list(islice(models, OWN)), []))
        tasks = [Task("own", self._losses, partial(_same, (some, buffers))) for some in several]
        for found in self._crew.results(tasks):
            yield from found

    def total_gradient(self, x: Tensor, weights: Tensor) -> Tensor:
        shared = {**self._losses, "model": self._share((x, {}))}
        tasks = [
            Task("gradient", shared, partial(_same, (some,)))
            for some in _pieces_of(weights, self.losses.sizes)
        ]
        total = torch.zeros_like(x, dtype=torch.float64)
        for part in self._crew.results(tasks):
            total += part.to(total)
        return total.to(x.dtype)

    def _share(self, value: Any) -> Shared:
        return _share(value)


@dataclass(frozen=True)
class _Sending:
    """What the tasks of a round have in common."""

    shared: Mapping[str, Shared]
    places: Mapping[int, int]
    states: ClientStates
    round: int
    diagnose: bool

    def task(self, name: str, block: blocks.Block) -> Task:
        """The work of a block, by one of the workers."""
        who = ", ".join(repr(assignment.client.id) for assignment in block.assignments[:5])
        more = ", …" if len(block.assignments) > 5 else ""
        given = partial(self._order, block.assignments)
        return Task(name, self.shared, given, block.cost, f" (client {who}{more})")

    def _order(self, assignments: Sequence[Assignment]) -> tuple[Order]:
        """The order for some clients; their states are read when it is sent."""
        kept: dict[Hashable, Any] = {}
        if self.states.kinds:
            seen = self.states.seen()
            clients = [
                assignment.client.id for assignment in assignments if assignment.client.id in seen
            ]
            kept = {client: self.states.get(client) for client in clients}
        listed = [
            (e.client, e.work, self.places[id(e.download)], self.places[id(e.buffers)])
            for e in assignments
        ]
        return (Order(listed, self.states.kinds, kept, self.round, self.diagnose),)


class _Looks:
    """Whether it pays to let the workers look at a model: both are tried, and give the same."""

    def __init__(self) -> None:
        self._seconds: dict[bool, float] = {}

    @property
    def elsewhere(self) -> bool:
        """Whether the workers are to do it this time."""
        here = self._seconds.get(False)
        if here is None or here < SHORT:
            return False
        return self._seconds.get(True, 0.0) < here

    def took(self, seconds: float, elsewhere: bool) -> None:
        """Remember how long it took: once for each, the second time here is not the first."""
        self._seconds[elsewhere] = min(seconds, self._seconds.get(elsewhere, seconds))


def _crew(options: EngineOptions) -> Crew:
    """The workers that are asked for, on this machine or on a cluster."""
    if options.address is None:
        workers = options.workers or max(1, cores() // (options.threads or 1))
        threads = options.threads or max(1, cores() // workers)
        connect(None, workers * threads, options.gpus)
    else:
        connect(options.address, 0, options.gpus)
        threads = options.threads or 1
        workers = options.workers or max(1, int(cluster_has("CPU")) // threads)
    for share, what in ((threads, "CPU"), (options.gpus, "GPU")):
        require(
            workers * share <= cluster_has(what),
            f"{workers} workers with {share:g} {what} each are more than the {cluster_has(what):g} "
            f"that Ray has.",
        )
    return crew(workers, threads, options.gpus)


def _place_losses(losses: Losses) -> dict[str, Shared]:
    """Send the losses to where all workers find them, once; the data by themselves."""
    if not isinstance(losses, ModuleLosses):
        return {"losses": _place("losses", losses, lambda: losses)}
    data = _place("data", losses.data, lambda: losses.data)
    recipe = _place("losses", losses, lambda: Recipe(*losses.ingredients()))
    return {"losses": recipe, "data": data}


def _place(kind: str, what: Any, make: Any) -> Shared:
    before = _placed.get(kind)
    if before is None or before[0] != session() or before[1] is not what:
        _placed.pop(kind, None)
        _placed[kind] = session(), what, _share(make())
    return _placed[kind][-1]


def _share(value: Any) -> Shared:
    return Shared(next(_numbers), [ray.put(pack(value))])


def _same(given: tuple[Any, ...]) -> tuple[Any, ...]:
    return given


def _pieces_of(weights: Tensor, sizes: Tensor) -> list[Tensor]:
    """The weights cut into blocks of clients with about as many samples, zero for the others."""
    ends = (sizes.cumsum(0) * GRADIENTS - 1) // int(sizes.sum())
    pieces = [torch.where(ends == number, weights, 0.0) for number in range(GRADIENTS)]
    return [piece for piece in pieces if bool(piece.any())]
