"""The vectorised engine: many clients at once, chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby, islice
from threading import local
from typing import TypeVar

import torch
from torch import Tensor

from undrift.clients import ClientStates
from undrift.diagnostics import MOVED, PROGRESS, SQUARE
from undrift.engines.base import (
    CHANGE,
    COHORT,
    LAST,
    Engine,
    Errand,
    Job,
    Reply,
    RoundResult,
    bytes_of,
    check_declared,
    damaged,
    fault,
)
from undrift.engines.serial import SerialEngine
from undrift.engines.vectorised.networks import Network
from undrift.engines.vectorised.training import Group, progress_of, train
from undrift.keys import key
from undrift.methods.base import Method
from undrift.modules import ModuleLosses
from undrift.problem import Client, Keep, LocalProblem, LocalResult, Named, Upload
from undrift.solvers import SGD, Solver
from undrift.traffic import traffic_of

Values = TypeVar("Values", bound=Named)


@dataclass(frozen=True)
class Chunk:
    """Clients that work at once, and what they remember, stacked."""

    errands: list[Errand]
    solver: SGD
    client: Client
    mine: Keep


@dataclass(frozen=True)
class Finished:
    """The work of a chunk, done: all stacked, `[C, …]`."""

    chunk: Chunk
    problem: LocalProblem
    result: LocalResult
    upload: Upload
    keep: Keep


class VectorisedEngine(Engine):
    """Trains the clients of a chunk at once, and several chunks on threads.

    The cohort is cut into chunks in the order of the clients. Each is added up by itself, and the
    sums are added in that order, so that threads change nothing.

    Parameters
    ----------
    losses, job
        as for every engine
    network
        how the gradients of many clients are computed
    chunk
        how many clients work at once
    threads
        how many chunks are worked on at the same time
    """

    def __init__(
        self, losses: ModuleLosses, job: Job, network: Network, chunk: int = 8, threads: int = 1
    ):
        self.losses = losses
        self.job = job
        self.chunk = chunk
        self.threads = threads
        self.together = chunk * threads
        self.strategy = f"{network.name}, {chunk} clients at once, {threads} threads"
        self._network = network
        self._own = local()
        self._alone = SerialEngine(losses, job)
        self._pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
        self._asks: dict[int, bool] = {}

    def run(
        self,
        method: Method,
        errands: Iterable[Errand],
        states: ClientStates,
        round: int,
        diagnose: bool = True,
    ) -> RoundResult:
        result = RoundResult(method, self.job, round, diagnose)
        ahead: list[Future[RoundResult] | RoundResult] = []

        def take(limit: int) -> None:
            while len(ahead) > limit:
                part = ahead.pop(0)
                result.merge(part.result() if isinstance(part, Future) else part)

        for together in self._cut(method, errands):
            chunk = self._chunk(method, together, states)
            if chunk is None:
                take(0)  # the serial engine works here, with nobody beside it
                ahead.append(self._alone.run(method, together, states, round, diagnose))
            else:
                ahead.append(self._pool.submit(self._added, method, chunk, round, diagnose))
            take(self.threads)  # states of the next chunk are read while others compute
        take(0)
        return result

    def replies(
        self, method: Method, errands: Iterable[Errand], states: ClientStates, diagnose: bool = True
    ) -> Iterator[Reply]:
        for together in self._cut(method, errands):
            chunk = self._chunk(method, together, states)
            if chunk is None:
                yield from self._alone.replies(method, together, states, diagnose)
            else:
                finished = self._pool.submit(self._finished, method, chunk).result()
                yield from self._rows(method, finished, diagnose)

    def _cut(self, method: Method, errands: Iterable[Errand]) -> Iterator[list[Errand]]:
        """Clients in a row that can work at once: same model, same solver, same round."""

        def alike(errand: Errand) -> tuple[int, int, int]:
            solver = self.job.local.of(errand.client.id)
            return id(errand.download), id(solver), errand.work.round

        for _, some in groupby(errands, alike):
            while together := list(islice(some, self.chunk)):
                yield together

    def _chunk(self, method: Method, errands: list[Errand], states: ClientStates) -> Chunk | None:
        """A chunk with its states, or None where each must work alone."""
        solver = self.job.local.of(errands[0].client.id)
        if not self._can(method, solver):
            return None
        clients = [errand.client for errand in errands]
        kept = [states.get(client.id) for client in clients]
        x = self.losses.flat.x
        mine = Keep(
            **{
                name: torch.stack([getattr(each, name) for each in kept])
                for name, _ in kept[0].items()
            }
        )
        assert isinstance(solver, SGD)
        return Chunk(errands, solver, Client.stack(clients, x), mine)

    def _can(self, method: Method, solver: Solver) -> bool:
        """Whether clients can work on a method's problems at once."""
        if id(method) not in self._asks:
            self._asks[id(method)] = bool(traffic_of(method).asks)
        return (
            isinstance(solver, SGD)
            and solver.tolerance is None
            and not self._asks[id(method)]
            and not self.losses.moving
            and not self.losses.data.augmentations
        )

    def _added(self, method: Method, chunk: Chunk, round: int, diagnose: bool) -> RoundResult:
        """The work of a chunk, added up."""
        finished = self._finished(method, chunk)
        result = RoundResult(method, self.job, round, diagnose)
        if not any(errand.work.damaged for errand in chunk.errands):
            result.take_several(self._stacked(method, finished, diagnose), len(chunk.errands))
            if result.finite():
                return result
            result = RoundResult(method, self.job, round, diagnose)
        for reply in self._rows(method, finished, diagnose):  # one by one, to leave out the wrong
            result.take(reply)
        return result

    def _finished(self, method: Method, chunk: Chunk) -> Finished:
        """Let the clients of a chunk do their work."""
        if not hasattr(self._own, "network"):  # a network of its own for every thread
            self._own.network = self._network.copy()
        errands, roster = chunk.errands, self.job.roster
        works = [errand.work for errand in errands]
        down = errands[0].download
        problem = method.problem(down, chunk.mine, chunk.client)
        group = Group(
            [roster.place[roster.position[errand.client.id]] for errand in errands],
            works,
            [key(self.job.seed, "model", work.turn, work.client) for work in works],
        )
        x, evaluations = train(self.losses, self._own.network, chunk.solver, problem, group)

        def column(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=x.dtype, device=x.device)[:, None]

        result = LocalResult(
            x=x,
            steps=column([work.steps for work in works]),
            expected=column([work.expected for work in works]),
            progress=column(progress_of(chunk.solver, problem, works)),
            rate=works[0].rate,
            evaluations=evaluations,
        )
        upload, keep = method.finish(down, chunk.mine, result, chunk.client)
        return Finished(chunk, problem, result, upload, keep)

    def _stacked(self, method: Method, done: Finished, diagnose: bool) -> Reply:
        """The replies of a chunk as one, `[C, …]`."""
        upload, keep, x = done.upload, done.keep, done.result.x
        watch, chunk = self.job.watch, done.chunk
        number = len(chunk.errands)
        down = chunk.errands[0].download
        received = {name: number * size for name, size in bytes_of(down).items()}
        sent = {name: number * size for name, size in bytes_of(_row(upload, 0)).items()}
        if watch.cohort:
            upload = upload.replace(**{COHORT: x})
        if watch.last:
            upload = upload.replace(**{CHANGE: x - getattr(chunk.mine, LAST)})
            keep = keep.replace(**{LAST: x})
        if diagnose:
            moved = x - (down.x if "x" in down else done.problem.start)
            upload = upload.replace(
                **{
                    MOVED: moved,
                    SQUARE: moved.double().square().sum(1),
                    PROGRESS: torch.as_tensor(done.result.progress).double(),
                }
            )
        works = [errand.work for errand in chunk.errands]
        return Reply(
            client=chunk.client,
            upload=upload,
            keep=keep,
            buffers={},
            steps=sum(work.steps for work in works),
            evaluations=done.result.evaluations,
            complete=sum(work.steps >= work.expected for work in works),
            down=received,
            up=sent,
        )

    def _rows(self, method: Method, done: Finished, diagnose: bool) -> Iterator[Reply]:
        """The replies of a chunk one by one."""
        whole = self._stacked(method, done, diagnose)
        number = len(done.chunk.errands)
        for row, errand in enumerate(done.chunk.errands):
            upload, keep = _row(done.upload, row), _row(done.keep, row)
            if row == 0:
                check_declared(method, (upload, keep), done.result.x[0])
            sent = {name: size // number for name, size in whole.up.items()}
            if errand.work.damaged:
                upload = damaged(upload)
            wrong = fault(method, upload, keep, done.result.x[row])
            solver, samples = done.chunk.solver, int(errand.client.samples)
            yield Reply(
                client=errand.client,
                upload=_row(whole.upload, row) if wrong is None else upload,
                keep=_row(whole.keep, row) if wrong is None else keep,
                buffers={},
                steps=errand.work.steps,
                evaluations=solver.evaluations(errand.work.steps, samples),
                complete=errand.work.steps >= errand.work.expected,
                down={name: size // number for name, size in whole.down.items()},
                up=sent,
                wrong=wrong,
            )


def _row(values: Values, row: int) -> Values:
    """The values of one client of several."""
    return type(values)(
        **{
            name: value[row] if isinstance(value, Tensor) and value.ndim else value
            for name, value in values.items()
        }
    )
