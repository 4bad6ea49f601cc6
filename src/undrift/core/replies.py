"""What the server sees of a round: weighted sums of the uploads.

A method declares by which weights its uploads are added up, so that an engine may form
the sums piecewise, in chunks or on workers, and never hold a cohort's uploads at once.
Uploads declared without weights are kept one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from undrift.core.problem import Client, Number, Upload
from undrift.utils.errors import UndriftError

Weight = Callable[[Client], Number]
"""The weight of a client's upload in a sum."""


def q(client: Client) -> Number:
    """The client's weight q_k in the objective."""
    return client.q


def once(client: Client) -> Number:
    """One for every client, however often it was drawn."""
    return 1.0


def draws(client: Client) -> Number:
    """The number of times the client was drawn."""
    return client.draws


def q_draws(client: Client) -> Number:
    """The weight in the objective, for each time the client was drawn."""
    return client.q * client.draws


PIECE = 100_000
"""So many numbers are brought to double precision at once, to be added up."""


def accumulator_dtype(like: Tensor) -> torch.dtype:
    """Sums are formed in double precision wherever the device has it."""
    return like.dtype if like.device.type == "mps" else torch.float64


class Replies:
    """The replies of a round, added up.

    `clients` is N, the population; `count` is the number of clients that replied (each
    once); `rate` is η, the nominal client learning rate of the round. `sums` says by which
    weights each uploaded vector is added up; what it does not name is a number.
    """

    def __init__(
        self,
        sums: Mapping[str, tuple[Weight, ...]],
        clients: int,
        rate: float = 1.0,
    ):
        self.clients = clients
        self.rate = rate
        self._by = dict(sums)
        self._sums: dict[tuple[str, str], Tensor] = {}
        self._single: dict[str, list[Tensor]] = {}
        self._who: list[Client] = []
        self._dtypes: dict[str, torch.dtype] = {}

    def add(self, client: Client, upload: Upload) -> None:
        """Take in the upload of one client."""
        self.add_several([client], client, upload)

    def add_several(self, clients: Sequence[Client], stacked: Client, upload: Upload) -> None:
        """Take in the uploads of several clients, stacked as `[C, P]`, as these are."""
        self._who += clients
        for name, value in upload.items():
            if name not in self._by:
                number = torch.as_tensor(value, dtype=torch.float64).reshape(-1)
                self._single.setdefault(name, []).append(number)
            elif not self._by[name]:
                rows = value if value.ndim == 2 else value[None]
                self._single.setdefault(name, []).append(rows)
            else:
                self._dtypes[name] = value.dtype
                for by in self._by[name]:
                    self._add_sum((name, by.__name__), _weighted(value, by(stacked)))

    def merge(self, later: Replies) -> None:
        """Take in the replies of further clients, added up elsewhere."""
        self._who += later._who
        self._dtypes |= later._dtypes
        for which, part in later._sums.items():
            self._add_sum(which, part)
        for name, parts in later._single.items():
            self._single.setdefault(name, []).extend(parts)

    def make_own(self) -> None:
        """Copy the sums, where others hold their memory."""
        self._sums = {which: part.clone() for which, part in self._sums.items()}

    def finite(self) -> bool:
        """Whether all sums and numbers are finite, as they are if every upload is."""
        values = [*self._sums.values(), *(each for some in self._single.values() for each in some)]
        # A sum is finite only if all that is added up is.
        return all(bool(value.sum().isfinite()) for value in values)

    def _add_sum(self, which: tuple[str, str], part: Tensor) -> None:
        if which in self._sums:
            self._sums[which].add_(part)
        else:
            self._sums[which] = part

    @property
    def count(self) -> int:
        """|S|, the number of clients that replied."""
        return len(self._who)

    @property
    def share(self) -> float:
        """|S|/N"""
        return self.count / self.clients

    def weight(self, by: Weight) -> float:
        """Σ_S of a weight over the clients that replied."""
        return float(sum(float(by(client)) for client in self._who))

    def weights(self, by: Weight) -> Tensor:
        """A weight for each client that replied, in the order of `stack` and `each`."""
        return torch.tensor([float(by(client)) for client in self._who], dtype=torch.float64)

    def sum(self, name: str, by: Weight) -> Any:
        """Σ_S by(k) · upload_k for a named vector or number."""
        if (name, by.__name__) in self._sums:
            return self._sums[name, by.__name__].to(self._dtypes[name])
        if name in self._single and name not in self._by:
            return float(self.weights(by) @ self.each(name))
        known = ", ".join(f"{n} by {w}" for n, w in self._sums) or "none"
        raise UndriftError(
            f"The sum of {name!r} by {by.__name__!r} was not declared in the method's uploads "
            f"(there are: {known})."
        )

    def mean(self, name: str, by: Weight = once) -> Any:
        """The weighted sum divided by the sum of the weights."""
        return self.sum(name, by) / self.weight(by)

    def each(self, name: str) -> Tensor:
        """A number of each client that replied, `[|S|]` in double precision."""
        return torch.cat([part.cpu() for part in self._single[name]])

    def stack(self, name: str) -> Tensor:
        """The uploaded vectors one by one, `[|S|, P]`, for a method that declared so."""
        return torch.cat(self._single[name])


def _weighted(value: Tensor, weight: Number) -> Tensor:
    """Σ over the clients of a chunk of weight · value, in double precision."""
    dtype = accumulator_dtype(value)
    if value.ndim == 1 or len(value) == 1:
        return (
            torch.empty(value.shape[-1], dtype=dtype, device=value.device)
            .copy_(value.view(-1))
            .mul_(float(weight))
        )
    clients, size = value.shape
    weights = torch.as_tensor(weight, device=value.device).to(dtype).reshape(-1).expand(clients)
    total = torch.empty(size, dtype=dtype, device=value.device)
    width = min(size, max(1, PIECE // clients))
    room = torch.empty(clients, width, dtype=dtype, device=value.device)
    # Piece by piece, so that the copies stay near a core.
    for part, place in zip(value.split(width, dim=1), total.split(width), strict=True):
        wide = room if part.shape == room.shape else room[:, : part.shape[1]]
        torch.mv(wide.copy_(part).t(), weights, out=place)
    return total
