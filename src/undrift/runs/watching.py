"""Ways to look on while runs are done: bars, plain lines, lines of JSON, or nothing."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from undrift.core.records import Record
from undrift.runs.driver import Observer
from undrift.runs.progress import Tally, progress_bars
from undrift.utils.display import progress_is_visible

PAUSE = 10.0
"""seconds between two plain lines of a run"""


class Lines:
    """Plain lines, for a file or a pipe: now and then, and at the end of a run."""

    def __init__(self, rounds: int):
        self._rounds = rounds
        self._tallies: dict[tuple[str, int], Tally] = {}
        self._last = time.monotonic()
        self._text = self._strategy = ""

    def begin(self, label: str, seed: int, round: int) -> None:
        self._tallies[label, seed] = Tally()
        if 0 < round < self._rounds:
            self._print(label, seed, f"goes on after round {round}")

    def show(self, label: str, seed: int, record: Record) -> None:
        note = self._tallies[label, seed].take(record)
        if record.strategy not in ("", self._strategy):
            self._strategy = record.strategy
            self._print(label, seed, f"engine: {record.strategy}")
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
) -> Iterator[Observer | None]:
    """Who looks on: bars on a terminal, lines elsewhere."""
    if as_json:
        yield JsonLines()
    elif quiet:
        yield None
    elif not progress_is_visible():
        yield Lines(rounds)
    else:
        with progress_bars(labels, rounds, seeds) as bars:
            yield bars
