"""A figure or table of a paper as something to run."""

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
}
"""The papers by the word that begins the names of their reproductions."""


@dataclass(frozen=True)
class Reproduction:
    """A figure or table of a paper as something to run.

    Parameters
    ----------
    name
        as `undrift reproduce` takes it
    paper
        one of `PAPERS`
    shows
        which figures and tables of it
    about
        what is done, in a sentence or two
    cost
        of a full run on two cores, measured unless it says that it is estimated
    reproduce
        does it, in a lab
    needs
        data sets that must be there for a full run
    left_open
        what the paper does not say, each with what was chosen
    quick
        keys of the experiment file that `--quick` changes
    quick_is
        what the quick version leaves out, in a sentence
    seeds
        how many, unless the user says
    parts
        the settings, rows or panels that can be done by themselves, if there are several
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
