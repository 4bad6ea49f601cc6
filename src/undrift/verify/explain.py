"""`undrift verify --explain`: what a failed fact means in algebra, and which change would mend it.

The likely cause is found by trial: the method is changed in one place, such as the sign of its
linear term, and the fact is measured again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from undrift.core.problem import LocalProblem
from undrift.methods.formulas import row_of, steps_of
from undrift.verify.facts import FACTS, Fact, check_fact
from undrift.verify.runs import changed_in_place
from undrift.verify.subjects import Subject
from undrift.verify.table import Verdict

SHOWN_NUMBERS = 4
"""How many numbers of a vector an explanation shows."""
ALGEBRA: Mapping[str, str] = {
    "formula": "the formulas in the method's row, evaluated at random vectors",
    "limit": "at rest every client stands still, s∇f_k(x) + v_k + r(x − z) = 0, and the fold adds "
    "nothing: Σ w_k Δ_k = 0",
    "partial": "E[Σ_S w_k u_k] = Σ q_k u_k needs w_k = (N/K) q_k for moves, and q_k for changes of "
    "sums over all clients",
    "momentum": "a client moves by −η Σ_s a_s g_s, so its mean gradient is −Δ_k/(η‖a_k‖₁)",
    "clipped": "the server's sum must stay Σ q_k·(kept): kept += sent − formed",
    "ragged": "τ_k = E⌈n_k/B⌉, not E⌊n_k/B⌋",
    "equals": "set the parameter to its special value in problem, finish and fold",
    "theorem": "the proof's inequality for one round, with the constants of undrift.theory",
    "moves": "x_k − x = −η Σ_s a_s g_s, and ‖a‖₁ = Σ_s a_s",
    "own": "λ(v_k − x) + ∇f_k(v_k) = 0 at rest",
    "divides": "with every client qN = |S| and q·Σ by(k) = Σ_S by(k), so that fixed denominators "
    "change nothing",
    "reach": "|(u_1/s_1, u_2/s_2, …)| ≤ C for every client, whatever it keeps",
    "private": "an upload is a function of x and of the shared parameters",
    "weights": "Σ_S w_k = 1 for the weights of moves",
    "acts": "∂x/∂(parameter) ≠ 0",
    "descends": "with ∇f_k = g for all k, x⁺ − x = −ηv g; a momentum m⁺ = (1 − β)m + βg tends to "
    "g, and with the wrong sign to less",
    "monotone": "Q(t + 1) ≤ Q(t)",
    "order": "every sum runs over clients, every key over ids",
    "shift": "f_k(x − a) for all k gives x + a: only differences of models may be scaled",
    "still": "Δ_k = 0 for all k gives x⁺ = x",
    "buffers": "Σ n_k b_k / Σ n_k, for statistics b_k of the cohort",
    "refuses": "the assumptions of the theorem that the paper proves",
    "stacked": "x is [C, P] and client.q is [C, 1]: use broadcasting, no float() and no if",
}
"""The line of algebra behind each fact."""


def explained(verdict: Verdict, subject: Subject) -> Iterator[tuple[str, str]]:
    """What is known about a failed fact, as pairs (heading, text)."""
    fact, finding = verdict.fact, verdict.finding
    assert finding is not None
    yield "means", fact.meaning
    if fact.name in ALGEBRA:
        yield "algebra", ALGEBRA[fact.name]
    if finding.note:
        yield "where", finding.note
    yield "expected", _shown(finding.expected)
    yield "measured", _shown(finding.measured)
    row = row_of(subject.method)
    if fact.name == "formula" and row is not None:
        yield "formulas", "; ".join(" ".join(line.split()) for line in steps_of(row))
    found = list(likely_causes(fact, subject))
    yield "cause", "; ".join(found) if found else fact.failed


def likely_causes(fact: Fact, subject: Subject) -> Iterator[str]:
    """The changes of the method that make the fact hold, in words."""
    if fact not in FACTS:
        return
    for words, overrides in REPAIRS.items():
        repaired = replace(subject, method=changed_in_place(subject.method, overrides))
        finding = check_fact(fact, repaired)
        if finding is not None and finding.error <= fact.allowed:
            yield f"the fact holds {words}"


def _with_problem(change: Callable[[LocalProblem, Any], LocalProblem]) -> dict[str, Any]:
    def problem(original: Any, self: Any, down: Any, mine: Any, client: Any) -> LocalProblem:
        return change(original(self, down, mine, client), client)

    return {"problem": problem}


def _linear_times(factor: float) -> dict[str, Any]:
    def change(problem: LocalProblem, client: Any) -> LocalProblem:
        scaled = None if problem.linear is None else factor * problem.linear
        return replace(problem, linear=scaled)

    return _with_problem(change)


def _step_times(factor: Callable[[Any], float]) -> dict[str, Any]:
    def fold(original: Any, self: Any, server: Any, replies: Any) -> Any:
        new = original(self, server, replies)
        return new.replace(x=server.x + factor(replies) * (new.x - server.x))

    return {"fold": fold}


def _steps_from_a_norm() -> dict[str, Any]:
    def finish(original: Any, self: Any, down: Any, mine: Any, result: Any, client: Any) -> Any:
        return original(self, down, mine, replace(result, steps=result.a_norm), client)

    return {"finish": finish}


REPAIRS: dict[str, dict[str, Any]] = {
    "if the sign of the linear term v is reversed": _linear_times(-1),
    "if the linear term v is halved": _linear_times(0.5),
    "if the linear term v is doubled": _linear_times(2),
    "if the weight r is multiplied by 1/(N q_k)": _with_problem(
        lambda problem, client: replace(problem, weight=problem.weight * client.scale)
    ),
    "if the weight r is not multiplied by 1/(N q_k)": _with_problem(
        lambda problem, client: replace(problem, weight=problem.weight / client.scale)
    ),
    "if the server's step is reversed": _step_times(lambda replies: -1.0),
    "if the server's step is halved": _step_times(lambda replies: 0.5),
    "if the server's step is doubled": _step_times(lambda replies: 2.0),
    "if the server's step is multiplied by N/|S|": _step_times(
        lambda replies: replies.clients / replies.count
    ),
    "if the server's step is multiplied by |S|/N": _step_times(lambda replies: replies.share),
    "if the server's step is divided by |S|": _step_times(lambda replies: 1 / replies.count),
    "if result.a_norm (‖a‖₁) takes the place of result.steps in finish": _steps_from_a_norm(),
}
"""Single changes of a method that are tried, in words that follow "the fact holds"."""


def _shown(value: object) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        numbers = ", ".join(_shown(each) for each in value[:SHOWN_NUMBERS])
        return f"[{numbers}{', …' if len(value) > SHOWN_NUMBERS else ''}]"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_shown(each)}" for name, each in value.items())
    return f"{value:.6g}" if isinstance(value, float) else str(value)
