"""Stores the results of `undrift verify` beside the pages, and explains facts it does not claim."""

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
    """The measured error of a fact; None if the fact is not claimed for the method."""

    error: float | None
    holds: bool

    def __str__(self) -> str:
        if self.error is None:
            return "·"
        shown = f"{self.error:.0e}" if self.error else "0"
        return shown if self.holds else f"**fails**, {shown}"


def measure(folder: Path, subjects: Iterable[Subject] | None = None) -> None:
    """Run `undrift verify` for all methods and store the results: half a minute."""
    found: dict[str, dict[str, dict[str, object]]] = {}
    for verdict in verify(ours() if subjects is None else subjects):
        found.setdefault(verdict.method, {})[verdict.fact.name] = _stored(verdict)
    write_json(folder / STORED, found)


def _stored(verdict: Verdict) -> dict[str, object]:
    error = None if verdict.finding is None else float(f"{verdict.finding.error:.0e}")
    return {"error": error, "holds": verdict.holds}


def stored(folder: Path) -> dict[str, dict[str, Cell]]:
    """Return the stored results by the label of the method and the name of the fact."""
    path = folder / STORED
    require(path.is_file(), f"There is no {path}: create it with --verify.")
    saved = read_json(path)
    return {
        label: {name: Cell(**cell) for name, cell in facts.items()}
        for label, facts in saved.items()
    }


def reason_not_claimed(fact: Fact, subject: Subject) -> str:
    """Return why a fact is not claimed for a method."""
    method = subject.method
    if fact.name in subject.exempt:
        return subject.exempt[fact.name]
    if fact.name in ("limit", "ragged", "momentum") and method.converges_to is None:
        return "nothing is claimed about its limit"
    if fact.name == "monotone":
        return "it declares no quantity that never increases"
    if fact.name == "clipped" and method.uploads_models:
        return "it uploads models, which cannot be clipped"
    if fact.name == "clipped" and not method.kept():
        return "its clients keep nothing"
    if fact.name == "clipped" and method.kept().keys() == {method.own_model}:
        return "the server holds nothing of what its clients keep"
    if fact.name == "clipped":
        return "nothing is claimed about its limit"
    if fact.name == "own":
        return "its clients have no models of their own"
    if fact.name == "equals":
        return "it has no special case that is another method"
    if fact.name == "partial" and method.needs_all:
        return "the method needs every client in every round"
    if fact.name == "partial" and one_step_only(method):
        return (
            "with one step per round the gradients cancel only over all clients, so under sampling "
            "the model fluctuates around the optimum"
        )
    if fact.name == "partial":
        return "under sampling it does not converge to a point, only to a neighbourhood"
    if fact.name == "momentum" and one_step_only(method):
        return "momentum has no effect in a single step"
    if fact.name == "theorem":
        return "`undrift.theory` has no theorem on this method with these options"
    if fact.name == "acts":
        return "it has no parameter and no local term that could be ignored by mistake"
    if fact.name in ("divides", "reach"):
        return "private runs are not defined for it"
    if fact.name == "descends":
        return "g moves the model too, so that a slope does not decide its direction"
    if fact.name in ("shift", "still") and method.g is not None:
        return "g depends on the position: a shift changes the problem"
    return ""


def reasons(name: str, found: dict[str, dict[str, Cell]]) -> list[tuple[str, str]]:
    """Return the facts that are not claimed for a method, with the reasons."""
    found_reasons = []
    subjects = named(name)
    for fact in FACTS:
        missing = [each for each in subjects if found[each.label][fact.name].error is None]
        if missing:
            labels = " and ".join(f"`{each.method!r}`" for each in missing)
            which = f" for {labels}" if len(missing) < len(subjects) else ""
            found_reasons.append((f"*{fact.name}*{which}", reason_not_claimed(fact, missing[0])))
    return found_reasons
