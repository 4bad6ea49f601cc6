"""Draw the guide's picture of accuracy against ε: FedAvg, SCAFFOLD and FedDyn on MNIST.

    UNDRIFT_DATA=... python -m tools.pages.privacy_picture docs/privacy.png

A thousand clients with 60 samples each, Dirichlet(0.3) over labels; it takes a few minutes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import undrift as ud
from undrift.utils.plot_style import COLOURS

CLIENTS, PROBABILITY, ROUNDS = 1000, 0.1, 60
BUDGETS = (0.5, 1.0, 2.0, 4.0, 8.0)
"""ε at δ = 1e-5"""
CLIP = 0.3
SEEDS = (0, 1)
METHODS = {
    "FedAvg": ud.FedAvg(),
    "SCAFFOLD": ud.SCAFFOLD(),
    "FedDyn": ud.FedDyn(alpha=0.1),
}


def accuracy(method: ud.Method, data: ud.data.FederatedData, budget: float | None) -> float:
    """The mean test accuracy over the seeds after the last round; clipped only without a budget."""
    found = []
    for seed in SEEDS:
        torch.manual_seed(seed)
        noise = 0.0 if budget is None else None
        run = ud.train(
            method,
            model=ud.models.logistic(784, 10),
            data=data,
            local=ud.SGD(lr=0.05, batch_size=20, steps=6),
            rounds=ROUNDS,
            cohort=ud.Bernoulli(PROBABILITY),
            objective="clients",
            seed=seed,
            privacy=ud.privacy.Gaussian(clip=CLIP, noise=noise, epsilon=budget),
            evaluate=ud.Evaluation(every=ROUNDS, parts=("test",)),
            progress=False,
        )
        found.append(run.records[-1].metrics["test_accuracy"])
    return sum(found) / len(found)


def main(path: str) -> None:
    """Run all methods with all budgets, and write the picture."""
    from matplotlib.figure import Figure

    data = ud.data.mnist(partition="dirichlet:0.3", clients=CLIENTS)
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    for number, (label, method) in enumerate(METHODS.items()):
        colour = COLOURS[number]
        values = [accuracy(method, data, budget) for budget in BUDGETS]
        limit = accuracy(method, data, None)
        print(label, *(f"{value:.3f}" for value in values), f"without noise {limit:.3f}")
        axes.plot(BUDGETS, values, color=colour, marker="o", label=label)
        axes.axhline(limit, color=colour, linestyle=":", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_xticks(BUDGETS, [f"{each:g}" for each in BUDGETS])
    axes.set_title("Under noise, FedAvg loses least and SCAFFOLD most", fontsize=11)
    axes.set_xlabel("ε at δ = 1e-5 (dotted: clipped, without noise)")
    axes.set_ylabel("test accuracy on MNIST")
    axes.legend(frameon=False)
    figure.savefig(Path(path), dpi=150)


if __name__ == "__main__":
    main(sys.argv[1])
