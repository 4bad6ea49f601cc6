"""What travels between the server and a client, before any client has worked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from undrift.core.clients import ClientStates
from undrift.core.method import NUMBER, Method
from undrift.core.problem import Client, LocalResult, Named

PROBE = 2
"""The parameters of the model on which a method is tried."""


@dataclass(frozen=True)
class Traffic:
    """What travels to and from one client in a round, what it keeps and what it computes."""

    down: Mapping[str, bool]
    up: Mapping[str, bool]
    """by name, whether it is a vector of all parameters (or else a number)"""
    kept_vectors: int
    kept_numbers: int
    asks: tuple[str, ...] = ()
    """what a client reports besides the end of its work: see `LocalProblem`"""

    @property
    def first_gradient(self) -> bool:
        """Whether a client computes its full gradient at the start."""
        return "first_gradient" in self.asks

    def bytes_down(self, parameters: int, itemsize: int) -> dict[str, int]:
        """Bytes to a client, by name: vectors as they are, numbers in eight bytes."""
        return _bytes(self.down, parameters * itemsize)

    def bytes_up(self, parameters: int, itemsize: int) -> dict[str, int]:
        """Bytes from a client, by name."""
        return _bytes(self.up, parameters * itemsize)


def traffic_of(method: Method, draw: Callable[[str], float] = lambda purpose: 0.0) -> Traffic:
    """What a method sends, uploads and keeps, by trying it on a model of two parameters.

    `draw` gives the round's uniform numbers, for a method that does not always communicate.
    """
    kinds = method.kept()
    kept_vectors = sum(kind != NUMBER for kind in kinds.values())
    kept_numbers = len(kinds) - kept_vectors
    x = torch.zeros(PROBE)
    try:
        server = method.begin(method.init(x.clone()), draw)
        down = method.download(server)
        client = Client(id=0, samples=1.0, q=1.0, scale=1.0, draws=1)
        mine = ClientStates(kinds, x).first()
        problem = method.problem(down, mine, client)
        asked: Any = {each: torch.zeros(PROBE) for each in problem.ask}
        result = LocalResult(
            x=torch.ones(PROBE), steps=1, expected=1, a_norm=1.0, rate=1.0, **asked
        )
        upload, _ = method.finish(down, mine, result, client)
        return Traffic(
            _vectors(down),
            _vectors(upload),
            kept_vectors,
            kept_numbers,
            problem.ask,
        )
    except Exception:  # a user's method that cannot do without a real model: what it declares
        return Traffic(
            dict.fromkeys(method.sends, True),
            dict.fromkeys(method.sums(), True),
            kept_vectors,
            kept_numbers,
        )


def _vectors(values: Named) -> dict[str, bool]:
    return {
        name: isinstance(value, torch.Tensor) and value.numel() > 1
        for name, value in values.items()
    }


def _bytes(names: Mapping[str, bool], vector: int) -> dict[str, int]:
    return {name: vector if is_vector else 8 for name, is_vector in names.items()}
