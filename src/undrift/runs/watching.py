"""Ways to look on while runs are done: bars, plain lines, lines of JSON, or nothing."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.table import Column

from undrift.records import Record
from undrift.runs.execution import Watcher
from undrift.units import size

PAUSE = 10.0
"""seconds between two plain lines of a run"""


class Tally:
    """What a method has cost so far, and how fast it goes."""

    def __init__(self) -> None:
        self.bytes = 0
        self.note = ""
        self._rounds = 0
        self._began = time.monotonic()

    def begin(self) -> None:
        """The speed is that of the run that begins."""
        self._rounds, self._began = 0, time.monotonic()

    def take(self, record: Record) -> str:
        """A line about a round: loss, accuracy, traffic and speed."""
        self._rounds += record.round > 0
        self.bytes += sum(record.bytes_down.values()) + sum(record.bytes_up.values())
        named = (("objective", "F"), ("test_accuracy", "test"), ("validation_accuracy", "val"))
        found = [f"{w} {record.metrics[m]:.4f}" for m, w in named if m in record.metrics]
        self.note = "  ".join(found[:2]) or self.note  # more does not fit on 80 columns
        speed = self._rounds / max(time.monotonic() - self._began, 1e-9)
        return f"{self.note}  {size(self.bytes)}  {speed:.3g}/s"


class Bars:
    """One bar per method, over all its seeds."""

    def __init__(self, bars: RichProgress, labels: Sequence[str], rounds: int, seeds: int):
        self._bars = bars
        self._rounds = rounds
        self._tasks: dict[str, TaskID] = {}
        for label in labels:
            self._tasks[label] = bars.add_task(label, total=rounds * seeds, note="", start=False)
        self._tallies = {label: Tally() for label in labels}
        self._done = dict.fromkeys(labels, 0)

    def begin(self, label: str, seed: int, round: int) -> None:
        self._bars.start_task(self._tasks[label])
        self._tallies[label].begin()
        self._move(label, round)

    def show(self, label: str, seed: int, record: Record) -> None:
        note = self._tallies[label].take(record)
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


class Lines:
    """Plain lines, for a file or a pipe: now and then, and at the end of a run."""

    def __init__(self, rounds: int):
        self._rounds = rounds
        self._tallies: dict[tuple[str, int], Tally] = {}
        self._last = time.monotonic()
        self._text = ""

    def begin(self, label: str, seed: int, round: int) -> None:
        self._tallies[label, seed] = Tally()
        if 0 < round < self._rounds:
            self._print(label, seed, f"goes on after round {round}")

    def show(self, label: str, seed: int, record: Record) -> None:
        note = self._tallies[label, seed].take(record)
        self._text = f"round {record.round}/{self._rounds}  {note}"
        if time.monotonic() - self._last >= PAUSE:
            self._last = time.monotonic()
            self._print(label, seed, self._text)

    def end(self, label: str, seed: int, status: str, reason: str | None) -> None:
        self._print(label, seed, f"{status}  {self._text}{f'  ({reason})' if reason else ''}")
        self._text = ""

    def _print(self, label: str, seed: int, text: str) -> None:
        print(f"{label}, seed {seed}: {text}", file=sys.stderr, flush=True)


class JsonLines:
    """Every record on a line of its own, on the standard output."""

    def begin(self, label: str, seed: int, round: int) -> None:
        pass

    def show(self, label: str, seed: int, record: Record) -> None:
        line = {"label": label, "seed": seed, **json.loads(record.to_json())}
        print(json.dumps(line, ensure_ascii=False), flush=True)

    def end(self, label: str, seed: int, status: str, reason: str | None) -> None:
        line = {"label": label, "seed": seed, "status": status, "reason": reason}
        print(json.dumps(line, ensure_ascii=False), flush=True)


@contextmanager
def watching(
    labels: Sequence[str], rounds: int, seeds: int, quiet: bool = False, as_json: bool = False
) -> Iterator[Watcher | None]:
    """Who looks on: bars on a terminal, lines elsewhere."""
    console = Console(stderr=True)
    if as_json:
        yield JsonLines()
    elif quiet:
        yield None
    elif not console.is_terminal:
        yield Lines(rounds)
    else:
        whole = Column(no_wrap=True)
        columns = (
            TextColumn("{task.description}", markup=False, table_column=_narrow(16)),
            BarColumn(bar_width=8),
            MofNCompleteColumn(table_column=whole),
            TextColumn("{task.fields[note]}", markup=False, table_column=_narrow(40)),
            TimeRemainingColumn(compact=True, table_column=whole),
        )
        with RichProgress(*columns, console=console) as bars:
            yield Bars(bars, labels, rounds, seeds)


def _narrow(width: int) -> Column:
    """A column that is cut rather than wrapped."""
    return Column(no_wrap=True, overflow="ellipsis", max_width=width)
