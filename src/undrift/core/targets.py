"""Targets: metric values at which a run stops."""

from __future__ import annotations

from collections.abc import Mapping

from undrift.utils.errors import require, require_choice, require_range

Target = float | tuple[str, float]
"""A value to reach; for a user's own metric, ("below", value) or ("above", value)."""

FALLING = (
    "loss",
    "objective",
    "absolute_error",
    "gradient_norm",
    "gradient_mapping",
    "perplexity",
)
"""The library's metrics that should fall."""
RISING = ("auc", "f1", "dice", "jain")
"""The library's metrics that should rise, besides accuracies."""
PARTS = ("train", "validation", "test")
"""The parts of a data set."""


def reached(targets: Mapping[str, Target], metrics: Mapping[str, float]) -> str | None:
    """A sentence on the first target that was reached, or None."""
    for metric, target in targets.items():
        require_choice("A target", metric, metrics)
        direction, value = _goal(metric, target)
        found = metrics[metric]
        if found <= value if direction == "below" else found >= value:
            return f"{metric} reached {value:g}"
    return None


def _goal(metric: str, target: Target) -> tuple[str, float]:
    """The direction ("below" or "above") and the value of a target."""
    if isinstance(target, tuple) and len(target) == 2:
        direction, value = target
        require_choice(f"The direction of target {metric!r}", direction, ("below", "above"))
    else:
        value = target  # type: ignore[assignment]
        last = metric.rpartition("/")[2]
        for part in PARTS:
            last = last.removeprefix(f"{part}_")
        require(
            last in FALLING or last in RISING or "accuracy" in last,
            f"It is not known whether the metric {metric!r} should fall or rise: write "
            f"target={{{metric!r}: ('below', value)}} or ('above', value).",
        )
        direction = "below" if last in FALLING else "above"
    require_range(f"target {metric!r}", value)
    return direction, value
