"""The vectorised engine: trains many clients at once, chunk by chunk, on several threads.

What is shared between threads: losses, job, method and data, which are only read. What each thread
has for itself: its copy of the network, with the parameters and buffers of the clients it trains.
Client states are read by the calling thread only.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count, pairwise
from threading import local
from typing import Any

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
from undrift.core.replies import accumulator_dtype, q_draws
from undrift.core.round_result import RoundResult
from undrift.core.unformed import UnformedRows
from undrift.core.uploads import Senders
from undrift.core.uploads.norm_bounds import NormLimits
from undrift.core.validation import buffer_fault, fault, well_shaped
from undrift.engines.base import Job, SimulationEngine
from undrift.engines.compiled.dense import MoveSums
from undrift.engines.serial import SerialEngine
from undrift.engines.thread_pool import ThreadPool, Turns, spare_threads
from undrift.engines.threaded import SingleClientState, ThreadedEngine
from undrift.engines.vectorised.moves import ChunkMoves, LargeMoves, SpareVectors
from undrift.engines.vectorised.networks import Network
from undrift.engines.vectorised.pieces import (
    PIECE_NUMBERS,
    ClientVectors,
    assembled_problem,
    finished_in_pieces,
    finished_large,
)
from undrift.engines.vectorised.training import Group, Trained, a_norms, train
from undrift.local.minibatches import MinibatchSolver
from undrift.nets.module_losses import ModuleLosses
from undrift.utils.errors import UndriftError, first_line
from undrift.utils.keys import key
from undrift.utils.memory import keep_freed_memory

LARGE_CHUNK_BYTES = 1 << 26
"""A chunk whose models take more than this is not prepared ahead of the threads."""
LARGE_MODEL_BYTES = 1 << 26
"""Of a model of more than this, no sum of a chunk is kept: threads add to the round's in turn."""
KERNEL = "kernel"
"""The key under which a run remembers whether the C kernel trains its clients."""
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
    states: list[Keep]
    """the clients' states; empty if they keep nothing"""

    @cached_property
    def mine(self) -> Keep:
        """The states of all clients, `[C, …]`; stacked by the thread that trains them."""
        return Keep.stack(self.states)

    @property
    def clients(self) -> list[Client]:
        """The clients as separate objects."""
        return [assignment.client for assignment in self.assignments]


@dataclass(frozen=True)
class SolvedChunk:
    """The solutions of a chunk's local problems."""

    chunk: Chunk
    problem: LocalProblem
    trained: Trained
    evaluations: int
    later: tuple[Tensor, ...]
    """solutions of further problems, for methods that have several"""
    buffers: dict[str, Tensor]
    """buffers that training changed; only a network of one client at a time has any"""

    @property
    def center(self) -> Tensor:
        """The point from which diagnostics measure moves: the model that clients received.

        A round may send no model (FedPD); then it is the start.
        """
        down = self.chunk.assignments[0].download
        return down.x if "x" in down else self.problem.start

    def result(self, x: Tensor | UnformedRows) -> LocalResult:
        """What the method sees; `x` are the clients' models."""
        group, like = self.chunk.group, self.trained.x
        norms = a_norms(self.problem, group)
        rows = [(w.steps, w.expected, a) for w, a in zip(group.works, norms, strict=True)]
        steps, expected, a_norm = like.new_tensor(rows).split(1, dim=1)
        return LocalResult(
            x=x,  # type: ignore[arg-type]
            steps=steps,
            expected=expected,
            a_norm=a_norm,
            rate=group.works[0].rate,
            first_gradient=self.trained.first_gradient,
            last_gradient=self.trained.last_gradient,
            evaluations=self.evaluations,
            later=self.later,
        )


@dataclass(frozen=True)
class TrainedChunk:
    """The result of a chunk's work, stacked, `[C, …]`."""

    chunk: Chunk
    problem: LocalProblem
    center: Tensor
    result: LocalResult
    upload: Upload
    keep: Keep
    buffers: dict[str, Tensor]
    """buffers that training changed; only a network of one client at a time has any"""
    moves: ChunkMoves | None = None
    """the moves, if the models were not formed"""
    keeps: Sequence[Keep] = ()
    """each client's new state, if `keep` does not have them stacked"""


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
        size = losses.dimension * losses.flat.x.element_size()
        self._large = self.chunk * size > LARGE_CHUNK_BYTES
        self._large_model = size > LARGE_MODEL_BYTES
        self._network = network
        self._thread = local()
        self._networks: list[Network] = []
        """the copies of all threads"""
        self._single_client_engine = ThreadedEngine(losses, job, threads)
        if losses.device.type == "cpu":
            keep_freed_memory()
        self._spare = SpareVectors()
        self._needs_models: set[str] = set()
        """names of methods that were seen to need more than sums"""
        self._pool = ThreadPool(threads)
        # Cores without a training thread gather the samples of the next batches.
        self._gatherers = spare_threads(threads) if losses.device.type == "cpu" else None

    def saved(self) -> dict[str, Any]:
        return {KERNEL: self._network.chain is not None}

    def restore(self, saved: Mapping[str, Any]) -> None:
        if not saved.get(KERNEL):
            self._network.chain = None  # the kernel's last bits differ from those of torch
        elif self._network.chain is None:
            warnings.warn(
                "The run began with the compiled kernel, which this machine cannot build: its "
                "results will differ in the last bits.",
                stacklevel=2,
            )

    def run(
        self,
        method: Method,
        assignments: Iterable[Assignment],
        states: ClientStates,
        round: int,
        diagnose: bool = True,
        limits: NormLimits | None = None,
    ) -> RoundResult:
        result = self.job.result(method, round, diagnose)
        result.hold = states.hold
        assignments = list(assignments)
        single, groups = self._grouped(assignments)
        if self._large_model:
            chunks = self._chunks(groups, states)
            self._add_in_turn(result, method, chunks, states, round, diagnose, limits)
            groups = []
        pending: deque[Future[RoundResult]] = deque()
        for chunk in self._chunks(groups, states):
            pending.append(
                self._pool.submit(self._chunk_result, method, chunk, round, diagnose, limits)
            )
            # One chunk more than there are threads: while they train, this thread reads the states
            # of the next chunk. More would hold the states of a whole cohort in memory. Chunks of
            # large models do not wait at all: each holds several copies of a model.
            if len(pending) >= self.threads + (not self._large):
                # oldest first: a fixed order of sums
                self._spare.give(result.merge(pending.popleft().result()))
        while pending:
            self._spare.give(result.merge(pending.popleft().result()))
        if single:
            alone = self._single_client_engine
            result.merge(alone.run(method, single, states, round, diagnose, limits))
        result.arrange([assignment.client.id for assignment in assignments])
        return result

    def _add_in_turn(
        self,
        result: RoundResult,
        method: Method,
        chunks: Iterator[Chunk],
        states: ClientStates,
        round: int,
        diagnose: bool,
        limits: NormLimits | None,
    ) -> None:
        """Train chunks of large models, and add each to the result as soon as those before it are.

        A thread adds its chunk itself, from the memory in which it trained. So the only sums are
        those of the round, and the clients' states are in memory only while they train.
        """
        turns = Turns()

        def train_and_add(number: int, chunk: Chunk) -> None:
            with turns.of(number) as wait:
                part = self._chunk_result(method, chunk, round, diagnose, limits, states)
                if wait():
                    result.merge(part)

        pending: deque[Future[None]] = deque()
        for number in count():
            chunk = next(chunks, None)
            if chunk is None:
                break
            pending.append(self._pool.submit(train_and_add, number, chunk))
            del chunk
            if len(pending) >= self.threads:
                pending.popleft().result()
        while pending:
            pending.popleft().result()
        for network in self._networks:
            network.release_vectors()  # the fold needs memory, too

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
            (chunk.assignments, self._pool.submit(self._train, method, chunk))
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
        step sizes and kind of step. Only solvers with `many_at_once` can be trained at once: an
        exact solver takes no steps, and with a tolerance each client stops on its own.
        Samples that are read when they are needed are read client by client, and steps on personal
        parameters are not those of the method's vectors.
        """
        if self.losses.train_part.lazy is not None or self.losses.personal is not None:
            return assignments, []
        single = []
        groups: dict[tuple[int, int, int], list[Assignment]] = {}
        for assignment in assignments:
            solver = self.job.local.of(assignment.client.id)
            if not solver.many_at_once:
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
        """Cut groups into chunks, with the clients' states."""
        for assignments in groups:
            ends = self._ends([assignment.work.steps for assignment in assignments])
            step = max(1, GROUP_CLIENTS // self.chunk)
            for first in range(0, len(ends) - 1, step):
                part = ends[first : first + step + 1]
                yield from self._drawn_at_once(assignments[part[0] : part[-1]], part, states)

    def _ends(self, steps: list[int]) -> list[int]:
        """Where chunks end, from 0 on, for clients that take these numbers of steps.

        No thread should get much less work than the others. Operators of torch take about as long
        for a client as for several, so a chunk's time depends on the steps of its first client, and
        chunks have about equal numbers of clients. The C kernel trains one client after another:
        its chunks have about equal numbers of steps.
        """
        number = -(-len(steps) // self.chunk)
        if self._network.chain is None or steps[0] == steps[-1]:
            return [len(steps) * piece // number for piece in range(number + 1)]
        ends, left = [0], 0.0
        for end, own in enumerate(steps, start=1):
            left += own
            if left >= sum(steps) / number or end - ends[-1] == self.chunk or end == len(steps):
                ends.append(end)
                left = 0.0
        return ends

    def _drawn_at_once(
        self, assignments: list[Assignment], ends: list[int], states: ClientStates
    ) -> Iterator[Chunk]:
        """The chunks of up to `GROUP_CLIENTS` clients, whose batches are drawn in one call."""
        roster, works = self.job.roster, [assignment.work for assignment in assignments]
        solver = self.job.local.of(works[0].client)
        assert isinstance(solver, MinibatchSolver)
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
            # No name for the states: it would keep them in memory while the next ones are read.
            yield Chunk(
                assignments[some],
                group.of(some),
                client.of(some),
                states.gather([work.client for work in works[some]]),
            )

    def _chunk_result(
        self,
        method: Method,
        chunk: Chunk,
        round: int,
        diagnose: bool,
        limits: NormLimits | None,
        states: ClientStates | None = None,
    ) -> RoundResult:
        """Train a chunk and sum its replies.

        The result of a large model, for which `states` has memory for new states, refers to the
        thread's memory: it must be merged into another one before the thread trains again.
        """
        # Damaged replies and those of attackers are changed one by one.
        damage = any(
            assignment.work.damaged or assignment.client.id in self.job.attackers
            for assignment in chunk.assignments
        )
        sums = None
        by_kernel = self._network.chain is not None and method.name not in self._needs_models
        # Large models have no sums of chunks.
        if by_kernel and not (damage or self._large_model) and self._sums_suffice(method):
            sums = self._memory_for_sums(method, chunk)
        solved = self._solve(method, chunk, sums, models=limits is not None)
        unformed = None
        if not damage:
            unformed = self._finish_unformed(method, solved, diagnose)
            if unformed is None and sums is not None:
                self._needs_models.add(method.name)
        if not damage and unformed is None and limits is None:
            unformed = self._finish_in_pieces(method, solved, states)
        if unformed is not None and limits is None:
            result = self.job.result(method, round, diagnose)
            if self._large_model:
                result.replies.wait_for_merge()
                result.states_placed = bool(unformed.keeps)
            reply = self._stacked_reply(method, unformed, diagnose)
            result.take_several(reply, chunk.clients, unformed.keeps)
            # A NaN or Inf of one client makes a sum NaN or Inf: a few sums tell that all rows are
            # finite, without a check of each row.
            if result.finite():
                return result
        trained = self._finish(method, solved)
        result = self.job.result(method, round, diagnose, limits)
        shaped = well_shaped(method, trained.upload, trained.result.x)
        if shaped and not damage and not trained.buffers:
            reply = self._stacked_reply(method, trained, diagnose)
            steps = [assignment.work.steps for assignment in chunk.assignments]
            if result.allows(reply, chunk.clients, steps):
                # Bounds need every client's upload. The sums are those of a run without bounds, so
                # that bounds that reject nobody change no bit.
                if unformed is not None:
                    reply = self._stacked_reply(method, unformed, diagnose)
                result.take_several(reply, chunk.clients)
                if result.finite():
                    return result
            result = self.job.result(method, round, diagnose, limits)
        # A sum cannot tell which client spoiled it. Add the replies one by one, so that only the
        # wrong ones are rejected, with the same reasons as by the serial engine.
        for reply in self._single_replies(method, trained, diagnose):
            result.take(reply)
        return result

    def _solve(
        self, method: Method, chunk: Chunk, sums: MoveSums | None = None, models: bool = True
    ) -> SolvedChunk:
        """Solve the local problems of a chunk's clients.

        `sums` is memory for sums of their moves, with which the `models` may not be needed.
        The solutions are in the network's memory: the next chunk of this thread overwrites them,
        unless `release_vectors` is called.
        """
        network = self._own_network()
        group, works = chunk.group, chunk.group.works
        down, client = chunk.assignments[0].download, chunk.client
        pieces = self._in_pieces(method, chunk)
        with torch.no_grad():
            if pieces is None:
                problem = method.problem(down, chunk.mine, client)
            else:
                problem = assembled_problem(method, pieces)
        mine = chunk.mine if self.job.local.keeps else Keep()
        network.load_buffers(chunk.assignments[0].buffers)
        try:
            with torch.no_grad():
                # The sums are of moves from the start; others need moves from the model received.
                own = sums if "x" in down and problem.start is down.x else None
                trained = train(network, problem, group, mine, own, models)
        except UndriftError:
            raise
        except Exception as error:
            self._fail_on_one_client(method, chunk)
            who = ", ".join(repr(work.client) for work in works)
            raise UndriftError(
                f"The model failed on client {who} in round {works[0].round + 1}: "
                f"{first_line(error)}."
            ) from error

        buffers, evaluations = network.buffers(), trained.evaluations
        later: list[Tensor] = []
        for _ in range(1, method.problems):
            trained = trained.formed()
            network.release_vectors()  # the solutions so far must stay
            solved = [trained.x, *later]
            network.load_buffers(chunk.assignments[0].buffers)
            following = method.next_problem(down, chunk.mine, solved, client)
            with torch.no_grad():
                more = train(network, following, group, mine).formed()
            later.append(more.x)
            evaluations += more.evaluations
        return SolvedChunk(chunk, problem, trained, evaluations, tuple(later), buffers)

    def _own_network(self) -> Network:
        """This thread's network, which holds the parameters of the clients it trains."""
        if not hasattr(self._thread, "network"):
            self._thread.network = self._network.copy()
            self._networks.append(self._thread.network)
        network: Network = self._thread.network
        return network

    @property
    def _each_upload_counts(self) -> bool:
        """Whether sums do not suffice: transforms and robust statistics need each upload."""
        return bool(self.job.uploads.transforms) or self.job.statistic is not None

    def _sums_suffice(self, method: Method) -> bool:
        """Whether nothing but sums is known to be made of the clients' models.

        Transforms may need each upload; `_memory_for_sums` knows one that does not.
        """
        tracked = self.job.tracked
        several = method.kept() or method.problems > 1 or self.job.statistic is not None
        return not (several or tracked.cohort or tracked.last)

    def _memory_for_sums(self, method: Method, chunk: Chunk) -> MoveSums | None:
        """Memory for the sum of a chunk's moves with the usual weights, perhaps cut to a norm.

        None if upload transforms do anything else with the moves.
        """
        like, wide = self.losses.flat.x, accumulator_dtype(self.losses.flat.x)
        most = 0.0
        if self.job.uploads.transforms:
            senders = Senders(self.job.seed, chunk.group.works)
            down = chunk.assignments[0].download
            bound = self.job.uploads.norm_bound(method, down, like.dtype, senders)
            if bound is None:
                return None
            most = bound
        weights = torch.as_tensor(q_draws(chunk.client)).reshape(-1).to(wide).contiguous()
        total = self._spare.take(self.losses.dimension, wide, like.device)
        return MoveSums(weights, total, torch.empty_like(weights), most)

    def _finish_unformed(
        self, method: Method, solved: SolvedChunk, diagnose: bool
    ) -> TrainedChunk | None:
        """The uploads as sums only, without forming each client's; None if that does not suffice.

        It does not if a client keeps vectors, if an upload transform or a tracked model needs each
        client's vector, or if the method computes more from a model than a scaled difference.
        """
        if not self._sums_suffice(method):
            return None
        transforms = self.job.uploads.transforms
        if transforms and solved.trained.sums is None:
            return None
        if solved.trained.state or solved.buffers or solved.center.ndim > 1:
            return None
        chunk, trained = solved.chunk, solved.trained
        usual, works = torch.as_tensor(q_draws(chunk.client)), chunk.group.works
        x, center, factored = trained.x, solved.center, trained.factored
        if self._large_model:
            moves: ChunkMoves = LargeMoves(x, center, usual, factored)
        else:
            norms = diagnose or bool(transforms)
            moves = ChunkMoves(
                *(x, center, usual, factored, norms, self._spare, trained.sums, trained.form)
            )
        result = solved.result(UnformedRows.models(moves))
        down, senders = chunk.assignments[0].download, Senders(self.job.seed, works)
        try:
            finished = self.job.uploads.finish(
                method, down, chunk.mine, result, chunk.client, senders
            )
        except Exception:  # whatever the method did with the models; an error of its own recurs
            return None
        upload, keep = finished
        if any(isinstance(value, UnformedRows) for _, value in keep.items()):
            return None
        # Vectors that are kept one by one cannot be unformed.
        summed = method.sums()
        for name, value in upload.items():
            if isinstance(value, UnformedRows) and not summed.get(name):
                return None
        return TrainedChunk(
            chunk, solved.problem, solved.center, result, upload, keep, solved.buffers, moves
        )

    def _in_pieces(self, method: Method, chunk: Chunk) -> ClientVectors | None:
        """The chunk's vectors if the method's algebra may be done in pieces, and has several."""
        size, keeps = self.losses.dimension, chunk.states
        usual = method.elementwise and method.problems == 1 and not self.job.local.keeps
        if not keeps or not usual or len(keeps) * size <= PIECE_NUMBERS:
            return None
        return ClientVectors(chunk.assignments[0].download, keeps, chunk.client, size)

    def _finish_in_pieces(
        self, method: Method, solved: SolvedChunk, states: ClientStates | None
    ) -> TrainedChunk | None:
        """The uploads as sums and the new states, in one pass; None if that does not suffice."""
        chunk, tracked = solved.chunk, self.job.tracked
        pieces = self._in_pieces(method, chunk)
        if pieces is None or self._each_upload_counts or tracked.cohort or tracked.last:
            return None
        # Vectors that are declared without weights are kept one by one.
        if solved.buffers or not all(method.sums().values()):
            return None
        x = solved.trained.formed().x
        with torch.no_grad():
            result = solved.result(x)
            moves = None
            if states is None:
                upload, keeps = finished_in_pieces(method, pieces, result)
            else:
                moves = LargeMoves(x, solved.center, torch.as_tensor(q_draws(chunk.client)))
                upload, keeps = finished_large(method, pieces, result, moves, states.new_vector)
        return TrainedChunk(
            *(chunk, solved.problem, solved.center, result, upload, Keep(), solved.buffers),
            moves=moves,
            keeps=keeps,
        )

    def _finish(self, method: Method, solved: SolvedChunk, lasting: bool = False) -> TrainedChunk:
        """The uploads and the new states of a chunk's clients.

        Unless `lasting`, the clients' models are in the network's memory: the next chunk of this
        thread overwrites them.
        """
        chunk = solved.chunk
        trained = solved.trained.formed()
        result = solved.result(trained.x)
        down, senders = chunk.assignments[0].download, Senders(self.job.seed, chunk.group.works)
        upload, keep = self.job.uploads.finish(
            method, down, chunk.mine, result, chunk.client, senders
        )
        keep = keep.replace(**trained.state)
        # The memory of the models is reused for the next chunk, unless someone still needs it.
        tracked = self.job.tracked.cohort or self.job.tracked.last
        newest = solved.later[-1] if solved.later else trained.x
        if lasting or tracked or _shares_memory(newest, upload, keep):
            self._own_network().release_vectors()
        return TrainedChunk(
            chunk, solved.problem, solved.center, result, upload, keep, solved.buffers
        )

    def _train(self, method: Method, chunk: Chunk) -> TrainedChunk:
        """Train a chunk's clients; the result lasts."""
        return self._finish(method, self._solve(method, chunk), lasting=True)

    def _fail_on_one_client(self, method: Method, chunk: Chunk) -> None:
        """Train the clients one by one: if the model fails on one, the error names that client."""
        engine = SerialEngine(self.losses.thread_copy(), self.job)
        for row, assignment in enumerate(chunk.assignments):
            mine = SingleClientState(chunk.states[row] if chunk.states else Keep())
            list(engine.replies(method, [assignment], mine, diagnose=False))

    def _stacked_reply(self, method: Method, trained: TrainedChunk, diagnose: bool) -> Reply:
        """The replies of a chunk as one, `[C, …]`, with sums of bytes, steps and evaluations."""
        upload, keep, x = trained.upload, trained.keep, trained.result.x
        tracked, chunk = self.job.tracked, trained.chunk
        number = len(chunk.assignments)
        down = chunk.assignments[0].download
        # As in the serial engine, bytes are counted without tracked models and diagnostics.
        buffers_sent = buffer_bytes(chunk.assignments[0].buffers)
        received = {n: number * size for n, size in (bytes_of(down) | buffers_sent).items()}
        uploaded = self.job.uploads.sent_bytes(method, upload.row(0)) | buffers_sent
        sent = {n: number * size for n, size in uploaded.items()}
        if tracked.cohort:
            upload = upload.replace(**{COHORT: x})
        if tracked.last:
            upload = upload.replace(**{CHANGE: x - getattr(chunk.mine, LAST)})
            keep = keep.replace(**{LAST: x})
        if diagnose:
            moves = trained.moves
            if moves is None:
                moves = ChunkMoves(x, trained.center, torch.as_tensor(q_draws(chunk.client)))
            a_norm = torch.as_tensor(trained.result.a_norm).double()
            measured = {MOVED: UnformedRows(moves), SQUARE: moves.squares(), A_NORM: a_norm}
            upload = upload.replace(**measured)  # type: ignore[arg-type]
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
        stacked = self._stacked_reply(method, trained, diagnose)
        number = len(trained.chunk.assignments)
        first = "first_gradient" in trained.problem.ask
        per_step = method.problems * (1 if trained.problem.ascent is None else 2)
        for row, assignment in enumerate(trained.chunk.assignments):
            upload, keep = trained.upload.row(row), trained.keep.row(row)
            if assignment.work.damaged:
                upload = damaged(upload)
            wrong = fault(method, upload, keep, trained.result.x[row])
            wrong = wrong or buffer_fault(trained.buffers)
            solver, samples = trained.chunk.group.solver, int(assignment.client.samples)
            if wrong is None:
                upload = stacked.upload.row(row)
                if diagnose:
                    center = trained.center if trained.center.ndim == 1 else trained.center[row]
                    upload = upload.replace(**{MOVED: trained.result.x[row] - center})
            yield replace(
                stacked,
                client=assignment.client,
                upload=upload,
                keep=stacked.keep.row(row) if wrong is None else keep,
                steps=assignment.work.steps,
                evaluations=per_step * solver.evaluations(assignment.work.steps, samples)
                + first * samples,
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
