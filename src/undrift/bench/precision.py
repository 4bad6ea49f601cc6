"""`undrift bench --precision`: mixed precision next to float32, in time and in the loss.

Rounds of both are timed in turn. The loss curves come from a short run of each
on data with classes that can be learnt, since random labels would tell nothing about accuracy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from undrift.bench.bench_run import BenchRun
from undrift.bench.timing import Tick, interleaved
from undrift.bench.workloads import Workload
from undrift.data.federated import FederatedData
from undrift.data.part import Part
from undrift.nets.criteria import BF16, FP32

CURVE_ROUNDS = 10
"""Rounds of the loss curves."""
EVALUATED_SAMPLES = 200
"""Training samples on which the curves are evaluated."""
CONTRAST = 0.15
"""Distance of the classes' mean images from each other, in units of the noise."""
TIMED_SHARE = 0.5
"""Part of the progress bar that is the timing; the rest is the curves."""


@dataclass(frozen=True)
class PrecisionTiming:
    """A round in float32 and in mixed precision, and the loss after every round of both."""

    workload: str
    method: str
    engine: str
    strategy: str
    """how the rounds in mixed precision were computed"""
    fp32_seconds: float
    bf16_seconds: float
    fp32_losses: tuple[float, ...]
    """training loss of the initial model and after every round"""
    bf16_losses: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Return how many times as fast a round in mixed precision is."""
        return self.fp32_seconds / self.bf16_seconds

    @property
    def gap(self) -> float:
        """Return the largest distance of the curves, as a share of what the loss fell."""
        fell = abs(self.fp32_losses[0] - min(self.fp32_losses)) or 1.0
        both = zip(self.fp32_losses, self.bf16_losses, strict=True)
        return max(abs(a - b) for a, b in both) / fell

    def as_dict(self) -> dict[str, object]:
        """Return the fields that `--json` prints."""
        return asdict(self) | {"ratio": self.ratio, "gap": self.gap}


def time_precision(
    workload: Workload,
    method: str,
    engine: str,
    threads: int,
    *,
    population: int | None = None,
    repeats: int | None = None,
    tick: Tick = lambda share: None,
) -> PrecisionTiming:
    """Time rounds in both precisions in turn, then follow the loss of both."""
    data = workload.data(population)
    runs = [
        BenchRun(workload, data, method, engine, threads, precision=precision)
        for precision in (FP32, BF16)
    ]
    for run in runs:
        run.warm_up()
    timed = [run.round for run in runs]
    fp32, bf16 = interleaved(timed, repeats, lambda share: tick(TIMED_SHARE * share))
    strategy = runs[1].strategy
    del runs
    curves = _curves(workload, method, engine, threads, tick)
    return PrecisionTiming(
        workload=workload.name,
        method=method,
        engine=engine,
        strategy=strategy,
        fp32_seconds=fp32,
        bf16_seconds=bf16,
        fp32_losses=curves[0],
        bf16_losses=curves[1],
    )


def _curves(
    workload: Workload, method: str, engine: str, threads: int, tick: Tick
) -> list[tuple[float, ...]]:
    """The training losses of both precisions, round by round."""
    smaller = replace(workload, clients=min(workload.clients, 2 * workload.cohort))
    data = learnable(smaller)
    found = []
    for number, precision in enumerate((FP32, BF16)):
        run = BenchRun(smaller, data, method, engine, threads, precision=precision)
        losses = [run.train_loss(EVALUATED_SAMPLES)]
        for done in range(CURVE_ROUNDS):
            run.round()
            losses.append(run.train_loss(EVALUATED_SAMPLES))
            share = (number + (done + 1) / CURVE_ROUNDS) / 2
            tick(TIMED_SHARE + (1 - TIMED_SHARE) * share)
        found.append(tuple(losses))
    return found


def learnable(workload: Workload) -> FederatedData:
    """Noise of the workload's shape around a random mean image of each class.

    Integer inputs stay random, with the class as the first of them.
    """
    random = workload.data()
    x, y = random.train.x, random.train.y
    assert isinstance(x, torch.Tensor)
    assert isinstance(y, torch.Tensor)
    g = torch.Generator().manual_seed(2)
    if workload.vocabulary is None:
        means = torch.randn(workload.classes, *workload.shape, generator=g)
        x = torch.randn(x.shape, generator=g) + CONTRAST * means[y]
    else:
        x = x.clone()
        x[:, 0] = y
    return FederatedData(Part(x, y, random.train.rows, random.train.bounds), name=workload.name)


def draw_curves(found: Sequence[PrecisionTiming], path: Path) -> None:
    """Draw the loss curves of every workload side by side, into a file."""
    from undrift.utils import pictures
    from undrift.utils.plot_style import COLOURS

    figure = pictures.Picture(figsize=(3.2 * len(found), 2.6), layout="constrained")
    for place, each in enumerate(found, 1):
        axes = figure.add_subplot(1, len(found), place)
        for number, (name, losses) in enumerate(
            ((FP32, each.fp32_losses), (BF16, each.bf16_losses))
        ):
            axes.plot(losses, "-" if number == 0 else "--", color=COLOURS[number], label=name)
        axes.set_title(f"{each.workload}: {each.ratio:.1f} × as fast in {BF16}", fontsize=9)
        axes.set_xlabel("round")
        axes.set_ylabel("training loss")
        axes.legend(frameon=False, fontsize=8)
    pictures.write(figure, path)
