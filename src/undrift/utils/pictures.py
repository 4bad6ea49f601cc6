"""Figures that are written to a file or shown by a notebook."""

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
    """A figure of matplotlib that is shown where a notebook's cell ends with it."""

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        content = io.BytesIO()
        self.savefig(content, format="png", dpi=DPI)
        wide, high = self.get_size_inches()
        # A notebook's pixels are a 96th of an inch: on a fine screen the others show too.
        return content.getvalue(), {"width": round(96 * wide), "height": round(96 * high)}

    def __repr__(self) -> str:
        wide, high = self.get_size_inches()
        return f'<Picture of {wide:.3g} × {high:.3g} inches: .savefig("picture.pdf") writes it>'


def require_suffix(path: str | Path) -> Path:
    """The path of a picture, if its suffix is that of a picture."""
    require_choice("The kind of picture", Path(path).suffix, SUFFIXES)
    return Path(path)


def write(figure: Figure, path: str | Path, dpi: int = DPI) -> Path:
    """Write a picture whole, with text that remains text in a PDF."""
    path = require_suffix(path)
    with written_whole(path) as partial, rc_context({"pdf.fonttype": 42}):
        figure.savefig(partial, dpi=dpi)
    return path
