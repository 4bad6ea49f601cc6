"""The serial engine: one client after another. Every other engine must agree with it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from undrift.clients import ClientStates
from undrift.engines.base import LAST, Engine, Job, RoundResult, bytes_of, fault
from undrift.keys import generator, key
from undrift.losses import Losses
from undrift.methods.base import Method
from undrift.problem import Client, Download, Keep, Upload
from undrift.replies import Replies, accumulator_dtype, q
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
    ) -> RoundResult:
        job, roster = self.job, self.job.roster
        rate = job.local.rate(round)
        sums = dict(method.uploads) | self._watched_sums()
        out = RoundResult(Replies(sums, clients=len(roster), rate=rate))
        mean_buffers = WeightedMean()
        travelling = sum(value.numel() * value.element_size() for value in buffers.values())
        if travelling:
            out.down["buffers"] += travelling * len(cohort)

        clients = [roster.client(id, draws) for id, draws in cohort.items()]
        for client, work in zip(clients, self._work(method, clients, round, rate), strict=True):
            k = roster.place[roster.position[client.id]]
            solver = job.local.of(client.id)
            mine = states.get(client.id)
            problem = method.problem(download, mine, client)
            out.down.update(bytes_of(download))
            number = key(job.seed, "model", round, client.id)
            with self.losses.training(k, buffers, number) as loss:
                result = solver.run(loss, problem, work)
                own_buffers = loss.buffers()
            out.evaluations += result.evaluations
            upload, keep = method.finish(download, mine, result, client)
            wrong = fault(upload, keep, result.x, set(method.uploads))
            wrong = wrong or _fault_of_buffers(own_buffers)
            if wrong:
                out.rejected[client.id] = wrong
                continue
            out.steps[client.id] = int(result.steps)
            out.up.update(bytes_of(upload))
            if own_buffers:
                out.up["buffers"] += travelling
                mean_buffers.add(own_buffers, float(client.samples))
            upload, keep = self._watch(upload, keep, mine, result.x)
            out.replies.add(client, upload)
            out.kept[client.id] = keep
        out.buffers = mean_buffers.value()
        if out.replies.count:
            if job.watch.cohort:
                out.cohort_mean = out.replies.mean("@cohort", by=q)
            if job.watch.last:
                out.last_change = out.replies.sum("@change", by=q)
        return out

    def _work(self, method: Method, clients: list[Client], round: int, rate: float) -> list[Work]:
        """How many steps each client does, as its local work, the method and its limit say."""
        planned, expected = [], []
        for client in clients:
            solver, samples = self.job.local.of(client.id), int(client.samples)
            full = solver.planned(client.id, samples, round)
            amount = self.job.limit(client.id, round) if self.job.limit else None
            planned.append(full if amount is None else solver.limited(amount, samples, full))
            expected.append(full)
        return [
            Work(
                round=round,
                steps=steps,
                expected=full if steps == plan else steps,
                rate=rate,
                rng=partial(generator, self.job.seed, "batches", round, client.id),
            )
            for client, steps, plan, full in zip(
                clients, method.steps(planned), planned, expected, strict=True
            )
        ]

    def _watched_sums(self) -> dict:
        watch = self.job.watch
        names = ["@cohort"] * watch.cohort + ["@change"] * watch.last
        return dict.fromkeys(names, (q,))

    def _watch(self, upload: Upload, keep: Keep, mine: Keep, x: Tensor) -> tuple[Upload, Keep]:
        """Add the models that are followed; they are storage, not traffic."""
        watch = self.job.watch
        if watch.cohort:
            upload = upload.replace(**{"@cohort": x})
        if watch.last:
            upload = upload.replace(**{"@change": x - getattr(mine, LAST)})
            keep = keep.replace(**{LAST: x})
        return upload, keep


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
            part = value.to(accumulator_dtype(value)) * weight
            self._sums[name] = self._sums[name] + part if name in self._sums else part
            self._like[name] = value.dtype

    def value(self) -> dict[str, Tensor]:
        """The mean, in the tensors' own types."""
        means = {}
        for name, total in self._sums.items():
            mean, dtype = total / self._weight, self._like[name]
            means[name] = (mean if dtype.is_floating_point else mean.round()).to(dtype)
        return means


def _fault_of_buffers(buffers: dict[str, Tensor]) -> str | None:
    for name, value in buffers.items():
        if not bool(torch.isfinite(value).all()):
            return f"buffer {name} is not finite (NaN or Inf)"
    return None
