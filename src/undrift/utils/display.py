"""Where output goes: a terminal that can be redrawn, a notebook, or a file that cannot."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.progress import Progress, ProgressColumn, TaskID

if TYPE_CHECKING:
    from typing import TextIO

PAUSE = 0.5
"""Seconds between two looks at the progress in a notebook."""
WIDTH = 100
"""The columns of a table in a notebook."""


def redraws(console: Console) -> bool:
    """Whether what was shown can be drawn over: on a terminal, and not on a dumb one.

    Colours may be forced upon a pipe; that does not make it a terminal.
    """
    return is_terminal(console.file) and not console.is_dumb_terminal and console.is_terminal


def is_terminal(stream: TextIO | Any) -> bool:
    """Whether a stream ends at a terminal; one that is closed does not."""
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):
        return False


def in_notebook() -> bool:
    """Whether we are called from a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and getattr(shell, "kernel", None) is not None


def watched() -> bool:
    """Whether there is someone to see progress, on a terminal or in a notebook."""
    return in_notebook() or redraws(Console(stderr=True))


def progress(
    *columns: ProgressColumn, shown: bool | None = None, transient: bool = False
) -> Progress:
    """Bars on the terminal or in the notebook; `shown` says whether, if not what there is."""
    shown = watched() if shown is None else shown
    kind = InNotebook if in_notebook() else Progress
    return kind(*columns, console=Console(stderr=True), disable=not shown, transient=transient)


def as_html(parts: Sequence[RenderableType], width: int = WIDTH) -> str:
    """What a terminal would show, for a notebook."""
    console = Console(
        record=True, width=width, file=io.StringIO(), force_jupyter=False, highlight=False
    )
    for part in parts:
        console.print(part)
    style = "white-space: pre; overflow-x: auto; line-height: normal; font-family: monospace"
    form = f'<pre style="{style}">{{code}}</pre>'
    return console.export_html(code_format=form, inline_styles=True)


class InNotebook(Progress):
    """Bars in one cell of a notebook's output, drawn over and over."""

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
        if self._handle is not None and time.monotonic() - self._drawn >= PAUSE:
            from IPython.display import HTML

            self._handle.update(HTML(self._page()))
            self._drawn = time.monotonic()

    def update(self, task_id: TaskID, **changes: Any) -> None:  # type: ignore[override]
        super().update(task_id, **changes)
        self.refresh()

    def _page(self) -> str:
        return as_html([self.get_renderable()], 80)
