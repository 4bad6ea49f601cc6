"""The vectorised engine: many clients at once, chunk by chunk."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import pairwise
from threading import local

import torch
from torch import Tensor

from undrift.core.clients import ClientStates
from undrift.core.diagnostics import A_NORM, MOVED, SQUARE
from undrift.core.messages import (
    CHANGE,
    COHORT,
    LAST,
    Assignment,
    Reply,
    bytes_of,
    damaged,
    statistics,
)
from undrift.core.method import Method
from undrift.core.problem import Client, Keep, LocalProblem, LocalResult, Named, Upload
from undrift.core.round_result import RoundResult
from undrift.core.uploads import Senders
from undrift.core.validation import fault, fault_of_buffers, well_shaped
from undrift.engines.base import Job, SimulationEngine
from undrift.engines.serial import SerialEngine
from undrift.engines.thread_pool import ThreadPool, spare_threads
from undrift.engines.threaded import SingleClientState, ThreadedEngine
from undrift.engines.vectorised.networks import Network
from undrift.engines.vectorised.training import Group, a_norms, train
from undrift.local.solvers import SGD
from undrift.nets.module_losses import ModuleLosses
from undrift.utils.errors import UndriftError, first_line
from undrift.utils.keys import key
from undrift.utils.memory import keep_freed_memory

BLOCK = 256
"""So many clients' batches are drawn at once."""


@dataclass(frozen=True)
class Chunk:
    """Clients that work at once, and what they remember, stacked."""

    assignments: list[Assignment]
    """most steps first"""
    group: Group
    client: Client
    mine: Keep

    @property
    def clients(self) -> list[Client]:
        """The clients one by one."""
        return [assignment.client for assignment in self.assignments]


@dataclass(frozen=True)
class Finished:
    """The work of a chunk, done: all stacked, `[C, …]`."""

    chunk: Chunk
    problem: LocalProblem
    result: LocalResult
    upload: Upload
    keep: Keep
    buffers: dict[str, Tensor]
    """statistics of the model that training changed, where one client works at a time"""


class VectorisedEngine(SimulationEngine):
    """Trains the clients of a chunk at once, and several chunks on threads.

    Clients are put in the order of their steps, and then of their ids, and cut into chunks of
    equal size. Each chunk is added up by itself in double precision, and the sums are added in that
    order, so that threads change nothing.

    Parameters
    ----------
    losses, job
        as for every engine
    network
        how the gradients of many clients are computed
    chunk
        how many clients work at once at most
    threads
        how many chunks are worked on at the same time
    """

    losses: ModuleLosses

    def __init__(
        self, losses: ModuleLosses, job: Job, network: Network, chunk: int = 8, threads: int = 1
    ):
        self.losses = losses
        self.job = job
        self.chunk = chunk if network.max_clients is None else min(chunk, network.max_clients)
        self.threads = threads
        self.together = self.chunk * threads
        self.strategy = _described(network, self.chunk, threads)
        self._network = network
        self._own = local()
        self._alone = ThreadedEngine(losses, job, threads)
        if losses.device.type == "cpu":
            keep_freed_memory()
        self._pool = ThreadPool(threads)
        self._ahead = spare_threads(threads) if losses.device.type == "cpu" else None

    def run(
        self,
        method: Method,
        assignments: Iterable[Assignment],
        states: ClientStates,
        round: int,
        diagnose: bool = True,
    ) -> RoundResult:
        result = self.job.result(method, round, diagnose)
        assignments = list(assignments)
        ahead: deque[Future[RoundResult]] = deque()
        alone, alike = self._sorted(assignments)
        for chunk in self._chunks(alike, states):
            ahead.append(self._pool.submit(self._added, method, chunk, round, diagnose))
            if len(ahead) > self.threads:  # what the next one needs is read while others compute
                result.merge(ahead.popleft().result())
        while ahead:
            result.merge(ahead.popleft().result())
        if alone:
            result.merge(self._alone.run(method, alone, states, round, diagnose))
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
        found: dict[int, Reply] = {}
        alone, alike = self._sorted(assignments)
        going = [
            (chunk.assignments, self._pool.submit(self._finished, method, chunk, lasting=True))
            for chunk in self._chunks(alike, states)
        ]
        for together, future in going:
            rows = self._rows(method, future.result(), diagnose)
            found |= {id(assignment): one for assignment, one in zip(together, rows, strict=True)}
        several = self._alone.replies(method, alone, states, diagnose)
        found |= {id(assignment): one for assignment, one in zip(alone, several, strict=True)}
        for assignment in assignments:
            yield found.pop(id(assignment))

    def _sorted(
        self, assignments: list[Assignment]
    ) -> tuple[list[Assignment], list[list[Assignment]]]:
        """Those who must work alone, and those who can work at once.

        The latter have the same model, the same solver and the same round; most steps come first.
        """
        alone = []
        alike: dict[tuple[int, int, int], list[Assignment]] = {}
        for assignment in assignments:
            solver = self.job.local.of(assignment.client.id)
            if not isinstance(solver, SGD) or solver.tolerance is not None:
                alone.append(assignment)
                continue
            which = id(assignment.download), id(solver), assignment.work.round
            alike.setdefault(which, []).append(assignment)
        for some in alike.values():
            some.sort(key=lambda assignment: -assignment.work.steps)
        return alone, list(alike.values())

    def _chunks(self, alike: list[list[Assignment]], states: ClientStates) -> Iterator[Chunk]:
        """Cut those who can work at once into chunks of equal size, with their states."""
        for assignments in alike:
            pieces = -(-len(assignments) // self.chunk)
            ends = [len(assignments) * piece // pieces for piece in range(pieces + 1)]
            per_block = max(1, BLOCK // self.chunk)
            for first in range(0, pieces, per_block):
                block = ends[first : first + per_block + 1]
                yield from self._block(assignments[block[0] : block[-1]], block, states)

    def _block(
        self, assignments: list[Assignment], ends: list[int], states: ClientStates
    ) -> Iterator[Chunk]:
        """The chunks of some clients, for all of which batches are drawn at once."""
        roster, works = self.job.roster, [assignment.work for assignment in assignments]
        solver = self.job.local.of(works[0].client)
        assert isinstance(solver, SGD)
        drawing = self._network.uses_random_numbers or self.losses.data.augmentations
        group = Group(
            self.losses,
            solver,
            [roster.place[roster.position[work.client]] for work in works],
            works,
            [key(self.job.seed, "model", w.turn, w.client) for w in works] if drawing else (),
            self._ahead,
        )
        client = Client.stack([assignment.client for assignment in assignments], self.losses.flat.x)
        for a, b in pairwise(ends):
            some = slice(a - ends[0], b - ends[0])
            mine = states.gather([work.client for work in works[some]])
            yield Chunk(assignments[some], group.of(some), client.of(some), mine)

    def _added(self, method: Method, chunk: Chunk, round: int, diagnose: bool) -> RoundResult:
        """The work of a chunk, added up."""
        finished = self._finished(method, chunk)
        result = self.job.result(method, round, diagnose)
        damage = any(assignment.work.damaged for assignment in chunk.assignments)
        shaped = well_shaped(method, finished.upload, finished.result.x)
        if shaped and not damage and not finished.buffers:
            result.take_several(self._stacked(finished, diagnose), chunk.clients)
            if result.finite():
                return result
            result = self.job.result(method, round, diagnose)
        for reply in self._rows(method, finished, diagnose):  # one by one, to leave out the wrong
            result.take(reply)
        return result

    def _finished(self, method: Method, chunk: Chunk, lasting: bool = False) -> Finished:
        """Let the clients of a chunk do their work.

        Unless it is to be `lasting`, where they ended is there until the thread's next chunk.
        """
        if not hasattr(self._own, "network"):  # a network of its own for every thread
            self._own.network = self._network.copy()
        network: Network = self._own.network
        group, works = chunk.group, chunk.group.works
        down, client = chunk.assignments[0].download, chunk.client
        problem = method.problem(down, chunk.mine, client)
        network.load_buffers(chunk.assignments[0].buffers)
        try:
            with torch.no_grad():
                trained = train(network, problem, group)
        except UndriftError:
            raise
        except Exception as error:
            self._blame_one(method, chunk)
            who = ", ".join(repr(work.client) for work in works)
            raise UndriftError(
                f"The model failed on client {who} in round {works[0].round + 1}: "
                f"{first_line(error)}."
            ) from error

        norms = a_norms(problem, group)
        rows = [(w.steps, w.expected, a) for w, a in zip(works, norms, strict=True)]
        steps, expected, a_norm = trained.x.new_tensor(rows).split(1, dim=1)
        result = LocalResult(
            x=trained.x,
            steps=steps,
            expected=expected,
            a_norm=a_norm,
            rate=works[0].rate,
            first_gradient=trained.first_gradient,
            last_gradient=trained.last_gradient,
            evaluations=trained.evaluations,
        )
        senders = Senders(self.job.seed, works)
        upload, keep = self.job.uploads.finish(method, down, chunk.mine, result, client, senders)
        watched = self.job.tracked.cohort or self.job.tracked.last
        if lasting or watched or _share(trained.x, upload, keep):
            network.release_vectors()
        return Finished(chunk, problem, result, upload, keep, network.buffers())

    def _blame_one(self, method: Method, chunk: Chunk) -> None:
        """Say which client of a chunk the model fails on, if it does so on one by itself."""
        engine = SerialEngine(self.losses.thread_copy(), self.job)
        for row, assignment in enumerate(chunk.assignments):
            mine = SingleClientState(chunk.mine.row(row))
            list(engine.replies(method, [assignment], mine, diagnose=False))

    def _stacked(self, done: Finished, diagnose: bool) -> Reply:
        """The replies of a chunk as one, `[C, …]`."""
        upload, keep, x = done.upload, done.keep, done.result.x
        tracked, chunk = self.job.tracked, done.chunk
        number = len(chunk.assignments)
        down = chunk.assignments[0].download
        travels = statistics(chunk.assignments[0].buffers)
        received = {n: number * size for n, size in (bytes_of(down) | travels).items()}
        sent = {n: number * size for n, size in (bytes_of(upload.row(0)) | travels).items()}
        if tracked.cohort:
            upload = upload.replace(**{COHORT: x})
        if tracked.last:
            upload = upload.replace(**{CHANGE: x - getattr(chunk.mine, LAST)})
            keep = keep.replace(**{LAST: x})
        if diagnose:
            moved = x - (down.x if "x" in down else done.problem.start)
            upload = upload.replace(
                **{
                    MOVED: moved,
                    SQUARE: moved.double().square().sum(1),
                    A_NORM: torch.as_tensor(done.result.a_norm).double(),
                }
            )
        works = [assignment.work for assignment in chunk.assignments]
        return Reply(
            client=chunk.client,
            upload=upload,
            keep=keep,
            buffers=done.buffers,
            steps=sum(work.steps for work in works),
            evaluations=done.result.evaluations,
            complete=sum(work.steps >= work.expected for work in works),
            down=received,
            up=sent,
        )

    def _rows(self, method: Method, done: Finished, diagnose: bool) -> Iterator[Reply]:
        """The replies of a chunk one by one."""
        whole = self._stacked(done, diagnose)
        number = len(done.chunk.assignments)
        first = "first_gradient" in done.problem.ask
        for row, assignment in enumerate(done.chunk.assignments):
            upload, keep = done.upload.row(row), done.keep.row(row)
            if assignment.work.damaged:
                upload = damaged(upload)
            wrong = fault(method, upload, keep, done.result.x[row])
            wrong = wrong or fault_of_buffers(done.buffers)
            solver, samples = done.chunk.group.solver, int(assignment.client.samples)
            yield replace(
                whole,
                client=assignment.client,
                upload=whole.upload.row(row) if wrong is None else upload,
                keep=whole.keep.row(row) if wrong is None else keep,
                steps=assignment.work.steps,
                evaluations=solver.evaluations(assignment.work.steps, samples) + first * samples,
                complete=assignment.work.steps >= assignment.work.expected,
                down={name: size // number for name, size in whole.down.items()},
                up={name: size // number for name, size in whole.up.items()},
                wrong=wrong,
            )


def _share(x: Tensor, *several: Named) -> bool:
    """Whether anything that outlives a chunk is, or is a view of, where its clients ended."""
    place = x.untyped_storage().data_ptr()
    return any(
        isinstance(value, Tensor) and value.untyped_storage().data_ptr() == place
        for values in several
        for _, value in values.items()
    )


def _described(network: Network, chunk: int, threads: int) -> str:
    """A strategy in a few words."""
    what = network.name + (", channels last" if network.channels_last else "")
    many = f", {chunk} clients at once" if chunk > 1 else ""
    return f"{what}{many}, {threads} thread{'s' if threads > 1 else ''}"
