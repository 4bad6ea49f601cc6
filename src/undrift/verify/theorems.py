"""Facts from `undrift.theory`: the weight of local gradients, and the descent of the theorems.

With the step sizes of its theorem, a method must obey the inequality that the proof shows for every
round. Each function measures one fact and returns None if it does not apply to the method.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from undrift.core.clients import Roster
from undrift.core.method import Method
from undrift.core.problem import LocalProblem, LocalResult
from undrift.core.sampling import All, Fixed, Sampler
from undrift.local.schedules import Exponential, Theorem1
from undrift.local.solvers import GD, Exact, Local
from undrift.loops import Synchronous
from undrift.methods.common.server_optimizers import Plain
from undrift.theory import Quadratics, bounds, consistency, feddyn, fedlga, step_sizes
from undrift.theory.heterogeneity import dissimilarity
from undrift.verify import problems
from undrift.verify.problems import START, STEPS
from undrift.verify.runs import (
    LR,
    Finding,
    between,
    changed,
    changed_in_place,
    common_objective,
    run_of,
    worst,
)
from undrift.verify.subjects import Subject

ROUNDS = 8
DECAY = 0.8
"""The factor on the rate after every local step, where it changes."""
EVERYONE_FIRST = Fixed(((0, 1, 2, 3), (0, 2), (1,), (3, 1, 0), (2,), (1, 3), (0,)))
"""Cohorts after which every client has taken a proximal step."""
ONE_BY_ONE = Fixed(((0, 1, 2, 3), (2,), (0,), (3,), (1,), (0,), (2,), (2,), (3,)))


# The fact "moves"


def moves(subject: Subject) -> Finding | None:
    """On clients with constant gradients, a move is −η‖a‖₁ times the local gradient at the start.

    ‖a‖₁ is also compared with the closed forms of `theory.consistency`.
    """
    method = subject.method
    if not type(method).__module__.startswith("undrift.methods."):  # it is a fact of our solvers
        return None
    findings = []
    for options in (
        {},
        {"momentum": 0.9},
        {"momentum": 0.9, "nesterov": True},
        {"step_schedule": Exponential(1.0, DECAY)},
        {"momentum": 0.6, "nesterov": True, "step_schedule": Exponential(1.0, DECAY)},
    ):
        local = GD(lr=LR, steps=3 if subject.equal_steps else STEPS, **options)
        note = ", ".join(options) or "plain steps"
        for problem, result, gradient in _one_round(method, local):
            findings.append(between(_predicted(problem, result, gradient), result.x, note))
            pulled = float(problem.weight) if problem.center is not None else 0.0
            if problem.pull_outside_momentum or not pulled:
                expected = _closed_form(int(result.steps), LR * pulled, options)
                found = torch.tensor([float(result.a_norm)])
                findings.append(between(torch.tensor([expected]), found, f"‖a‖₁, {note}"))
    return worst(findings)


def _one_round(method: Method, local: Local) -> Iterator[tuple[LocalProblem, LocalResult, Tensor]]:
    """The local problems of a round, their results, and the constant gradients of the clients."""
    drawn = problems.quadratics()
    linear = Quadratics(0 * drawn.H, drawn.b, drawn.sizes.tolist(), initial=START)
    seen: list[tuple[LocalProblem, LocalResult, Tensor]] = []

    def finish(original: Any, self: Any, down: Any, mine: Any, result: Any, client: Any) -> Any:
        problem = self.problem(down, mine, client)
        seen.append((problem, result, -drawn.b[int(str(client.id))]))
        return original(self, down, mine, result, client)

    recorded = changed_in_place(method, {"finish": finish})
    objective = common_objective(method, All())
    run = run_of(recorded, linear, local, All(), objective)
    seen.clear()  # the loop has measured the sizes of uploads with made-up vectors
    for _ in range(2):  # linear terms vanish in the first round
        run.step()
    yield from seen


def _predicted(problem: LocalProblem, result: LocalResult, gradient: Tensor) -> Tensor:
    start = problem.scale * gradient
    if problem.linear is not None:
        start = start + problem.linear
    if problem.center is not None:
        start = start + problem.weight * (problem.start - problem.center)
    return problem.start - result.rate * result.a_norm * start


def _closed_form(steps: int, pull: float, options: dict[str, Any]) -> float:
    """‖a‖₁ by the formula of the paper where it has one, else from the coefficients."""
    if not options:
        return float(consistency.a_norm_proximal(steps, pull))
    if pull == 0 and options.keys() == {"momentum"}:
        return float(consistency.a_norm_momentum(steps, options["momentum"]))
    if pull == 0 and options.keys() == {"step_schedule"}:
        return float(consistency.a_norm_decay(steps, DECAY))
    factors = [DECAY**s for s in range(steps)] if "step_schedule" in options else None
    rho, nesterov = options.get("momentum", 0.0), options.get("nesterov", False)
    a = consistency.coefficients(steps, momentum=rho, nesterov=nesterov, pull=pull, factors=factors)
    return float(a.sum())


# The fact "theorem"


def theorem(subject: Subject) -> Finding | None:
    """How much a round falls short of the descent that the method's theorem promises."""
    method = subject.method
    if not type(method).__module__.startswith("undrift.methods."):
        return None
    found = worst(list(_inequalities(method)))
    return found


def _inequalities(method: Any) -> Iterator[Finding]:
    plain = getattr(method, "server", Plain()) == Plain()
    if method.name in ("FedDR", "AsyncFedDR"):
        yield from _feddr(method)
    elif method.name == "FedDyn":
        yield from _feddyn(method)
    elif method.name == "FedAvg" and plain and method.scheme in ("full", "II-delta"):
        for problem in _starts("samples"):
            yield from _fedavg(method, problem)
    elif method.name == "FedNova" and plain and method.weights == "II":
        if method.mu == 0 and not method.variance_reduction:
            for problem in _starts("samples"):
                yield from _fednova(method, problem)
    elif method.name == "FedLGA" and isinstance(method.server, Plain):
        for problem in _starts("clients"):
            yield from _fedlga(method, problem)


def _starts(objective: str) -> Iterator[Quadratics]:
    """The problem from afar, where ∇F rules, and from the optimum, where only the drift is left."""
    problem = problems.quadratics()
    yield problem
    best = problem.optimum(Roster(problem.ids, problem.sizes, objective).weights)
    yield Quadratics(problem.H, problem.b, problem.sizes.tolist(), initial=best)


def _at_most(bound: float, value: float, note: str) -> Finding:
    """By how much a value is above its bound, relative to the bound's size."""
    return Finding(bound, value, max(0.0, value - bound) / max(1.0, abs(bound)), note)


def _objective(problem: Quadratics, q: Tensor, x: Tensor) -> float:
    return float(sum(share * problem.value(k, x) for k, share in enumerate(q.tolist())))


def _feddr(method: Any) -> Iterator[Finding]:
    """V falls by β Σ_S q_k|x_k⁺ − x_k|² in a round, and by (ρ/2)|x_k⁺ − x_k|² for one client."""
    problem = problems.partly_concave()
    L, n = float(torch.linalg.eigvalsh(problem.H).abs().max()), len(problem)
    eta = step_sizes.feddr(L, method.alpha) / 2  # close to the limit β is nearly 0
    beta = step_sizes.feddr_descent(L, method.alpha, eta)
    yield from _descent(changed(method, eta=eta), EVERYONE_FIRST, "samples", beta, "β")
    sizes = step_sizes.async_feddr(L, n, 0)
    eta = sizes.eta / 2
    one = changed(method, eta=eta, alpha=sizes.alpha)
    rho = step_sizes.async_descent(L, n, 0, sizes.alpha, eta)
    yield from _descent(one, ONE_BY_ONE, "clients", n * rho / 2, "ρ of asyncFedDR")


def _descent(
    method: Any, sampler: Sampler, objective: str, rate: float, name: str
) -> Iterator[Finding]:
    run = run_of(method, problems.partly_concave(), Exact(), sampler, objective)
    run.step()
    before, models = _potential(run), _models(run)
    for _ in range(2 * ROUNDS):
        run.step()
        after, new = _potential(run), _models(run)
        moved = float(run.roster.weights @ (new - models).square().sum(1))
        yield _at_most(before - rate * moved, after, f"V falls by {name} times the moves")
        before, models = after, new


def _models(run: Synchronous) -> Tensor:
    return torch.stack([run.states.get(id).x for id in run.roster.ids])


def _potential(run: Synchronous) -> float:
    """V = g(x̄) + Σ q_k [f_k(x_k) + ⟨∇f_k(x_k), x̄ − x_k⟩ + |x̄ − x_k|²/(2η)]."""
    method, bar, losses = run.method, run.server.x, run.losses
    assert isinstance(losses, Quadratics)
    eta = method.hyperparameters()["eta"]
    total = 0.0 if method.g is None else method.g.value(bar)
    for k, q in enumerate(run.roster.weights.tolist()):
        x = run.states.get(run.roster.ids[k]).x
        apart = bar - x
        tangent = losses.value(k, x) + float(losses.gradient(k, x) @ apart)
        total += q * (tangent + float(apart @ apart) / (2 * eta))
    return total


def _feddyn(method: Any) -> Iterator[Finding]:
    """Theorems 2 and 3: r·E[D + κC] after a round ≤ D + κC − κ₀G before it, over all cohorts."""
    problem = problems.quadratics()
    L, mu, m = problem.smoothness(), problem.convexity(), len(problem)
    for P in (m, 2):
        alpha = max(30 * L, 5 * mu * m / P)
        by_theorem = {
            "Theorem 2": feddyn.convex(L, alpha, m, P),
            "Theorem 3": feddyn.strongly_convex(L, mu, alpha, m, P),
        }
        cohorts = list(combinations(range(m), P))
        for t in range(4):
            prefix = [cohorts[s % len(cohorts)] for s in range(t)]
            D, C, G = _terms(method, alpha, prefix)
            after = [_terms(method, alpha, [*prefix, cohort]) for cohort in cohorts]
            for name, rate in by_theorem.items():
                left = sum(d + rate.kappa * c for d, c, _ in after) / len(after)
                bound = D + rate.kappa * C - rate.kappa0 * G
                yield _at_most(bound, rate.growth * left, f"{name}, cohorts of {P}")


def _terms(
    method: Any, alpha: float, cohorts: Sequence[tuple[int, ...]]
) -> tuple[float, float, float]:
    """D, C and G of `theory.feddyn` after rounds with these cohorts."""
    problem = problems.quadratics()
    q = torch.full((len(problem),), 1 / len(problem), dtype=torch.float64)
    best = problem.optimum(q)
    run = run_of(
        changed(method, alpha=alpha), problem, Exact(), Fixed(cohorts or [(0,)]), "clients"
    )
    for _ in cohorts:
        run.step()
    gamma = run.server.x + run.server.h / alpha
    own = torch.stack([run.states.get(id).h for id in run.roster.ids])
    there = torch.stack([problem.gradient(k, best) for k in range(len(problem))])
    gap = _objective(problem, q, gamma) - _objective(problem, q, best)
    return float((gamma - best).square().sum()), float((own - there).square().sum(1).mean()), gap


def _fedavg(method: Any, problem: Quadratics) -> Iterator[Finding]:
    """Theorem 1 of FedAvg-nonIID with its rate: |x − x*|² and F − F* stay below their bounds."""
    E, L, mu = 3, problem.smoothness(), problem.convexity()
    q = Roster(problem.ids, problem.sizes, "samples").weights
    best = problem.optimum(q)
    least = _objective(problem, q, best)
    minima = [problem.value(k, problem.local_optimum(k)) for k in range(len(problem))]
    run = run_of(method, problem, GD(lr=Theorem1(mu, L, E), steps=E), All())
    models = [run.server.x]
    for _ in range(ROUNDS):
        run.step()
        models.append(run.server.x)
    # With these rates |∇f_k| falls from step to step, so that it is largest where a round begins.
    sizes = [float(problem.gradient(k, x).norm()) for k in range(len(problem)) for x in models]
    bound = bounds.full(
        bounds.Constants(
            L,
            mu,
            E,
            q,
            sigma=torch.zeros(len(q)),
            G=max(sizes),
            Gamma=least - float(q @ torch.tensor(minima, dtype=torch.float64)),
            distance=float((problem.initial() - best).norm()),
        )
    )
    for t, x in enumerate(models):
        yield _at_most(bound.bound(t * E), _objective(problem, q, x) - least, "Theorem 1, F − F*")
        distance = float((x - best).square().sum())
        yield _at_most(2 / L * bound.bound(t * E), distance, "Theorem 1, |x − x*|²")


def _fednova(method: Any, problem: Quadratics) -> Iterator[Finding]:
    """Theorem 3 of FedNova: F(x⁺) ≤ F(x) + ητ_eff/4·(bracket − |∇F(x)|²), other work each round."""
    lr, L, N = 0.02, problem.smoothness(), len(problem)
    q = Roster(problem.ids, problem.sizes, "samples").weights

    def steps(client: Hashable, round: int) -> int:
        return 1 + (3 * int(str(client)) + 2 * round) % 5

    run = run_of(method, problem, GD(lr=lr, steps=steps), All())
    for t in range(ROUNDS):
        x = run.server.x
        tau = [steps(k, t) for k in range(N)]
        a = [consistency.coefficients(each) for each in tau]
        tau_eff = consistency.tau_effective(q, torch.tensor(tau, dtype=torch.float64))
        constants = consistency.theorem1(q, a, tau_eff)
        kappa2 = dissimilarity(problem, q, x).variance
        bracket = consistency.theorem3_bound(
            [(constants, tau_eff)], lr=lr, clients=N, L=L, gap=0.0, kappa2=kappa2
        )
        square = float(problem.total_gradient(x, q).square().sum())
        bound = _objective(problem, q, x) + lr * tau_eff / 4 * (bracket - square)
        run.step()
        yield _at_most(bound, _objective(problem, q, run.server.x), "Theorem 3")


def _fedlga(method: Any, problem: Quadratics) -> Iterator[Finding]:
    """Theorem 1 of FedLGA, all devices finish: F(x⁺) ≤ F(x) − η_gηE(c₁|∇F|² − Φ)."""
    E, L, N, server_lr = 3, problem.smoothness(), len(problem), method.server.lr
    q = torch.full((N,), 1 / N, dtype=torch.float64)
    lr = 0.15 / (L * E)
    c1 = fedlga.descent(L, lr, server_lr, E)
    run = run_of(method, problem, GD(lr=lr, steps=E), All(), "clients")
    for _ in range(ROUNDS):
        x = run.server.x
        spread2 = dissimilarity(problem, q, x).variance
        square = float(problem.total_gradient(x, q).square().sum())
        rest = fedlga.noise(L, lr, server_lr, E, N, 0.0, spread2)
        bound = _objective(problem, q, x) - server_lr * lr * E * (c1 * square - rest)
        run.step()
        yield _at_most(bound, _objective(problem, q, run.server.x), "Theorem 1")
