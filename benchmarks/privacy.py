"""Measure what clipping and noise cost: the time of a round of W2 with them and without.

    python -m benchmarks.privacy
    python -m benchmarks.privacy --rounds 60

Both runs take their rounds in turn, in one process, so that a busy machine slows both. The first
rounds are not counted. The medians are compared.
"""

from __future__ import annotations

import argparse
from statistics import median

import torch

from undrift.bench.workloads import WORKLOADS
from undrift.core.evaluation import Evaluation
from undrift.core.sampling import Uniform
from undrift.engines.options import EngineOptions
from undrift.loops import Loop, RunSpec, loop
from undrift.methods import FedAvg
from undrift.nets.module_losses import ModuleLosses
from undrift.privacy import Gaussian

UNCOUNTED = 3
"""Rounds in which engines choose and prepare their strategy."""


def main() -> None:
    """Print the median seconds of a round of both runs, and the overhead."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--workload", default="W2")
    options = parser.parse_args()
    workload = WORKLOADS[options.workload]
    torch.manual_seed(0)
    losses = ModuleLosses(workload.model(), workload.data())

    def run(privacy: Gaussian | None) -> Loop:
        spec = RunSpec(
            method=FedAvg(),
            losses=losses,
            local=workload.local(),
            sampler=Uniform(workload.cohort),
            rounds=options.rounds,
            objective="clients",
            evaluation=Evaluation(every=options.rounds),
            privacy=privacy,
        )
        return loop(spec, EngineOptions())

    loops = {"plain": run(None), "private": run(Gaussian(noise=1.0, clip=0.5))}
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(options.rounds):
        for name, each in loops.items():
            seconds[name].append(each.step().seconds)
    found = {name: median(times[UNCOUNTED:]) for name, times in seconds.items()}
    for name, time in found.items():
        print(f"{name}: {1000 * time:.2f} ms a round")
    print(f"clipping and noise: {100 * (found['private'] / found['plain'] - 1):.1f} % of a round")


if __name__ == "__main__":
    main()
