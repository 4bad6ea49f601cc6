"""The driver: executes the runs of a plan one after another, in memory or in a run folder."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from undrift.core.losses import Federation
from undrift.core.records import Record
from undrift.loops import Loop, loop
from undrift.runs.folder import DIVERGED, FINISHED, INTERRUPTED, STOPPED
from undrift.runs.plan import Plan
from undrift.runs.storage import KeptRun, MemoryStorage, Storage
from undrift.utils.errors import Diverged


class Observer(Protocol):
    """Is told what happens to runs, to show it: as bars, lines of text or lines of JSON."""

    def note(self, text: str, values: Mapping[str, Any]) -> None:
        """A fact about all runs, before the first one: a sentence, and the same as values."""

    def begin(self, label: str, seed: int, round: int) -> None:
        """A run starts (round 0), or continues after a round."""

    def show(self, label: str, seed: int, record: Record) -> None:
        """A round is committed."""

    def end(self, label: str, seed: int, status: str, reason: str | None) -> None:
        """A run ended, or was interrupted."""


class SilentObserver:
    """Shows nothing."""

    def note(self, text: str, values: Mapping[str, Any]) -> None:
        pass

    def begin(self, label: str, seed: int, round: int) -> None:
        pass

    def show(self, label: str, seed: int, record: Record) -> None:
        pass

    def end(self, label: str, seed: int, status: str, reason: str | None) -> None:
        pass


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended."""

    label: str
    seed: int
    status: str
    """"finished", "stopped", "diverged" or "interrupted\""""
    reason: str | None = None
    folder: Path | None = None
    before: bool = field(default=False, compare=False)
    """whether the run had ended in an earlier call, so that nothing was computed"""
    run: Loop | None = field(default=None, compare=False, repr=False)
    """the loop in its final state; None for a run that had ended before and was not read back"""


def execute(
    plan: Plan,
    storage: Storage | None = None,
    observer: Observer | None = None,
    read_ended: bool = False,
) -> list[RunOutcome]:
    """Execute every run of a plan that has not ended yet, one after another.

    A run in a folder that was interrupted, or killed at any moment, continues from its last
    committed round and ends with the same bits as if it had never stopped.

    Parameters
    ----------
    plan
        the runs
    storage
        where the runs are kept (default: in memory)
    observer
        is told what happens (default: nobody)
    read_ended
        whether runs that had ended before are read back, so that their outcomes have a loop
    """
    storage = storage or MemoryStorage()
    observer = observer or SilentObserver()
    outcomes: list[RunOutcome] = []
    warned = False
    with storage.session() as stop:
        for seed in plan.seeds:
            left = [label for label in plan.methods if storage.ended(label, seed, plan) is None]
            losses = plan.losses(seed) if left or read_ended else None
            if losses is not None:
                check(plan, left, seed, losses)
                # Once for all seeds, whose losses differ in the initial model only.
                warned = warned or plan.engine.warn_about_slow_loss(
                    losses, [plan.local[label] for label in left]
                )
            for label in plan.methods:
                if label in left or read_ended:
                    assert losses is not None
                    outcome = _execute(plan, label, seed, losses, storage, observer, stop)
                else:
                    outcome = _already_ended(plan, label, seed, storage)
                    observer.begin(label, seed, plan.rounds)
                    observer.end(label, seed, outcome.status, outcome.reason)
                outcomes.append(outcome)
                if stop():
                    return outcomes
    return outcomes


def check(plan: Plan, labels: list[str], seed: int, losses: Federation) -> None:
    """Raise if a method is not defined for its run, before the first run computes anything.

    Without it, an error in the last method would show only after all others have run.
    """
    if plan.make_loop is not None:
        return  # a deployment's loops need sites: they are checked when they are built
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the loop that executes the run warns again
        for label in labels:
            loop(plan.spec(label, seed, losses))


def _already_ended(plan: Plan, label: str, seed: int, storage: Storage) -> RunOutcome:
    ended = storage.ended(label, seed, plan)
    assert ended is not None
    return RunOutcome(label, seed, *ended, storage.folder_of(label, seed), before=True)


def _execute(
    plan: Plan,
    label: str,
    seed: int,
    losses: Federation,
    storage: Storage,
    observer: Observer,
    stop: Callable[[], int],
) -> RunOutcome:
    """Execute one run to its end, or until asked to stop."""
    spec = plan.spec(label, seed, losses)
    ended = storage.ended(label, seed, plan)
    with storage.open(label, spec, plan) as kept:
        run = plan.loop(label, spec, kept.states)
        resumed = kept.restore(run)
        observer.begin(label, seed, run.round)
        if ended is None:
            kept.begin(run, resumed)
            status, reason = _rounds(run, label, kept, observer, stop)
            kept.end(run, status, reason)
        else:
            status, reason = ended
        if status == DIVERGED:
            run.stopped, run.diverged = reason, True
    observer.end(label, seed, status, reason)
    folder = storage.folder_of(label, seed)
    return RunOutcome(label, seed, status, reason, folder, ended is not None, run)


def _rounds(
    run: Loop, label: str, kept: KeptRun, observer: Observer, stop: Callable[[], int]
) -> tuple[str, str | None]:
    """Execute the rounds of a run; returns its status and the reason for an early end."""
    try:
        for record in run.rounds():
            kept.commit(run, record)
            observer.show(label, run.seed, record)
            if stop() and run.round < run.total and run.stopped is None:
                return INTERRUPTED, f"interrupted after round {run.round}"
    except Diverged as error:
        return DIVERGED, str(error)
    return (FINISHED, None) if run.stopped is None else (STOPPED, run.stopped)
