"""Labels of metrics, diagnostics and run states, and whether a metric is drawn on a log scale."""

from __future__ import annotations

import math

from undrift.report.plots import lower_is_better
from undrift.report.recorded_runs import Runs
from undrift.report.tables import ACCURACIES, sort_metrics

ERROR_METRICS = ("test_absolute_error", "validation_absolute_error", "train_absolute_error")
"""The main metrics of regression, as accuracies are of classification."""
LOG_ZERO = 1e-30
"""Smaller values count as zero on a logarithmic scale, here and in `page.js`."""
DIAGNOSTICS = {
    "drift": "drift |x_k − x̄|",
    "moved": "moved |x_k − x|",
    "step": "server's step |x⁺ − x|",
    "tau_eff": "τ_eff",
    "chi_square": "χ² of the weights",
    "dual_residual": "dual residual",
}
STATUS_NOTES = {
    "diverged": "diverged",
    "interrupted": "interrupted; continue with undrift resume",
    "running": "still running, or the process was killed",
}
"""What the page says about runs in these states."""


def metric_label(metric: str) -> str:
    """Return a metric's label: "test accuracy", or "all: test loss" for another model."""
    model, _, name = metric.rpartition("/")
    return f"{model + ': ' if model else ''}{name.replace('_', ' ')}"


def uses_log_scale(runs: Runs, name: str) -> bool:
    """Whether a metric or diagnostic is drawn on a logarithmic scale."""
    if not lower_is_better(name) or name == "tau_eff":
        return False
    found = [(r.metrics | r.diagnostics).get(name) for run in runs for r in run.records]
    values = [value for value in found if value is not None and math.isfinite(value)]
    return min(values, default=0.0) >= 0 and max(values, default=0.0) > LOG_ZERO


def main_metrics(runs: Runs) -> list[str]:
    """Return the two metrics that charts show first: an accuracy or an error, and a loss."""
    metrics = sort_metrics(runs.metrics)
    judged = [name for name in (*ACCURACIES, *ERROR_METRICS) if name in metrics]
    loss = [name for name in ("objective", "train_loss", "test_loss") if name in metrics]
    tested = [name for name in metrics if name == "test_loss"]
    return list(dict.fromkeys([*judged[:1], *loss[:1], *tested, *metrics]))[:2]
