"""Client states that are kept in a run's store, with a bounded number of them in memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import islice
from threading import Lock

from torch import Tensor

from undrift.core.clients import ClientStates
from undrift.core.problem import Keep
from undrift.runs.spilling import empty_in_file, in_files
from undrift.runs.store import Store
from undrift.utils.errors import require


class StoredStates(ClientStates):
    """Client states in a store, with some of them in memory.

    A state is in one of four places, from the newest to the oldest: the round in progress
    (`_kept`, not committed), the cache of committed states (`_cached`), states read in advance for
    this round (`_prefetched`), or the store only. While one round trains, a thread reads the states
    of the next cohort.

    Parameters
    ----------
    kinds, x0
        as in `ClientStates`
    store
        the run's store
    memory
        bytes of states to hold in memory, besides those of the round in progress
    """

    def __init__(self, kinds: Mapping[str, str | Tensor], x0: Tensor, store: Store, memory: int):
        super().__init__(kinds, x0)
        self._store = store
        self._memory = memory
        self._cached: OrderedDict[Hashable, Keep] = OrderedDict()
        """committed states, those of the latest rounds last"""
        self._cached_bytes = 0
        self._prefetched: dict[Hashable, Keep] = {}
        """states of this round's clients, read from the store"""
        self._prefetching: Future[dict[Hashable, Keep]] | None = None
        """states of the next round's clients, which a thread reads from the store"""
        self._held_bytes = 0
        """bytes of the new states of the round in progress"""
        self._counting = Lock()
        self._reader = ThreadPoolExecutor(1)
        self._seen = set(store.clients())

    def get(self, client: Hashable) -> Keep:
        if client in self._kept:
            return self._kept[client]
        if client in self._cached:
            return self._cached[client]
        if client in self._prefetched:
            return self._prefetched[client]
        if client not in self._seen or not self.kinds:
            return self.first()
        return self._read([client])[client]

    def gather(self, clients: Sequence[Hashable]) -> list[Keep]:
        if not self.kinds:
            return []
        # In one transaction, which is faster than one per client in `get`. They are not held for
        # the rest of the round, since the states of a cohort of large models do not fit.
        read = self._read(list(self._only_in_store(clients)))
        return [read[client] if client in read else self.get(client) for client in clients]

    def _read(self, clients: Sequence[Hashable]) -> dict[Hashable, Keep]:
        """The states of clients that have taken part, from the store."""
        return _keeps(clients, self._store.client_states(clients, self._x0.device))

    def oldest(self, client: Hashable) -> Keep:
        round = self._store.oldest
        found = self._store.client_states([client], self._x0.device, round)
        return Keep(**found[client]) if client in found else self.first()

    def prefetch(self, clients: Iterable[Hashable]) -> None:
        # The loop calls this once per round, so the last call read the states of this round. They
        # are up to date: only clients of the round before got new states meanwhile, and the loop
        # does not ask for those in advance.
        self._held_bytes = 0
        if self._prefetching is not None:
            self._prefetched = self._prefetching.result()
        most = int(self._memory // max(1, _bytes(self.first())))
        wanted = list(islice(self._only_in_store(clients), most))
        self._prefetching = self._reader.submit(self._read, wanted)

    def _only_in_store(self, clients: Iterable[Hashable]) -> Iterator[Hashable]:
        """Those of the clients whose states are in the store and not in memory."""
        for client in clients:
            held = client in self._kept or client in self._cached or client in self._prefetched
            if client in self._seen and not held:
                yield client

    def hold(self, keep: Keep) -> Keep:
        """The state itself, or a copy in a file once those of the round exceed the memory."""
        if not self.kinds or not self._exceeds(_bytes(keep)):
            return keep
        return in_files(keep, self._store.folder)

    def new_vector(self, like: Tensor) -> Tensor:
        found = None
        if self._exceeds(like.numel() * like.element_size()):
            found = empty_in_file(like, self._store.folder)
        return super().new_vector(like) if found is None else found

    def _exceeds(self, more: int) -> bool:
        """Whether the states of the round, with some more bytes, exceed the memory."""
        with self._counting:
            self._held_bytes += more
            return self._held_bytes > self._memory

    def put(self, client: Hashable, keep: Keep) -> None:
        super().put(client, keep)
        self._prefetched.pop(client, None)
        self._seen.add(client)

    def seen(self) -> Iterable[Hashable]:
        return self._seen

    def restore_seen(self, clients: Iterable[Hashable]) -> None:
        """Note who took part before the run was resumed, if no states in the store say so."""
        if not self.kinds:
            self._seen.update(clients)

    def changed(self) -> dict[Hashable, dict[str, Tensor]]:
        """The states of the round in progress, to be committed."""
        # LMDB forbids to enlarge the map, which a commit may do, while a transaction reads it.
        if self._prefetching is not None:
            wait([self._prefetching])
        # A state without values says only that its client took part, which the records say, too.
        kept = self._kept.items() if self.kinds else ()
        return {client: dict(keep.items()) for client, keep in kept}

    def committed(self) -> None:
        """The round is in the store: cache its states, and drop the oldest beyond the memory."""
        for client, keep in self._kept.items() if self.kinds else ():
            self._drop(client)  # so that the new state comes last
            self._cached[client] = keep
            self._cached_bytes += _bytes(keep)
        self._kept = {}
        self._prefetched = {}
        while self._cached_bytes > self._memory and self._cached:
            self._drop(next(iter(self._cached)))

    def _drop(self, client: Hashable) -> None:
        """Remove a state from the cache, if it is there."""
        before = self._cached.pop(client, None)
        if before is not None:
            self._cached_bytes -= _bytes(before)


def _keeps(
    clients: Sequence[Hashable], states: Mapping[Hashable, Mapping[str, Tensor]]
) -> dict[Hashable, Keep]:
    for client in clients:
        # Starting again from the initial state would give another result without a word.
        require(client in states, f"The store has lost the state of client {client!r}.")
    return {client: Keep(**state) for client, state in states.items()}


NUMBER_BYTES = 8
"""The size of a kept number that is not a tensor."""


def _bytes(keep: Keep) -> int:
    return sum(
        value.numel() * value.element_size() if isinstance(value, Tensor) else NUMBER_BYTES
        for _, value in keep.items()
    )
