"""Hyper-parameters to start from for every method, with the reason for each value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from undrift.advice.facts import Facts
from undrift.methods import (
    MIFA,
    SCAFFOLD,
    VRLSGD,
    AsyncFedDR,
    DistributedSGD,
    Ditto,
    FedACG,
    FedADMM,
    FedAsync,
    FedAvg,
    FedAvgMin,
    FedBuff,
    FedCM,
    FedDR,
    FedDyn,
    FedExP,
    FedLGA,
    FedNova,
    FedPD,
    FedProx,
    FedSAM,
    FedSpeed,
    FedSplit,
    FedVARP,
    Method,
    MimeLite,
    PFedMe,
    Scaffnew,
)
from undrift.theory.step_sizes import async_feddr, feddr_limit

PULL_PER_ROUND = 0.2
"""ημτ of FedProx: it shortens a round by about a tenth, because (1 − e^(−0.2))/0.2 = 0.906."""
BUFFER_REPLIES = 10
"""Replies per update of FedBuff, as in its paper."""


@dataclass(frozen=True)
class Start:
    """A method with hyper-parameters to start from, and the reason for each."""

    method: Method
    because: tuple[str, ...] = ()


def proposed_rate(L: float, momentum: float = 0.0) -> float:
    """The learning rate η = (1 − ρ)/L, a safe step of gradient descent.

    L is the largest curvature of single clients at the start, so networks often allow a rate ten
    times as large. With momentum ρ every gradient counts 1/(1 − ρ) times in the long run.
    """
    return rounded((1 - momentum) / L) if L > 0 else 0.1


def rounded(value: float) -> float:
    """The value with two significant digits, which is the precision of the estimates."""
    return float(f"{value:.2g}")


def start(name: str, facts: Facts) -> Start:
    """A method by name, with hyper-parameters to start from."""
    return STARTS[name](facts)


def _round_length(facts: Facts) -> float:
    """ητ: the length of a round of the mean client, in units of its gradient."""
    if facts.work is None or facts.rate is None:  # an exact solution moves by about 1/L
        return 1 / facts.curvature.L if facts.curvature.L > 0 else 1.0
    return facts.rate * facts.work.progress_mean


def _fedavg(facts: Facts) -> Start:
    if facts.setting.participation == "weighted" and not facts.setting.equal:
        return Start(FedAvg("I"), ('scheme = "I": clients are drawn by q_k',))
    return Start(FedAvg())


def _fedprox(facts: Facts) -> Start:
    scheme = _fedavg(facts).method.hyperparameters()["scheme"]
    mu = rounded(PULL_PER_ROUND / _round_length(facts))
    why = f"mu = {mu:g}: 0.2/(ητ), so that the pull shortens a round by about a tenth"
    return Start(FedProx(mu, scheme), (why,))


def _fednova(facts: Facts) -> Start:
    if facts.setting.participation == "weighted" and not facts.setting.equal:
        return Start(FedNova(weights="I"), ('weights = "I": clients are drawn by q_k',))
    return Start(FedNova())


def _scaffold(facts: Facts) -> Start:
    if facts.work is None:
        return Start(SCAFFOLD("I"), ('option = "I": exact solutions have no steps to divide by',))
    return Start(SCAFFOLD())


def _feddyn(facts: Facts) -> Start:
    length = _round_length(facts)
    alpha, why = (
        1 / length,
        "1/(ητ), with which h_k is the client's mean gradient after its first round",
    )
    # A client's pull is α/(N q_k); a step η of it must not overshoot the centre.
    if facts.rate is not None and alpha * facts.lightest > 1 / facts.rate:
        alpha = 1 / (facts.rate * facts.lightest)
        why = "1/η over the largest 1/(N q_k), so that no client's pull overshoots"
    alpha = rounded(alpha)
    return Start(FedDyn(alpha), (f"alpha = {alpha:g}: {why}",))


def _fedpd(facts: Facts) -> Start:
    eta = rounded(_round_length(facts))
    return Start(FedPD(eta), (f"eta = {eta:g}: ητ, the length of a round",))


def _fedsplit(facts: Facts) -> Start:
    eta = rounded(_round_length(facts))
    return Start(FedSplit(eta), (f"eta = {eta:g}: ητ, the length of a round",))


def _feddr(facts: Facts) -> Start:
    eta = rounded(_round_length(facts))
    why = f"eta = {eta:g}: ητ, the length of a round of local steps; convex losses allow any eta"
    L = facts.curvature.L
    if L > 0:
        limit = feddr_limit(L, 1.0)
        inside = "which holds" if eta < limit else "which is far slower"
        why += f", others converge for eta < (2 − alpha)/(2L) = {limit:.2g}, {inside}"
    return Start(FedDR(eta, 1.0, facts.regularizer), (why,))


def _asyncfeddr(facts: Facts) -> Start:
    eta, alpha = rounded(_round_length(facts)), 1.0
    why = f"eta = {eta:g}: ητ, the length of a round of local steps; alpha = 1: as in the paper"
    L, n = facts.curvature.L, facts.clients
    if facts.delays is not None and L > 0:
        sure = async_feddr(L, n, facts.delays.most)
        why += (
            f"; for delays up to {facts.delays.most} its Theorem 4.1 guarantees convergence with "
            f"alpha = {sure.alpha:.2g}, eta = {sure.eta:.2g}, which is far slower"
        )
    return Start(AsyncFedDR(eta, alpha, facts.regularizer), (why,))


def _fedadmm(facts: Facts) -> Start:
    rho = rounded(1 / _round_length(facts))
    return Start(FedADMM(rho), (f"rho = {rho:g}: 1/(ητ), as FedDyn's alpha",))


def _scaffnew(facts: Facts) -> Start:
    steps = 10.0 if facts.work is None else max(1.0, facts.work.progress_mean)
    p = rounded(1 / steps)
    return Start(Scaffnew(p), (f"p = {p:g}: one over the number of local steps",))


def _fedcm(facts: Facts) -> Start:
    scheme = _fedavg(facts).method.hyperparameters()["scheme"]
    return Start(FedCM(0.1, scheme), ("alpha = 0.1: as in its paper",))


def _fedsam(facts: Facts) -> Start:
    scheme = _fedavg(facts).method.hyperparameters()["scheme"]
    return Start(FedSAM(0.05, scheme), ("rho = 0.05: as in the code of its authors",))


def _fedspeed(facts: Facts) -> Start:
    lam = rounded(1 / _feddyn(facts).method.hyperparameters()["alpha"])
    return Start(FedSpeed(lam), (f"lam = {lam:g}: one over FedDyn's alpha",))


def _fedbuff(facts: Facts) -> Start:
    at_once = facts.delays.concurrency if facts.delays is not None else facts.clients
    buffer = min(BUFFER_REPLIES, max(1, at_once // 2))
    if buffer == BUFFER_REPLIES:
        return Start(FedBuff(buffer), (f"buffer = {buffer}: as in its paper",))
    why = f"buffer = {buffer}: half of the {at_once} clients that work at once"
    return Start(FedBuff(buffer), (why,))


def _ditto(facts: Facts) -> Start:
    scheme = _fedavg(facts).method.hyperparameters()["scheme"]
    lam = rounded(PULL_PER_ROUND / _round_length(facts))
    why = f"lam = {lam:g}: 0.2/(ητ), so that the pull shortens the personal work by about a tenth"
    return Start(Ditto(lam, scheme), (why,))


def _pfedme(facts: Facts) -> Start:
    lam = rounded(1 / _round_length(facts))
    eta = rounded(1 / (5 * lam))
    why = f"lam = {lam:g}: 1/(ητ), so that local work about solves the inner problem"
    return Start(
        PFedMe(lam, eta), (why, f"eta = {eta:g}: 1/(R lam), so that R steps go about to theta")
    )


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
    "FedADMM": _fedadmm,
    "FedVARP": _plain(FedVARP),
    "MIFA": _plain(MIFA),
    "Scaffnew": _scaffnew,
    "FedCM": _fedcm,
    "FedACG": _plain(FedACG),
    "FedExP": _plain(FedExP),
    "MimeLite": _plain(MimeLite),
    "FedSAM": _fedsam,
    "FedSpeed": _fedspeed,
    "FedAvgMin": _plain(FedAvgMin),
    "FedLGA": _plain(FedLGA),
    "DistributedSGD": _plain(DistributedSGD),
    "Ditto": _ditto,
    "PFedMe": _pfedme,
}
"""The starting values of every method of the library, in the order of the comparison."""
