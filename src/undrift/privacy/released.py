"""`ReleasedReplies`: what a method folds in a private run, noisy sums with public denominators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from undrift.core.replies import Replies, Weight, draws, once, q, q_draws
from undrift.utils.errors import UndriftError

PUBLIC_WEIGHTS: tuple[Weight, ...] = (q, once, draws, q_draws)
"""Weights that do not depend on a client's data, if the q_k do not."""


class ReleasedReplies(Replies):
    """Replies of which a method sees noisy sums only, and no number of replies.

    `count`, `share` and `weight` are the means over random cohorts, which are public constants:
    qN, q, and q·Σ by(k) over all clients. Without noise, and with every client in every round,
    they equal those of `Replies` to the bit.

    Parameters
    ----------
    replies
        the sums of the round
    names
        the uploaded vectors, with the weights by which they are summed
    noise
        the noise of an uploaded vector for the weight 1, `[P]` in double precision; None for none
    like
        a vector of the model's shape and type: an empty cohort has sums, too
    probability
        q, the chance of a client to take part
    totals, largest
        Σ by(k) over all clients and max by(k), for each weight
    """

    def __init__(
        self,
        replies: Replies,
        names: Mapping[str, tuple[Weight, ...]],
        noise: Callable[[str], Tensor] | None,
        like: Tensor,
        probability: float,
        totals: Callable[[Weight], float],
        largest: Callable[[Weight], float],
    ):
        super().__init__(names, replies.clients, replies.rate)
        self._probability = probability
        self._totals = totals
        for name, weights in names.items():
            # One noise vector for all sums of an upload: they are multiples of each other.
            added = None if noise is None else noise(name)
            for by in weights:
                found = replies.exact_sum(name, by)
                if found is None:
                    found = torch.zeros_like(like, dtype=torch.float64)
                if added is not None:
                    found = torch.add(found, added.to(found), alpha=largest(by))
                self._sums[name, by.__name__] = found
                self._dtypes[name] = like.dtype

    @property
    def count(self) -> Any:
        return self._probability * self.clients

    @property
    def share(self) -> float:
        return self._probability

    def weight(self, by: Weight) -> float:
        return self._probability * self._totals(by)

    def weights(self, by: Weight) -> Tensor:
        raise self._refused("the weights of single clients")

    def each(self, name: str) -> Tensor:
        raise self._refused("numbers of single clients")

    def stack(self, name: str) -> Tensor:
        raise self._refused("uploads of single clients")

    def _refused(self, what: str) -> UndriftError:
        return UndriftError(f"A fold of a private run cannot use {what}: they are not noised.")
