"""What metrics, diagnostics and states are called, and on which scale they are drawn."""

from __future__ import annotations

import math

from undrift.report.plots import lower_is_better
from undrift.report.reading import Runs
from undrift.report.tables import RISING, sort_metrics

ERRORS = ("test_absolute_error", "validation_absolute_error", "train_absolute_error")
"""What values are judged by, as classes are by their accuracy."""
LOG_ZERO = 1e-30
"""What is smaller is zero on a logarithmic scale, here and in `page.js`."""
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
    "interrupted": "interrupted; undrift resume goes on",
    "running": "still running, or its process was killed",
}
"""What a reader must know of a run that did not end as it should."""


def metric_label(metric: str) -> str:
    """A metric's name as people write it; that of another model with the model's name."""
    model, _, name = metric.rpartition("/")
    return f"{model + ': ' if model else ''}{name.replace('_', ' ')}"


def uses_log_scale(runs: Runs, name: str) -> bool:
    """Whether a metric or diagnostic is best seen on a logarithmic scale."""
    if not lower_is_better(name) or name == "tau_eff":
        return False
    found = [(r.metrics | r.diagnostics).get(name) for run in runs for r in run.records]
    values = [value for value in found if value is not None and math.isfinite(value)]
    return min(values, default=0.0) >= 0 and max(values, default=0.0) > LOG_ZERO


def main_metrics(runs: Runs) -> list[str]:
    """The two metrics to begin with: an accuracy, or an error of values, and a loss."""
    metrics = sort_metrics(runs.metrics)
    judged = [name for name in (*RISING, *ERRORS) if name in metrics]
    loss = [name for name in ("objective", "train_loss", "test_loss") if name in metrics]
    tested = [name for name in metrics if name == "test_loss"]
    return list(dict.fromkeys([*judged[:1], *loss[:1], *tested, *metrics]))[:2]
