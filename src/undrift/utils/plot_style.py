"""What all figures share: curves with bands, labels, logarithmic axes and reproducible SVG."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

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
"""Twelve colours that most colour-blind readers can tell apart."""


DASHES = ("-", "--", "-.", ":")
"""Line styles, from the one that covers most to the one that covers least."""
BAND_OPACITY = 0.2


def dash_number(number: int) -> int:
    """Return the place in `DASHES` of a curve: neighbours differ, also without colours.

    Every twelve curves the styles shift by one, so that 48 curves look different.
    """
    return (number + number // len(COLOURS)) % len(DASHES)


def line_style(number: int) -> dict[str, Any]:
    """Return the colour, line style and order of a curve, as arguments of matplotlib's `plot`.

    Curves with gaps lie above those without, so that two equal curves of different styles are both
    seen.
    """
    place = dash_number(number)
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": DASHES[place],
        "zorder": 2 + place / len(DASHES),
    }


def draw_curve(
    axes: Axes,
    number: int,
    x: Sequence[float],
    y: Sequence[float],
    low: Sequence[float] = (),
    high: Sequence[float] = (),
    **options: Any,
) -> Line2D:
    """Draw a curve in the style of its number, and the band from `low` to `high` if they are given.

    `options` go to matplotlib's `plot`, and replace what `line_style` says.
    """
    style = {**line_style(number), **options}
    (drawn,) = axes.plot(x, y, **style)
    if len(low):
        axes.fill_between(x, low, high, color=style["color"], alpha=BAND_OPACITY, linewidth=0)
    return drawn


def format_axes(axes: Axes, x: str, y: str, points: float) -> None:
    """Label the axes in letters of this size, and draw a light grid without a frame."""
    axes.set_xlabel(literal(x), fontsize=points)
    axes.set_ylabel(literal(y), fontsize=points)
    axes.tick_params(labelsize=points - 1)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def literal(text: str) -> str:
    """Return a label that matplotlib shows as it is.

    Dollar signs would otherwise begin mathematics, and a legend leaves out labels that begin
    with "_".
    """
    text = text.replace("$", r"\$")
    return f"\u200b{text}" if text.startswith("_") else text


def use_log_axis(axes: Axes) -> None:
    """Make the y axis of drawn curves logarithmic, with plain numbers at powers of ten.

    An axis of at most three powers of ten also has numbers at 2 and 5 of each.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    if high <= 1000 * low:
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def reproducible_svg() -> AbstractContextManager[None]:
    """Let matplotlib write the same figure as the same bytes of SVG, for the block."""
    from matplotlib import rc_context

    return rc_context({"svg.hashsalt": "undrift"})


def svg_bytes(figure: Figure) -> bytes:
    """Return a figure as SVG; the same figure gives the same bytes."""
    content = io.BytesIO()
    with reproducible_svg():
        figure.savefig(content, format="svg", metadata={"Date": None})
    return content.getvalue()
