"""`undrift audit --explain`: which change of undrift's method makes it compute the same.

The reference is changed in one place at a time, such as the sign of its linear term, until its
rounds equal those of the audited implementation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from undrift.audit.facts import (
    PAIRS,
    SINGLE_PRECISION,
    WITH_MOMENTUM,
    Cohorts,
    everyone,
    make_task,
    reference_path,
    with_parameters,
)
from undrift.audit.implementations import Implementation
from undrift.audit.task import Task
from undrift.core.problem import LocalProblem, Upload
from undrift.methods.formulas import row_of, steps_of
from undrift.utils.errors import UndriftError
from undrift.verify.explain import ALGEBRA, REPAIRS, _shown, _with_problem, changed_in_place
from undrift.verify.table import Verdict


def _unlinked(problem: LocalProblem, client: Any) -> LocalProblem:
    return replace(problem, linear=None)


def _unpulled(problem: LocalProblem, client: Any) -> LocalProblem:
    return replace(problem, weight=0.0)


def _pulled_inside(problem: LocalProblem, client: Any) -> LocalProblem:
    return replace(problem, pull_outside_momentum=False)


def _free(problem: LocalProblem, client: Any) -> LocalProblem:
    return _unpulled(_unlinked(problem, client), client)


def _kept_from_reflection() -> dict[str, Any]:
    """Everything but the first upload is computed from the opposite move."""

    def finish(original: Any, self: Any, down: Any, mine: Any, result: Any, client: Any) -> Any:
        upload, _ = original(self, down, mine, result, client)
        reflected = replace(result, x=2 * down.x - result.x)
        other, keep = original(self, down, mine, reflected, client)
        first, *rest = [name for name, _ in upload.items()]
        values = {first: getattr(upload, first)} | {name: getattr(other, name) for name in rest}
        return Upload(**values), keep

    return {"finish": finish}


def _other_vectors_times(by_cohort: bool) -> dict[str, Any]:
    """The server's vectors other than x change N/|S| or |S|/N times as much."""

    def fold(original: Any, self: Any, server: Any, replies: Any) -> Any:
        new = original(self, server, replies)
        factor = 1 / replies.share if by_cohort else replies.share
        scaled = {
            name: getattr(server, name) + factor * (value - getattr(server, name))
            for name, value in new.items()
            if name != "x"
        }
        return new.replace(**scaled)

    return {"fold": fold}


def _models_by_weights() -> dict[str, Any]:
    """The server combines models, not moves, with weights that sum to τ_eff Σ w_k/‖a_k‖₁."""

    def fold(original: Any, self: Any, server: Any, replies: Any) -> Any:
        new = original(self, server, replies)
        by = self.uploads["direction"][0]
        tau = replies.mean("progress", by=by)
        total = tau * replies.mean("inverse", by=by)
        return new.replace(x=new.x + (total - 1) * server.x)

    def finish(original: Any, self: Any, down: Any, mine: Any, result: Any, client: Any) -> Any:
        upload, keep = original(self, down, mine, result, client)
        values = dict(upload.items()) | {"inverse": 1 / result.a_norm}
        return Upload(**values), keep

    return {"fold": fold, "finish": finish}


VARIANTS: dict[str, dict[str, Any]] = {
    **REPAIRS,
    "if the pull is inside the momentum buffer": _with_problem(_pulled_inside),
    "without the linear term v": _with_problem(_unlinked),
    "without the pull, r = 0": _with_problem(_unpulled),
    "without the linear term and the pull, v = 0 and r = 0": _with_problem(_free),
    "if the clients' moves enter their kept state with the opposite sign": _kept_from_reflection(),
    "if the server's vectors other than x change N/|S| times as much": _other_vectors_times(True),
    "if the server's vectors other than x change |S|/N times as much": _other_vectors_times(False),
    "if the server weights models, not moves, with τ_eff w_k/‖a_k‖₁": _models_by_weights(),
}
"""Single changes of the reference that are tried, in words that follow "its rounds equal X"."""


def situation(fact: str) -> tuple[Task, Cohorts]:
    """The task and the cohorts on which an explanation of a fact is looked for."""
    if fact in ("cohorts", "partial"):
        return make_task(cohort_size=2), PAIRS
    task = make_task(**(WITH_MOMENTUM if fact == "momentum" else {}))
    return task, everyone(task)


def same_as(audited: Implementation, fact: str) -> Iterator[str]:
    """The changes of the reference that make it compute what the implementation does."""
    task, cohorts = situation(fact)
    found = audited.path(with_parameters(audited, task), cohorts)
    original = reference_path(audited.reference, task, cohorts, audited.objective)
    for words, overrides in VARIANTS.items():
        variant = changed_in_place(audited.reference, overrides)
        try:
            path = reference_path(variant, task, cohorts, audited.objective)
        except (UndriftError, AttributeError, KeyError, TypeError, ValueError):
            continue  # the change makes no sense for this method
        unchanged = (path - original).abs().max() <= SINGLE_PRECISION
        if not unchanged and (path - found).abs().max() <= SINGLE_PRECISION:
            yield words


def explained(verdict: Verdict, audited: Implementation) -> Iterator[tuple[str, str]]:
    """What is known about a fact that failed, as pairs (heading, text)."""
    fact, finding = verdict.fact, verdict.finding
    assert finding is not None
    yield "means", fact.meaning
    name = {"cohorts": "partial"}.get(fact.name, fact.name)
    if name in ALGEBRA:
        yield "algebra", ALGEBRA[name]
    if finding.note:
        yield "where", finding.note
    yield "expected", _shown(finding.expected)
    yield "measured", _shown(finding.measured)
    row = row_of(audited.reference)
    if row is not None and fact.name in ("formula", "cohorts"):
        yield "formulas", "; ".join(" ".join(line.split()) for line in steps_of(row))
    found = list(same_as(audited, fact.name))
    audited.host.close()
    yield "cause", _cause(found, audited, fact.failed)


def _cause(found: Sequence[str], audited: Implementation, otherwise: str) -> str:
    if not found:
        return otherwise
    return "; ".join(f"its rounds equal {audited.reference.name} {words}" for words in found)
