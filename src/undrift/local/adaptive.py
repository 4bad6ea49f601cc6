"""Adam, AdamW and any optimizer of `torch.optim` as local solvers.

Adam and AdamW are written out, so that engines can train many clients at once; an optimizer by
name trains one client at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

from undrift.core.method import NUMBER, ZERO
from undrift.core.problem import Keep, LocalProblem, Work
from undrift.local.base import Amount, Tolerance
from undrift.local.minibatches import MinibatchSolver, Update
from undrift.local.schedules import Factors, Rate
from undrift.utils.errors import (
    UndriftError,
    first_line,
    require,
    require_choice,
    require_range,
    require_type,
)
from undrift.utils.reprs import short_repr

FIRST, SECOND, STEPS = "@adam_first", "@adam_second", "@adam_steps"
"""Names of what a client keeps of Adam: its moments and its number of steps."""
NEEDS_CLOSURE = ("LBFGS",)
"""Optimizers that evaluate the loss several times in a step."""


@dataclass(frozen=True)
class Adam(MinibatchSolver):
    """Adam (Kingma and Ba, ICLR 2015) as a local solver.

        m ← β₁m + (1 − β₁)g;  v ← β₂v + (1 − β₂)g²;
        x ← x − η_s·(m/(1 − β₁^t)) / (√(v/(1 − β₂^t)) + ε)

    g is the gradient of the whole local problem: ∇f_k with weight decay, the linear term and the
    pull. The moments start at zero in every round, unless `keep_state`. A step is not a multiple
    of a gradient, so that methods that divide by the number of gradient steps refuse it.

    Parameters
    ----------
    lr
        η, as in `SGD`
    batch_size, epochs, steps, tolerance, relative, clip, step_schedule, fresh_batches
        as in `SGD`
    betas
        β₁ and β₂, each at least 0 and below 1
    eps
        ε, above 0
    weight_decay
        λ of the term (λ/2)|x|², which is part of f_k
    drop_last, accumulate
        as in `SGD`
    keep_state
        whether a client keeps its moments and its number of steps t from round to round: two more
        vectors per client
    """

    __repr__ = short_repr

    lr: Rate = 1e-3
    batch_size: int | None = 32
    epochs: Amount | None = None
    steps: Amount | None = None
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    tolerance: Tolerance | None = None
    relative: str = "no"
    clip: float | None = None
    step_schedule: Factors | None = None
    fresh_batches: bool = False
    drop_last: bool = False
    accumulate: int = 1
    keep_state: bool = False

    takes_steps = False

    def __post_init__(self) -> None:
        self._check_fields()
        name = type(self).__name__
        require(
            isinstance(self.betas, list | tuple) and len(self.betas) == 2,
            f"{name}'s betas must be two numbers, such as (0.9, 0.999).",
        )
        object.__setattr__(self, "betas", tuple(self.betas))
        for beta in self.betas:
            require_range(f"One of {name}'s betas", beta, at_least=0, below=1)
        require_range(f"{name}'s eps", self.eps, above=0)
        require_type(f"{name}'s keep_state", self.keep_state, bool, "True or False")

    @property
    def decoupled_decay(self) -> float:
        """λ of a weight decay that is applied beside the step, not part of f_k."""
        return 0.0

    @property
    def keeps(self) -> Mapping[str, str]:
        return {FIRST: ZERO, SECOND: ZERO, STEPS: NUMBER} if self.keep_state else {}

    def update(
        self,
        x: Tensor,
        problem: LocalProblem,
        work: Work,
        mine: Keep,
        shapes: Sequence[torch.Size] | None,
    ) -> Update:
        return AdamUpdate(self, x, mine)


@dataclass(frozen=True, repr=False)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter, ICLR 2019): x ← (1 − η_s·λ)x first.

    The decay is not part of f_k, nor of the objective.

    Parameters
    ----------
    lr
        η, as in `SGD`
    batch_size, epochs, steps, tolerance, relative, clip, step_schedule, fresh_batches
        as in `SGD`
    betas, eps, keep_state
        as in `Adam`
    weight_decay
        λ of the decoupled decay
    drop_last, accumulate
        as in `SGD`
    """

    weight_decay: float = 1e-2

    @property
    def penalty(self) -> float:
        return 0.0

    @property
    def decoupled_decay(self) -> float:
        return self.weight_decay


class AdamUpdate(Update):
    """Steps with the moments of a client's gradients; the operations are in torch's order."""

    def __init__(self, solver: Adam, x: Tensor, mine: Keep):
        self._solver = solver
        kept = solver.keep_state
        self._first = getattr(mine, FIRST).clone() if kept else torch.zeros_like(x)
        self._second = getattr(mine, SECOND).clone() if kept else torch.zeros_like(x)
        self._steps = int(getattr(mine, STEPS)) if kept else 0

    def step(self, x: Tensor, gradient: Tensor, pull: Tensor | None, rate: float) -> None:
        if pull is not None:
            gradient[: len(pull)] += pull
        beta1, beta2 = self._solver.betas
        self._steps += 1
        if self._solver.decoupled_decay:
            x.mul_(1 - rate * self._solver.decoupled_decay)
        self._first.lerp_(gradient, 1 - beta1)
        self._second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = self._second.sqrt().div_(sqrt(1 - beta2**self._steps)).add_(self._solver.eps)
        x.addcdiv_(self._first, root, value=-rate / (1 - beta1**self._steps))

    def state(self) -> dict[str, Tensor]:
        if not self._solver.keep_state:
            return {}
        steps = self._first.new_tensor([float(self._steps)])
        return {FIRST: self._first, SECOND: self._second, STEPS: steps}


@dataclass(frozen=True)
class TorchOptimizer(MinibatchSolver):
    """An optimizer of `torch.optim` by its name, new for every client and round.

    Its clients train one at a time. The linear term and the pull of the method's local problem are
    part of the gradient that it gets.

    Parameters
    ----------
    name
        the name of the class, such as "Adagrad", "RMSprop" or "NAdam"
    lr
        η, as in `SGD`
    batch_size, epochs, steps, tolerance, relative, clip, step_schedule, fresh_batches
        as in `SGD`
    options
        further arguments of the class, such as {"alpha": 0.9}; its weight decay is its own, and not
        part of f_k
    drop_last, accumulate
        as in `SGD`
    """

    __repr__ = short_repr

    name: str
    lr: Rate = 1e-3
    batch_size: int | None = 32
    epochs: Amount | None = None
    steps: Amount | None = None
    options: Mapping[str, Any] | None = None
    tolerance: Tolerance | None = None
    relative: str = "no"
    clip: float | None = None
    step_schedule: Factors | None = None
    fresh_batches: bool = False
    drop_last: bool = False
    accumulate: int = 1

    takes_steps = False
    weight_decay = 0.0

    def __post_init__(self) -> None:
        self._check_fields()
        require_choice("The optimizer of torch.optim", self.name, _optimizers())
        given = {} if self.options is None else self.options
        require_type("TorchOptimizer's options", given, Mapping, "a mapping of arguments")
        require("lr" not in given, "lr is an argument of TorchOptimizer itself.")
        require(
            self.name not in NEEDS_CLOSURE,
            f"{self.name} evaluates the loss several times in a step, which local work does not "
            f"offer: use another optimizer.",
        )
        self._made([nn.Parameter(torch.zeros(2, 2))])  # so that a wrong option shows at once

    @property
    def many_at_once(self) -> bool:
        return False

    def update(
        self,
        x: Tensor,
        problem: LocalProblem,
        work: Work,
        mine: Keep,
        shapes: Sequence[torch.Size] | None,
    ) -> Update:
        return TorchUpdate(self, x, shapes)

    def _made(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        kind = _optimizers()[self.name]
        try:
            return kind(parameters, lr=1.0, **(self.options or {}))
        except Exception as error:
            raise UndriftError(
                f"torch.optim.{self.name} cannot be made with {dict(self.options or {})!r}: "
                f"{first_line(error)}."
            ) from error


class TorchUpdate(Update):
    """Steps of an optimizer on parameters that are views of the client's vector."""

    def __init__(self, solver: TorchOptimizer, x: Tensor, shapes: Sequence[torch.Size] | None):
        sizes = [x.shape] if shapes is None else list(shapes)
        views = zip(x.split([each.numel() for each in sizes]), sizes, strict=True)
        # An optimizer may treat matrices in another way than vectors, so it gets the real shapes.
        self._parameters = [nn.Parameter(view.view(shape)) for view, shape in views]
        self._optimizer = solver._made(self._parameters)

    def step(self, x: Tensor, gradient: Tensor, pull: Tensor | None, rate: float) -> None:
        if pull is not None:
            gradient[: len(pull)] += pull
        parts = gradient.split([p.numel() for p in self._parameters])
        for parameter, part in zip(self._parameters, parts, strict=True):
            parameter.grad = part.view(parameter.shape)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()


def _optimizers() -> dict[str, Any]:
    """The classes of `torch.optim` by name."""
    kinds = {name: getattr(torch.optim, name) for name in dir(torch.optim)}
    base = torch.optim.Optimizer
    return {
        name: kind
        for name, kind in kinds.items()
        if isinstance(kind, type) and issubclass(kind, base) and kind is not base
    }
