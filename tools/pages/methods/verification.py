"""What `undrift verify` found, kept beside the pages, and why it is silent where it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from undrift.runs.folder import read_json, write_json
from undrift.utils.errors import require
from undrift.verify import FACTS, Fact, Subject, Verdict, named, ours, verify
from undrift.verify.runs import one_step_only

STORED = "verify.json"


@dataclass(frozen=True)
class Cell:
    """A fact about a method, as it was measured; without an error where nothing is claimed."""

    error: float | None
    holds: bool

    def __str__(self) -> str:
        if self.error is None:
            return "·"
        shown = f"{self.error:.0e}" if self.error else "0"
        return shown if self.holds else f"**fails**, {shown}"


def measure(folder: Path, subjects: Iterable[Subject] | None = None) -> None:
    """Run `undrift verify` for all methods and store what it finds: half a minute."""
    found: dict[str, dict[str, dict[str, object]]] = {}
    for verdict in verify(ours() if subjects is None else subjects):
        found.setdefault(verdict.method, {})[verdict.fact.name] = _stored(verdict)
    write_json(folder / STORED, found)


def _stored(verdict: Verdict) -> dict[str, object]:
    error = None if verdict.finding is None else float(f"{verdict.finding.error:.0e}")
    return {"error": error, "holds": verdict.holds}


def stored(folder: Path) -> dict[str, dict[str, Cell]]:
    """What was found: by the label of the method and the name of the fact."""
    path = folder / STORED
    require(path.is_file(), f"There is no {path}: measure it with --verify.")
    told = read_json(path)
    return {
        label: {name: Cell(**cell) for name, cell in facts.items()} for label, facts in told.items()
    }


def silent(fact: Fact, subject: Subject) -> str:
    """Why a fact says nothing about a method."""
    method = subject.method
    if fact.name == "partial" and method.needs_all:
        return "it is defined only with every client in every round"
    if fact.name == "partial" and one_step_only(method):
        return (
            "with one step a round the cohort's gradients cancel only together, so that under "
            "sampling it wanders about the optimum"
        )
    if fact.name == "partial":
        return "under sampling it has no point to end at, only a neighbourhood"
    if fact.name == "momentum" and one_step_only(method):
        return "there is no momentum in a single step"
    if fact.name == "momentum":
        return "momentum changes how much gradient clients accumulate, and so where it ends"
    if fact.name == "acts":
        return "it has no number and no local term that could be lost"
    if fact.name in ("shift", "still") and method.g is not None:
        return "g is tied to a place: the problem is another one once it is moved"
    return ""


def reasons(name: str, found: dict[str, dict[str, Cell]]) -> list[tuple[str, str]]:
    """What is not claimed for a method, and the reason."""
    told = []
    subjects = named(name)
    for fact in FACTS:
        quiet = [each for each in subjects if found[each.label][fact.name].error is None]
        if quiet:
            labels = " and ".join(f"`{each.method!r}`" for each in quiet)
            which = f" for {labels}" if len(quiet) < len(subjects) else ""
            told.append((f"*{fact.name}*{which}", silent(fact, quiet[0])))
    return told
