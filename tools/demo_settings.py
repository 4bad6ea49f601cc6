"""Find settings for the methods of `undrift demo`: the best of a small grid for each.

    python -m tools.demo_settings

For every method it tries each learning rate with each value of the method's own parameter, on the
demo's data and devices with another seed, and prints the settings with the smallest objective (its
mean over the last tenth of the rounds). It takes some minutes.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

from undrift import methods as m
from undrift.cli.demo.demo_run import ROUNDS, Entry, demo_data, demo_loop
from undrift.utils.errors import Diverged

SEED = 1
"""Another seed than the demo's default, so that no method is tuned to the demo's random numbers."""
RATES = (0.01, 0.03, 0.1, 0.3)
PENALTIES = (0.1, 0.3, 1.0, 3.0)


def grid() -> dict[str, list[m.Method]]:
    """Return the variants of every method, by its label in the demo."""
    return {
        "DistributedSGD": [m.DistributedSGD()],
        "FedAvg": [m.FedAvg()],
        "FedAvgMin": [m.FedAvgMin()],
        "FedProx": [m.FedProx(mu=mu) for mu in (0.01, 0.1, 1.0)],
        "SCAFFOLD": [m.SCAFFOLD()],
        "VRLSGD": [m.VRLSGD()],
        "FedNova": [m.FedNova()],
        "FedNova + VR": [m.FedNova(variance_reduction=True)],
        "FedDyn": [m.FedDyn(alpha=alpha) for alpha in PENALTIES],
        "FedPD": [m.FedPD(eta=1 / penalty) for penalty in PENALTIES],
        "FedSplit": [m.FedSplit(eta=1 / penalty) for penalty in PENALTIES],
        "FedDR": [m.FedDR(eta=1 / penalty) for penalty in PENALTIES],
        "FedLGA": [
            *(m.FedLGA(damping=d, cap=True) for d in (-1.0, 0.01, 0.1, 1.0)),
            *(m.FedLGA(damping=d) for d in (0.001, 0.01, 0.1)),
            m.FedLGA("extrapolate"),
        ],
        "AsyncFedDR": [m.AsyncFedDR(eta=1 / penalty, alpha=1.0) for penalty in PENALTIES],
        "FedAsync": [m.FedAsync(alpha=alpha) for alpha in (0.02, 0.05, 0.1, 0.2, 0.6)],
        "FedBuff": [m.FedBuff(buffer=buffer) for buffer in (5, 10, 30)],
    }


def results(label: str) -> Iterator[tuple[float, Entry]]:
    """Yield the objective of every combination of a method's grid."""
    data = demo_data(SEED)
    for method in grid()[label]:
        for lr in RATES:
            entry = Entry(method, lr)
            run = demo_loop(entry, data, ROUNDS, None, SEED)
            try:
                records = list(run.rounds())
            except Diverged:
                continue
            last = [r.metrics["objective"] for r in records if r.round > 0.9 * ROUNDS and r.metrics]
            yield sum(last) / len(last), entry


def main() -> None:
    """Print the best settings of every method, and the second best."""
    warnings.simplefilter("ignore")
    for label in grid():
        for place, (objective, entry) in enumerate(sorted(results(label), key=lambda x: x[0])[:2]):
            mark = "  then" if place else label
            print(f"{mark:15} {objective:.4f}  {entry.method!r}, lr={entry.lr:g}", flush=True)


if __name__ == "__main__":
    main()
