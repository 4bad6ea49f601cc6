"""Progress bars and tables on a terminal, in a notebook, or in a file.

Commands and long computations ask here whether anyone can see a progress bar.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Sequence
from textwrap import TextWrapper
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.progress import Progress, ProgressColumn, TaskID

if TYPE_CHECKING:
    from typing import TextIO

REDRAW_SECONDS = 0.5
"""How often a progress bar in a notebook is drawn again, at most."""
NOTEBOOK_COLUMNS = 100
"""Width of a table in a notebook, in characters."""


def redraws(console: Console) -> bool:
    """Whether the console can overwrite lines: it is a terminal, and not a dumb one.

    The stream is asked too, because FORCE_COLOR makes rich take a pipe for a terminal.
    """
    return is_terminal(console.file) and not console.is_dumb_terminal and console.is_terminal


def is_terminal(stream: TextIO | Any) -> bool:
    """Whether a stream writes to a terminal; False for a closed stream."""
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):
        return False


def print_wrapped(console: Console, text: str) -> None:
    """Print sentences for a reader: a terminal gets them wrapped between words at its width.

    Elsewhere a line stays whole, so that scripts find what they look for. A word that is longer
    than a line, such as a path, is never cut.
    """
    if is_terminal(console.file):
        wrapper = TextWrapper(console.width, break_long_words=False, break_on_hyphens=False)
        text = "\n".join(wrapper.fill(line) for line in text.split("\n"))
    console.print(text, soft_wrap=True)


def in_notebook() -> bool:
    """Whether this code runs in the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and getattr(shell, "kernel", None) is not None


def progress_is_visible() -> bool:
    """Whether someone can see a progress bar, on a terminal or in a notebook."""
    return in_notebook() or redraws(Console(stderr=True))


def progress(
    *columns: ProgressColumn, shown: bool | None = None, transient: bool = False
) -> Progress:
    """Progress bars for the terminal or the notebook.

    Parameters
    ----------
    columns
        what each bar consists of, as rich takes it
    shown
        whether to draw the bars; None draws them if someone can see them
    transient
        whether to remove the bars when they are done
    """
    shown = progress_is_visible() if shown is None else shown
    kind = InNotebook if in_notebook() else Progress
    return kind(*columns, console=Console(stderr=True), disable=not shown, transient=transient)


def as_html(parts: Sequence[RenderableType], width: int = NOTEBOOK_COLUMNS) -> str:
    """HTML that shows the parts as a terminal of `width` characters would."""
    console = Console(
        record=True, width=width, file=io.StringIO(), force_jupyter=False, highlight=False
    )
    for part in parts:
        console.print(part)
    style = "white-space: pre; overflow-x: auto; line-height: normal; font-family: monospace"
    form = f'<pre style="{style}">{{code}}</pre>'
    return console.export_html(code_format=form, inline_styles=True)


class InNotebook(Progress):
    """Progress bars in the output of one notebook cell, which every refresh replaces."""

    def __init__(self, *columns: ProgressColumn, **options: Any):
        super().__init__(*columns, **options, auto_refresh=False)
        self._handle: Any = None
        self._drawn = 0.0

    def start(self) -> None:
        if not self.disable:
            from IPython.display import HTML, display

            self._handle = display(HTML(self._page()), display_id=True)
            self._drawn = time.monotonic()

    def stop(self) -> None:
        if self._handle is not None:
            from IPython.display import HTML

            self._handle.update(HTML("" if self.live.transient else self._page()))
            self._handle = None

    def refresh(self) -> None:
        if self._handle is not None and time.monotonic() - self._drawn >= REDRAW_SECONDS:
            from IPython.display import HTML

            self._handle.update(HTML(self._page()))
            self._drawn = time.monotonic()

    def update(self, task_id: TaskID, **changes: Any) -> None:  # type: ignore[override]
        super().update(task_id, **changes)
        self.refresh()

    def _page(self) -> str:
        return as_html([self.get_renderable()], 80)
