"""Arguments that several theory modules take, checked in one place."""

from collections.abc import Sequence

import torch
from torch import Tensor

from undrift.utils.errors import require

Steps = int | Tensor | Sequence[int]  # τ_i: one number for all clients, or one each


def weights(q: Tensor, where: str, count: int | None = None) -> Tensor:
    """q as float64 [N], if it is non-negative and sums to one."""
    q = torch.as_tensor(q, dtype=torch.float64)
    many = q.numel() if count is None else count
    require(
        q.ndim == 1 and q.numel() == many > 0,
        f"{where}: weights of shape {list(q.shape)} given, but it takes one per client, {many}.",
    )
    require(
        bool((q >= 0).all()) and abs(float(q.sum()) - 1) <= 1e-6,
        f"{where}: the weights sum to {float(q.sum()):.12g} and the smallest is"
        f" {float(q.min()):.3g}, but they must be non-negative and sum to one.",
    )
    return q


def steps(tau: Steps, where: str, count: int | None = None) -> Tensor:
    """τ as float64, if it holds whole numbers from 1; one number is repeated `count` times."""
    tau = torch.as_tensor(tau, dtype=torch.float64)
    require(
        bool((tau >= 1).all() and (tau == tau.round()).all() and tau.isfinite().all()),
        f"{where}: the steps are {tau.tolist()}, but they must be whole numbers from 1.",
    )
    require(
        count is None or tau.ndim == 0 or tau.shape == (count,),
        f"{where}: steps of shape {list(tau.shape)} given, but it takes one number or {count}.",
    )
    return tau if count is None else tau.expand(count)
