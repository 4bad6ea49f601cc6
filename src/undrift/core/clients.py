"""The clients of a federation, their weights in the objective, and what each remembers."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from undrift.core.losses import objective_weights
from undrift.core.method import INITIAL, NUMBER, ZERO
from undrift.core.problem import Client, Keep
from undrift.utils.errors import UndriftError, require
from undrift.utils.keys import hashes, plain_id


class Roster:
    """All clients in the order of their ids, so that their place in the data does not matter."""

    def __init__(self, ids: Sequence[Hashable], sizes: Tensor, objective: str = "samples"):
        require(len(ids) > 0, "There are no clients.")
        ids = [plain_id(id) for id in ids]
        if len(set(ids)) != len(ids):
            twice = next(each for each in ids if list(ids).count(each) > 1)
            raise UndriftError(f"Two clients have the same id {twice!r}.")
        empty = [ids[k] for k in torch.nonzero(sizes <= 0).flatten().tolist()]
        if empty:
            raise UndriftError(
                f"Client {empty[0]!r} has no data ({len(empty)} of {len(ids)} clients are empty): "
                f"leave empty clients out."
            )
        order = sorted(range(len(ids)), key=lambda k: (type(ids[k]).__name__, ids[k]))  # type: ignore[type-var]
        self.ids = [ids[k] for k in order]
        self.place = order
        """where each client is in the data"""
        self.position = {client: k for k, client in enumerate(self.ids)}
        self.sizes = sizes[order].to(torch.float64)
        self.objective = objective
        self.weights = objective_weights(self.sizes, objective)
        """q_k"""
        self.equal = bool((self.weights == self.weights[0]).all())
        """whether all q_k are the same"""
        self.hashes = hashes(self.ids)
        """a number per client that depends on its id only, for keyed draws"""
        self._numbers = self.sizes.tolist(), self.weights.tolist()

    def __len__(self) -> int:
        return len(self.ids)

    def client(self, id: Hashable, draws: int = 1) -> Client:
        """What a method may know of a client."""
        k = self.position[id]
        sizes, weights = self._numbers
        q = weights[k]
        scale = 1.0 if self.equal else 1 / (len(self) * q)
        return Client(id=id, samples=sizes[k], q=q, scale=scale, draws=draws)

    def weights_in_data_order(self) -> Tensor:
        """The q_k in the order of the data."""
        weights = torch.empty_like(self.weights)
        weights[self.place] = self.weights
        return weights


class ClientStates:
    """What the clients remember; it holds only those that have taken part.

    `kinds` says what is remembered, each with its first value: ZERO, INITIAL (x⁰) or NUMBER.
    This one holds all in memory; a run with a folder keeps them in its store.
    """

    def __init__(self, kinds: Mapping[str, str], x0: Tensor):
        self.kinds = dict(kinds)
        self._x0 = x0
        self._kept: dict[Hashable, Keep] = {}

    def get(self, client: Hashable) -> Keep:
        """What a client remembers, or its first values if it has not taken part yet."""
        kept = self._kept.get(client)
        return self.first() if kept is None else kept

    def gather(self, clients: Sequence[Hashable]) -> Keep:
        """What several clients remember, stacked as `[C, …]`."""
        if not self.kinds:
            return Keep()
        kept = [self.get(client) for client in clients]
        return Keep(**{name: torch.stack([getattr(k, name) for k in kept]) for name in self.kinds})

    def prefetch(self, clients: Iterable[Hashable]) -> None:
        """Say whose states will be asked for in the next round, to have them read ahead."""

    def put(self, client: Hashable, keep: Keep) -> None:
        """Remember, for the client's next participation."""
        values = {}
        for name, value in keep.items():
            if not isinstance(value, Tensor):
                value = self._x0.new_tensor([value])
            # A row of what many clients keep must not hold on to all of it.
            values[name] = value if value._base is None else value.clone()
        self._kept[client] = Keep(**values)

    def seen(self) -> Iterable[Hashable]:
        """The clients that have taken part."""
        return self._kept.keys()

    def first(self) -> Keep:
        """What a client remembers before it takes part."""
        x0 = self._x0
        first = {
            ZERO: lambda: torch.zeros_like(x0),
            INITIAL: lambda: x0,
            NUMBER: lambda: x0.new_zeros(1),
        }
        return Keep(**{name: first[kind]() for name, kind in self.kinds.items()})
