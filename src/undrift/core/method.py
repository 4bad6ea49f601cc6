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
    Ascent,
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
Draw = Callable[[str], float]
"""`draw(purpose)`: a uniform random number in [0, 1) keyed by seed, purpose and round."""


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
    can_ascend: bool = True
    """whether every client's solver can take steps with sharpness-aware gradients"""


@dataclass(frozen=True)
class Coincidence:
    """Two methods that must produce the same models, round by round."""

    words: str
    """what coincides, in words: alpha = 1 is FedAvg"""
    method: Method
    other: Method
    rounds: int = 5
    everyone: bool = False
    """whether every client takes part; otherwise cohorts do, if both methods allow them"""
    equal_steps: bool = False
    """whether all clients take equally many steps"""
    exact: bool = False
    """whether clients solve their local problems exactly"""
    momentum: float = 0.0
    """of the local solver"""
    clients: str = "different"
    """"different" or "identical" clients"""
    objective: str = "samples"


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
        "averaging" or of "normalised averaging", or None for no check; `fixed_point` can give any
        other point
    converges_when_sampled
        whether it reaches that limit with partial participation too; None (the default) for
        "if the limit is the optimum and not every client is needed"
    monotone
        quantities that never increase when every client takes part, by name, as functions of the
        run: `run.server`, `run.states`, `run.losses`; `undrift verify` checks them
    acting, idle
        names of kept vectors, or of the server's, that must influence the models, and of those
        that need not, such as a log; `undrift verify` reports other state that influences nothing.
        `idle` may name parameters, too
    slows_down
        whether its state makes it slower by design; otherwise `undrift verify` takes it for a
        momentum with the wrong sign if later rounds move less far than the first on a slope
    formulas
        the method as text, an `undrift.methods.formulas.MethodRow`: `undrift verify` then predicts
        a round from it
    elementwise
        whether `problem` and `finish` compute every number of a vector from the numbers at the
        same place of other vectors, without norms or inner products; engines may then call them on
        parts of vectors, which is faster for methods that keep vectors
    needs_all
        whether the method is defined only when every client takes part in every round
    needs_steps
        whether the method divides by η‖a‖₁ or by the number of steps
    uploads_models
        whether the uploads are models and not moves or changes, which alone can be transformed
    draws_steps
        whether `steps` depends on the random numbers of a round
    steps_of_others
        whether the steps of a client depend on the other clients of its cohort
    draws_by_weight
        whether a number given as the cohort means clients drawn by q_k with replacement
    starts_with_all
        whether the first round asks every client
    problems
        the number of local problems that a client solves in a round, one after another, each with
        the whole local work and the same minibatches; `next_problem` gives all but the first
    ascent
        the sharpness-aware gradients that its local problems ask for, an `undrift.Ascent`, or None
    own_model
        the name in `keeps` of the client's own model, for personalised methods; None if clients
        have none but the model they trained last
    asynchronous, why_synchronous
        whether the fold is valid for single replies, and the reason if it is not
    averages_moves, why_not_robust
        whether the fold only averages moves of clients that count alike, so that a robust
        statistic may take the place of the mean, and the reason if it does not
    downloads_may_lag
        whether it ends at the same point if clients work with vectors that lag behind the
        server's, as compressed downloads do
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

    formulas: Any = None
    elementwise: bool = False
    needs_all: bool = False
    draws_by_weight: bool = False
    steps_of_others: bool = False
    needs_steps: bool = False
    uploads_models: bool = False
    draws_steps: bool = False
    starts_with_all: bool = False
    own_model: str | None = None
    ascent: Ascent | None = None
    problems: int = 1

    asynchronous: bool = False
    why_synchronous: str = "it does not declare (asynchronous = True) that its fold is valid then"
    downloads_may_lag: bool = False
    averages_moves: bool = False
    why_not_robust: str = "it does not declare (averages_moves = True) that it does"
    meant_asynchronous: bool = False
    buffer: int = 1

    converges_to: str | None = "optimum"
    converges_when_sampled: bool | None = None
    monotone: Mapping[str, Callable[[Any], float]] = {}
    acting: Sequence[str] = ()
    idle: Sequence[str] = ()
    slows_down: bool = False
    paper: str = ""
    g: Regularizer | None = None

    @abstractmethod
    def problem(self, down: Download, mine: Keep, client: Client) -> LocalProblem:
        """The client's local problem, from the download and the client's state `mine`."""

    def next_problem(
        self, down: Download, mine: Keep, solved: Sequence[Tensor], client: Client
    ) -> LocalProblem:
        """The client's next local problem, if it has several; `solved` are the solutions so far."""
        raise UndriftError(f"{self.name} has several problems, but does not define next_problem().")

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

    def begin(self, server: ServerState, draw: Draw) -> ServerState:
        """The server state at the start of a round."""
        return server

    def download(self, server: ServerState) -> Download:
        """The values that travel to the cohort in this round."""
        return Download(**{name: getattr(server, name) for name in self.sends})

    def steps(self, planned: Sequence[int], draw: Draw) -> Sequence[int]:
        """The number of steps of each client, from the numbers that the local work plans."""
        return planned

    def upload_scales(self, rate: float, steps: int) -> Mapping[str, float]:
        """Public scales by which the uploaded vectors are clipped together; 1 if not named.

        A vector divided by its scale is on the scale of a client's move. `rate` is η of the round
        and `steps` a public number of local steps τ.
        """
        return {}

    def fold_buffers(
        self, buffers: dict[str, Tensor], means: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """The server's next buffers; `means` are the cohort's buffers averaged by samples."""
        return means

    def fixed_point(
        self, H: Tensor, b: Tensor, q: Tensor, lr: float, steps: Sequence[int]
    ) -> Tensor | None:
        """The point it converges to on f_k = ½xᵀH_k x − b_kᵀx, for `undrift verify`.

        Every client takes part and takes `steps[k]` gradient steps of rate `lr`. None for the point
        that `converges_to` names.
        """
        return None

    def coincidences(self) -> Sequence[Coincidence]:
        """Special cases in which it equals another method, which `undrift verify` checks."""
        return ()

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
            f"{self.name} divides by the number of gradient steps, ‖a‖₁, which only SGD and GD "
            f"define: use one of them as the local solver, or with Adam, another torch optimizer "
            f"or an exact solver a method that needs no such number, such as FedAvg, FedProx, "
            f"FedDyn or SCAFFOLD(option='I').",
        )
        require(
            self.ascent is None or conditions.can_ascend,
            f"{self.name} takes gradients at shifted points, which this local solver does not "
            f"offer: use SGD, GD or Adam, without tolerance and with accumulate=1.",
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
