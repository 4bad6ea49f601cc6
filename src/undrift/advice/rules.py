"""The rules that choose methods for a federation: the first rule that holds decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from undrift.advice.facts import Facts


@dataclass(frozen=True)
class Rule:
    """If the condition holds: one method to run, and perhaps one to compare with."""

    name: str
    holds: Callable[[Facts], bool]
    methods: tuple[str, ...]
    because: str
    """why the first method is recommended"""
    beside: str = ""
    """why the second method is worth a comparison"""


RULES = (
    Rule(
        "composite and asynchronous",
        lambda f: f.composite and f.asynchronous,
        ("AsyncFedDR",),
        "only FedDR's prox on the server handles a regulariser g, and AsyncFedDR folds each reply "
        "when it arrives",
    ),
    Rule(
        "composite",
        lambda f: f.composite,
        ("FedDR",),
        "only FedDR's prox on the server handles a regulariser g exactly: averaging would undo "
        "the zeros of an l1 term",
    ),
    Rule(
        "asynchronous",
        lambda f: f.asynchronous and f.keeps_state,
        ("AsyncFedDR", "FedBuff"),
        "replies arrive one by one and some are old: AsyncFedDR converges to the optimum with "
        "bounded delays, and does not favour clients that reply more often",
        "it needs no state on clients, but is biased towards clients that reply more often",
    ),
    Rule(
        "asynchronous, nothing kept",
        lambda f: f.asynchronous,
        ("FedBuff",),
        "replies arrive one by one and clients keep no state: FedBuff averages several replies "
        "with smaller weights for older ones, but is biased towards clients that reply more often",
    ),
    Rule(
        "single steps",
        lambda f: f.single_steps,
        ("FedAvg",),
        "every client takes one step per round, so none drifts and averaging is plain SGD on F",
    ),
    Rule(
        "clients differ, few take part, unequal work",
        lambda f: f.dissimilar and f.few and f.unequal and f.keeps_state,
        ("FedDyn", "FedNova"),
        "clients pull in different directions and few of them take part in a round: FedDyn "
        "corrects each client's loss by the client's state, with the traffic of FedAvg, and its "
        "solution does not depend on the clients' numbers of steps",
        "it corrects only the unequal work, and clients keep no state",
    ),
    Rule(
        "clients differ, few take part",
        lambda f: f.dissimilar and f.few and f.keeps_state,
        ("FedDyn", "SCAFFOLD"),
        "clients pull in different directions and few of them take part in a round: FedDyn "
        "corrects each client's loss by the client's state, with the traffic of FedAvg, and its "
        "server state accounts for absent clients",
        "it also converges to the optimum and has nothing to tune, with twice the traffic",
    ),
    Rule(
        "clients differ, many take part, unequal work",
        lambda f: f.dissimilar and f.unequal and f.keeps_state,
        ("SCAFFOLD", "FedNova"),
        "clients pull in different directions, and clients with more steps would count for more: "
        "SCAFFOLD follows the direction of F whatever the number of steps, and its corrections are "
        "recent because many clients take part in a round",
        "it corrects only the unequal work, with half the traffic, and clients keep no state",
    ),
    Rule(
        "clients differ, many take part",
        lambda f: f.dissimilar and f.keeps_state,
        ("SCAFFOLD", "FedDyn"),
        "clients pull in different directions: SCAFFOLD makes all of them follow the direction of "
        "F, and its corrections are recent because many clients take part in a round",
        "it also converges to the optimum, with half the traffic",
    ),
    Rule(
        "unequal work",
        lambda f: f.unequal and f.keeps_state,
        ("FedNova", "SCAFFOLD"),
        "clients with more steps would count for more: FedNova divides by the steps, with the "
        "traffic of FedAvg and no state on clients",
        "it removes drift as well, with twice the traffic and a vector on each client",
    ),
    Rule(
        "unequal work, nothing kept",
        lambda f: f.unequal,
        ("FedNova",),
        "clients with more steps would count for more: FedNova divides by the steps and needs no "
        "state on clients",
    ),
    Rule(
        "clients differ, many take part, nothing kept",
        lambda f: f.dissimilar and not f.few,
        ("FedCM", "MimeLite"),
        "clients pull in different directions and keep no state that could correct it: FedCM adds "
        "the server's direction to their gradients and so converges to FedAvg's point for the rate "
        "alpha·η, whose bias is about alpha times as large, with one more vector to download",
        "its bias is smaller still, about (1 − beta)² times FedAvg's, with twice the traffic and a "
        "full gradient of every client in a round",
    ),
    Rule(
        "clients differ, few take part, nothing kept",
        lambda f: f.dissimilar,
        ("FedProx", "FedAvg"),
        "clients pull in different directions and keep no state that could correct it: a pull to "
        "the server's model is the remaining remedy, besides fewer local steps",
        "the baseline; with fewer local steps it drifts less",
    ),
    Rule(
        "otherwise",
        lambda f: True,
        ("FedAvg",),
        "clients are alike and do equal work, so there is nothing to correct, and plain averaging "
        "is the cheapest method",
    ),
)
"""In order: the first rule that holds decides."""


WAITING = "clients mostly wait for others, which asynchronous training avoids"
"""Why asynchronous training is worth a comparison although no pace was given."""


def rule_for(facts: Facts) -> Rule:
    """The first rule that holds."""
    return next(rule for rule in RULES if rule.holds(facts))


def never(name: str) -> str | None:
    """Why a method is never recommended, whatever the facts."""
    return {
        "FedLGA": "its correction shrinks the updates of unfinished clients, and the claims of its "
        "paper were not reproduced (undrift reproduce fedlga-fmnist)",
        "DistributedSGD": "it is a baseline: one step per round wastes communication",
    }.get(name)


def why_not(name: str, facts: Facts) -> str | None:
    """Why a method is left out although it could run; None if it is worth a comparison."""
    for rule in (_why_not_averaging, _why_not_momentum, _why_not_corrected, _why_not_personal):
        reason = rule(name, facts)
        if reason is not None:
            return reason
    return None


def _why_not_averaging(name: str, facts: Facts) -> str | None:
    if name in ("FedAvgMin", "FedNova") and not facts.unequal:
        return "all clients do equal work, so it is equal to FedAvg"
    if name in ("FedAsync", "FedBuff", "AsyncFedDR") and not (facts.asynchronous or facts.waiting):
        return "it is for asynchronous training, which was not asked for"
    if name == "FedExP" and not facts.dissimilar:
        return "its step is longer than FedAvg's only where clients' moves differ much (B² > 2)"
    if name == "FedExP":
        return "its step grows near the limit, so that the model does not settle"
    if name == "FedSAM":
        return (
            "its steps cost two gradients: worth it if models fit the training data far better "
            "than the test data"
        )
    return None


def _why_not_momentum(name: str, facts: Facts) -> str | None:
    """On methods whose clients follow the server's momentum, and keep nothing.

    Their limits are in `undrift.theory.fixed_points`: FedACG's is FedProx's for μ = β; FedCM's is
    FedAvg's for the rate αη, which is biased by O(αητ) if work is equal, and minimises Σ q_kτ_k f_k
    as α → 0 if it is not; MimeLite's is biased by O((1 − β)²ητ).
    """
    sampled = facts.setting.participation != "all"
    if name in ("FedCM", "MimeLite") and (facts.single_steps or not facts.dissimilar):
        return "there is no drift that its momentum could reduce, and it takes more traffic"
    if name == "FedCM" and facts.unequal:
        return "it counts clients with more steps for more, as FedAvg does, whatever its alpha"
    if name == "MimeLite" and facts.few:
        return "few gradients form its momentum, whose noise outweighs the bias that it removes"
    if name == "FedACG" and facts.dissimilar and sampled:
        return "its momentum enlarges the noise of sampling clients that differ"
    if name == "FedACG" and facts.dissimilar:
        return "it is faster than FedAvg, but converges to the same biased point"
    return None


def _why_not_corrected(name: str, facts: Facts) -> str | None:
    """On methods that keep a correction of drift or of sampling."""
    work = facts.work
    if name == "VRLSGD" and work is not None and (facts.unequal or work.varies):
        return "it is exact only if all clients take the same number of steps"
    if name in ("FedVARP", "MIFA") and facts.setting.participation == "all":
        return "with all clients in every round it is equal to FedAvg"
    if name == "FedVARP" and facts.participation.replies <= 1 and not facts.single_steps:
        return "it may diverge if a round has one client, which takes many steps; MIFA does not"
    if name in ("FedVARP", "MIFA") and facts.dissimilar:
        return "it removes the noise of sampling, but clients that differ still drift"
    if name == "Scaffnew" and facts.unequal:
        return "all clients take the same number of steps, so that fast ones wait"
    if name == "FedADMM":
        return "it does what FedDyn does, with twice the state"
    if name == "FedSpeed":
        return "it does what FedDyn does, towards a flatter point, with two gradients a step"
    if name == "FedSplit":
        return "it is FedDR without relaxation (alpha = 2), which needs an accurate local solver"
    if name == "FedPD":
        return "with all clients in every round it does what FedDyn does, with twice the state"
    return None


def _why_not_personal(name: str, facts: Facts) -> str | None:
    if name in ("Ditto", "PFedMe") and not facts.dissimilar:
        return "clients are alike, so that models of their own have little to gain"
    if name == "PFedMe":
        return "it serves the same purpose as Ditto, with more local work: R problems in a round"
    return None
