"""What a method is: a local problem, what a client keeps and uploads, and a fold.

A method holds vector algebra only. It never sees a model, a data set, a device, a process
or a clock, so the same object runs in every engine.
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
    """What a method is asked to work in, so that it can refuse what is not defined."""

    clients: int
    participation: str
    """"all", "uniform", "weighted" (with replacement, by q_k), "bernoulli", "fixed" or
    "responding" (everyone is asked, but some may not reply)"""
    equal: bool
    """whether every client has the same weight q_k"""
    takes_steps: bool
    """whether every client's solver takes gradient steps, so that ‖a‖₁ is defined"""
    buffers: bool = False
    """whether the model holds statistics besides parameters (BatchNorm)"""
    asynchronous: bool = False
    """whether replies are folded as they arrive"""
    delay: int = 0
    """then, a bound on the updates between reading a model and replying: one that is enforced, or
    the least there is with so many clients at work at once"""
    bounded: bool = False
    """whether that bound is enforced"""
    transformed: bool = False
    """whether uploads pass through transforms (clipping, noise, compression)"""


class Method(ABC):
    """A federated method. Subclass it with `problem`, `finish` and `fold`.

    Attributes say what travels and what rests, so that bytes can be counted and states stored
    without knowing the method. A subclass sets those that differ from the defaults.

    Attributes
    ----------
    uploads
        the uploaded vectors, each with the weights by which the server adds them up: `ud.q` (q_k),
        `ud.once` (1) or `ud.draws`, or several in a tuple; an empty tuple keeps them one by one.
        Other uploads are numbers.
    keeps
        what a client remembers, as names (they start at zero) or with their first values:
        `ud.ZERO`, `ud.INITIAL` (x⁰) or `ud.NUMBER` (a number, 0)
    sends
        the server's values that travel to the cohort; ("x",) unless said otherwise
    converges_to
        what `undrift verify` holds the method to: "optimum" (the default), the fixed point of
        "averaging" or of "normalised averaging", or None where nothing is claimed
    needs_all, needs_steps, draws_by_weight, starts_with_all
        whether it is defined only with every client; divides by η‖a‖₁ or steps; is meant for
        clients drawn by q_k; starts with a round of everyone
    asynchronous, why_synchronous, meant_asynchronous, buffer
        whether its fold is valid for single arrivals; the reason if not; whether it runs
        asynchronously unless told otherwise; and then with how many replies to an update
    paper, g
        where it was published; the regulariser of the objective
    """

    sends: Sequence[str] = ("x",)
    keeps: Mapping[str, str] | Sequence[str] = {}
    uploads: Mapping[str, Weight | tuple[Weight, ...]] = {}

    needs_all: bool = False
    draws_by_weight: bool = False
    needs_steps: bool = False
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
        """The client's local problem, from what was sent and what it remembers."""

    @abstractmethod
    def finish(
        self, down: Download, mine: Keep, result: LocalResult, client: Client
    ) -> tuple[Upload, Keep]:
        """What the client uploads and what it keeps, once its work is done."""

    def settle(self, keep: Keep, error: Upload, result: LocalResult, client: Client) -> Keep:
        """What the client keeps once upload transforms changed its upload by `error`.

        `error` is what was sent minus what `finish` returned. Whatever the client keeps as its own
        copy of something the server accumulates must advance by what was sent: add `error` to it.
        It is called only with upload transforms; a method that keeps nothing need not define it.
        """
        return keep

    @abstractmethod
    def fold(self, server: ServerState, replies: Replies) -> ServerState:
        """The server's next state from the sums of the replies."""

    def init(self, x: Tensor) -> ServerState:
        """The server's first state, from the initial model."""
        return ServerState(x=x)

    def begin(self, server: ServerState, draw: Callable[[str], float]) -> ServerState:
        """The server's state at the start of a round; `draw` gives a keyed uniform number."""
        return server

    def download(self, server: ServerState) -> Download:
        """What travels to the cohort this round."""
        return Download(**{name: getattr(server, name) for name in self.sends})

    def steps(self, planned: Sequence[int]) -> Sequence[int]:
        """How many steps the cohort's clients do, given what their local work asks for."""
        return planned

    def fold_buffers(
        self, buffers: dict[str, Tensor], means: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """The server's buffers from their means over the cohort, weighted by samples."""
        return means

    def weights_used(self, wanted: Tensor, progress: Tensor) -> Tensor | None:
        """The weights a round really gives to the clients' gradients, up to a factor.

        `wanted` are the cohort's weights and `progress` the ‖a_k‖₁. None where gradients are
        corrected, so that the question makes no sense.
        """
        return None

    def dual_residual(self, server: ServerState) -> float | None:
        """The norm of the server's estimate of ∇F, zero at the optimum; None without one."""
        return None

    def check(self, setting: Conditions) -> None:
        """Refuse, with a sentence, a setting the mathematics does not define."""
        require(
            self.asynchronous or not setting.asynchronous,
            f"{self.name} cannot take in replies one by one as they arrive: {self.why_synchronous}."
            f" AsyncFedDR, FedAsync and FedBuff can.",
        )
        require(
            not self.needs_all or setting.participation == "all",
            f"{self.name} is defined only when every client takes part in every round"
            f"{but_not(setting.participation)} choose a method that allows partial participation.",
        )
        settles = type(self).settle is not Method.settle
        require(
            not setting.transformed or not self.kept() or settles,
            f"{self.name} keeps state on the clients but does not define settle(), so its uploads "
            f"cannot be transformed: the clients would keep something else than they sent.",
        )
        require(
            not self.needs_steps or setting.takes_steps,
            f"{self.name} divides by the number of gradient steps: use SGD or GD as the local "
            f"solver, not an exact one.",
        )

    def sums(self) -> dict[str, tuple[Weight, ...]]:
        """The uploaded vectors with the weights of their sums, checked."""
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
        """What a client remembers, with its first values, checked."""
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


def but_not(participation: str) -> str:
    """The middle of a sentence on who must take part: why it is not so, and how to mend it."""
    if participation == "responding":
        return ", but with these devices and this pace some may not:"
    return ": leave cohort out, or"
