"""Compare all methods for a federation: costs, requirements, and why some are left out."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from undrift.advice.facts import Facts
from undrift.advice.federation import FederationSetup
from undrift.advice.participation import trial
from undrift.advice.rules import WAITING, never, rule_for, why_not
from undrift.advice.starting import STARTS, Start
from undrift.core.messages import buffer_bytes
from undrift.core.method import Conditions, Method
from undrift.core.sampling import All, Uniform
from undrift.data.description import plain
from undrift.loops.paces import AsTheyArrive
from undrift.methods.primal_dual.feddr import FedDR
from undrift.methods.traffic import traffic_of
from undrift.privacy.refusals import check_method
from undrift.utils.errors import UndriftError

ENDS = {
    "optimum": "to the optimum of F",
    "averaging": "to a biased point",
    "normalised averaging": "to a point near the optimum (the bias vanishes with ητ)",
    "sharpness-aware gradients": "to a flatter point near the optimum (the bias vanishes with ρ)",
}
"""The point that a method converges to, in words."""


@dataclass(frozen=True)
class Candidate:
    """One method with its costs and requirements, recommended, compared or left out."""

    name: str
    method: Method
    reason: str
    """why it is recommended; empty if it is not"""
    because: tuple[str, ...]
    """how its hyper-parameters were chosen"""
    left_out: str | None
    """why it is left out; None if it is compared"""
    recommended: bool
    ends_at: str
    needs: tuple[str, ...]
    down: int
    up: int
    """bytes sent to and from one client in a round"""
    kept: int
    """bytes of state that a client keeps between rounds"""
    kept_in_all: float
    """bytes of state of all clients that take part in the run: what a simulation needs on disk"""
    server: int
    """bytes of the server state"""
    gradients: float
    """gradients of single samples per reply"""
    seconds: float | None
    """virtual seconds per round; None without a virtual clock"""

    def as_dict(self) -> dict[str, Any]:
        """All values but the method, as plain values."""
        from undrift.experiments.components import table_of  # slow to import

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


def compare_candidates(federation: FederationSetup, facts: Facts) -> list[Candidate]:
    """Every method of the library, the recommended ones first."""
    starts = {name: begin(facts) for name, begin in STARTS.items()}
    refused = {name: _why_unusable(federation, facts, begin) for name, begin in starts.items()}
    wanted = _recommended(facts, refused)
    found = []
    for name in [*wanted, *(name for name in STARTS if name not in wanted)]:
        left_out = None if name in wanted else never(name) or refused[name] or why_not(name, facts)
        reason = wanted.get(name, "")
        found.append(_candidate(federation, facts, starts[name], left_out, reason))
    return found


def _recommended(facts: Facts, refused: Mapping[str, str | None]) -> dict[str, str]:
    """The recommended methods with reasons: those of the deciding rule that can be used."""
    rule = rule_for(facts)
    reasons = dict(zip(rule.methods, (rule.because, rule.beside), strict=False))
    found = {name: why for name, why in reasons.items() if refused[name] is None}
    if found and facts.waiting and facts.keeps_state and refused["AsyncFedDR"] is None:
        first = next(iter(found))
        found = {first: found[first], "AsyncFedDR": WAITING}
    return found


def _why_unusable(federation: FederationSetup, facts: Facts, begin: Start) -> str | None:
    """Why a method cannot be used, as a sentence without its full stop; None if it can."""
    method = begin.method
    if facts.composite and not isinstance(method, FedDR):
        return f"it cannot handle the regulariser {facts.regularizer}"
    if method.kept() and facts.stateless:
        return "clients cannot keep state, but it needs state on them"
    if method.kept() and facts.hardly_seen_again:
        return (
            f"it needs state on clients, but a client takes part {facts.participation.visits:.2g} "
            f"times in {facts.participation.rounds} rounds"
        )
    if method.starts_with_all:
        return "its first round needs all clients"
    if federation.privacy is not None and _why_not_private(method):
        return f"privacy is not defined for it: {_why_not_private(method)}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            method.check(_conditions(federation, facts, method))
    except UndriftError as error:
        return _short(str(error), method.name)
    return None


def _why_not_private(method: Method) -> str | None:
    """Why a method cannot run with differential privacy; None if it can."""
    if method.meant_asynchronous:
        return "it folds single replies"
    try:
        check_method(method)
    except UndriftError as error:
        return str(error).partition(", which")[0].partition(": ")[0].rstrip(".")
    return None


def _conditions(federation: FederationSetup, facts: Facts, method: Method) -> Conditions:
    """The conditions a method would run in: at its own pace, unless a pace was given."""
    setting = facts.setting
    if setting.asynchronous or federation.pace is not None or not method.meant_asynchronous:
        return setting
    sampler = federation.sampler
    if not isinstance(sampler, All | Uniform):
        raise UndriftError("it draws clients uniformly, one by one, which this sampler cannot do.")
    if federation.limit is not None:
        raise UndriftError("a limit applies to rounds, but it runs asynchronously.")
    at_once = AsTheyArrive().at_once(getattr(sampler, "K", None), len(federation.roster))
    delay = AsTheyArrive().delay(at_once, method.buffer)
    return replace(setting, participation="uniform", asynchronous=True, delay=delay)


def _short(sentence: str, name: str) -> str:
    """The reason in an error sentence, without the advice that follows it."""
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
    federation: FederationSetup, facts: Facts, begin: Start, left_out: str | None, reason: str
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
        ends_at=ENDS.get(str(method.converges_to), "to an unknown point"),
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
    """The requirements of a method, in words."""
    found = []
    if method.kept():
        count = len([kind for kind in method.kept().values() if kind != "number"])
        found.append(f"{count} vector{'s' * (count != 1)} on each client")
    if method.needs_all:
        found.append("all clients in every round")
    if method.needs_steps:
        found.append("gradient steps")
    if traffic_of(method).first_gradient:
        found.append("a full gradient of each client per round")
    if isinstance(method, FedDR):
        found.append("an estimate of L for guaranteed step sizes")
    if method.meant_asynchronous:
        found.append("asynchronous training")
    if method.name == "VRLSGD":
        found.append("equal numbers of steps")
    return tuple(found)
