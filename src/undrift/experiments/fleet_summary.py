"""Summarise the devices of an experiment's clients in a few numbers, for `undrift inspect`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table
from rich.text import Text

from undrift.core.clients import Roster
from undrift.data.federated import FederatedData
from undrift.experiments.building import build_model
from undrift.experiments.cost import estimate, fleet_of
from undrift.utils.formatting import duration

if TYPE_CHECKING:
    from undrift.experiments.experiment import Experiment

QUANTILES = {"slowest": 0.0, "quarter": 0.25, "median": 0.5, "three_quarters": 0.75, "fastest": 1.0}


@dataclass(frozen=True)
class FleetSummary:
    """The speeds of a run's devices, and the virtual time of its rounds."""

    unit: str
    """the unit of the speed, per second"""
    speed: dict[str, float]
    """quantiles over the clients"""
    ratio: float
    """the fastest speed divided by the slowest"""
    rounds: dict[str, float]
    """virtual seconds per round, by label"""
    classes: dict[str, int] | None
    """the number of clients with each class of devices; None without classes"""

    def as_dict(self) -> dict[str, Any]:
        """All numbers as plain values."""
        return asdict(self)

    def __rich__(self) -> Table:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(no_wrap=True)
        grid.add_column()
        speeds = " · ".join(f"{value:.3g}" for value in self.speed.values())
        grid.add_row(
            Text(f"{self.unit} a second"),
            Text(f"{speeds} (slowest, quartiles, fastest); fastest/slowest {self.ratio:.3g}"),
        )
        if self.classes is not None:
            counts = ", ".join(f"{count} {name}" for name, count in self.classes.items())
            grid.add_row(Text("classes"), Text(counts))
        times = ", ".join(f"{label} {duration(each)}" for label, each in self.rounds.items())
        grid.add_row(Text("time of a round"), Text(times))
        return grid


def summary(experiment: Experiment, data: FederatedData) -> FleetSummary | None:
    """The summary of the run with the first seed; None if the experiment has no devices."""
    seed = experiment.seeds[0]
    fleet = fleet_of(experiment, Roster(data.ids, data.train.sizes, experiment.objective), seed)
    if fleet is None:
        return None
    cost = estimate(experiment, data, build_model(experiment, data, seed))
    speeds = np.quantile(fleet.speed, list(QUANTILES.values())).tolist()
    classes = fleet.classes
    counts = None if classes is None else {n: classes.count(n) for n in dict.fromkeys(classes)}
    return FleetSummary(
        unit=fleet.unit,
        speed=dict(zip(QUANTILES, speeds, strict=True)),
        ratio=float(fleet.speed.max() / fleet.speed.min()),
        rounds={each.label: each.seconds or 0.0 for each in cost.methods},
        classes=counts,
    )
