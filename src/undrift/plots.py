"""Pictures of runs."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from undrift.errors import require_choice
from undrift.files import written_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from undrift.result import Result

# Twelve colours that stay apart, also for most colour-blind readers, and two line styles.
COLOURS = (
    "#4477aa",
    "#ee6677",
    "#228833",
    "#ccbb44",
    "#66ccee",
    "#aa3377",
    "#777777",
    "#e07b00",
    "#004488",
    "#994f00",
    "#44aa99",
    "#000000",
)
FIRST = ("objective", "test_loss", "validation_loss")
"""What is drawn first, as far as it was measured."""


def plot_histories(
    results: Sequence[Result], path: str | Path, metrics: Sequence[str] | None = None
) -> Path:
    """Metrics against rounds, one line per method; losses on a logarithmic scale."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    path = Path(path)
    require_choice("The kind of picture", path.suffix, (".png", ".svg", ".pdf"))
    found = [name for result in results for r in result.records for name in r.metrics]
    if metrics is None:
        others = [m for m in found if m.startswith("test_") and m != "test_loss"]
        second = [*others, *(m for m in found if m == "gradient_norm")]
        first = [m for m in FIRST if m in found]
        metrics = list(dict.fromkeys([*first[:1], *second[:1]])) or found[:1]
    for metric in metrics:
        require_choice("A metric to plot", metric, dict.fromkeys(found))
    figure = Figure(figsize=(5.2 * len(metrics) + 1.6, 4.2), layout="constrained")
    axes = figure.subplots(1, len(metrics), squeeze=False)[0]
    for axis, metric in zip(axes, metrics, strict=True):
        values: list[float] = []
        for number, result in enumerate(results):
            if not any(metric in record.metrics for record in result.records):
                continue
            rounds, history = result.history(metric)
            values += history
            axis.plot(
                rounds,
                history,
                label=result.label,
                color=COLOURS[number % len(COLOURS)],
                linestyle="-" if number < len(COLOURS) else "--",
                linewidth=3.0 - 1.8 * number / max(1, len(results) - 1),  # equal lines both show
            )
        falls = "accuracy" not in metric
        finite = [value for value in values if math.isfinite(value)]
        if falls and finite and min(finite) > 0:
            axis.set_yscale("log")
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.yaxis.set_minor_formatter(NullFormatter())
        axis.set_xlabel("rounds")
        axis.set_title(metric.replace("_", " "), fontsize=11)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=9)
    with written_whole(path) as partial:
        figure.savefig(partial, dpi=144)
    return path


def svg_of(figure: Figure) -> bytes:
    """A figure as SVG; the same figure gives the same bytes."""
    from matplotlib import rc_context

    content = io.BytesIO()
    with rc_context({"svg.hashsalt": "undrift"}):
        figure.savefig(content, format="svg", metadata={"Date": None})
    return content.getvalue()
