"""Progress bars over rounds: one per method, with metrics, traffic and speed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.table import Column

from undrift.core.records import Record
from undrift.utils.display import InNotebook, progress
from undrift.utils.formatting import size

SHORT_NAMES = {
    "objective": "F",
    "test_accuracy": "test",
    "validation_accuracy": "val",
    "test_absolute_error": "test MAE",
    "validation_absolute_error": "val MAE",
    "test_loss": "test loss",
}
"""Metrics in progress, with their short names; the first two that were measured are shown."""


class Tally:
    """Counts the bytes and rounds of a method for the text of its progress."""

    def __init__(self) -> None:
        self.bytes = 0
        self.note = ""
        self._rounds = 0
        self._began = time.monotonic()

    def begin(self) -> None:
        """A run begins: count its speed from here."""
        self._rounds, self._began = 0, time.monotonic()

    def take(self, record: Record) -> str:
        """The text after a round: two metrics, all bytes so far, rounds per second."""
        self._rounds += record.round > 0
        self.bytes += sum(record.bytes_down.values()) + sum(record.bytes_up.values())
        metrics = record.metrics
        found = [f"{word} {metrics[m]:.4f}" for m, word in SHORT_NAMES.items() if m in metrics]
        self.note = "  ".join(found[:2]) or self.note  # more do not fit on 80 columns
        speed = self._rounds / max(time.monotonic() - self._began, 1e-9)
        return f"{self.note}  {size(self.bytes)}  {speed:.3g}/s"


class BarObserver:
    """An observer that shows one bar per method, over all its seeds."""

    def __init__(self, bars: RichProgress, labels: Sequence[str], rounds: int, seeds: int):
        self._bars = bars
        self._rounds = rounds
        self._tasks: dict[str, TaskID] = {}
        for label in labels:
            self._tasks[label] = bars.add_task(label, total=rounds * seeds, note="", start=False)
        self._tallies = {label: Tally() for label in labels}
        self._done = dict.fromkeys(labels, 0)
        self._strategy = ""

    def note(self, text: str, values: Mapping[str, Any]) -> None:
        if not self._bars.disable and not isinstance(self._bars, InNotebook):
            self._bars.console.print(text, highlight=False, markup=False)

    def begin(self, label: str, seed: int, round: int) -> None:
        self._bars.start_task(self._tasks[label])
        self._tallies[label].begin()
        self._move(label, round)

    def show(self, label: str, seed: int, record: Record) -> None:
        note = self._tallies[label].take(record)
        if record.strategy not in ("", self._strategy):
            self._strategy = record.strategy
            if not self._bars.disable and not isinstance(self._bars, InNotebook):
                text = f"engine: {record.strategy}"
                self._bars.console.print(text, highlight=False, markup=False)
        self._bars.update(self._tasks[label], note=note)
        self._move(label, record.round)

    def end(self, label: str, seed: int, status: str, reason: str | None) -> None:
        if status != "interrupted":
            self._done[label] += self._rounds
            self._move(label, 0)
        if status == "diverged":
            self._bars.update(self._tasks[label], note="diverged")

    def _move(self, label: str, round: int) -> None:
        self._bars.update(self._tasks[label], completed=self._done[label] + round)


@contextmanager
def progress_bars(
    labels: Sequence[str], rounds: int, seeds: int = 1, shown: bool | None = True
) -> Iterator[BarObserver]:
    """Progress bars that fit on 80 columns.

    `shown` says whether to show them; None for only on a terminal or in a notebook.
    """
    whole = Column(no_wrap=True)
    columns = (
        TextColumn("{task.description}", markup=False, table_column=_narrow(16)),
        BarColumn(bar_width=8),
        MofNCompleteColumn(table_column=whole),
        TextColumn("{task.fields[note]}", markup=False, table_column=_narrow(40)),
        TimeRemainingColumn(compact=True, table_column=whole),
    )
    with progress(*columns, shown=shown) as bars:
        yield BarObserver(bars, labels, rounds, seeds)


def _narrow(width: int) -> Column:
    """A column of at most `width` characters whose text is cut rather than wrapped."""
    return Column(no_wrap=True, overflow="ellipsis", max_width=width)
