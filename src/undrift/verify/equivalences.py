"""The fact "equals": special cases in which two methods coincide, round by round."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from undrift.core.clients import Roster
from undrift.core.method import Coincidence, Method
from undrift.core.sampling import All, Fixed, Uniform
from undrift.local.solvers import GD, Exact, Local
from undrift.methods import (
    SCAFFOLD,
    DistributedSGD,
    FedAvg,
    FedCM,
    FedDR,
    FedDyn,
    FedLGA,
    FedNova,
    FedPD,
    FedProx,
    FedSplit,
    PFedMe,
)
from undrift.methods.common.server_optimizers import Plain
from undrift.theory import Quadratics
from undrift.verify import problems
from undrift.verify.problems import SIZES, START, STEPS
from undrift.verify.runs import (
    LR,
    Finding,
    allows,
    arriving,
    between,
    changed,
    partial,
    path,
    planned,
    run_of,
    worst,
)
from undrift.verify.subjects import Subject

EIGHT_ROUNDS: dict[str, Any] = {"rounds": 8, "everyone": True, "exact": True}


def equals(subject: Subject) -> Finding | None:
    """The largest difference between methods that must coincide, over all special cases."""
    method, problem = subject.method, problems.quadratics()
    special = (_single_client, _one_step, _without_delay)
    findings = [found for each in special if (found := each(method, problem)) is not None]
    declared = [*_known(method), *method.coincidences()]
    findings += [_difference(each) for each in declared]
    return worst(findings)


def _difference(case: Coincidence) -> Finding:
    """The difference between the paths of two methods that must coincide."""
    problem = problems.quadratics()
    if case.clients == "identical":
        problem = problems.identical(problem, 4, SIZES)
    sampler = All() if case.everyone else partial(case.method, case.objective)
    if not allows(case.other, sampler, SIZES, case.objective):
        sampler = All()
    local: Local = Exact()
    if not case.exact:
        local = GD(lr=LR, steps=3 if case.equal_steps else STEPS, momentum=case.momentum)
    wanted, found = (
        path(run_of(method, problem, local, sampler, case.objective), case.rounds)
        for method in (case.other, case.method)
    )
    return between(wanted, found, case.words)


# Special cases of every method of some kind


def _single_client(method: Method, problem: Quadratics) -> Finding | None:
    """With one client, averaging methods are centralised training."""
    kinds = FedAvg | FedNova | FedLGA | SCAFFOLD
    other_steps = isinstance(method, FedCM) or method.ascent is not None
    pulled = getattr(method, "mu", None)
    if not isinstance(method, kinds) or other_steps or pulled or not _plain(method):
        return None
    alone = problems.identical(problem, 1, [7])
    x, models = START.clone(), []
    tau = planned(method, [3])[0]
    if isinstance(method, FedNova):
        method = _with_steps(method, tau)
    for _ in range(5):
        for _ in range(tau):
            x = x - LR * alone.gradient(0, x)
        models.append(x)
    found = path(run_of(method, alone, GD(lr=LR, steps=3)), 5)
    return between(torch.stack(models), found, "one client = centralised training")


def _one_step(method: Method, problem: Quadratics) -> Finding | None:
    """With one full-batch step per round, FedAvg is gradient descent on F."""
    if type(method).__name__ not in ("FedAvg", "FedAvgMin", "DistributedSGD") or not _plain(method):
        return None
    if not allows(method, All(), SIZES, "samples"):
        return None
    q = Roster(problem.ids, problem.sizes, "samples").weights
    x, models = START.clone(), []
    for _ in range(5):
        x = x - LR * problem.total_gradient(x, q)
        models.append(x)
    found = path(run_of(method, problem, GD(lr=LR, steps=1)), 5)
    return between(torch.stack(models), found, "E = 1 is gradient descent")


def _without_delay(method: Method, problem: Quadratics) -> Finding | None:
    """With one client at work at a time there is no delay: arrivals are rounds of one client."""
    if not method.asynchronous or method.buffer > 1:
        return None
    local = Exact() if isinstance(method, FedDR) else GD(lr=LR, steps=3)
    alone = arriving(method, problem, local, Uniform(1))
    models, order = [], []
    for _ in range(12):
        order.append(list(alone.step().cohort))
        models.append(alone.server.x.clone())
    rounds = path(run_of(method, problem, local, Fixed(order)), 12)
    return between(torch.stack(models), rounds, "without delay it is rounds of one client")


# Special cases of single methods


def _known(method: Method) -> Iterator[Coincidence]:
    """The special cases of a method of the library, or of a class derived from one."""
    for kind in type(method).__mro__:
        if kind.__name__ in KNOWN and kind.__module__.startswith("undrift.methods."):
            yield from KNOWN[kind.__name__](method)
            return


def _fedprox(method: Any) -> Iterator[Coincidence]:
    twin = FedAvg(method.scheme, method.server)
    yield Coincidence("mu = 0 is FedAvg", changed(method, mu=0.0), twin, momentum=0.5)


def _fednova(method: Any) -> Iterator[Coincidence]:
    if method.variance_reduction:
        if method.mu == 0 and method.weights == "II":
            twin = FedAvg(server=method.server)
            words, equal = "the first round is FedAvg's", _with_steps(method, 3)
            momentum = 0.5 if equal is method else 0.0
            yield Coincidence(words, equal, twin, rounds=1, equal_steps=True, momentum=momentum)
        return
    twin = FedAvg("II-delta" if method.weights == "II" else "I", method.server)
    equal = changed(method, mu=0.0, tau_eff="progress")
    yield Coincidence("equal steps are FedAvg", equal, twin, equal_steps=True, momentum=0.5)
    public = _with_steps(changed(method, mu=0.0), 3)
    if not isinstance(public.tau_eff, str | None):
        yield Coincidence("with their number as τ_eff, too", public, twin, equal_steps=True)


def _with_steps(method: Any, steps: int) -> Any:
    """FedNova with `steps` as its τ_eff, if that is a number."""
    if isinstance(method.tau_eff, str | None):
        return method
    return changed(method, tau_eff=float(steps))


def _scaffold(method: Any) -> Iterator[Coincidence]:
    twin = FedAvg(server=method.server)
    yield Coincidence("the first round is FedAvg's", method, twin, rounds=1, momentum=0.5)


def _vrlsgd(method: Any) -> Iterator[Coincidence]:
    yield Coincidence("the first round is FedAvg's", method, FedAvg(), rounds=1, momentum=0.5)


def _fedavgmin(method: Any) -> Iterator[Coincidence]:
    twin = FedAvg(method.scheme, method.server)
    yield Coincidence("equal steps are FedAvg", method, twin, equal_steps=True)


def _fedbuff(method: Any) -> Iterator[Coincidence]:
    twin = FedAvg(server=method.server)
    yield Coincidence("in synchronous rounds it is FedAvg", method, twin, momentum=0.5)


def _fedlga(method: Any) -> Iterator[Coincidence]:
    twin = FedAvg("I", method.server)
    yield Coincidence("all complete is FedAvg, scheme I", method, twin, equal_steps=True)


def _fedsplit(method: Any) -> Iterator[Coincidence]:
    if method.average == "full":
        reflected = FedDR(method.eta, alpha=2.0)
        yield Coincidence("FedSplit = FedDR(alpha=2)", method, reflected, **EIGHT_ROUNDS)
    else:
        twin = FedSplit(method.eta)
        words = "with every client it is FedSplit"
        yield Coincidence(words, method, twin, **EIGHT_ROUNDS)


def _feddr(method: Any) -> Iterator[Coincidence]:
    if method.g is None:
        reflected = changed(method, alpha=2.0)
        twin = FedSplit(method.eta)
        yield Coincidence("FedDR(alpha=2) = FedSplit", reflected, twin, **EIGHT_ROUNDS)


def _feddyn(method: Any) -> Iterator[Coincidence]:
    options = EIGHT_ROUNDS | {"objective": "clients"}
    twin = FedPD(1 / method.alpha)
    words = "with every client it is FedPD with eta = 1/alpha"
    yield Coincidence(words, method, twin, **options)


def _fedpd(method: Any) -> Iterator[Coincidence]:
    if method.communication == 1:
        options = EIGHT_ROUNDS | {"objective": "clients"}
        twin = FedDyn(1 / method.eta)
        yield Coincidence("it is FedDyn with alpha = 1/eta", method, twin, **options)


def _fedadmm(method: Any) -> Iterator[Coincidence]:
    twin, words = FedPD(1 / method.rho), "with every client it is FedPD with eta = 1/rho"
    yield Coincidence(words, method, twin, **EIGHT_ROUNDS)
    yield Coincidence(f"{words}, also inexactly", method, twin, everyone=True, momentum=0.5)


def _last_moves(method: Any) -> Iterator[Coincidence]:
    twin = FedAvg(server=method.server)
    yield Coincidence("with every client it is FedAvg", method, twin, everyone=True, momentum=0.5)


def _scaffnew(method: Any) -> Iterator[Coincidence]:
    one = changed(method, p=1.0)
    yield Coincidence("p = 1 is gradient descent on F", one, DistributedSGD(), everyone=True)


def _fedcm(method: Any) -> Iterator[Coincidence]:
    twin = FedAvg(method.scheme, method.server)
    yield Coincidence("alpha = 1 is FedAvg", changed(method, alpha=1.0), twin, momentum=0.5)


def _fedacg(method: Any) -> Iterator[Coincidence]:
    still = changed(method, lam=0.0)
    yield Coincidence("lam = 0 is FedProx", still, FedProx(method.beta))


def _fedsam(method: Any) -> Iterator[Coincidence]:
    twin = FedAvg(method.scheme, method.server)
    yield Coincidence("rho = 0 is FedAvg", changed(method, rho=0.0), twin, momentum=0.5)


def _fedspeed(method: Any) -> Iterator[Coincidence]:
    all_clients = changed(method, average="all")
    twin = FedDyn(1 / method.lam)
    for name in ("rho", "alpha"):
        flat = changed(all_clients, **{name: 0.0})
        yield Coincidence(f"{name} = 0 is FedDyn with alpha = 1/lam", flat, twin, momentum=0.5)
    if method.average == "act":
        words = "with every client it does not matter whose ĝ_k are averaged"
        yield Coincidence(words, method, all_clients, everyone=True, momentum=0.5)


def _fedexp(method: Any) -> Iterator[Coincidence]:
    last = changed(method, reports="last")
    options: dict[str, Any] = {"everyone": True, "equal_steps": True, "clients": "identical"}
    yield Coincidence("identical clients are FedAvg", last, FedAvg(), **options)


def _mimelite(method: Any) -> Iterator[Coincidence]:
    twin = FedAvg(server=method.server)
    yield Coincidence("beta = 0 is FedAvg", changed(method, beta=0.0), twin, momentum=0.5)


def _ditto(method: Any) -> Iterator[Coincidence]:
    twin = FedAvg(method.scheme, method.server)
    yield Coincidence("its server's model is FedAvg's", method, twin, momentum=0.5)


def _pfedme(method: Any) -> Iterator[Coincidence]:
    whole = PFedMe(method.lam, 1 / method.lam, 1, method.beta)
    twin = FedProx(method.lam, server=Plain(method.beta))
    yield Coincidence("R = 1 and eta = 1/lam is FedProx with mu = lam", whole, twin)


KNOWN: dict[str, Callable[[Any], Iterator[Coincidence]]] = {
    "FedProx": _fedprox,
    "FedNova": _fednova,
    "SCAFFOLD": _scaffold,
    "VRLSGD": _vrlsgd,
    "FedAvgMin": _fedavgmin,
    "FedBuff": _fedbuff,
    "FedLGA": _fedlga,
    "FedSplit": _fedsplit,
    "FedDR": _feddr,
    "FedDyn": _feddyn,
    "FedPD": _fedpd,
    "FedADMM": _fedadmm,
    "FedVARP": _last_moves,
    "Scaffnew": _scaffnew,
    "FedCM": _fedcm,
    "FedACG": _fedacg,
    "FedExP": _fedexp,
    "FedSAM": _fedsam,
    "FedSpeed": _fedspeed,
    "MimeLite": _mimelite,
    "Ditto": _ditto,
    "PFedMe": _pfedme,
}
"""The special cases of the library's methods, by name."""


def _plain(method: Method) -> bool:
    """Whether the server adds the average move unchanged."""
    return getattr(method, "server", Plain()) == Plain()
