"""Pictures of the guide's pages on robustness and compression, on MNIST.

    UNDRIFT_DATA=… python -m tools.pages.upload_pictures robustness docs/assets/robustness.svg
    UNDRIFT_DATA=… python -m tools.pages.upload_pictures compression docs/assets/compression.svg

Each also prints its numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

import undrift as ud
from undrift.utils.plot_style import COLOURS, reproducible_svg

CLIENTS = 20
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4)
STATISTICS: Mapping[str, Any] = {
    "mean": None,
    "median": ud.robust.Median(),
    "trimmed mean, 40 %": ud.robust.TrimmedMean(0.4),
    "geometric median": ud.robust.GeometricMedian(),
    "Multi-Krum, f = 8": ud.robust.MultiKrum(8),
}
COMPRESSORS: Mapping[str, Any] = {
    "none": None,
    "top 1 %": ud.compression.TopK(0.01),
    "top 1 %, no feedback": ud.compression.Compression(ud.compression.TopK(0.01), feedback=False),
    "random 1 %": ud.compression.RandomK(0.01),
    "4 bits": ud.compression.QSGD(4),
    "sign": ud.compression.Sign(),
}

Curves = dict[str, tuple[list[float], list[float]]]


def trained(data: ud.data.FederatedData, rounds: int, **options: Any) -> ud.Result:
    """A softmax regression, trained by FedAvg; the same clients, cohorts and batches each time."""
    model = ud.models.logistic(features=784, classes=10)
    local = ud.SGD(lr=0.02, batch_size=50, steps=10)
    every = ud.Evaluation(every=1 if rounds > 20 else rounds, parts=("test",))
    return ud.train(
        ud.FedAvg(),
        model=model,
        data=data,
        local=local,
        rounds=rounds,
        objective="clients",
        engine="vectorised",
        evaluate=every,
        progress=False,
        **options,
    )


def robustness(data: ud.data.FederatedData) -> Curves:
    """The test accuracy after 15 rounds, by the share of clients that attack."""
    found: Curves = {}
    for name, statistic in STATISTICS.items():
        accuracies = []
        for share in SHARES:
            attack = ud.attacks.SignFlip(share, scale=3.0) if share else None
            try:
                result = trained(data, 15, robust=statistic, attack=attack)
                accuracies.append(result.records[-1].metrics["test_accuracy"])
            except ud.Diverged:
                accuracies.append(0.1)  # a guess among ten classes
        found[name] = [100 * share for share in SHARES], accuracies
    return found


def compression(data: ud.data.FederatedData) -> Curves:
    """The test accuracy over 60 rounds, by the megabytes that all clients have uploaded."""
    found: Curves = {}
    for name, compressor in COMPRESSORS.items():
        records = trained(data, 60, compression=compressor).records
        sent, megabytes = 0.0, []
        for record in records[1:]:
            sent += sum(record.bytes_up.values()) / 1e6
            megabytes.append(sent)
        found[name] = megabytes, [record.metrics["test_accuracy"] for record in records[1:]]
    return found


def draw(curves: Curves, title: str, across: str, path: Path, logarithmic: bool) -> None:
    """Write the curves as a picture."""
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.subplots()
    for number, (name, (x, y)) in enumerate(curves.items()):
        colour = COLOURS[number]
        axes.plot(x, y, color=colour, label=name, marker="" if logarithmic else "o")
    if logarithmic:
        axes.set_xscale("log")
    axes.set_title(title, fontsize=11)
    axes.set_xlabel(across)
    axes.set_ylabel("test accuracy on MNIST")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    with reproducible_svg():
        figure.savefig(path, metadata={"Date": None})


def main(which: str, path: Path) -> None:
    """Make one of the pictures."""
    data = ud.data.mnist("dirichlet:1", clients=CLIENTS, seed=0)
    if which == "robustness":
        curves, across = robustness(data), "share of clients that send −3 × their upload, %"
        title = "The mean fails from 20 % of attackers on, robust statistics hold longer"
    else:
        curves, across = compression(data), "megabytes uploaded by all clients"
        title = "Compressed uploads come near the accuracy of whole ones with far fewer bytes"
    for name, (x, y) in curves.items():
        some = " ".join(f"{each:.3f}" for each in y[:: max(1, len(y) // 6)])
        print(f"{name:24s} {x[-1]:10.3f} {some} {y[-1]:.3f}")
    draw(curves, title, across, path, logarithmic=which == "compression")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
