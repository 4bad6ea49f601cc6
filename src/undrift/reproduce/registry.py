"""All reproductions by name; a script is imported only when it is used."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

from undrift.reproduce.reproduction import PAPERS, Reproduction
from undrift.utils.errors import require_choice

NAMES = (
    "fedavg-tridiagonal",
    "fedavg-local-steps",
    "fedavg-participation",
    "fedavg-schemes",
    "fedavg-bounds",
    "fednova-quadratics",
    "fednova-prox-tradeoff",
    "fednova-synthetic",
    "fednova-cifar10",
    "feddyn-synthetic",
    "feddyn-mnist",
    "feddyn-cifar10",
    "feddyn-cifar100",
    "feddyn-emnist",
    "feddyn-shakespeare",
    "feddyn-alpha",
    "feddyn-fedsplit",
    "feddr-synthetic",
    "feddr-l1",
    "feddr-async",
    "feddr-femnist",
    "fedlga-fmnist",
    "fedlga-cifar",
    "niid-cifar10",
)
"""The names, by paper; the script of `paper-item` is undrift/reproduce/paper/item.py."""


def find(name: str) -> Reproduction:
    """Return the reproduction of that name."""
    require_choice("The reproduction", name, NAMES)
    paper, _, item = name.partition("-")
    module = import_module(f"undrift.reproduce.{paper}.{item.replace('-', '_')}")
    found: Reproduction = module.REPRODUCTION
    return found


def every() -> Iterator[Reproduction]:
    """Yield all reproductions."""
    return map(find, NAMES)


def papers() -> dict[str, list[Reproduction]]:
    """Return the reproductions of each paper."""
    return {paper: [each for each in every() if each.paper == paper] for paper in PAPERS}
