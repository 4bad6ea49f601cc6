"""The description of a reproduction, which every script of a paper's folder fills in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from undrift.reproduce.findings import Findings
    from undrift.reproduce.lab import Lab

PAPERS = {
    "FedAvg": "Li et al., On the Convergence of FedAvg on Non-IID Data, ICLR 2020",
    "FedNova": "Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous "
    "Federated Optimization, NeurIPS 2020",
    "FedDyn": "Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021",
    "FedDR": "Tran-Dinh et al., FedDR – Randomized Douglas-Rachford Splitting Algorithms for "
    "Nonconvex Federated Composite Optimization, NeurIPS 2021",
    "FedLGA": "Li et al., FedLGA: Towards System-Heterogeneity of Federated Learning via Local "
    "Gradient Approximation, 2021",
    "NIID": "Li et al., Federated Learning on Non-IID Data Silos: An Experimental Study, ICDE 2022",
}
"""Papers, by the first word of the names of their reproductions."""


@dataclass(frozen=True)
class Reproduction:
    """A figure or table of a paper that can be run.

    Parameters
    ----------
    name
        its name in `undrift reproduce NAME`
    paper
        one of `PAPERS`
    shows
        the figures and tables that are reproduced
    about
        the experiment in one or two sentences
    cost
        the time of a full run on two cores: measured, unless it says "estimated"
    reproduce
        runs it in a lab and returns its findings
    needs
        data sets that a full run needs
    left_open
        what the paper does not say, each with our choice
    quick
        keys of the experiment file that `--quick` changes, with their values
    quick_is
        what the quick version does, in a sentence
    seeds
        default number of seeds
    parts
        settings, rows or panels that can be run separately
    revision
        number of its settings, raised when they change so that earlier results do not belong to
        them any more
    """

    name: str
    paper: str
    shows: str
    about: str
    cost: str
    reproduce: Callable[[Lab], Findings]
    needs: tuple[str, ...] = ()
    left_open: tuple[str, ...] = ()
    quick: Mapping[str, Any] = field(default_factory=dict)
    quick_is: str = ""
    seeds: int = 1
    parts: tuple[str, ...] = ()
    revision: int = 1

    def is_stale(self, saved: Mapping[str, Any]) -> bool:
        """Whether stored findings belong to earlier settings."""
        return bool(saved.get("revision", 1) != self.revision)
