"""matplotlib figures that are written to a file, shown by a notebook or put into a page.

Importing this module imports matplotlib, so callers import it where they draw.
"""

from __future__ import annotations

import io
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from undrift.utils.errors import require_choice
from undrift.utils.files import written_whole

DPI = 144
SUFFIXES = (".png", ".svg", ".pdf")


class Picture(Figure):
    """A matplotlib figure that a notebook shows when it is the last value of a cell."""

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        content = io.BytesIO()
        self.savefig(content, format="png", dpi=DPI)
        wide, high = self.get_size_inches()
        # A notebook has 96 pixels per inch; a screen with more uses the extra pixels of the PNG.
        return content.getvalue(), {"width": round(96 * wide), "height": round(96 * high)}

    def __repr__(self) -> str:
        wide, high = self.get_size_inches()
        return f'<Picture of {wide:.3g} × {high:.3g} inches: .savefig("picture.pdf") writes it>'


def require_suffix(path: str | Path) -> Path:
    """The path, after a check that its suffix is one of `SUFFIXES`."""
    require_choice("The kind of picture", Path(path).suffix, SUFFIXES)
    return Path(path)


def write(figure: Figure, path: str | Path, dpi: int = DPI) -> Path:
    """Write a figure to a file atomically; a PDF keeps its text as text."""
    path = require_suffix(path)
    with written_whole(path) as partial, rc_context({"pdf.fonttype": 42}):
        figure.savefig(partial, dpi=dpi)
    return path
