"""Observers of runs: progress bars, plain lines, lines of JSON, or nothing.

The driver tells an observer when a run begins, when a round is committed and when a run ends.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from undrift.core.records import Record
from undrift.runs.driver import Observer
from undrift.runs.progress import Tally, progress_bars
from undrift.utils.display import progress_is_visible

SECONDS_BETWEEN_LINES = 10.0


class LineObserver:
    """Prints plain lines to standard error, at most one every few seconds, for files and pipes."""

    def __init__(self, rounds: int):
        self._rounds = rounds
        self._tallies: dict[tuple[str, int], Tally] = {}
        self._last_time = time.monotonic()
        self._text = self._strategy = ""

    def note(self, text: str, values: Mapping[str, Any]) -> None:
        print(text, file=sys.stderr, flush=True)

    def begin(self, label: str, seed: int, round: int) -> None:
        self._tallies[label, seed] = Tally()
        if 0 < round < self._rounds:
            self._print(label, seed, f"continues after round {round}")

    def show(self, label: str, seed: int, record: Record) -> None:
        note = self._tallies[label, seed].take(record)
        if record.strategy not in ("", self._strategy):
            self._strategy = record.strategy
            self._print(label, seed, f"engine: {record.strategy}")
        self._text = f"round {record.round}/{self._rounds}  {note}"
        if time.monotonic() - self._last_time >= SECONDS_BETWEEN_LINES:
            self._last_time = time.monotonic()
            self._print(label, seed, self._text)

    def end(self, label: str, seed: int, status: str, reason: str | None) -> None:
        self._print(label, seed, f"{status}  {self._text}{f'  ({reason})' if reason else ''}")
        self._text = ""

    def _print(self, label: str, seed: int, text: str) -> None:
        print(f"{label}, seed {seed}: {text}", file=sys.stderr, flush=True)


class JsonObserver:
    """Prints every record, and how each run ended, as one line of JSON to standard output."""

    def note(self, text: str, values: Mapping[str, Any]) -> None:
        print(json.dumps(values, ensure_ascii=False), flush=True)

    def begin(self, label: str, seed: int, round: int) -> None:
        pass

    def show(self, label: str, seed: int, record: Record) -> None:
        line = {"label": label, "seed": seed, **json.loads(record.to_json())}
        print(json.dumps(line, ensure_ascii=False), flush=True)

    def end(self, label: str, seed: int, status: str, reason: str | None) -> None:
        line = {"label": label, "seed": seed, "status": status, "reason": reason}
        print(json.dumps(line, ensure_ascii=False), flush=True)


@contextmanager
def make_observer(
    labels: Sequence[str], rounds: int, seeds: int, quiet: bool = False, as_json: bool = False
) -> Iterator[Observer | None]:
    """The observer of a command: JSON if asked, None if quiet, bars on a terminal, else lines."""
    if as_json:
        yield JsonObserver()
    elif quiet:
        yield None
    elif not progress_is_visible():
        yield LineObserver(rounds)
    else:
        with progress_bars(labels, rounds, seeds) as bars:
            yield bars
