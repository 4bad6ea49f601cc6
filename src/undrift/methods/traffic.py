"""What travels between the server and a client in a round, known before any client has worked.

Forecasts of cost and the virtual clock use it; records count the bytes that really travelled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from undrift.core.clients import ClientStates
from undrift.core.method import NUMBER, Method
from undrift.core.problem import Client, LocalResult, Named, Upload

PROBE_PARAMETERS = 2
"""Size of the model on which a method is tried; with one, vectors would look like numbers."""


@dataclass(frozen=True)
class Traffic:
    """What one client receives, uploads, keeps and reports in a round."""

    down: Mapping[str, bool]
    up: Mapping[str, bool]
    """by name: True for a vector of all parameters, False for a number"""
    kept_vectors: int
    kept_numbers: int
    asks: tuple[str, ...] = ()
    """what the method asks for besides the end point: see `LocalProblem.ask`"""
    gradients_per_step: int = 1
    """how many gradients a step of the local work stands for: one for each local problem that a
    client solves in a round, two with sharpness-aware gradients"""

    mirrored: bool = False
    """whether a client's state advances by what was sent, so that what an upload transform leaves
    out of an upload is part of the next one"""

    @property
    def first_gradient(self) -> bool:
        """Whether a client computes its full gradient before its first step."""
        return "first_gradient" in self.asks

    def bytes_down(self, parameters: int, itemsize: int) -> dict[str, int]:
        """Bytes sent to a client, by name; a number takes 8 bytes."""
        return _bytes(self.down, parameters * itemsize)

    def bytes_up(self, parameters: int, itemsize: int) -> dict[str, int]:
        """Bytes sent by a client, by name; a number takes 8 bytes."""
        return _bytes(self.up, parameters * itemsize)


def traffic_of(method: Method, draw: Callable[[str], float] = lambda purpose: 0.0) -> Traffic:
    """What a method sends, uploads and keeps, found by trying it on a model of two parameters.

    `draw` gives a uniform random number per purpose, for methods that do not always communicate.
    """
    kinds = method.kept()
    kept_vectors = sum(kind != NUMBER for kind in kinds.values())
    kept_numbers = len(kinds) - kept_vectors
    x = torch.zeros(PROBE_PARAMETERS)
    try:
        server = method.begin(method.init(x.clone()), draw)
        down = method.download(server)
        client = Client(id=0, samples=1.0, q=1.0, scale=1.0, draws=1)
        mine = ClientStates(kinds, x).first()
        problem = method.problem(down, mine, client)
        asked: Any = {each: torch.zeros(PROBE_PARAMETERS) for each in problem.ask}
        result = LocalResult(
            x=torch.ones(PROBE_PARAMETERS), steps=1, expected=1, a_norm=1.0, rate=1.0, **asked
        )
        more = tuple(torch.ones(PROBE_PARAMETERS) for _ in range(1, method.problems))
        result = replace(result, later=more)
        upload, keep = method.finish(down, mine, result, client)
        error = Upload(**{name: torch.ones(PROBE_PARAMETERS) for name in method.sums()})
        settled = method.settle(keep, error, result, client) if kinds else keep
        return Traffic(
            _vectors(down),
            _vectors(upload),
            kept_vectors,
            kept_numbers,
            problem.ask,
            method.problems * (1 if problem.ascent is None else 2),
            any(
                not torch.equal(torch.as_tensor(getattr(settled, name)), torch.as_tensor(value))
                for name, value in keep.items()
            ),
        )
    except Exception:  # a user's method may need a real model: fall back on what it declares
        return Traffic(
            dict.fromkeys(method.sends, True),
            dict.fromkeys(method.sums(), True),
            kept_vectors,
            kept_numbers,
            mirrored=bool(kinds) and type(method).settle is not Method.settle,
        )


def _vectors(values: Named) -> dict[str, bool]:
    return {
        name: isinstance(value, torch.Tensor) and value.numel() > 1
        for name, value in values.items()
    }


def _bytes(names: Mapping[str, bool], vector: int) -> dict[str, int]:
    return {name: vector if is_vector else 8 for name, is_vector in names.items()}
