"""The ledger of a site: which orders it has accepted, on its own disk.

An accepted order is written and synced before any work on it begins, so that no crash and no
restart makes the site forget what it has answered.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from undrift.deploy.orders import Roster, RunTerms
from undrift.deploy.state_files import make_folder
from undrift.utils.errors import UndriftError, first_line
from undrift.utils.files import synced

LEDGER_FILE = "ledger.jsonl"
HOUR_SECONDS = 3600.0
RUN, WORK, STEPS, EVALUATE, UNMASK = "run", "work", "steps", "evaluate", "unmask"
"""What a line is about: a run that was accepted or declined, an accepted order to train, the steps
that were done of it, an accepted order to evaluate, a round whose sum was unmasked."""


@dataclass
class RunEntry:
    """A run that the site has been asked to take part in."""

    roster: Roster
    approved: bool
    orders: int = 0
    """accepted orders of all its methods and seeds"""


@dataclass
class History:
    """The accepted orders of one method with one seed of a run."""

    attempt: int = 0
    """the last attempt that an order to train belonged to"""
    turn: int = -1
    round: int = -1
    """the last turn and round within that attempt"""
    turns: dict[int, dict[str, int | None]] = field(default_factory=dict)
    """by turn: the digests of the accepted orders, with the steps done if they were cut"""
    evaluation_attempt: int = 0
    evaluation_round: int = -1
    evaluated_models: set[str] = field(default_factory=set)
    """the models evaluated after the last evaluated round, within the attempt"""
    evaluations: dict[tuple[int, str], set[str]] = field(default_factory=dict)
    """by round and model: the digests of the orders that were accepted"""
    unmasked: set[int] = field(default_factory=set)
    """rounds of which the site has revealed masks of secure aggregation"""
    repeats: int = 0
    """orders accepted for a round, or an evaluation, that had been done with another model"""
    repeating_attempts: set[int] = field(default_factory=set)
    """the attempts that such orders belonged to"""


class Ledger:
    """The accepted orders of a site, in memory and in an append-only file.

    Every line has a checksum. A last line that a killed process left incomplete is dropped: its
    order was not worked on. Any other damage is an error, since the site could no longer tell what
    it has answered.

    Parameters
    ----------
    folder
        the site's state folder; it is created if it is missing
    """

    def __init__(self, folder: Path):
        make_folder(folder)
        self.path = folder / LEDGER_FILE
        self.runs: dict[str, RunEntry] = {}
        self._histories: dict[str, History] = {}
        self._times: deque[float] = deque()
        """when orders were accepted within the last hour, by the monotonic clock"""
        try:
            self._read()
        except OSError as error:
            raise UndriftError(f"{self.path} cannot be read: {first_line(error)}.") from error

    def history(self, terms: RunTerms) -> History:
        """The accepted orders of a method with a seed of a run."""
        return self._histories.setdefault(terms.key, History())

    def orders_within_hour(self) -> int:
        """The number of orders accepted within the last hour, repetitions included."""
        oldest = time.monotonic() - HOUR_SECONDS
        while self._times and self._times[0] < oldest:
            self._times.popleft()
        return len(self._times)

    def count_repetition(self) -> None:
        """Count an order that is answered again exactly as before: it needs no line."""
        self._times.append(time.monotonic())

    def add_run(self, terms: RunTerms, approved: bool) -> None:
        """Remember a run, its roster, and whether a person approved it."""
        rows = {site: list(row) for site, row in terms.roster.items()}
        self._append({"what": RUN, "run": terms.run, "roster": rows, "approved": approved})

    def add_work(self, terms: RunTerms, round: int, turn: int, digest: str) -> None:
        """Remember an accepted order to train."""
        place = {"round": round, "turn": turn, "digest": digest}
        self._append({"what": WORK, **_place(terms), **place})

    def add_steps(self, terms: RunTerms, turn: int, digest: str, steps: int) -> None:
        """Remember how many steps were done of work that was cut to fit a deadline."""
        place = {"turn": turn, "digest": digest, "steps": steps}
        self._append({"what": STEPS, **_place(terms), **place})

    def add_evaluation(self, terms: RunTerms, round: int, model: str, digest: str) -> None:
        """Remember an accepted order to evaluate."""
        place = {"round": round, "model": model, "digest": digest}
        self._append({"what": EVALUATE, **_place(terms), **place})

    def add_unmasking(self, terms: RunTerms, round: int) -> None:
        """Remember that masks of a round are revealed, which must happen once only."""
        self._append({"what": UNMASK, **_place(terms), "round": round})

    def _append(self, line: dict[str, Any]) -> None:
        line = {**line, "time": time.time()}
        text = json.dumps({**line, "sum": _sum(line)}, separators=(",", ":")) + "\n"
        try:
            fresh = not self.path.exists()
            with self.path.open("ab") as file:
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
            if fresh:
                synced(self.path.parent)
        except OSError as error:
            raise UndriftError(f"{self.path} cannot be written: {first_line(error)}.") from error
        self._take(line)

    def _read(self) -> None:
        if not self.path.exists():
            return
        data = self.path.read_bytes()
        place = 0
        for number, raw in enumerate(data.splitlines(keepends=True), 1):
            line = _parsed(raw)
            if line is None:
                if place + len(raw) < len(data):
                    raise UndriftError(
                        f"{self.path} is damaged at line {number}: without it the site cannot tell "
                        f"what it has answered; restore the file, or start with a new state folder."
                    )
                os.truncate(self.path, place)
                return
            self._take(line)
            place += len(raw)

    def _take(self, line: Mapping[str, Any]) -> None:
        """Update the memory by a line of the file."""
        if line["what"] == RUN:
            roster = {site: (row[0], row[1]) for site, row in line["roster"].items()}
            self.runs[line["run"]] = RunEntry(roster, line["approved"])
            return
        history = self._histories.setdefault(line["key"], History())
        if line["what"] == UNMASK:
            history.unmasked.add(line["round"])
            return
        if line["what"] == STEPS:
            history.turns[line["turn"]][line["digest"]] = line["steps"]
            return
        if line["what"] == WORK:
            known: Any = history.turns.setdefault(line["turn"], {})
            history.attempt, history.turn = line["attempt"], line["turn"]
            history.round = line["round"]
        else:
            known = history.evaluations.setdefault((line["round"], line["model"]), set())
            if (line["attempt"], line["round"]) != (
                history.evaluation_attempt,
                history.evaluation_round,
            ):
                history.evaluated_models.clear()
            history.evaluated_models.add(line["model"])
            history.evaluation_attempt = line["attempt"]
            history.evaluation_round = line["round"]
        if known:
            history.repeats += 1
            history.repeating_attempts.add(line["attempt"])
        if line["what"] == WORK:
            known[line["digest"]] = None
        else:
            known.add(line["digest"])
        self.runs[line["run"]].orders += 1
        # Of the lines that an earlier process wrote only the time of day is known. One that lies
        # ahead was written before the clock was set back: it counts as new, for an hour at most.
        age = max(0.0, time.time() - line["time"])
        if age < HOUR_SECONDS:
            self._times.append(time.monotonic() - age)


def _place(terms: RunTerms) -> dict[str, Any]:
    return {"run": terms.run, "key": terms.key, "attempt": terms.attempt}


def _sum(line: Mapping[str, Any]) -> str:
    text = json.dumps(line, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _parsed(raw: bytes) -> dict[str, Any] | None:
    """A line of the file; None if it is incomplete or damaged."""
    if not raw.endswith(b"\n"):
        return None
    try:
        line = json.loads(raw)
        return line if line.pop("sum") == _sum(line) else None
    except (ValueError, KeyError, AttributeError):
        return None
