"""The roster of all clients with their weights q_k, and the states that clients keep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from undrift.core.losses import objective_weights
from undrift.core.method import INITIAL, NUMBER, ZERO
from undrift.core.problem import Client, Keep
from undrift.utils.errors import UndriftError, require
from undrift.utils.keys import hashes, plain_ids


class Roster:
    """All clients with their ids, sizes n_k and weights q_k.

    They are sorted by id, so that their order in the data changes no result.

    Parameters
    ----------
    ids, sizes
        the clients' ids and numbers of samples n_k
    objective
        "samples", q_k = n_k/n, or "clients", q_k = 1/N
    counted
        the numbers of samples to use in place of n_k in the weights, if those of some clients are
        fixed or capped; local work still depends on n_k
    """

    def __init__(
        self,
        ids: Sequence[Hashable],
        sizes: Tensor,
        objective: str = "samples",
        counted: Tensor | None = None,
    ):
        require(len(ids) > 0, "There are no clients: a federation needs at least one.")
        ids = plain_ids(ids)
        empty = [ids[k] for k in torch.nonzero(sizes <= 0).flatten().tolist()]
        if empty:
            raise UndriftError(
                f"Client {empty[0]!r} has no data ({len(empty)} of {len(ids)} clients are empty): "
                f"leave empty clients out."
            )
        order = _sorted_places(ids)
        self.place: Sequence[int] = range(len(ids)) if order is None else order.tolist()
        """index of each client in the data"""
        self.ids = ids if order is None else [ids[k] for k in self.place]
        self.position = dict(zip(self.ids, range(len(ids)), strict=True))
        """index of each client id in the roster"""
        if len(self.position) != len(ids):
            twice = next(each for each, times in Counter(ids).items() if times > 1)
            raise UndriftError(f"Two clients have the same id {twice!r}.")
        self._order = None if order is None else torch.from_numpy(order)
        self.sizes = self._in_roster_order(sizes).to(torch.float64)
        self.objective = objective
        numbers = self.sizes
        if counted is not None:
            numbers = self._in_roster_order(counted).to(torch.float64)
        self.weights = objective_weights(numbers, objective)
        """q_k"""
        self.counts: dict[Hashable, float] | None = None
        """by client, the number of samples that counts in averages; None if it is n_k"""
        if counted is not None:
            self.counts = dict(zip(self.ids, numbers.tolist(), strict=True))
        self.equal = bool((self.weights == self.weights[0]).all())
        """whether all q_k are the same"""
        # NumPy views of the same memory: reading single elements of a tensor is slow.
        self._numbers = self.sizes.numpy(), self.weights.numpy()

    def __len__(self) -> int:
        return len(self.ids)

    def client(self, id: Hashable, draws: int = 1) -> Client:
        """The `Client` that methods see, drawn `draws` times in the round."""
        k = self.position[id]
        sizes, weights = self._numbers
        q = float(weights[k])
        scale = 1.0 if self.equal else 1 / (len(self) * q)
        return Client(id=id, samples=float(sizes[k]), q=q, scale=scale, draws=draws)

    @cached_property
    def hashes(self) -> np.ndarray:
        """One number per client that depends on its id only, to key its random numbers."""
        return hashes(self.ids)

    @cached_property
    def cumulative_weights(self) -> np.ndarray:
        """The sums q_1, q_1 + q_2, …, 1, by which clients are drawn in proportion to q_k."""
        sums = self.weights.numpy().cumsum()
        return sums / sums[-1]

    def weights_in_data_order(self) -> Tensor:
        """The q_k in the order of the data."""
        if self._order is None:
            return self.weights.clone()
        weights = torch.empty_like(self.weights)
        weights[self._order] = self.weights
        return weights

    def _in_roster_order(self, values: Tensor) -> Tensor:
        """Values of the clients, from the order of the data to that of the roster."""
        return values if self._order is None else values[self._order]


def _sorted_places(ids: Sequence[Hashable]) -> np.ndarray | None:
    """The indices that sort ids, numbers before strings; None if they are sorted already."""
    if set(map(type, ids)) == {int}:
        try:
            numbers = np.array(ids, dtype=np.int64)
        except OverflowError:  # an id of more than 64 bits
            pass
        else:
            return None if (np.diff(numbers) > 0).all() else np.argsort(numbers, kind="stable")
    order = sorted(range(len(ids)), key=lambda k: (type(ids[k]).__name__, ids[k]))  # type: ignore[type-var]
    return None if order == list(range(len(ids))) else np.array(order)


class ClientStates:
    """The states that clients keep between rounds, in memory.

    It holds only clients that have taken part. A run with a folder uses a subclass that keeps
    states in the run's store. `kinds` names the kept values and says how each starts: ZERO,
    INITIAL (x⁰), NUMBER, or the vector itself.
    """

    def __init__(self, kinds: Mapping[str, str | Tensor], x0: Tensor):
        self.kinds = dict(kinds)
        self._x0 = x0
        self._kept: dict[Hashable, Keep] = {}

    def get(self, client: Hashable) -> Keep:
        """A client's state, or the initial state if it has not taken part yet."""
        kept = self._kept.get(client)
        return self.first() if kept is None else kept

    def oldest(self, client: Hashable) -> Keep:
        """A client's state after the oldest round that the run can go back to."""
        return self.get(client)

    def gather(self, clients: Sequence[Hashable]) -> list[Keep]:
        """The states of several clients, read at once; none if clients keep nothing."""
        return [self.get(client) for client in clients] if self.kinds else []

    def prefetch(self, clients: Iterable[Hashable]) -> None:
        """Read the states of the next round's clients ahead; in memory there is nothing to do."""

    def hold(self, keep: Keep) -> Keep:
        """A new state in the place where it waits until its round is accepted; here as it is."""
        return keep

    def new_vector(self, like: Tensor) -> Tensor:
        """Uninitialised memory for a vector of a new state, where it waits likewise."""
        return torch.empty_like(like)

    def put(self, client: Hashable, keep: Keep) -> None:
        """Store a client's new state."""
        if not self.kinds:
            self._kept[client] = keep  # it says only that the client took part
            return
        values = {}
        for name, value in keep.items():
            if not isinstance(value, Tensor):
                value = self._x0.new_tensor([value])
            # A view of one row would keep the whole `[C, P]` tensor of a chunk in memory.
            values[name] = value if value._base is None else value.clone()
        self._kept[client] = Keep(**values)

    def seen(self) -> Iterable[Hashable]:
        """The clients that have taken part."""
        return self._kept.keys()

    def first(self) -> Keep:
        """The initial state, of a client that has not taken part."""
        x0 = self._x0
        first = {
            ZERO: lambda: torch.zeros_like(x0),
            INITIAL: lambda: x0,
            NUMBER: lambda: x0.new_zeros(1),
        }
        return Keep(
            **{
                name: kind if isinstance(kind, Tensor) else first[kind]()
                for name, kind in self.kinds.items()
            }
        )
