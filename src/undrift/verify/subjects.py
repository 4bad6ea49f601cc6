"""The methods that `undrift verify` checks: the library's own, or a user's class.

The library's methods get parameters that suit the verification problems.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from undrift import methods as m
from undrift.core.method import Method
from undrift.core.regularizers import L1, L2, Box
from undrift.methods.common.schemes import SCHEMES
from undrift.methods.common.server_optimizers import Adagrad, Adam, Momentum, Plain, Yogi
from undrift.methods.common.staleness import Constant, Hinge, Polynomial
from undrift.methods.user_methods import load_method


@dataclass(frozen=True)
class Subject:
    """A method to verify.

    `equal_steps` is for methods that are exact only when all clients take equally many steps.
    `monotone` has quantities that never increase, besides those the method declares itself.
    """

    label: str
    method: Method
    equal_steps: bool = False
    monotone: Mapping[str, Callable[[Any], float]] = field(default_factory=dict)
    exempt: Mapping[str, str] = field(default_factory=dict)
    """facts that are not claimed, with the reason"""

    @property
    def exact(self) -> bool:
        """Whether clients may solve their local problems exactly: the method counts no steps."""
        return self.method.converges_to == "optimum" and not self.method.needs_steps


def ours() -> list[Subject]:
    """Every method of the library, with every option that changes its formulas."""
    return [
        *_averaging(),
        *_control_variates(),
        *_primal_dual(),
        *_personal(),
        *_asynchronous(),
    ]


def _objective(run: Any) -> float:
    """F(x) of a run on quadratic clients."""
    return float(
        sum(q * run.losses.value(k, run.server.x) for k, q in enumerate(run.roster.weights))
    )


EXEMPT_SCHEMES = {
    "original": {"weights": "the weights of a cohort do not sum to one: x keeps 1 − Σ_S q_k"},
    "II": {
        "shift": "it scales models, not moves, if the weights of a cohort do not sum to one",
        "still": "it moves the server although no client moved, by design of the paper",
    },
}
"""What two schemes of FedAvg do by design."""


def _averaging() -> Iterator[Subject]:
    yield Subject("DistributedSGD", m.DistributedSGD(), monotone={"F": _objective})
    yield Subject("FedAvg", m.FedAvg())
    for scheme in SCHEMES:
        if scheme != "II-delta":
            exempt = EXEMPT_SCHEMES.get(scheme, {})
            yield Subject(f"FedAvg {scheme}", m.FedAvg(scheme), exempt=exempt)
    for server in (Plain(0.7), Momentum(0.6, 0.5), Adam(0.05), Yogi(0.05), Adagrad(0.3)):
        yield Subject(f"FedAvg {type(server).__name__}", m.FedAvg(server=server))
    yield Subject("FedAvgMin", m.FedAvgMin())
    yield Subject("FedProx", m.FedProx(mu=0.5))
    yield Subject("FedProx I", m.FedProx(mu=0.5, scheme="I", server=Plain(0.7)))
    yield Subject("FedProx trans. II", m.FedProx(mu=0.5, scheme="transformed II"))
    yield Subject("FedProx inside", m.FedProx(mu=0.5, pull_inside_momentum=True))
    yield Subject("FedNova", m.FedNova())
    yield Subject("FedNova prox", m.FedNova(mu=0.5))
    yield Subject("FedNova steps", m.FedNova(tau_eff="steps"))
    yield Subject("FedNova prox ‖a‖", m.FedNova(mu=0.5, tau_eff="progress"))
    yield Subject("FedNova I", m.FedNova(weights="I", server=Momentum(0.6, 0.5)))
    yield Subject("FedNova server", m.FedNova(server=Momentum(0.6, 0.5)))
    yield Subject("FedNova public τ_eff", m.FedNova(tau_eff=3.5))
    yield Subject("FedNova VR public τ_eff", m.FedNova(tau_eff=3.5, variance_reduction=True))
    yield Subject("FedNova VR", m.FedNova(variance_reduction=True))
    yield Subject("FedNova VR I", m.FedNova(variance_reduction=True, weights="I", mu=0.2))
    yield Subject("FedCM", m.FedCM(alpha=0.4))
    yield Subject("FedCM I", m.FedCM(alpha=0.4, scheme="I", server=Plain(0.7)))
    yield Subject("FedCM trans. II", m.FedCM(0.4, "transformed II", Plain(0.7)))
    yield Subject("FedCM Adam", m.FedCM(0.4, server=Adam(0.2, tau=1.0)))
    yield Subject("FedACG", m.FedACG(lam=0.5, beta=0.3))
    yield Subject("FedExP", m.FedExP(eps=1e-2))
    yield Subject("FedExP last", m.FedExP(eps=1e-2, reports="last"))
    yield Subject("MimeLite", m.MimeLite(beta=0.5))
    yield Subject("MimeLite Plain", m.MimeLite(beta=0.3, server=Plain(0.7)))
    yield Subject("MimeLite Mom.", m.MimeLite(0.3, Momentum(0.6, 0.5)))
    yield Subject("FedSAM", m.FedSAM(rho=0.1))
    yield Subject("FedSAM transformed II", m.FedSAM(0.1, "transformed II", Plain(0.7)))
    yield Subject("FedLGA", m.FedLGA())
    yield Subject("FedLGA damped", m.FedLGA(damping=0.4, server=Plain(0.7)))
    yield Subject("FedLGA cap", m.FedLGA(damping=3.0, cap=True))
    yield Subject("FedLGA diagonal", m.FedLGA("diagonal", damping=0.4))
    yield Subject("FedLGA last", m.FedLGA(damping=0.4, gradient="last"))
    unused = {"acts": "this form has no damping"}
    yield Subject("FedLGA extrapolate", m.FedLGA("extrapolate"), exempt=unused)
    yield Subject("FedLGA none", m.FedLGA("none"), exempt=unused)


def _control_variates() -> Iterator[Subject]:
    yield Subject("SCAFFOLD", m.SCAFFOLD())
    yield Subject("SCAFFOLD Plain", m.SCAFFOLD(server=Plain(0.7)))
    yield Subject("SCAFFOLD Mom.", m.SCAFFOLD(server=Momentum(0.6, 0.5)))
    yield Subject("SCAFFOLD I", m.SCAFFOLD("I"))
    yield Subject("VRLSGD", m.VRLSGD(), equal_steps=True)
    yield Subject("FedVARP", m.FedVARP())
    yield Subject("FedVARP Plain", m.FedVARP(Plain(0.7)))
    yield Subject("FedVARP Mom.", m.FedVARP(Momentum(0.6, 0.5)))
    yield Subject("MIFA", m.MIFA(Plain(0.7)))
    yield Subject("Scaffnew", m.Scaffnew(p=0.3), equal_steps=True)


def _primal_dual() -> Iterator[Subject]:
    yield Subject("FedDyn", m.FedDyn(alpha=1.0))
    yield Subject("FedDyn 0.6", m.FedDyn(alpha=0.6))
    yield Subject("FedPD", m.FedPD(eta=0.8))
    silent = {"buffers": "statistics of BatchNorm travel in every round, so it refuses them"}
    yield Subject("FedPD p = 0.5", m.FedPD(eta=0.8, communication=0.5), exempt=silent)
    yield Subject("FedSplit", m.FedSplit(eta=0.8))
    yield Subject("FedSplit all", m.FedSplit(eta=0.8, average="all"))
    yield Subject("FedSplit act", m.FedSplit(eta=0.8, average="act"))
    yield Subject("FedDR", m.FedDR(eta=0.8, alpha=1.3))
    yield Subject("FedDR l1", m.FedDR(eta=0.8, alpha=0.9, g=L1(0.2)))
    yield Subject("FedDR l2", m.FedDR(eta=0.8, alpha=1.3, g=L2(0.3)))
    yield Subject("FedDR box", m.FedDR(eta=0.8, alpha=1.0, g=Box(-0.3, 0.4)))
    yield Subject("FedDR everyone", m.FedDR(eta=0.8, alpha=0.9, g=L1(0.1), start="everyone"))
    yield Subject("FedSpeed", m.FedSpeed(lam=1.3, rho=0.1, alpha=0.6))
    yield Subject("FedSpeed α = 1", m.FedSpeed(lam=0.8, rho=0.05))
    yield Subject("FedSpeed act", m.FedSpeed(lam=1.3, rho=0.1, alpha=0.6, average="act"))
    flat = {"acts": "without a shift its share does nothing"}
    yield Subject("FedSpeed ρ = 0", m.FedSpeed(lam=1.3, rho=0.0, alpha=0.6), exempt=flat)
    yield Subject("FedADMM", m.FedADMM(rho=0.8))


def _personal() -> Iterator[Subject]:
    yield Subject("Ditto", m.Ditto(lam=0.7))
    yield Subject("Ditto I", m.Ditto(lam=0.3, scheme="I", server=Plain(0.7)))
    yield Subject("PFedMe", m.PFedMe(lam=2.0, eta=0.3, R=3, beta=0.8))
    yield Subject("PFedMe R = 1", m.PFedMe(lam=1.5, eta=0.5, R=1))


def _asynchronous() -> Iterator[Subject]:
    yield Subject("AsyncFedDR", m.AsyncFedDR(eta=0.8, alpha=0.9))
    yield Subject("FedAsync", m.FedAsync(alpha=0.3))
    yield Subject("FedAsync hinge", m.FedAsync(alpha=0.3, mu=0.2, staleness=Hinge(2.0, 3.0)))
    yield Subject("FedAsync constant", m.FedAsync(alpha=0.3, staleness=Constant()))
    cut = "weights above 1 are cut off, so that heavy clients count for less"
    capped = dict.fromkeys(("limit", "momentum", "ragged", "weights"), cut)
    yield Subject("FedAsync capped", m.FedAsync(0.9, staleness=Constant()), exempt=capped)
    yield Subject("FedBuff", m.FedBuff())
    yield Subject("FedBuff 3", m.FedBuff(3, Plain(0.7), Polynomial(0.8)))


def baselines() -> list[Subject]:
    """Baselines that `undrift list` does not show; verify them as undrift.methods:Alone."""
    return [Subject("Alone", m.Alone())]


def named(name: str) -> list[Subject]:
    """The library's method of a name, once for each set of options it is verified with."""
    return [subject for subject in ours() if subject.method.name == name]


def load(where: str, settings: Mapping[str, object] | None = None) -> Subject:
    """The user's method of "mine.py:MyMethod" or "package.module:MyMethod"."""
    return Subject(where.rpartition(":")[2], load_method(where, settings))
