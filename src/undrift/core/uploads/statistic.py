"""`Statistic`: the base class of robust statistics, which take the place of a weighted mean.

The server sums uploads. With a robust statistic, a sum Σ w_k u_k becomes (Σ w_k) times the
statistic of the uploads, so that a few wrong uploads cannot move it far. Every client counts once,
whatever its weight.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from undrift.utils.errors import require


class Statistic(ABC):
    """A robust statistic of several vectors. Subclass it with `of` to write your own.

    `of` must not depend on the order of the rows.
    """

    min_replies: int = 1
    """with fewer replies the statistic is not defined, and a round is skipped"""

    @abstractmethod
    def of(self, rows: Tensor) -> Tensor:
        """The statistic of the rows of `[n, P]`, `[P]`."""

    @abstractmethod
    def tolerates(self, replies: int) -> int:
        """f: how many of n replies may be arbitrary without moving the result arbitrarily far."""

    def checked(self, rows: Tensor) -> Tensor:
        """The statistic of enough rows, in their type and shape; else an error."""
        name = type(self).__name__
        require(
            len(rows) >= self.min_replies,
            f"{name} needs at least {self.min_replies} replies, but there are {len(rows)}.",
        )
        found = self.of(rows)
        require(
            isinstance(found, Tensor) and found.shape == rows.shape[1:],
            f"{name}.of must return a vector of {rows.shape[1]} numbers, not {found!r}.",
        )
        return found.to(rows.dtype)
