"""The serial engine: one client after another. Every other engine must agree with it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from undrift.clients import ClientStates
from undrift.diagnostics import MOVED, PROGRESS, SQUARE
from undrift.engines.base import (
    LAST,
    Engine,
    Job,
    RoundResult,
    bytes_of,
    check_declared,
    fault,
)
from undrift.errors import UndriftError, first_line
from undrift.keys import key
from undrift.losses import Losses
from undrift.methods.base import Method
from undrift.problem import Client, Download, Keep, LocalProblem, LocalResult, Upload
from undrift.replies import Replies, Weight, accumulator_dtype, q, q_draws
from undrift.sampling import Cohort
from undrift.solvers import Work


class SerialEngine(Engine):
    """Trains the clients of a cohort in the order of their ids."""

    def __init__(self, losses: Losses, job: Job):
        self.losses = losses
        self.job = job

    def run(
        self,
        method: Method,
        download: Download,
        cohort: Cohort,
        states: ClientStates,
        buffers: Mapping[str, Tensor],
        round: int,
        diagnose: bool = True,
    ) -> RoundResult:
        job, roster = self.job, self.job.roster
        sums = method.sums() | self._watched_sums(diagnose)
        out = RoundResult(Replies(sums, clients=len(roster), rate=job.local.rate(round)))
        mean_buffers = WeightedMean()
        statistics = sum(value.numel() * value.element_size() for value in buffers.values())

        work = job.work(method, cohort, round)
        working = {client.id for client in work}
        out.absent = [id for id in cohort if id not in working]
        for client, own_work in work.items():
            mine = states.get(client.id)
            problem = method.problem(download, mine, client)
            result, own_buffers = self._solve(client, problem, own_work, buffers)
            finished = method.finish(download, mine, result, client)
            if not out.steps:
                check_declared(method, finished, result.x)
            upload, keep = finished
            out.down.update(bytes_of(download))
            out.up.update(bytes_of(upload))
            out.down["buffers"] += statistics
            out.up["buffers"] += statistics
            out.evaluations += result.evaluations
            out.steps += int(result.steps)
            wrong = fault(method, upload, keep, result.x) or _fault_of_buffers(own_buffers)
            if wrong:
                out.rejected[client.id] = wrong
                continue
            mean_buffers.add(own_buffers, float(client.samples))
            upload, keep = self._watch(upload, keep, mine, result.x)
            if diagnose:
                # Where a round sends no model, as FedPD's may, a client's own start stands in.
                center = download.x if "x" in download else problem.start
                upload = _diagnosed(upload, result, center)
            out.replies.add(client, upload)
            out.kept[client.id] = keep
        out.up, out.down = +out.up, +out.down  # without what is zero
        out.buffers = mean_buffers.value()
        if out.replies.count:
            if job.watch.cohort:
                out.cohort_mean = out.replies.mean("@cohort", by=q_draws)
            if job.watch.last:
                out.last_change = out.replies.sum("@change", by=q)
        return out

    def _solve(
        self, client: Client, problem: LocalProblem, work: Work, buffers: Mapping[str, Tensor]
    ) -> tuple[LocalResult, dict[str, Tensor]]:
        """A client's work; what goes wrong in the user's model is said in a sentence."""
        roster, round = self.job.roster, work.round
        k = roster.place[roster.position[client.id]]
        number = key(self.job.seed, "model", round, client.id)
        try:
            with self.losses.training(k, buffers, number) as loss:
                result = self.job.local.of(client.id).run(loss, problem, work)
                return result, loss.buffers()
        except UndriftError:
            raise
        except Exception as error:
            raise UndriftError(
                f"The model failed on client {client.id!r} in round {round + 1}: "
                f"{first_line(error)}."
            ) from error

    def _watched_sums(self, diagnose: bool) -> dict[str, tuple[Weight, ...]]:
        watch = self.job.watch
        sums: dict[str, tuple[Weight, ...]] = {MOVED: (q_draws,)} if diagnose else {}
        if watch.cohort:
            sums["@cohort"] = (q_draws,)
        if watch.last:
            sums["@change"] = (q,)
        return sums

    def _watch(self, upload: Upload, keep: Keep, mine: Keep, x: Tensor) -> tuple[Upload, Keep]:
        """Add the models that are followed; they are storage, not traffic."""
        watch = self.job.watch
        if watch.cohort:
            upload = upload.replace(**{"@cohort": x})
        if watch.last:
            upload = upload.replace(**{"@change": x - getattr(mine, LAST)})
            keep = keep.replace(**{LAST: x})
        return upload, keep


def _diagnosed(upload: Upload, result: LocalResult, center: Tensor) -> Upload:
    """Add what diagnostics need; it is no traffic."""
    moved = result.x - center
    square = float(moved.double().square().sum())
    followed: dict[str, Tensor | float | None] = {MOVED: moved, SQUARE: square}
    return upload.replace(**followed, **{PROGRESS: float(result.progress)})


class WeightedMean:
    """The mean of some named tensors; whole numbers are rounded."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._like: dict[str, torch.dtype] = {}
        self._weight = 0.0

    def add(self, values: dict[str, Tensor], weight: float) -> None:
        """Take in one client's tensors."""
        self._weight += weight
        for name, value in values.items():
            dtype = torch.complex128 if value.is_complex() else accumulator_dtype(value)
            part = value.to(dtype) * weight
            self._sums[name] = self._sums[name] + part if name in self._sums else part
            self._like[name] = value.dtype

    def value(self) -> dict[str, Tensor]:
        """The mean, in the tensors' own types."""
        means = {}
        for name, total in self._sums.items():
            mean, dtype = total / self._weight, self._like[name]
            whole = not dtype.is_floating_point and not dtype.is_complex
            means[name] = (mean.round() if whole else mean).to(dtype)
        return means


def _fault_of_buffers(buffers: dict[str, Tensor]) -> str | None:
    for name, value in buffers.items():
        if not bool(torch.isfinite(value).all()):
            return f"buffer {name} is not finite (NaN or Inf)"
    return None
