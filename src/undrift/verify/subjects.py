"""The methods that `undrift verify` checks: the library's own, or a user's class.

The library's methods get parameters that suit the verification problems.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from undrift import methods as m
from undrift.core.method import Method
from undrift.core.regularizers import L1
from undrift.methods.user_methods import load_method


@dataclass(frozen=True)
class Subject:
    """A method to verify.

    `equal_steps` is for methods that are exact only when all clients take equally many steps.
    """

    label: str
    method: Method
    equal_steps: bool = False

    @property
    def exact(self) -> bool:
        """Whether clients may solve their local problems exactly: the method counts no steps."""
        return self.method.converges_to == "optimum" and not self.method.needs_steps


def ours() -> list[Subject]:
    """Every method of the library, some with several options."""
    return [
        Subject("DistributedSGD", m.DistributedSGD()),
        Subject("FedAvg", m.FedAvg()),
        Subject("FedAvgMin", m.FedAvgMin()),
        Subject("FedProx", m.FedProx(mu=0.5)),
        Subject("SCAFFOLD", m.SCAFFOLD()),
        Subject("SCAFFOLD I", m.SCAFFOLD("I")),
        Subject("VRLSGD", m.VRLSGD(), equal_steps=True),
        Subject("FedNova", m.FedNova()),
        Subject("FedNova prox", m.FedNova(mu=0.5)),
        Subject("FedNova VR", m.FedNova(variance_reduction=True)),
        Subject("FedDyn", m.FedDyn(alpha=1.0)),
        Subject("FedPD", m.FedPD(eta=1.0)),
        Subject("FedSplit", m.FedSplit(eta=1.0)),
        Subject("FedDR", m.FedDR(eta=1.0, alpha=1.0)),
        Subject("FedDR l1", m.FedDR(eta=1.0, alpha=1.0, g=L1(0.2))),
        Subject("FedLGA", m.FedLGA()),
        Subject("AsyncFedDR", m.AsyncFedDR(eta=1.0, alpha=1.0)),
        Subject("FedAsync", m.FedAsync(alpha=0.3)),
        Subject("FedBuff", m.FedBuff()),
    ]


def named(name: str) -> list[Subject]:
    """The library's method of a name, once for each set of options it is verified with."""
    return [subject for subject in ours() if subject.method.name == name]


def load(where: str, settings: Mapping[str, object] | None = None) -> Subject:
    """The user's method of "mine.py:MyMethod" or "package.module:MyMethod"."""
    return Subject(where.rpartition(":")[2], load_method(where, settings))
