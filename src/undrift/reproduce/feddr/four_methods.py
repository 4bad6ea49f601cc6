"""FedDR's figures of four methods: training loss and accuracies against rounds or bytes.

There are two models to look at: the global one, and every client's own on its own data. The
authors' released code measures FedAvg and FedProx by the former, FedPD and FedDR by the latter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from undrift.report.reading import Runs
from undrift.report.tables import OverSeeds
from undrift.reproduce.curves import line, method_runs
from undrift.reproduce.figure import Line, Panel
from undrift.reproduce.findings import Claim, Number
from undrift.reproduce.lab import Lab

METHODS = ("FedAvg", "FedProx", "FedPD", "FedDR")
LOSS, ACCURACY, TEST = "train_loss", "train_accuracy", "test_accuracy"
WORDS = {LOSS: "training loss", ACCURACY: "training accuracy", TEST: "test accuracy"}
OWN = "own/"
VIEWS: Mapping[str, Callable[[str], str]] = {
    "global models": lambda method: "",
    "clients' own models": lambda method: OWN,
    "as published, own models of FedPD and FedDR only": lambda method: (
        OWN if method in ("FedPD", "FedDR") else ""
    ),
}
"""Which models are compared; by method, the prefix of their metrics."""
GLOBAL, LOCAL, PUBLISHED = VIEWS
END = 0.9
"""Evaluations after this part of what is spent are averaged: single rounds are noisy."""
SLACK = 1.01
"""What may be spent more than by the cheapest: FedPD sends a word beside its models."""
LEFT_OPEN = (
    "The paper does not say whose loss its curves show. The authors' released code measures "
    "FedPD and FedDR by every user's own model on its own data, FedAvg and FedProx by the "
    "global model: here both are measured for all four.",
    "Users weigh equally, as in the paper's problem (1); the released code weighs them by "
    "their samples.",
    "x̃ starts as the mean of the x̂_k, and users take their first prox when they are first "
    "selected; the printed start leaves an offset for ever.",
    "FedPD's users start at the model they receive; in the released code, at their own last one.",
)
"""What is open in all of these figures."""
COMPARABLE = 0.02
"""Accuracies that differ by no more are called comparable."""


@dataclass(frozen=True)
class FourMethodRuns:
    """The runs of the four methods in one setting.

    Parameters
    ----------
    where
        the setting's name
    runs
        those that each method is in
    against
        what the figure has on its x axis: "rounds" or "bytes"
    """

    where: str
    runs: Mapping[str, Runs]
    against: str

    def at_end(self, method: str, metric: str) -> OverSeeds:
        """The metric when as much is spent as by the cheapest; the worst if the method diverged."""
        budget = SLACK * min(self._spent(each) for each in METHODS)
        worst = math.inf if metric.endswith(LOSS) else 0.0
        values = []
        for run in method_runs(self.runs[method], method).runs:
            spent = run.totals()[self.against]
            found = [
                (so_far, record.metrics[metric])
                for record, so_far in zip(run.records, spent, strict=True)
                if metric in record.metrics and so_far <= budget
            ]
            late = [value for so_far, value in found if so_far > END * budget]
            diverged = run.status == "diverged" or not found
            values.append(worst if diverged else fmean(late or [found[-1][1]]))
        return OverSeeds(tuple(values))

    def seen(self, view: str, metric: str) -> dict[str, float]:
        """The metric of each method's models in one of the `VIEWS`."""
        return {m: self.at_end(m, VIEWS[view](m) + metric).mean for m in METHODS}

    def numbers(self) -> list[Number]:
        """Loss and test accuracy at the end, of both models."""
        return [
            Number(f"{self.where}: {WORDS[metric]}", f"{method}, {model}", None, measured)
            for metric in (LOSS, TEST)
            for model, prefix in (("global", ""), ("own", OWN))
            for method in METHODS
            for measured in [self.at_end(method, prefix + metric)]
        ]

    def panels(self) -> list[Panel]:
        """The paper's three panels; dashed lines are the global models', solid ones the own."""
        return [
            Panel(
                f"{self.where} (solid: own, dashed: global)",
                "bytes sent" if self.against == "bytes" else "rounds",
                WORDS[metric],
                [self._line(method, prefix, metric) for prefix in ("", OWN) for method in METHODS],
                log_y=metric == LOSS,
            )
            for metric in (LOSS, ACCURACY, TEST)
        ]

    def ahead(self, view: str, better: Sequence[str], worse: Sequence[str], metric: str) -> Claim:
        """That each of some methods ends with a lower loss, or a higher accuracy, than others."""
        seen = self.seen(view, metric)
        sign, word = (1, "lower") if metric == LOSS else (-1, "higher")
        return Claim(
            f"{self.where}, {view}: {' and '.join(better)} end{'s' * (len(better) == 1)} with a "
            f"{word} {WORDS[metric]} than {' and '.join(worse)}.",
            max(sign * seen[m] for m in better) < min(sign * seen[m] for m in worse),
            shown(seen),
        )

    def comparable(self, view: str, metric: str, first: str, second: str) -> Claim:
        """That two methods end with about the same accuracy."""
        seen = self.seen(view, metric)
        return Claim(
            f"{self.where}, {view}: {first} and {second} are comparable ({WORDS[metric]} within "
            f"{100 * COMPARABLE:g} points).",
            abs(seen[first] - seen[second]) <= COMPARABLE,
            shown(seen),
        )

    def _spent(self, method: str) -> float:
        """What the run of a method spent; a run that diverged sets no limit."""
        runs = method_runs(self.runs[method], method).runs
        return min(
            (run.totals()[self.against][-1] for run in runs if run.status != "diverged"),
            default=math.inf,
        )

    def _line(self, method: str, prefix: str, metric: str) -> Line:
        style = "-" if prefix == OWN else "--"
        return line(self.runs[method], method, prefix + metric, self.against, style=style)


def compare(
    lab: Lab,
    name: str,
    settings: Mapping[str, Any],
    sampling: Mapping[str, Any] | None = None,
    words: str = "all users",
) -> FourMethodRuns:
    """Run the four methods in a setting.

    Parameters
    ----------
    name
        of the data
    settings
        the keys of the experiment file that make the setting
    sampling
        of the users, by all but FedPD, which needs everyone and is compared by bytes; none if left
        out
    words
        what the sampling is called
    """
    where = f"{name}, {words}"
    sampled = {} if sampling is None else {"sampling": dict(sampling)}
    others = [method for method in METHODS if method != "FedPD"]
    runs = dict.fromkeys(others, lab.run(where, {**settings, **sampled}, others))
    runs["FedPD"] = lab.run(f"{name}, FedPD", settings, ["FedPD"])
    return FourMethodRuns(where, runs, "rounds" if sampling is None else "bytes")


def shown(seen: Mapping[str, float]) -> str:
    """Numbers of the methods in a row."""
    return ", ".join(f"{method} {value:.3g}" for method, value in seen.items())
