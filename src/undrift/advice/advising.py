"""`advise`: measure a federation, recommend methods, and estimate what they cost.

`undrift advise` prints its result and writes it as an experiment file.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from rich.console import Console, Group

from undrift.advice.candidates import Candidate, compare_candidates
from undrift.advice.facts import Facts, curvature_of, find_facts
from undrift.advice.federation import FederationSetup, federation_of, usual_work
from undrift.advice.rules import rule_for
from undrift.advice.sentences import meaning, unknown
from undrift.advice.starting import proposed_rate
from undrift.api import Options
from undrift.core.regularizers import Regularizer
from undrift.local.solvers import Local
from undrift.methods import Method
from undrift.utils.errors import UndriftError, require
from undrift.utils.threads import one_thread

if TYPE_CHECKING:
    from undrift.advice.files import Asked

WIDTH_CHARACTERS = 80


class Advice:
    """The recommended methods for a federation, with reasons and costs.

    Print it, or pass `recommended` to `ud.compare`. If the advice is about an experiment file,
    `write("advised.toml")` writes an experiment file with the recommended methods.
    """

    def __init__(self, federation: FederationSetup, facts: Facts, asked: Asked | None = None):
        self.facts = facts
        """the measurements"""
        self.methods: list[Candidate] = compare_candidates(federation, facts)
        """every method: its cost, its requirements, and why it is left out"""
        self.rule = rule_for(facts)
        """the rule that decided the recommendation"""
        self.meaning: list[str] = meaning(facts)
        """sentences that explain the measurements"""
        self.unknown: list[str] = unknown(facts)
        """sentences on what cannot be known without training"""
        self.local: Local = federation.solver
        """the local work, with a proposed learning rate if none was given"""
        self._asked = asked

    @property
    def chosen(self) -> list[Candidate]:
        """The recommended methods with their costs and reasons."""
        return [each for each in self.methods if each.recommended]

    @property
    def recommended(self) -> list[Method]:
        """The recommended methods, ready for `ud.train`; the first is the one to run."""
        return [each.method for each in self.chosen]

    @property
    def reason(self) -> str:
        """Why the first method is recommended; empty if no method is."""
        return self.chosen[0].reason if self.chosen else ""

    def as_dict(self) -> dict[str, Any]:
        """All results as plain values."""
        return {
            "facts": self.facts.as_dict(),
            "meaning": self.meaning,
            "rule": self.rule.name,
            "reason": self.reason,
            "recommended": [repr(method) for method in self.recommended],
            "methods": [each.as_dict() for each in self.methods],
            "unknown": self.unknown,
        }

    def to_json(self) -> str:
        """All results as JSON."""
        return json.dumps(self.as_dict(), indent=2, allow_nan=False, ensure_ascii=False)

    def table(self) -> Group:
        """The advice for the terminal, 80 columns wide."""
        from undrift.advice.showing import shown

        return shown(self)

    def summary(self) -> str:
        """The advice as plain text."""
        console = Console(
            width=WIDTH_CHARACTERS, color_system=None, force_terminal=False, force_jupyter=False
        )
        with console.capture() as capture:
            console.print(self.table())
        return "\n".join(line.rstrip() for line in capture.get().rstrip().splitlines())

    def write(self, path: str | Path, force: bool = False) -> Path:
        """Write an experiment file with the recommended methods, for `undrift run`.

        An existing file is overwritten only with `force`.
        """
        from undrift.advice.files import write

        require(bool(self.recommended), f"There is nothing to write: {self.nothing()}.")
        if self._asked is None:
            raise UndriftError(
                "Only advice about an experiment file can be written as one: give the "
                "recommended methods to ud.train or ud.compare instead."
            )
        return write(self, self._asked, Path(path), force)

    def nothing(self) -> str:
        """Why no method is recommended, if none is."""
        first = self.rule.methods[0]
        reason = next(each.left_out for each in self.methods if each.name == first)
        return f"no method suits this federation ({first}: {reason})"

    def __rich__(self) -> Group:
        return self.table()

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        named = ", ".join(map(repr, self.recommended)) or "no method"
        return f"Advice({named}: {self.rule.name})"

    def _repr_html_(self) -> str:
        from undrift.advice.showing import html

        return html(self)


def advise(
    experiment: str | Path | None = None,
    *,
    regularizer: Regularizer | None = None,
    stateless: bool = False,
    **options: Unpack[Options],
) -> Advice:
    """Recommend a method for a federation, with settings to start from and its cost.

    Nothing is trained. The data, gradients at the initial model, local work, participation and
    the devices' virtual clock are measured, on a sample of clients if there are many.

    Parameters
    ----------
    experiment
        an experiment file; without it, give the arguments of `train` except the method
    regularizer
        g of the objective: None, `ud.L1`, `ud.L2` or `ud.Box`
    stateless
        whether clients cannot keep state from one round to the next
    options
        the arguments of `train`: model, data, local, rounds, cohort, devices, pace, …; without
        `local`, a learning rate for one epoch is proposed
    """
    if experiment is None:
        return advise_on(federation_of(options, regularizer, stateless))
    require(
        not options,
        f"{next(iter(options), '')} cannot be given beside an experiment file: set it in the file, "
        f"or leave the file out.",
    )
    from undrift.advice.files import read

    asked = read(Path(experiment), {}, regularizer, stateless)
    return advise_on(asked.federation, asked)


@one_thread()
def advise_on(federation: FederationSetup, asked: Asked | None = None) -> Advice:
    """Advise on a federation, and on the experiment file that describes it if there is one."""
    curvature = curvature_of(federation)
    proposed = federation.local is None
    if proposed:
        if asked is None:
            local: Local = usual_work(proposed_rate(curvature.L))
        else:
            asked = asked.with_rate(proposed_rate(curvature.L, asked.momentum))
            local = asked.local
        federation = replace(federation, local=local)
    facts = find_facts(federation, curvature, proposed)
    return Advice(federation, facts, asked)
