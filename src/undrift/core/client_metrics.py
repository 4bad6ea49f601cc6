"""`ClientMetrics`: the metrics of every client, and how evenly they are spread over clients.

An evaluation fills one if results per client are wanted: engines and sites alike.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from undrift.core.targets import FALLING, PARTS


class ClientMetrics:
    """The metrics of every client of one model, by the names they have in records."""

    def __init__(self) -> None:
        self.values: dict[str, dict[Hashable, float]] = {}

    def add(self, client: Hashable, metrics: Mapping[str, float]) -> None:
        """Add the metrics of a client; those that are not defined for it (NaN) are left out."""
        for metric, value in metrics.items():
            if not math.isnan(value):
                self.values.setdefault(metric, {})[client] = value

    def summaries(self) -> dict[str, float]:
        """Mean, deviation, worst tenth and Jain's index over clients, as "test_client_auc_mean"."""
        found = {}
        for metric, by_client in self.values.items():
            part, _, name = metric.partition("_")
            for statistic, value in spread(metric, by_client.values()).items():
                found[f"{part}_client_{name}_{statistic}"] = value
        return found

    def rows(self, model: str, sizes: Mapping[Hashable, float]) -> list[dict[str, Any]]:
        """One row per client with its number of training samples and its metrics."""
        return [
            {
                "model": model,
                "client": client,
                "samples": int(size),
                **{m: each[client] for m, each in self.values.items() if client in each},
            }
            for client, size in sizes.items()
        ]


def spread(metric: str, values: Iterable[float]) -> dict[str, float]:
    """How a metric is spread over clients: mean, std, worst_tenth and jain.

    The worst tenth is the mean of the tenth of the clients (at least one) with the worst values.
    Jain's index (Σx)²/(n Σx²) is one if all clients have the same value and 1/n if one client has
    everything; it says little about metrics that should fall.
    """
    ordered = sorted(values, reverse=falls(metric))
    squares = sum(value * value for value in ordered)
    return {
        "mean": fmean(ordered),
        "std": pstdev(ordered) if all(map(math.isfinite, ordered)) else math.nan,
        "worst_tenth": fmean(ordered[: max(1, len(ordered) // 10)]),
        "jain": sum(ordered) ** 2 / (len(ordered) * squares) if squares else math.nan,
    }


def falls(metric: str) -> bool:
    """Whether smaller values of a metric are better: losses, errors and perplexity."""
    name = metric.rpartition("/")[2]
    for part in PARTS:
        name = name.removeprefix(f"{part}_")
    return name in FALLING or name.endswith(("_loss", "_error"))


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a table of clients; cells that are numbers become numbers."""
    with path.open(encoding="utf-8", newline="") as file:
        return [
            {name: _cell(name, text) for name, text in row.items() if text != ""}
            for row in csv.DictReader(file)
        ]


def _cell(name: str, text: str) -> Any:
    if name in ("model", "client"):
        return text
    return int(text) if name == "samples" else float(text)
