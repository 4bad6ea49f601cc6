"""An observer that keeps the records of runs for a live page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Condition
from typing import Any

from undrift.core.records import Record
from undrift.report.headings import METRIC_HEADINGS
from undrift.report.html.chart_data import columns
from undrift.report.naming import main_metrics, metric_label
from undrift.report.recorded_runs import Folder, RunFiles, Runs
from undrift.runs.driver import Observer, SilentObserver
from undrift.runs.folder import run_folder
from undrift.runs.records_file import read_records
from undrift.utils.errors import UndriftError

WAITING = "waiting"
"""The status of a run that has not begun."""
MAX_RECORDS = 2000
"""Records in one answer, so that no answer takes long to make."""


@dataclass
class Snapshot:
    """The runs at one moment."""

    runs: Runs
    """all runs of the plan, with their records so far"""
    layout: str
    """changes when a page needs charts or columns that it does not have yet"""
    next: int
    """number of records in the snapshot"""
    version: int
    """number of changes until the snapshot"""
    text: str
    """what is going on, in a sentence"""


@dataclass
class LiveRuns:
    """An observer that answers questions about the runs, and passes on what it is told.

    The driver calls it from the thread that trains, pages ask from other threads. A round costs the
    driver one entry in a list: tables and columns are made when a page asks.
    """

    name: str
    labels: Sequence[str]
    seeds: Sequence[int]
    rounds: int
    folder: Path
    announce: Callable[[], None] = lambda: None
    """called once, when the first run that has rounds to do begins"""

    def __post_init__(self) -> None:
        self._changed = Condition()
        self._runs = [
            RunFiles(label, seed, [], status=WAITING, rounds=self.rounds)
            for label in self.labels
            for seed in self.seeds
        ]
        self._places = {(run.label, run.seed): at for at, run in enumerate(self._runs)}
        self._log: list[tuple[int, Record]] = []
        self._metrics: dict[str, None] = {}
        self._clock = self._sent = False  # whether any record has virtual time, or bytes
        self._now: RunFiles | None = None
        self._done = self._announced = False
        self._version = 0
        self._next: Observer = SilentObserver()

    def before(self, observer: Observer | None) -> LiveRuns:
        """Pass everything on to another observer; returns itself."""
        self._next = observer or self._next
        return self

    # What the driver tells

    def note(self, text: str, values: Mapping[str, Any]) -> None:
        self._next.note(text, values)

    def begin(self, label: str, seed: int, round: int) -> None:
        self._next.begin(label, seed, round)
        if round < self.rounds and not self._announced:
            self._announced = True
            self.announce()
        before = self._committed(label, seed, round) if round else []
        with self._changed:
            self._now = self._runs[self._places[label, seed]]
            self._now.status = "running"
            for record in before:
                self._append(label, seed, record)
            self._change()

    def show(self, label: str, seed: int, record: Record) -> None:
        self._next.show(label, seed, record)
        with self._changed:
            self._append(label, seed, record)
            self._change()

    def end(self, label: str, seed: int, status: str, reason: str | None) -> None:
        self._next.end(label, seed, status, reason)
        with self._changed:
            run = self._runs[self._places[label, seed]]
            run.status, run.reason = status, reason
            self._change()

    def finish(self) -> None:
        """No more rounds will come."""
        with self._changed:
            self._done = True
            self._change()

    def _change(self) -> None:
        """Wake the questions that wait for a change."""
        self._version += 1
        self._changed.notify_all()

    def _committed(self, label: str, seed: int, round: int) -> list[Record]:
        """The records of a run that is continued or had ended before."""
        try:
            found = read_records(run_folder(self.folder, label, seed) / "records.jsonl")
        except UndriftError:  # the page shows less; the run itself reports damaged files
            return []
        return [record for record in found if record.round <= round]

    def _append(self, label: str, seed: int, record: Record) -> None:
        at = self._places[label, seed]
        self._runs[at].records.append(record)
        self._log.append((at, record))
        self._metrics.update(dict.fromkeys(record.metrics))
        self._clock = self._clock or record.virtual_seconds > 0
        self._sent = self._sent or bool(record.bytes_up)

    # What pages ask

    def snapshot(self) -> Snapshot:
        """The runs as they are now."""
        with self._changed:
            copies = [
                RunFiles(run.label, run.seed, [*run.records], run.status, rounds=run.rounds)
                for run in self._runs
            ]
            runs = Runs([(Folder(name=self.name), copies)])
            return Snapshot(runs, self._layout(), len(self._log), self._version, self._text())

    def answer(self, after: int, version: int, wait_seconds: float) -> dict[str, Any]:
        """What is new to a page that has `after` records and knows the changes until `version`.

        If nothing is new, the answer waits for a change, at most `wait_seconds`.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._version > version or self._done, wait_seconds)
            new = self._log[after : after + MAX_RECORDS]
            state: dict[str, Any] = {
                "layout": self._layout(),
                "next": after + len(new),
                "version": self._version,
                "more": after + len(new) < len(self._log),
                "text": self._text(),
                "states": [self._state(label) for label in self.labels],
            }
            state["done"] = self._done and not state["more"]
            shown = self.shown_metrics()
            state["runs"] = [
                {"status": run.status, "cells": run_cells(run, shown)} for run in self._runs
            ]
        state["pieces"] = self._pieces(new)
        return state

    def shown_metrics(self) -> list[str]:
        """The metrics in the table of runs."""
        measured = Record(round=0, metrics=dict.fromkeys(self._metrics, 0.0))
        return main_metrics(Runs([(Folder(), [RunFiles("", 0, [measured])])]))

    def advice(self) -> str:
        """How to look at the runs when they are over."""
        return f"Make the report with: undrift report {self.folder}"

    def _pieces(self, new: Sequence[tuple[int, Record]]) -> list[dict[str, Any]]:
        """New records as columns, by run: evaluated rounds and the last one, to keep it short."""
        found = []
        for at in dict.fromkeys(at for at, _ in new):
            run = self._runs[at]
            method = list(self.labels).index(run.label)
            own = [record for each, record in new if each == at]
            kept = [i for i, record in enumerate(own) if record.metrics or record is own[-1]]
            found.append({"method": method, "seed": run.seed, "columns": columns(own, kept)})
        return found

    def _layout(self) -> str:
        """What the page's controls depend on; it only grows, so that pages reload a few times."""
        begun = Counter(run.label for run in self._runs if run.records)
        several = max(begun.values(), default=0) > 1
        return f"{'|'.join(self._metrics)}; {self._clock=} {self._sent=} {several=}"

    def _state(self, label: str) -> str:
        diverged = any(run.status == "diverged" for run in self._runs if run.label == label)
        return "diverged" if diverged else ""

    def _text(self) -> str:
        ended = Counter(run.status for run in self._runs)
        if self._done:
            counts = ", ".join(f"{number} {status}" for status, number in ended.items())
            return f"The runs are over: {counts}. {self.advice()}"
        if self._now is None:
            return "Reading the data; the first round has not begun."
        over = sum(run.status not in (WAITING, "running") for run in self._runs)
        return (
            f"Running: {self._now.label}, seed {self._now.seed}, round {self._now.done:,} of "
            f"{self.rounds:,}; {over} of {len(self._runs)} runs are over."
        )


def run_cells(run: RunFiles, metrics: Sequence[str]) -> list[str]:
    """The cells of a run's row after its status: rounds, then its last metrics."""
    last = next((r.metrics for r in reversed(run.records) if r.metrics), {})
    found = [f"{last[name]:.4g}" if name in last else "–" for name in metrics]
    return [f"{run.done:,} of {run.rounds:,}", *found]


def run_headings(metrics: Sequence[str]) -> list[str]:
    """The headings of the table of runs."""
    return [
        *("method", "seed", "status", "rounds"),
        *(METRIC_HEADINGS.get(name, metric_label(name)) for name in metrics),
    ]
