"""`Method`, the base class of every federated method: local problem, upload and state, fold.

A method holds vector algebra only. It never sees a model, a data set, a device, a process
or a clock, so the same object runs in every engine and on real sites.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from undrift.core.problem import (
    Client,
    Download,
    Keep,
    LocalProblem,
    LocalResult,
    ServerState,
    Upload,
)
from undrift.core.regularizers import Regularizer
from undrift.core.replies import Replies, Weight
from undrift.utils.errors import UndriftError, require, require_choice, require_type

ZERO = "zero"
"""A kept vector that starts at 0."""
INITIAL = "initial"
"""A kept vector that starts at x⁰, the initial model."""
NUMBER = "number"
"""A kept number that starts at 0."""


@dataclass(frozen=True)
class Conditions:
    """The circumstances of a run, by which a method decides in `check` whether it is defined."""

    clients: int
    """N, the number of all clients"""
    participation: str
    """"all", "uniform", "weighted" (with replacement, by q_k), "bernoulli", "fixed" or
    "responding" (all clients are asked, but some may not reply)"""
    equal: bool
    """whether every client has the same weight q_k"""
    takes_steps: bool
    """whether every client's solver takes gradient steps, so that ‖a‖₁ is defined"""
    buffers: bool = False
    """whether the model holds statistics besides parameters (BatchNorm)"""
    asynchronous: bool = False
    """whether replies are folded as they arrive"""
    delay: int = 0
    """asynchronous only: the most server updates between a client's download and its reply. If
    `bounded`, no reply exceeds it; otherwise it is the smallest bound that the number of clients
    at work at once allows, and single replies may be older."""
    bounded: bool = False
    """whether the loop enforces `delay`"""
    transformed: bool = False
    """whether uploads pass through transforms (clipping, noise, compression)"""


class Method(ABC):
    """A federated method. Subclass it with `problem`, `finish` and `fold`.

    Attributes declare what travels and what clients keep, so that the library can count bytes and
    store states without knowing the method. A subclass sets those that differ from the defaults.

    Attributes
    ----------
    uploads
        the uploaded vectors, each with the weights by which the server sums them: `ud.q` (q_k),
        `ud.once` (1) or `ud.draws`, or several in a tuple; an empty tuple keeps the uploads
        separate. Uploads that are not declared must be numbers.
    keeps
        the state of a client: names of vectors that start at zero, or a mapping from names to
        initial values: `ud.ZERO`, `ud.INITIAL` (x⁰) or `ud.NUMBER` (a number, 0)
    sends
        the names of the server's vectors that travel to the cohort (default: ("x",))
    converges_to
        the limit that `undrift verify` checks: "optimum" (the default), the fixed point of
        "averaging" or of "normalised averaging", or None for no check
    needs_all
        whether the method is defined only when every client takes part in every round
    needs_steps
        whether the method divides by η‖a‖₁ or by the number of steps
    uploads_models
        whether the uploads are models and not moves or changes, which alone can be transformed
    draws_by_weight
        whether a number given as the cohort means clients drawn by q_k with replacement
    starts_with_all
        whether the first round asks every client
    asynchronous, why_synchronous
        whether the fold is valid for single replies, and the reason if it is not
    meant_asynchronous, buffer
        whether the method runs asynchronously by default, and with how many replies per update
    paper
        the publication
    g
        the regulariser of the objective, or None
    """

    sends: Sequence[str] = ("x",)
    keeps: Mapping[str, str] | Sequence[str] = {}
    uploads: Mapping[str, Weight | tuple[Weight, ...]] = {}

    needs_all: bool = False
    draws_by_weight: bool = False
    needs_steps: bool = False
    uploads_models: bool = False
    starts_with_all: bool = False

    asynchronous: bool = False
    why_synchronous: str = "it does not declare (asynchronous = True) that its fold is valid then"
    meant_asynchronous: bool = False
    buffer: int = 1

    converges_to: str | None = "optimum"
    paper: str = ""
    g: Regularizer | None = None

    @abstractmethod
    def problem(self, down: Download, mine: Keep, client: Client) -> LocalProblem:
        """The client's local problem, from the download and the client's state `mine`."""

    @abstractmethod
    def finish(
        self, down: Download, mine: Keep, result: LocalResult, client: Client
    ) -> tuple[Upload, Keep]:
        """The client's upload and its new state, from the result of its work."""

    def settle(self, keep: Keep, error: Upload, result: LocalResult, client: Client) -> Keep:
        """The client's new state after upload transforms changed its upload by `error`.

        `error` is the upload that was sent minus the upload that `finish` returned. A kept vector
        that mirrors something the server accumulates must advance by what was sent: add `error` to
        it. Called only if the run has upload transforms and the method keeps state.
        """
        return keep

    @abstractmethod
    def fold(self, server: ServerState, replies: Replies) -> ServerState:
        """The next server state, from the weighted sums of the uploads."""

    def init(self, x: Tensor) -> ServerState:
        """The initial server state, from the initial model."""
        return ServerState(x=x)

    def begin(self, server: ServerState, draw: Callable[[str], float]) -> ServerState:
        """The server state at the start of a round.

        `draw(purpose)` gives a uniform random number in [0, 1) keyed by seed, purpose and round.
        """
        return server

    def download(self, server: ServerState) -> Download:
        """The values that travel to the cohort in this round."""
        return Download(**{name: getattr(server, name) for name in self.sends})

    def steps(self, planned: Sequence[int]) -> Sequence[int]:
        """The number of steps of each client, from the numbers that the local work plans."""
        return planned

    def fold_buffers(
        self, buffers: dict[str, Tensor], means: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """The server's next buffers; `means` are the cohort's buffers averaged by samples."""
        return means

    def weights_used(self, wanted: Tensor, a_norm: Tensor) -> Tensor | None:
        """The weights that a round effectively gives to the clients' gradients, up to a factor.

        `wanted` are the cohort's weights and `a_norm` the ‖a_k‖₁. None for methods that correct
        the local gradients, where such weights are not defined.
        """
        return None

    def dual_residual(self, server: ServerState) -> float | None:
        """The norm of the server's estimate of ∇F, zero at the optimum; None if it has none."""
        return None

    def check(self, conditions: Conditions) -> None:
        """Raise an `UndriftError` if the method is not defined under these conditions."""
        require(
            self.asynchronous or not conditions.asynchronous,
            f"{self.name} cannot fold replies one by one as they arrive: {self.why_synchronous}."
            f" AsyncFedDR, FedAsync and FedBuff can.",
        )
        require(
            not self.needs_all or conditions.participation == "all",
            f"{self.name} is defined only when every client takes part in every round"
            f"{participation_clause(conditions.participation)} choose a method that allows partial "
            f"participation.",
        )
        require(
            not conditions.transformed or not self.uploads_models,
            f"{self.name} uploads models, not changes of them, so its uploads cannot be "
            f"transformed: clipping a model moves it towards zero.",
        )
        settles = type(self).settle is not Method.settle
        require(
            not conditions.transformed or not self.kept() or settles,
            f"{self.name} keeps state on the clients but does not define settle(), so its uploads "
            f"cannot be transformed: what a client keeps would differ from what it sent.",
        )
        require(
            not self.needs_steps or conditions.takes_steps,
            f"{self.name} divides by the number of gradient steps: use SGD or GD as the local "
            f"solver, not an exact one.",
        )

    def sums(self) -> dict[str, tuple[Weight, ...]]:
        """`uploads` with every value as a tuple of weights; an error if one is not a weight."""
        require_type(f"{self.name}.uploads", self.uploads, Mapping, "like {'moved': ud.q}")
        found = {}
        for name, by in self.uploads.items():
            found[name] = by if isinstance(by, tuple) else (by,)
            require(
                all(callable(weight) for weight in found[name]),
                f"{self.name}.uploads[{name!r}] is {by!r}, but must be a weight such as ud.q.",
            )
        return found

    def kept(self) -> dict[str, str]:
        """`keeps` as a mapping from names to initial values; an error if one is unknown."""
        named = isinstance(self.keeps, Mapping)
        kinds = dict(self.keeps) if named else dict.fromkeys(self.keeps, ZERO)  # type: ignore[arg-type]
        for name, kind in kinds.items():
            require_choice(f"{self.name}.keeps[{name!r}]", kind, (ZERO, INITIAL, NUMBER))
        return kinds

    @property
    def name(self) -> str:
        """The name of the method, as in its paper."""
        return type(self).__name__

    def hyperparameters(self) -> dict[str, Any]:
        """The constructor's arguments, as given."""
        names = list(inspect.signature(type(self)).parameters)
        missing = [name for name in names if not hasattr(self, name)]
        if missing:
            raise UndriftError(
                f"{self.name}'s constructor must store its argument {missing[0]!r} as an "
                f"attribute of the same name."
            )
        return {name: getattr(self, name) for name in names}

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self)).parameters
        shown = [
            f"{name}={value!r}"
            for name, value in self.hyperparameters().items()
            if value != defaults[name].default
        ]
        return f"{self.name}({', '.join(shown)})"


def participation_clause(participation: str) -> str:
    """The end of "… only when every client takes part in every round": the cause and the remedy."""
    if participation == "responding":
        return ", but with these devices and this pace some clients may not reply:"
    return ": leave out cohort, or"
