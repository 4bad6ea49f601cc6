"""The contract between methods and engines.

A method turns what it sent to a client and what the client remembers into a
`LocalProblem`; an engine works on it and hands back a `LocalResult`. Everything here is
flat-vector algebra: `[P]` for one client, `[C, P]` for several (then numbers that belong
to a client are `[C, 1]` tensors). The same expressions serve both by broadcasting.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from undrift.utils.errors import UndriftError
from undrift.utils.renamed import warn_of_old_name

Number = float | Tensor
"""A number that belongs to a client: a float for one, a `[C, 1]` tensor for several."""


@dataclass(frozen=True)
class Ascent:
    """Sharpness-aware gradients (SAM), in the place of the data gradient g = ∇f(x) of a step:

        (1 − share)·∇f(x) + share·∇f(x + radius·g/|g|)

    g is the gradient of the loss on the step's minibatch and nothing else: weight decay, the
    linear term and the pull of the local problem are neither part of g nor taken at the shifted
    point. Both gradients are of the same samples, with the same augmentation and the same dropout
    masks, and BatchNorm's statistics follow the first. If g = 0, the point is not shifted. A step
    costs two gradients.
    """

    radius: float
    """ρ, the length of the shift, above 0"""
    share: float = 1.0
    """the weight of the gradient at the shifted point, above 0 and at most 1"""


def ascent_of(radius: float, share: float = 1.0) -> Ascent | None:
    """Sharpness-aware gradients, or None if radius or share is 0, which leaves ∇f(x)."""
    return Ascent(radius, share) if radius > 0 and share > 0 else None


@dataclass(frozen=True)
class LocalProblem:
    """What a client is asked to (approximately) minimise, starting at `start`:

        scale·f_k(x) + <linear, x> + (weight/2)·|x − center|²

    The local gradient is the data gradient plus one affine term. A solver with momentum
    accumulates all of it, so that it minimises this problem; with `pull_outside_momentum`
    the pull weight·(x − center) is added to each step after momentum, as in the proximal
    updates of FedProx and FedNova. `ask` names what the method needs besides the final
    point: "first_gradient", the full gradient of f_k at `start`, or "last_gradient", the
    minibatch gradient of the last step. `ascent` asks for sharpness-aware gradients.
    """

    start: Tensor
    linear: Tensor | None = None
    center: Tensor | None = None
    weight: Number = 0.0
    scale: Number = 1.0
    pull_outside_momentum: bool = False
    ask: tuple[str, ...] = ()
    ascent: Ascent | None = None


@dataclass(frozen=True)
class LocalResult:
    """The result of a client's work on its local problem; `x` is its final point.

    `a_norm` is ‖a‖₁, the accumulated gradient weight in units of `rate`, the nominal
    learning rate η of the round: the client moved by −η Σ_s a_s g_s. It is NaN for a solver
    that does not take gradient steps. `expected` is the number of steps the client was
    asked for, and `evaluations` the number of gradients of single samples it computed.
    """

    x: Tensor
    steps: Number
    expected: Number
    a_norm: Number
    rate: float
    first_gradient: Tensor | None = None
    last_gradient: Tensor | None = None
    evaluations: int = 0
    later: tuple[Tensor, ...] = ()
    """the solutions of the further problems of methods with several, see `Method.problems`"""
    state: Mapping[str, Tensor] = field(default_factory=dict)
    """what the client keeps for its solver, such as Adam's moments"""

    @property
    def complete(self) -> Any:
        """Whether the client did all expected steps (a bool, or a `[C, 1]` tensor of bools)."""
        return self.steps >= self.expected

    @property
    def progress(self) -> Number:
        """The old name of `a_norm`, which warns."""
        warn_of_old_name("undrift.LocalResult.progress")
        return self.a_norm


@dataclass(frozen=True, slots=True)
class Work:
    """What a client does in a round: which round, how many steps, with which keys."""

    client: Hashable
    round: int
    """the round, counted from 0, whose learning rate applies"""
    turn: int
    """keys the client's random numbers: the round, or in asynchronous training the launch"""
    steps: int
    """the steps the client does"""
    expected: int
    """the steps the client was asked for; more than `steps` if it cannot finish"""
    rate: float
    """η, the nominal learning rate of the round, the unit of ‖a‖₁"""
    key: int
    """keys the order in which the client goes through its samples"""
    damaged: bool = False
    """whether the device damages the reply"""


@dataclass(frozen=True)
class Client:
    """What a method knows of a client: its id, size, weight in F, draws and staleness."""

    id: Hashable
    samples: Number
    """n_k"""
    q: Number
    """q_k, the weight of f_k in F = Σ q_k f_k + g"""
    scale: Number
    """1 / (N·q_k): one for every client when the objective is the mean over clients"""
    draws: Number = 1
    """how often the client was drawn for the cohort (sampling with replacement)"""
    staleness: Number = 0
    """server updates between the client's download and its reply (asynchronous training)"""

    def __hash__(self) -> int:
        return hash(self.id)

    @staticmethod
    def stack(clients: Sequence[Client], like: Tensor) -> Client:
        """Several clients as one, with `[C, 1]` tensors for their numbers."""
        names = [f.name for f in fields(Client) if f.name != "id"]
        rows = np.array([*map(attrgetter(*names), clients)], dtype=np.float64)
        columns = torch.from_numpy(rows).to(like.device, like.dtype).split(1, dim=1)
        numbers = dict(zip(names, columns, strict=True))
        return Client(id=tuple(client.id for client in clients), **numbers)

    def of(self, some: slice) -> Client:
        """A slice of stacked clients."""
        numbers = {f.name: getattr(self, f.name)[some] for f in fields(Client) if f.name != "id"}
        return Client(id=self.id[some], **numbers)  # type: ignore[index]


class Named:
    """Named vectors and numbers, read as attributes."""

    def __init__(self, **values: Tensor | float | None):
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        has = ", ".join(self.__dict__) or "nothing"
        cure = "; declare it in the method's keeps" if isinstance(self, Keep) else ""
        raise UndriftError(f"{type(self).__name__} has no {name!r}: it holds {has}{cure}.")

    def __contains__(self, name: str) -> bool:
        return name in self.__dict__

    def items(self) -> Iterator[tuple[str, Any]]:
        """The names and values, in the order they were given."""
        return iter(self.__dict__.items())

    def row(self, row: int) -> Self:
        """The values of one of several stacked clients; Python numbers are shared by all rows."""
        return type(self)(
            **{
                name: value[row] if isinstance(value, Tensor) and value.ndim else value
                for name, value in self.__dict__.items()
            }
        )

    @classmethod
    def stack(cls, rows: Sequence[Self]) -> Self:
        """The tensors of several clients under the same names, stacked as `[C, …]`."""
        names = list(rows[0].__dict__) if rows else []
        return cls(**{name: torch.stack([row.__dict__[name] for row in rows]) for name in names})

    def replace(self, **values: Tensor | float | None) -> Self:
        """A copy with some values changed or added."""
        return type(self)(**{**self.__dict__, **values})

    def __repr__(self) -> str:
        def show(value: Any) -> str:
            return f"{list(value.shape)}" if isinstance(value, Tensor) else repr(value)

        inside = ", ".join(f"{name}={show(value)}" for name, value in self.items())
        return f"{type(self).__name__}({inside})"


class ServerState(Named):
    """The vectors that the method keeps on the server; `x` is the model."""


class Download(Named):
    """What travels from the server to a client."""


class Keep(Named):
    """A client's state: the values it keeps from one participation to the next."""


class Upload(Named):
    """What travels from a client to the server."""
