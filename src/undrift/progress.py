"""Progress bars for long work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from undrift.records import Record


class Progress:
    """One bar per method, with its last loss and accuracy."""

    def __init__(self, bars: Bars, labels: Sequence[str], rounds: int):
        self._bars = bars
        self._tasks = {label: bars.add_task(label, total=rounds, note="") for label in labels}

    def show(self, label: str, record: Record) -> None:
        """Move a bar to a round."""
        note = "  ".join(
            f"{word} {record.metrics[name]:.4f}"
            for name, word in (("objective", "F"), ("test_accuracy", "test"))
            if name in record.metrics
        )
        task = self._tasks[label]
        self._bars.update(task, completed=record.round)
        if note:
            self._bars.update(task, note=note)


@contextmanager
def progress_bars(labels: Sequence[str], rounds: int, shown: bool = True) -> Iterator[Progress]:
    """Bars on the terminal, if they are to be shown."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(compact=True),
    )
    with Bars(*columns, console=Console(stderr=True), disable=not shown) as bars:
        yield Progress(bars, labels, rounds)
