"""What all figures share: colours, literal labels, logarithmic axes and reproducible SVG."""

from __future__ import annotations

import io
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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


def literal(text: str) -> str:
    """Return a label that matplotlib shows as it is.

    Dollar signs would otherwise begin mathematics, and a legend leaves out labels that begin
    with "_".
    """
    text = text.replace("$", r"\$")
    return f"\u200b{text}" if text.startswith("_") else text


def use_log_axis(axes: Axes) -> None:
    """Make the y axis logarithmic, with plain numbers at 1, 2 and 5 of every power of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_yscale("log")
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
