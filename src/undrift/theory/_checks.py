"""Checks of arguments that several theory modules take."""

from collections.abc import Sequence

import torch
from torch import Tensor

from undrift.utils.errors import require

Steps = int | Tensor | Sequence[int]  # τ_i: one number for all clients, or one for each


def weights(q: Tensor, where: str, count: int | None = None) -> Tensor:
    """q as float64 [N]; raise an error unless it is non-negative and sums to one.

    `where` names the caller in the error; `count` is the number of clients, if it is known.
    """
    q = torch.as_tensor(q, dtype=torch.float64)
    expected = q.numel() if count is None else count
    require(
        q.ndim == 1 and q.numel() == expected > 0,
        f"{where}: the weights have shape {list(q.shape)}, but must be one per client, {expected}.",
    )
    require(
        bool((q >= 0).all()) and abs(float(q.sum()) - 1) <= 1e-6,
        f"{where}: the weights sum to {float(q.sum()):.12g} and the smallest is"
        f" {float(q.min()):.3g}, but they must be non-negative and sum to one.",
    )
    return q


def steps(tau: Steps, where: str, count: int | None = None) -> Tensor:
    """τ as float64; raise an error unless all are whole numbers from 1.

    With `count`, one number is repeated for all clients.
    """
    tau = torch.as_tensor(tau, dtype=torch.float64)
    require(
        bool((tau >= 1).all() and (tau == tau.round()).all() and tau.isfinite().all()),
        f"{where}: the steps are {tau.tolist()}, but must be whole numbers of at least 1.",
    )
    require(
        count is None or tau.ndim == 0 or tau.shape == (count,),
        f"{where}: the steps have shape {list(tau.shape)}, but must be one number or {count}.",
    )
    return tau if count is None else tau.expand(count)
