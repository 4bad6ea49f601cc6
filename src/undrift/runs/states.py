"""Client states that rest in a run's store, with a bounded number of them in memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import islice

from torch import Tensor

from undrift.core.clients import ClientStates
from undrift.core.problem import Keep
from undrift.runs.store import Store


class StoredStates(ClientStates):
    """What the clients remember: in the store, except for the round in flight and the latest.

    Parameters
    ----------
    kinds, x0
        as in `ClientStates`
    store
        where they rest
    memory
        how many bytes of states to hold in memory besides the round in flight
    """

    def __init__(self, kinds: Mapping[str, str], x0: Tensor, store: Store, memory: int):
        super().__init__(kinds, x0)
        self._store = store
        self._memory = memory
        self._latest: OrderedDict[Hashable, Keep] = OrderedDict()
        self._early: dict[Hashable, Keep] = {}
        """those of this round, read while the last one was computed"""
        self._ahead: Future[dict[Hashable, dict[str, Tensor]]] | None = None
        """those of the next round"""
        self._reader = ThreadPoolExecutor(1)
        self._held = 0
        self._seen = set(store.clients())

    def get(self, client: Hashable) -> Keep:
        if client in self._kept:
            return self._kept[client]
        if client in self._latest:
            return self._latest[client]
        if client in self._early:
            return self._early[client]
        if client not in self._seen:
            return self.first()
        found = self._store.client(client, self._x0.device)
        return self.first() if found is None else Keep(**found)

    def gather(self, clients: Sequence[Hashable]) -> Keep:
        if self.kinds:
            self._early |= _kept(self._store.several(self._resting(clients), self._x0.device))
        return super().gather(clients)

    def prefetch(self, clients: Iterable[Hashable]) -> None:
        if self._ahead is not None:
            self._early = _kept(self._ahead.result())
        room = int(self._memory // max(1, _size(self.first())))
        wanted = list(islice(self._resting(clients), room))
        self._ahead = self._reader.submit(self._store.several, wanted, self._x0.device)

    def _resting(self, clients: Iterable[Hashable]) -> Iterator[Hashable]:
        """Those of some clients whose states are in the store only."""
        for client in clients:
            held = client in self._kept or client in self._latest or client in self._early
            if client in self._seen and not held:
                yield client

    def put(self, client: Hashable, keep: Keep) -> None:
        super().put(client, keep)
        self._early.pop(client, None)
        self._seen.add(client)

    def seen(self) -> Iterable[Hashable]:
        return self._seen

    def changed(self) -> dict[Hashable, dict[str, Tensor]]:
        """The states of the round in flight, to be committed."""
        if self._ahead is not None:
            wait([self._ahead])  # nobody reads while the store may grow
        return {client: dict(keep.items()) for client, keep in self._kept.items()}

    def committed(self) -> None:
        """The round in flight is in the store: hold its states only as far as memory allows."""
        for client, keep in self._kept.items():
            self._forget(client)
            self._latest[client] = keep
            self._held += _size(keep)
        self._kept = {}
        self._early = {}
        while self._held > self._memory and self._latest:
            self._forget(next(iter(self._latest)))

    def _forget(self, client: Hashable) -> None:
        before = self._latest.pop(client, None)
        if before is not None:
            self._held -= _size(before)


def _kept(states: Mapping[Hashable, Mapping[str, Tensor]]) -> dict[Hashable, Keep]:
    return {client: Keep(**state) for client, state in states.items()}


def _size(keep: Keep) -> int:
    return sum(value.numel() * value.element_size() for _, value in keep.items())
