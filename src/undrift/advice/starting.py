"""Methods with hyper-parameters to start from, each with where it comes from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from undrift.advice.facts import Facts
from undrift.methods import (
    SCAFFOLD,
    VRLSGD,
    AsyncFedDR,
    DistributedSGD,
    FedAsync,
    FedAvg,
    FedAvgMin,
    FedBuff,
    FedDR,
    FedDyn,
    FedLGA,
    FedNova,
    FedPD,
    FedProx,
    FedSplit,
    Method,
)
from undrift.theory.step_sizes import async_feddr, feddr_limit

PULLED = 0.2
"""ημτ of FedProx: a round then gets about a tenth less far, as (1 − e^(−0.2))/0.2 = 0.906."""
BUFFER = 10
"""FedBuff's number of replies to an update, its paper's."""


@dataclass(frozen=True)
class Start:
    """A method ready to run, and where each of its hyper-parameters comes from."""

    method: Method
    because: tuple[str, ...] = ()


def proposed_rate(L: float, momentum: float = 0.0) -> float:
    """η = (1 − ρ)/L: the largest step by which gradient descent is sure to gain most.

    It is the curvature of single clients at the start that counts here, so networks often allow
    ten times as much. Momentum ρ makes every gradient count 1/(1 − ρ) times in the long run.
    """
    return rounded((1 - momentum) / L) if L > 0 else 0.1


def rounded(value: float) -> float:
    """Two digits are all that an estimate deserves."""
    return float(f"{value:.2g}")


def start(name: str, facts: Facts) -> Start:
    """A method by name, with values to start from."""
    return STARTS[name](facts)


def _reach(facts: Facts) -> float:
    """ητ: how far a round of the mean client goes, in units of its gradient."""
    if facts.work is None or facts.rate is None:  # exact solutions go as far as the curvature lets
        return 1 / facts.curvature.L if facts.curvature.L > 0 else 1.0
    return facts.rate * facts.work.progress_mean


def _fedavg(facts: Facts) -> Start:
    if facts.setting.participation == "weighted" and not facts.setting.equal:
        return Start(FedAvg("I"), ('scheme = "I": clients are drawn by q_k',))
    return Start(FedAvg())


def _fedprox(facts: Facts) -> Start:
    scheme = _fedavg(facts).method.hyperparameters()["scheme"]
    mu = rounded(PULLED / _reach(facts))
    why = f"mu = {mu:g}: 0.2/(ητ), so that the pull makes a round about a tenth shorter"
    return Start(FedProx(mu, scheme), (why,))


def _fednova(facts: Facts) -> Start:
    if facts.setting.participation == "weighted" and not facts.setting.equal:
        return Start(FedNova(weights="I"), ('weights = "I": clients are drawn by q_k',))
    return Start(FedNova())


def _scaffold(facts: Facts) -> Start:
    if facts.work is None:
        return Start(SCAFFOLD("I"), ('option = "I": there are no steps to divide by',))
    return Start(SCAFFOLD())


def _feddyn(facts: Facts) -> Start:
    reach = _reach(facts)
    alpha, why = 1 / reach, "1/(ητ), with which h_k is the client's mean gradient after one visit"
    # A client's own pull is α/(N q_k); a step η of it must not go beyond the centre.
    if facts.rate is not None and alpha * facts.lightest > 1 / facts.rate:
        alpha = 1 / (facts.rate * facts.lightest)
        why = "1/η over the largest 1/(N q_k), so that no client's pull overshoots"
    alpha = rounded(alpha)
    return Start(FedDyn(alpha), (f"alpha = {alpha:g}: {why}",))


def _fedpd(facts: Facts) -> Start:
    eta = rounded(_reach(facts))
    return Start(FedPD(eta), (f"eta = {eta:g}: ητ, the reach of a round",))


def _fedsplit(facts: Facts) -> Start:
    eta = rounded(_reach(facts))
    return Start(FedSplit(eta), (f"eta = {eta:g}: ητ, the reach of a round",))


def _feddr(facts: Facts) -> Start:
    eta = rounded(_reach(facts))
    why = f"eta = {eta:g}: ητ, as far as a round of local steps reaches; convex losses allow any"
    L = facts.curvature.L
    if L > 0:
        limit = feddr_limit(L, 1.0)
        inside = "which it is" if eta < limit else "far slower"
        why += f", others are sure to converge for eta < (2 − alpha)/(2L) = {limit:.2g}, {inside}"
    return Start(FedDR(eta, 1.0, facts.regularizer), (why,))


def _asyncfeddr(facts: Facts) -> Start:
    eta, alpha = rounded(_reach(facts)), 1.0
    why = f"eta = {eta:g}: ητ, as far as a round of local steps reaches; alpha = 1: the paper's"
    L, n = facts.curvature.L, facts.clients
    if facts.delays is not None and L > 0:
        sure = async_feddr(L, n, facts.delays.most)
        why += (
            f"; for delays up to {facts.delays.most} its Theorem 4.1 guarantees convergence with "
            f"alpha = {sure.alpha:.2g}, eta = {sure.eta:.2g}, which is far slower"
        )
    return Start(AsyncFedDR(eta, alpha, facts.regularizer), (why,))


def _fedbuff(facts: Facts) -> Start:
    at_once = facts.delays.concurrency if facts.delays is not None else facts.clients
    buffer = min(BUFFER, max(1, at_once // 2))
    if buffer == BUFFER:
        return Start(FedBuff(buffer), (f"buffer = {buffer}: its paper's",))
    why = f"buffer = {buffer}: half of the {at_once} clients at work at once"
    return Start(FedBuff(buffer), (why,))


def _plain(kind: Callable[[], Method]) -> Callable[[Facts], Start]:
    return lambda facts: Start(kind())


STARTS: dict[str, Callable[[Facts], Start]] = {
    "FedAvg": _fedavg,
    "FedProx": _fedprox,
    "FedNova": _fednova,
    "SCAFFOLD": _scaffold,
    "FedDyn": _feddyn,
    "FedDR": _feddr,
    "AsyncFedDR": _asyncfeddr,
    "FedBuff": _fedbuff,
    "FedAsync": _plain(FedAsync),
    "FedPD": _fedpd,
    "FedSplit": _fedsplit,
    "VRLSGD": _plain(VRLSGD),
    "FedAvgMin": _plain(FedAvgMin),
    "FedLGA": _plain(FedLGA),
    "DistributedSGD": _plain(DistributedSGD),
}
"""Every method of the library, in the order in which they are compared."""
