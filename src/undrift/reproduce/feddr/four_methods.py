"""FedDR's figures of four methods: training loss and accuracies against rounds or bytes.

Two models are evaluated: the global model, and every client's own model on its own data. The
authors' released code evaluates FedAvg and FedProx by the former, FedPD and FedDR by the latter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from undrift.report.recorded_runs import Runs
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
"""The models that are compared: the prefix of their metrics, by method."""
GLOBAL, LOCAL, PUBLISHED = VIEWS
END_SHARE = 0.9
"""Final values are means over evaluations after this share of the cost: rounds are noisy."""
COST_SLACK = 1.01
"""How much more than the cheapest method may be spent: FedPD sends a number with its models."""
LEFT_OPEN = (
    "The paper does not say which model's loss its curves show. The authors' released code "
    "evaluates FedPD and FedDR by every user's own model on its own data, FedAvg and FedProx by "
    "the global model; here all four methods are evaluated both ways.",
    "Users have equal weights, as in the paper's problem (1); the released code weights them by "
    "their samples.",
    "x̃ starts as the mean of the x̂_k, and users take their first prox step when they are first "
    "selected; the printed start leaves a permanent offset.",
    "FedPD's users start at the model they receive; in the released code, at their own last model.",
)
"""What the paper leaves open in all of these figures."""
MAX_DIFFERENCE = 0.02
"""Accuracies that differ by no more are comparable."""


@dataclass(frozen=True)
class FourMethodRuns:
    """The runs of the four methods in one setting.

    Parameters
    ----------
    where
        name of the setting
    runs
        runs that include the method, by method
    against
        the x axis of the figure: "rounds" or "bytes"
    """

    where: str
    runs: Mapping[str, Runs]
    against: str

    def at_end(self, method: str, metric: str) -> OverSeeds:
        """Return the metric at the cost of the cheapest method; the worst value if it diverged."""
        budget = COST_SLACK * min(self._spent(each) for each in METHODS)
        worst = math.inf if metric.endswith(LOSS) else 0.0
        values = []
        for run in method_runs(self.runs[method], method).runs:
            spent = run.totals()[self.against]
            found = [
                (so_far, record.metrics[metric])
                for record, so_far in zip(run.records, spent, strict=True)
                if metric in record.metrics and so_far <= budget
            ]
            late = [value for so_far, value in found if so_far > END_SHARE * budget]
            diverged = run.status == "diverged" or not found
            values.append(worst if diverged else fmean(late or [found[-1][1]]))
        return OverSeeds(tuple(values))

    def seen(self, view: str, metric: str) -> dict[str, OverSeeds]:
        """Return the metric of each method's models in one of the `VIEWS`."""
        return {m: self.at_end(m, VIEWS[view](m) + metric) for m in METHODS}

    def numbers(self) -> list[Number]:
        """Return loss and test accuracy at the end, of both models."""
        return [
            Number(f"{self.where}: {WORDS[metric]}", f"{method}, {model}", None, measured)
            for metric in (LOSS, TEST)
            for model, prefix in (("global", ""), ("own", OWN))
            for method in METHODS
            for measured in [self.at_end(method, prefix + metric)]
        ]

    def panels(self) -> list[Panel]:
        """Return the paper's three panels: dashed lines are global models, solid lines own ones."""
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
        """Claim that some methods end with a lower loss, or a higher accuracy, than others."""
        seen = self.seen(view, metric)
        sign, word = (1, "lower") if metric == LOSS else (-1, "higher")
        return Claim(
            f"{self.where}, {view}: {' and '.join(better)} end{'s' * (len(better) == 1)} with a "
            f"{word} {WORDS[metric]} than {' and '.join(worse)}.",
            max(sign * seen[m].mean for m in better) < min(sign * seen[m].mean for m in worse),
            spread(seen),
        )

    def comparable(self, view: str, metric: str, first: str, second: str) -> Claim:
        """Claim that two methods end with about the same accuracy."""
        seen = self.seen(view, metric)
        return Claim(
            f"{self.where}, {view}: {first} and {second} are comparable ({WORDS[metric]} within "
            f"{100 * MAX_DIFFERENCE:g} points).",
            abs(seen[first].mean - seen[second].mean) <= MAX_DIFFERENCE,
            spread(seen),
        )

    def _spent(self, method: str) -> float:
        """Return the total cost of a method; a run that diverged sets no limit."""
        runs = method_runs(self.runs[method], method).runs
        return min(
            (run.totals()[self.against][-1] for run in runs if run.status != "diverged"),
            default=math.inf,
        )

    def _line(self, method: str, prefix: str, metric: str) -> Line:
        dash = "-" if prefix == OWN else "--"
        return line(self.runs[method], method, prefix + metric, self.against, dash=dash)


def compare(
    lab: Lab,
    name: str,
    settings: Mapping[str, Any],
    sampling: Mapping[str, Any] | None = None,
    words: str = "all users",
) -> FourMethodRuns:
    """Run the four methods in one setting.

    Parameters
    ----------
    name
        name of the data
    settings
        keys of the experiment file that define the setting
    sampling
        sampling of users; FedPD always uses all users, so methods are then compared by bytes; None
        for all users in every round
    words
        name of the sampling
    """
    where = f"{name}, {words}"
    sampled = {} if sampling is None else {"sampling": dict(sampling)}
    others = [method for method in METHODS if method != "FedPD"]
    runs = dict.fromkeys(others, lab.run(where, {**settings, **sampled}, others))
    runs["FedPD"] = lab.run(f"{name}, FedPD", settings, ["FedPD"])
    return FourMethodRuns(where, runs, "rounds" if sampling is None else "bytes")


def spread(seen: Mapping[str, OverSeeds]) -> str:
    """Return the means of the methods with their standard deviations, in one line."""
    return ", ".join(
        f"{method} {over.mean:.3g}" + (f" ± {over.std:.2g}" if len(over.values) > 1 else "")
        for method, over in seen.items()
    )


def shown(seen: Mapping[str, float]) -> str:
    """Return the numbers of the methods in one line."""
    return ", ".join(f"{method} {value:.3g}" for method, value in seen.items())
