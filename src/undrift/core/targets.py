"""When a run has reached what it was asked for."""

from __future__ import annotations

from collections.abc import Mapping

from undrift.utils.errors import require, require_choice, require_range

Target = float | tuple[str, float]
"""A value to reach; for a metric of the user's own, ("below", value) or ("above", value)."""

FALLING = ("loss", "objective", "absolute_error", "gradient_norm", "gradient_mapping")
"""Those of our own metrics that are better when lower; accuracies are better when higher."""
PARTS = ("train", "validation", "test")
"""The parts that data may have."""


def reached(targets: Mapping[str, Target], metrics: Mapping[str, float]) -> str | None:
    """Which target was reached, in words, or None."""
    for metric, target in targets.items():
        require_choice("A target", metric, metrics)
        direction, value = _goal(metric, target)
        found = metrics[metric]
        if found <= value if direction == "below" else found >= value:
            return f"{metric} reached {value:g}"
    return None


def _goal(metric: str, target: Target) -> tuple[str, float]:
    """A target with its direction."""
    if isinstance(target, tuple) and len(target) == 2:
        direction, value = target
        require_choice(f"The direction of target {metric!r}", direction, ("below", "above"))
    else:
        value = target  # type: ignore[assignment]
        last = metric.rpartition("/")[2]
        for part in PARTS:
            last = last.removeprefix(f"{part}_")
        require(
            last in FALLING or "accuracy" in last,
            f"Whether {metric!r} should fall or rise is not known: write "
            f"target={{{metric!r}: ('below', value)}} or ('above', value).",
        )
        direction = "below" if last in FALLING else "above"
    require_range(f"target {metric!r}", value)
    return direction, value
