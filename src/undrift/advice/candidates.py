"""The methods side by side: what each costs, what it needs, and why some are left out."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from undrift.advice.facts import Facts
from undrift.advice.federation import Federation
from undrift.advice.rules import WAITING, never, rule_for, why_not
from undrift.advice.starting import STARTS, Start
from undrift.advice.work import trial
from undrift.core.messages import buffer_bytes
from undrift.core.method import Conditions, Method
from undrift.core.sampling import All, Uniform
from undrift.data.description import plain
from undrift.loops.paces import AsTheyArrive
from undrift.methods.feddr import FedDR
from undrift.methods.traffic import traffic_of
from undrift.utils.errors import UndriftError

ENDS = {
    "optimum": "at the optimum of F",
    "averaging": "at a biased point",
    "normalised averaging": "near the optimum (the bias vanishes with ητ)",
}
"""Where a method converges to, in words."""


@dataclass(frozen=True)
class Candidate:
    """One method: what it costs and needs, and whether it is recommended or left out."""

    name: str
    method: Method
    reason: str
    """why it is recommended; empty if it is not"""
    because: tuple[str, ...]
    """where its hyper-parameters come from"""
    left_out: str | None
    """why it is not compared; None if it is"""
    recommended: bool
    ends_at: str
    needs: tuple[str, ...]
    down: int
    up: int
    """bytes to and from one client in a round"""
    kept: int
    """bytes that a client keeps from one round to the next"""
    kept_in_all: float
    """bytes of the states of all clients that will have taken part: the disk of a simulation"""
    server: int
    """bytes of the server's vectors"""
    gradients: float
    """of single samples, for one reply"""
    seconds: float | None
    """of a round on the virtual clock"""

    def as_dict(self) -> dict[str, Any]:
        """All of it in plain values."""
        from undrift.experiments.parts import table_of  # what reads files is slow to import

        values = {
            name: value if _is_plain(value) else table_of(value) or repr(value)
            for name, value in self.method.hyperparameters().items()
        }
        own = {
            name: getattr(self, name) for name in Candidate.__dataclass_fields__ if name != "method"
        }
        return plain(own | {"parameters": values})


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def compare_candidates(federation: Federation, facts: Facts) -> list[Candidate]:
    """Every method of the library, those that are recommended first."""
    starts = {name: begin(facts) for name, begin in STARTS.items()}
    refused = {name: _refused(federation, facts, begin) for name, begin in starts.items()}
    wanted = _wanted(facts, refused)
    found = []
    for name in [*wanted, *(name for name in STARTS if name not in wanted)]:
        left_out = None if name in wanted else never(name) or refused[name] or why_not(name, facts)
        reason = wanted.get(name, "")
        found.append(_candidate(federation, facts, starts[name], left_out, reason))
    return found


def _wanted(facts: Facts, refused: Mapping[str, str | None]) -> dict[str, str]:
    """The recommended methods with their reasons: those of the rule that can be used here."""
    rule = rule_for(facts)
    reasons = dict(zip(rule.methods, (rule.because, rule.beside), strict=False))
    found = {name: why for name, why in reasons.items() if refused[name] is None}
    if found and facts.waiting and facts.keeps_state and refused["AsyncFedDR"] is None:
        first = next(iter(found))
        found = {first: found[first], "AsyncFedDR": WAITING}
    return found


def _refused(federation: Federation, facts: Facts, begin: Start) -> str | None:
    """Why a method cannot be used here, in a sentence without its full stop."""
    method = begin.method
    if facts.composite and not isinstance(method, FedDR):
        return f"it does not handle the regulariser {facts.regularizer}"
    if method.kept() and facts.stateless:
        return "clients keep nothing, but it needs state on them"
    if method.kept() and facts.hardly_seen_again:
        return (
            f"it needs state on clients, but one is seen {facts.participation.visits:.2g} times in "
            f"{facts.participation.rounds} rounds"
        )
    if method.starts_with_all:
        return "it starts with a round of everyone"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            method.check(_setting(federation, facts, method))
    except UndriftError as error:
        return _short(str(error), method.name)
    return None


def _setting(federation: Federation, facts: Facts, method: Method) -> Conditions:
    """What a method would be asked to work in: its own way, where no pace is asked for."""
    setting = facts.setting
    if setting.asynchronous or federation.pace is not None or not method.meant_asynchronous:
        return setting
    sampler = federation.sampler
    if not isinstance(sampler, All | Uniform):
        raise UndriftError("it draws clients uniformly, one at a time, which the sampling forbids.")
    if federation.limit is not None:
        raise UndriftError("a limit is for rounds, and it has none.")
    at_once = AsTheyArrive().at_once(getattr(sampler, "K", None), len(federation.roster))
    delay = AsTheyArrive().delay(at_once, method.buffer)
    return replace(setting, participation="uniform", asynchronous=True, delay=delay)


def _short(sentence: str, name: str) -> str:
    """An error's sentence as the end of one of ours: the reason, without the remedy."""
    said = sentence.partition(": choose")[0].partition(": use ")[0].partition(": leave cohort")[0]
    said = said.removeprefix(f"{name} ").rstrip(".")
    said = said.partition(". AsyncFedDR, FedAsync")[0]
    known = {
        "is defined only when every client takes part in every round": "it needs every client in "
        "every round",
    }
    for long, short in known.items():
        if said.startswith(long):
            return short
    return f"it {said}" if said.split(" ")[0] in ("cannot", "divides", "takes", "weighs") else said


def _candidate(
    federation: Federation, facts: Facts, begin: Start, left_out: str | None, reason: str
) -> Candidate:
    method = begin.method
    traffic = traffic_of(method)
    shape = facts.parameters, facts.bytes_per_number
    extra = sum(buffer_bytes(federation.losses.initial_buffers()).values())
    kept = (traffic.kept_vectors * facts.parameters + traffic.kept_numbers) * shape[1]
    part = facts.participation
    seen = part.clients * (1 - (1 - min(part.share, 1.0)) ** part.rounds)
    server = sum(
        value.numel() * facts.parameters // 2 * facts.bytes_per_number
        for _, value in method.init(torch.zeros(2)).items()
        if isinstance(value, torch.Tensor) and value.numel() > 1
    )
    gradients, seconds = facts.gradients_per_reply, None
    if left_out is None:
        gradients, seconds = trial(federation, method, gradients)
    return Candidate(
        name=method.name,
        method=method,
        reason=reason,
        because=begin.because,
        left_out=left_out,
        recommended=bool(reason),
        ends_at=ENDS.get(str(method.converges_to), "somewhere: nothing is claimed"),
        needs=_needs(method),
        down=sum(traffic.bytes_down(*shape).values()) + extra,
        up=sum(traffic.bytes_up(*shape).values()) + extra,
        kept=kept,
        kept_in_all=seen * kept,
        server=server,
        gradients=gradients,
        seconds=seconds,
    )


def _needs(method: Method) -> tuple[str, ...]:
    """What a method cannot do without."""
    found = []
    if method.kept():
        count = len([kind for kind in method.kept().values() if kind != "number"])
        found.append(f"{count} vector{'s' * (count != 1)} on each client")
    if method.needs_all:
        found.append("everyone in every round")
    if method.needs_steps:
        found.append("gradient steps")
    if isinstance(method, FedDR):
        found.append("an L for guaranteed step sizes")
    if method.meant_asynchronous:
        found.append("asynchronous training")
    if method.name == "VRLSGD":
        found.append("equal steps")
    return tuple(found)
