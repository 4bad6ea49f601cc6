"""Which methods suit a federation: a table of rules, the first that holds, with their reasons."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from undrift.advice.facts import Facts


@dataclass(frozen=True)
class Rule:
    """If the facts are such, take these methods: one to run, and perhaps one to compare with."""

    name: str
    holds: Callable[[Facts], bool]
    methods: tuple[str, ...]
    because: str
    """for the first of them"""
    beside: str = ""
    """why the second is worth comparing with"""


RULES = (
    Rule(
        "composite and asynchronous",
        lambda f: f.composite and f.asynchronous,
        ("AsyncFedDR",),
        "only FedDR's prox on the server handles a regulariser g, and AsyncFedDR takes in each "
        "reply as it arrives",
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
        "bounded delays, and does not favour those who reply more often",
        "it needs no state on clients, but is biased to those who reply more often",
    ),
    Rule(
        "asynchronous, nothing kept",
        lambda f: f.asynchronous,
        ("FedBuff",),
        "replies arrive one by one and clients keep nothing: FedBuff averages several replies, the "
        "older the less, though it is biased to those who reply more often",
    ),
    Rule(
        "single steps",
        lambda f: f.single_steps,
        ("FedAvg",),
        "everybody takes one step a round, so nobody drifts and averaging is plain SGD on F",
    ),
    Rule(
        "clients differ, few take part, unequal work",
        lambda f: f.dissimilar and f.few and f.unequal and f.keeps_state,
        ("FedDyn", "FedNova"),
        "clients pull in different directions and few of them are there in a round: FedDyn "
        "corrects each client's loss by what it kept, at the traffic of FedAvg, and its end does "
        "not depend on who does how many steps",
        "it mends the unequal work alone, and clients keep nothing",
    ),
    Rule(
        "clients differ, few take part",
        lambda f: f.dissimilar and f.few and f.keeps_state,
        ("FedDyn", "SCAFFOLD"),
        "clients pull in different directions and few of them are there in a round: FedDyn "
        "corrects each client's loss by what it kept, at the traffic of FedAvg, and its server "
        "remembers those who are not there",
        "it also ends at the optimum and has nothing to tune, at twice the traffic",
    ),
    Rule(
        "clients differ, many take part, unequal work",
        lambda f: f.dissimilar and f.unequal and f.keeps_state,
        ("SCAFFOLD", "FedNova"),
        "clients pull in different directions, and who takes more steps would count for more: "
        "SCAFFOLD walks in the direction of F whatever the number of steps, and with so many in a "
        "round its corrections are fresh",
        "it mends the unequal work alone, at half the traffic, and clients keep nothing",
    ),
    Rule(
        "clients differ, many take part",
        lambda f: f.dissimilar and f.keeps_state,
        ("SCAFFOLD", "FedDyn"),
        "clients pull in different directions, and with so many of them in a round SCAFFOLD's "
        "corrections are fresh: all walk in the direction of F",
        "it also ends at the optimum, at half the traffic",
    ),
    Rule(
        "unequal work",
        lambda f: f.unequal and f.keeps_state,
        ("FedNova", "SCAFFOLD"),
        "who takes more steps would count for more: FedNova divides that out, at the traffic of "
        "FedAvg and with no state on clients",
        "it removes drift as well, at twice the traffic and a vector on each client",
    ),
    Rule(
        "unequal work, nothing kept",
        lambda f: f.unequal,
        ("FedNova",),
        "who takes more steps would count for more: FedNova divides that out and needs no state "
        "on clients",
    ),
    Rule(
        "clients differ, nothing kept",
        lambda f: f.dissimilar,
        ("FedProx", "FedAvg"),
        "clients pull in different directions and keep nothing with which to correct it: a pull to "
        "the server's model is what is left, besides fewer local steps",
        "the baseline; with fewer local steps it drifts less",
    ),
    Rule(
        "otherwise",
        lambda f: True,
        ("FedAvg",),
        "clients are alike and do equal work: plain averaging has nothing to correct, and nothing "
        "is cheaper",
    ),
)
"""Read from the top: the first rule that holds decides."""


WAITING = "clients mostly wait for others, and it does not"
"""Why asynchronous training is compared with, where nobody asked for it."""


def rule_for(facts: Facts) -> Rule:
    """The first rule that holds."""
    return next(rule for rule in RULES if rule.holds(facts))


def never(name: str) -> str | None:
    """Why a method is never recommended, whatever the facts."""
    return {
        "FedLGA": "its correction shrinks the moves of unfinished clients, and its paper's claims "
        "were not reproduced (undrift reproduce fedlga-fmnist)",
        "DistributedSGD": "one step a round wastes communication: a baseline, not a method to use",
    }.get(name)


def why_not(name: str, facts: Facts) -> str | None:
    """Why a method is left out although it could run; None where it is worth comparing."""
    work = facts.work
    if name in ("FedAvgMin", "FedNova") and not facts.unequal:
        return "all do equal work, so it is FedAvg"
    if name == "VRLSGD" and work is not None and (facts.unequal or work.varies):
        return "it is exact only if all take equally many steps"
    if name in ("FedAsync", "FedBuff", "AsyncFedDR") and not (facts.asynchronous or facts.waiting):
        return "it is for asynchronous training, and nothing asks for that"
    if name == "FedSplit":
        return "it is FedDR without relaxation (alpha = 2), which needs an accurate local solver"
    if name == "FedPD":
        return "with everyone in every round it does what FedDyn does, and keeps twice as much"
    return None
