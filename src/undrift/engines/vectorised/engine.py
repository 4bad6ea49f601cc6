"""The vectorised engine: trains many clients at once, chunk by chunk, on several threads.

What is shared between threads: losses, job, method and data, which are only read. What each thread
has for itself: its copy of the network, with the parameters and buffers of the clients it trains.
Client states are read by the calling thread only.
"""

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
    buffer_bytes,
    bytes_of,
    damaged,
)
from undrift.core.method import Method
from undrift.core.problem import Client, Keep, LocalProblem, LocalResult, Named, Upload
from undrift.core.round_result import RoundResult
from undrift.core.uploads import Senders
from undrift.core.validation import buffer_fault, fault, well_shaped
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

GROUP_CLIENTS = 256
"""Batches are drawn for this many clients at once: enough to make the cost per call small, few
enough that the indices of a large cohort's batches are never all in memory."""


@dataclass(frozen=True)
class Chunk:
    """Clients that are trained at once, with their states, stacked."""

    assignments: list[Assignment]
    """those with most steps first"""
    group: Group
    client: Client
    """all clients as one, with `[C, 1]` tensors"""
    mine: Keep
    """the states of all clients, `[C, …]`"""

    @property
    def clients(self) -> list[Client]:
        """The clients as separate objects."""
        return [assignment.client for assignment in self.assignments]


@dataclass(frozen=True)
class TrainedChunk:
    """The result of a chunk's work, stacked, `[C, …]`."""

    chunk: Chunk
    problem: LocalProblem
    result: LocalResult
    upload: Upload
    keep: Keep
    buffers: dict[str, Tensor]
    """buffers that training changed; only a network of one client at a time has any"""


class VectorisedEngine(SimulationEngine):
    """Trains the clients of a chunk at once, and several chunks on threads.

    Clients are sorted by their number of steps (clients with equal steps keep the order of the
    cohort) and cut into chunks of about equal size. Each chunk is summed separately in double
    precision, and the sums are added in the order of the chunks. Therefore the number of threads
    changes no bit of the result.

    Parameters
    ----------
    losses, job
        as for every engine
    network
        how the gradients of many clients are computed
    chunk
        the largest number of clients that are trained at once
    threads
        the number of chunks that are trained at the same time
    """

    losses: ModuleLosses

    def __init__(
        self, losses: ModuleLosses, job: Job, network: Network, chunk: int = 8, threads: int = 1
    ):
        self.losses = losses
        self.job = job
        self.chunk = chunk if network.max_clients is None else min(chunk, network.max_clients)
        self.threads = threads
        self.preferred_assignments = self.chunk * threads
        self.strategy = _strategy_name(network, self.chunk, threads)
        self._network = network
        self._thread = local()
        self._single_client_engine = ThreadedEngine(losses, job, threads)
        if losses.device.type == "cpu":
            keep_freed_memory()
        self._pool = ThreadPool(threads)
        # Cores without a training thread gather the samples of the next batches.
        self._gatherers = spare_threads(threads) if losses.device.type == "cpu" else None

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
        pending: deque[Future[RoundResult]] = deque()
        single, groups = self._grouped(assignments)
        for chunk in self._chunks(groups, states):
            pending.append(self._pool.submit(self._chunk_result, method, chunk, round, diagnose))
            # One chunk more than there are threads: while they train, this thread reads the states
            # of the next chunk. More would hold the states of a whole cohort in memory.
            if len(pending) > self.threads:
                result.merge(pending.popleft().result())  # oldest first: a fixed order of sums
        while pending:
            result.merge(pending.popleft().result())
        if single:
            result.merge(self._single_client_engine.run(method, single, states, round, diagnose))
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
        single, groups = self._grouped(assignments)
        pending = [
            (chunk.assignments, self._pool.submit(self._train, method, chunk, lasting=True))
            for chunk in self._chunks(groups, states)
        ]
        for trained, future in pending:
            rows = self._single_replies(method, future.result(), diagnose)
            found |= {id(assignment): one for assignment, one in zip(trained, rows, strict=True)}
        several = self._single_client_engine.replies(method, single, states, diagnose)
        found |= {id(assignment): one for assignment, one in zip(single, several, strict=True)}
        for assignment in assignments:
            yield found.pop(id(assignment))

    def _grouped(
        self, assignments: list[Assignment]
    ) -> tuple[list[Assignment], list[list[Assignment]]]:
        """Assignments that must be trained one by one, and groups that can be trained at once.

        A group has the same download, solver and round, because its clients share starting point,
        step sizes and kind of step. Only SGD and GD with a known number of steps can be trained at
        once: an exact solver takes no steps, and with a tolerance each client stops on its own.
        """
        single = []
        groups: dict[tuple[int, int, int], list[Assignment]] = {}
        for assignment in assignments:
            solver = self.job.local.of(assignment.client.id)
            if not isinstance(solver, SGD) or solver.tolerance is not None:
                single.append(assignment)
                continue
            which = id(assignment.download), id(solver), assignment.work.round
            groups.setdefault(which, []).append(assignment)
        for group in groups.values():
            # Most steps first: clients that still train are then always the first rows of a chunk,
            # and clients of a chunk have about equal numbers of steps.
            group.sort(key=lambda assignment: -assignment.work.steps)
        return single, list(groups.values())

    def _chunks(self, groups: list[list[Assignment]], states: ClientStates) -> Iterator[Chunk]:
        """Cut groups into chunks, with the clients' states.

        The sizes of a group's chunks differ by one at most, so that no thread gets much less work
        than the others.
        """
        for assignments in groups:
            number = -(-len(assignments) // self.chunk)
            ends = [len(assignments) * piece // number for piece in range(number + 1)]
            step = max(1, GROUP_CLIENTS // self.chunk)
            for first in range(0, number, step):
                part = ends[first : first + step + 1]
                yield from self._drawn_at_once(assignments[part[0] : part[-1]], part, states)

    def _drawn_at_once(
        self, assignments: list[Assignment], ends: list[int], states: ClientStates
    ) -> Iterator[Chunk]:
        """The chunks of up to `GROUP_CLIENTS` clients, whose batches are drawn in one call."""
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
            self._gatherers,
        )
        client = Client.stack([assignment.client for assignment in assignments], self.losses.flat.x)
        for a, b in pairwise(ends):
            some = slice(a - ends[0], b - ends[0])
            mine = states.gather([work.client for work in works[some]])
            yield Chunk(assignments[some], group.of(some), client.of(some), mine)

    def _chunk_result(
        self, method: Method, chunk: Chunk, round: int, diagnose: bool
    ) -> RoundResult:
        """Train a chunk and sum its replies."""
        trained = self._train(method, chunk)
        result = self.job.result(method, round, diagnose)
        damage = any(assignment.work.damaged for assignment in chunk.assignments)
        shaped = well_shaped(method, trained.upload, trained.result.x)
        if shaped and not damage and not trained.buffers:
            result.take_several(self._stacked_reply(trained, diagnose), chunk.clients)
            # A NaN or Inf of one client makes a sum NaN or Inf: a few sums tell that all rows are
            # finite, without a check of each row.
            if result.finite():
                return result
            result = self.job.result(method, round, diagnose)
        # A sum cannot tell which client spoiled it. Add the replies one by one, so that only the
        # wrong ones are rejected, with the same reasons as by the serial engine.
        for reply in self._single_replies(method, trained, diagnose):
            result.take(reply)
        return result

    def _train(self, method: Method, chunk: Chunk, lasting: bool = False) -> TrainedChunk:
        """Train the clients of a chunk.

        Unless `lasting`, the clients' models are in the network's memory: the next chunk of this
        thread overwrites them.
        """
        if not hasattr(self._thread, "network"):  # a network holds parameters: one per thread
            self._thread.network = self._network.copy()
        network: Network = self._thread.network
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
            self._fail_on_one_client(method, chunk)
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
        # The memory of the models is reused for the next chunk, unless someone still needs it.
        tracked = self.job.tracked.cohort or self.job.tracked.last
        if lasting or tracked or _shares_memory(trained.x, upload, keep):
            network.release_vectors()
        return TrainedChunk(chunk, problem, result, upload, keep, network.buffers())

    def _fail_on_one_client(self, method: Method, chunk: Chunk) -> None:
        """Train the clients one by one: if the model fails on one, the error names that client."""
        engine = SerialEngine(self.losses.thread_copy(), self.job)
        for row, assignment in enumerate(chunk.assignments):
            mine = SingleClientState(chunk.mine.row(row))
            list(engine.replies(method, [assignment], mine, diagnose=False))

    def _stacked_reply(self, trained: TrainedChunk, diagnose: bool) -> Reply:
        """The replies of a chunk as one, `[C, …]`, with sums of bytes, steps and evaluations."""
        upload, keep, x = trained.upload, trained.keep, trained.result.x
        tracked, chunk = self.job.tracked, trained.chunk
        number = len(chunk.assignments)
        down = chunk.assignments[0].download
        # As in the serial engine, bytes are counted without tracked models and diagnostics.
        buffers_sent = buffer_bytes(chunk.assignments[0].buffers)
        received = {n: number * size for n, size in (bytes_of(down) | buffers_sent).items()}
        sent = {n: number * size for n, size in (bytes_of(upload.row(0)) | buffers_sent).items()}
        if tracked.cohort:
            upload = upload.replace(**{COHORT: x})
        if tracked.last:
            upload = upload.replace(**{CHANGE: x - getattr(chunk.mine, LAST)})
            keep = keep.replace(**{LAST: x})
        if diagnose:
            moved = x - (down.x if "x" in down else trained.problem.start)
            upload = upload.replace(
                **{
                    MOVED: moved,
                    SQUARE: moved.double().square().sum(1),
                    A_NORM: torch.as_tensor(trained.result.a_norm).double(),
                }
            )
        works = [assignment.work for assignment in chunk.assignments]
        return Reply(
            client=chunk.client,
            upload=upload,
            keep=keep,
            buffers=trained.buffers,
            steps=sum(work.steps for work in works),
            evaluations=trained.result.evaluations,
            complete=sum(work.steps >= work.expected for work in works),
            down=received,
            up=sent,
        )

    def _single_replies(
        self, method: Method, trained: TrainedChunk, diagnose: bool
    ) -> Iterator[Reply]:
        """The replies of a chunk one by one, wrong ones with the reason."""
        stacked = self._stacked_reply(trained, diagnose)
        number = len(trained.chunk.assignments)
        first = "first_gradient" in trained.problem.ask
        for row, assignment in enumerate(trained.chunk.assignments):
            upload, keep = trained.upload.row(row), trained.keep.row(row)
            if assignment.work.damaged:
                upload = damaged(upload)
            wrong = fault(method, upload, keep, trained.result.x[row])
            wrong = wrong or buffer_fault(trained.buffers)
            solver, samples = trained.chunk.group.solver, int(assignment.client.samples)
            yield replace(
                stacked,
                client=assignment.client,
                upload=stacked.upload.row(row) if wrong is None else upload,
                keep=stacked.keep.row(row) if wrong is None else keep,
                steps=assignment.work.steps,
                evaluations=solver.evaluations(assignment.work.steps, samples) + first * samples,
                complete=assignment.work.steps >= assignment.work.expected,
                down={name: size // number for name, size in stacked.down.items()},
                up={name: size // number for name, size in stacked.up.items()},
                wrong=wrong,
            )


def _shares_memory(x: Tensor, *several: Named) -> bool:
    """Whether a value is x or a view of it."""
    address = x.untyped_storage().data_ptr()
    return any(
        isinstance(value, Tensor) and value.untyped_storage().data_ptr() == address
        for values in several
        for _, value in values.items()
    )


def _strategy_name(network: Network, chunk: int, threads: int) -> str:
    """A strategy in a few words, for records."""
    what = network.name + (", channels last" if network.channels_last else "")
    many = f", {chunk} clients at once" if chunk > 1 else ""
    return f"{what}{many}, {threads} thread{'s' if threads > 1 else ''}"
