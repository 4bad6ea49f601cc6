"""Partitions: rules that share the samples of one data set out over clients.

Label skew and size skew can be combined: `Dirichlet(0.3, sizes=LogNormal(0.3))`. A partition is a
function of the labels, the number of clients and the seed. It gives a sample to at most one client,
takes bounded time for any parameters, and reports in its notes which samples stay unused and how
clients with too few samples were filled.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np

from undrift.data.sizes import SIZES, Balanced, Sizes, apportion, as_sizes
from undrift.utils.errors import (
    UndriftError,
    first_line,
    require,
    require_choice,
    require_range,
    require_type,
    require_whole,
)
from undrift.utils.keys import generator, generators, plain_id

BLOCK_SAMPLES = 65536
"""Number of samples that get a label at once; it bounds the memory of a partition."""
BLOCK_CELLS = 1 << 22
"""Number of (sample, class) probabilities in memory at once."""
MAX_UNFILLED_CLIENTS = 10
"""If more clients than this lack samples, drawing again is very unlikely to fill them all."""


@dataclass(frozen=True)
class Split:
    """The result of a partition: client k gets the samples `rows[bounds[k]:bounds[k + 1]]`."""

    rows: np.ndarray
    bounds: np.ndarray
    notes: tuple[str, ...] = ()
    ids: list[Hashable] | None = None
    """the clients' ids, if the data name their owners"""

    @property
    def sizes(self) -> np.ndarray:
        """Number of samples of each client, n_k, `[N]`."""
        return np.diff(self.bounds)

    def of(self, k: int) -> np.ndarray:
        """Sample numbers of client k."""
        return self.rows[self.bounds[k] : self.bounds[k + 1]]


class Partition:
    """A rule that shares samples out over clients; the base class of your own partitions.

    A subclass implements `assign(targets, clients, rng)`, which returns one array of sample numbers
    per client. Everything else is inherited: `split` checks the arguments and the result. Draw
    random numbers from `rng` only, so that the partition is a function of the seed:

        class ByLabelOrder(ud.data.Partition):
            def assign(self, targets, clients, rng):
                order = rng.permutation(len(targets))
                by_label = order[np.argsort(targets[order], kind="stable")]
                return np.array_split(by_label, clients)

        data = ud.data.mnist(ByLabelOrder(), clients=100)

    A function with the parameters (targets, clients, rng) may be used instead of such a class.
    """

    min_size: int = 1
    """smallest number of samples of a client; with 0, clients may be empty"""

    def assign(
        self, targets: np.ndarray, clients: int, rng: np.random.Generator
    ) -> Sequence[np.ndarray]:
        """The sample numbers of each client: the method that a subclass implements.

        Parameters
        ----------
        targets
            the target of each sample, `[n]` or `[n, …]`
        clients
            number of clients, N
        rng
            a generator that depends on the seed

        Returns
        -------
        N arrays of sample numbers 0 … n − 1. No sample may occur twice; some may stay unused. Every
        array has at least `min_size` entries; if that is 0, clients without samples are left out of
        the data.
        """
        raise UndriftError(
            f"{type(self).__name__} must implement assign(self, targets, clients, rng)."
        )

    def split(
        self, labels: Any, clients: int, seed: int = 0, owners: Sequence[Hashable] | None = None
    ) -> Split:
        """Share samples out over clients.

        Parameters
        ----------
        labels
            the class number of each sample; `IID` and `Natural` accept any targets
        clients
            number of clients, N
        seed
            seed of all random choices
        owners
            the owner of each sample, which only `Natural` uses
        """
        labels = np.asarray(labels)
        require(labels.ndim > 0, "The labels must be an array with one entry per sample.")
        if clients is None:
            raise UndriftError("A partition needs the number of clients, such as clients=100.")
        clients = require_whole("clients", clients, at_least=1)
        require_whole("seed", seed, at_least=0)
        require(
            clients * self.min_size <= len(labels),
            f"{clients} clients with at least {self.min_size} samples each need "
            f"{clients * self.min_size} samples, but there are {len(labels)}.",
        )
        split = self._split(labels, clients, seed)
        unused = len(labels) - len(split.rows)
        if unused:
            note = f"{unused} of {len(labels)} samples stay unused by {self}."
            return Split(split.rows, split.bounds, (*split.notes, note), split.ids)
        return split

    def _split(self, labels: np.ndarray, clients: int, seed: int) -> Split:
        """The partition for checked arguments.

        The built-in partitions override this method instead of `assign`, because they need the
        seed itself (sizes have their own random numbers) and add notes.
        """
        try:
            assigned = self.assign(labels, clients, generator(seed, "partition"))
        except UndriftError:
            raise
        except Exception as error:
            raise UndriftError(f"The partition {self} fails: {first_line(error)}.") from error
        return _checked_split(assigned, len(labels), clients, self)

    def __str__(self) -> str:
        """The call that makes this partition, without arguments left at their defaults."""
        if not is_dataclass(self):
            return f"{type(self).__name__}()"
        own = fields(self)
        shown = [repr(getattr(self, f.name)) for f in own if not f.kw_only]
        shown += [
            f"{f.name}={getattr(self, f.name)}"
            for f in own
            if f.kw_only and getattr(self, f.name) != f.default
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


Assign = Callable[[np.ndarray, int, np.random.Generator], Sequence[np.ndarray]]
"""A function that stands for a partition: `Partition.assign` without `self`."""


@dataclass(frozen=True)
class FunctionPartition(Partition):
    """A partition made of a function (targets, clients, rng) → sample numbers of each client."""

    function: Assign

    def assign(
        self, targets: np.ndarray, clients: int, rng: np.random.Generator
    ) -> Sequence[np.ndarray]:
        return self.function(targets, clients, rng)

    def __str__(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)


@dataclass(frozen=True)
class IID(Partition):
    """Every client gets samples at random.

    Parameters
    ----------
    sizes
        the size skew; equal sizes by default
    min_size
        smallest number of samples of a client
    """

    sizes: Sizes = field(default=Balanced(), kw_only=True)
    min_size: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", as_sizes(self.sizes))
        require_whole("min_size", self.min_size, at_least=0)

    def _split(self, labels: np.ndarray, clients: int, seed: int) -> Split:
        sizes = self.sizes.numbers(len(labels), clients, seed, self.min_size)
        rows = generator(seed, "partition").permutation(len(labels))[: sizes.sum()]
        return Split(rows, _bounds(sizes))


@dataclass(frozen=True)
class Dirichlet(Partition):
    """A Dirichlet(α) prior over the classes for each client, with exact sizes (FedDyn, App. A.2).

    The sizes are fixed first. Then clients take turns in random order: each draws a label from its
    prior, restricted to classes that still have samples, and takes a sample of that class. If the
    prior of a client has no mass on these classes, it takes one of the remaining samples at random;
    the notes count such samples.

    Parameters
    ----------
    alpha
        α: the smaller, the fewer classes a client has
    sizes
        the size skew; equal sizes by default
    min_size
        smallest number of samples of a client
    """

    alpha: float = 0.3
    sizes: Sizes = field(default=Balanced(), kw_only=True)
    min_size: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        require_range("alpha", self.alpha, above=0, at_most=1e6)
        object.__setattr__(self, "sizes", as_sizes(self.sizes))
        require_whole("min_size", self.min_size, at_least=0)

    def _split(self, labels: np.ndarray, clients: int, seed: int) -> Split:
        rng = generator(seed, "partition")
        names, place, left = _classes(labels)
        sizes = self.sizes.numbers(len(labels), clients, seed, self.min_size)
        prior = rng.dirichlet(np.full(len(names), self.alpha), clients)
        turns = rng.permutation(np.repeat(np.arange(clients), sizes))
        drawn = np.empty(len(turns), dtype=np.int64)
        for start in range(0, len(turns), BLOCK_SAMPLES):
            who = turns[start : start + BLOCK_SAMPLES]
            drawn[start : start + BLOCK_SAMPLES] = found = _in_turn(prior, who, left, rng)
            left = left - np.bincount(found[found >= 0], minlength=len(names))
        none = np.flatnonzero(drawn < 0)  # turns of clients whose classes had no samples left
        outside = len(none)
        remains = rng.permutation(np.repeat(np.arange(len(names)), left))
        drawn[none] = remains[:outside]
        rows = _samples_of(drawn, place, rng)
        rows = rows[np.argsort(turns, kind="stable")]
        note = (
            f"{outside} of {len(rows)} samples were taken from the remaining ones, because the "
            f"classes of their clients had no samples left."
        )
        return Split(rows, _bounds(sizes), (note,) if outside else ())


@dataclass(frozen=True)
class DirichletPerClass(Partition):
    """Each class is shared out over the clients in Dirichlet(α) shares (FedNova: Dir_16(0.1)).

    The sizes follow from the shares. Shares are drawn up to `draws` times, until every client has
    `min_size` samples; drawing stops early if many clients lack samples, because it would not help.
    If no draw fills all clients, the best one is taken, samples move from the largest clients to
    those below `min_size`, and the notes say so.

    Parameters
    ----------
    alpha
        α: the smaller, the fewer clients share a class
    capped
        whether a client that has 1/N of all samples gets nothing of further classes, as in the code
        of FedNova's authors; the paper has no such rule
    draws
        how many times to draw the shares before samples are moved to reach `min_size`
    min_size
        smallest number of samples of a client; with 0, clients may be empty
    """

    alpha: float = 0.1
    capped: bool = field(default=False, kw_only=True)
    draws: int = field(default=20, kw_only=True)
    min_size: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        require_range("alpha", self.alpha, above=0, at_most=1e6)
        require_whole("draws", self.draws, at_least=1)
        require_whole("min_size", self.min_size, at_least=0)

    def _split(self, labels: np.ndarray, clients: int, seed: int) -> Split:
        names, place, left = _classes(labels)
        best, fewest = None, clients + 1
        for draw in range(self.draws):
            rng = generator(seed, "partition", draw)
            counts = self._counts(left, clients, rng)
            short = int((counts.sum(0) < self.min_size).sum())
            if short < fewest:
                best, fewest = counts, short
            if not 0 < short <= MAX_UNFILLED_CLIENTS:
                break
        assert best is not None
        owner = np.concatenate([np.repeat(np.arange(clients), row) for row in best])
        drawn = np.repeat(np.arange(len(names)), left)
        rows = _samples_of(drawn, place, rng)
        moved = _fill(owner, clients, self.min_size, rng)
        order = np.argsort(owner, kind="stable")
        sizes = np.bincount(owner, minlength=clients)
        notes = []
        if moved:
            notes.append(
                f"{fewest} of {clients} clients had fewer than min_size={self.min_size} samples: "
                f"{moved} samples were moved to them from the largest clients."
            )
        if sizes.min() == 0:
            notes.append(f"{int((sizes == 0).sum())} of {clients} clients have no samples.")
        return Split(rows[order], _bounds(sizes), tuple(notes))

    def _counts(self, left: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
        """The number of samples of each class that each client gets, `[C, N]`."""
        counts = np.zeros((len(left), clients), dtype=np.int64)
        for c, samples in enumerate(left):
            shares = rng.dirichlet(np.full(clients, self.alpha))
            if self.capped:
                room = counts.sum(0) < left.sum() / clients
                shares = shares * room if (shares * room).sum() > 0 else room / room.sum()
            ends = np.floor(np.cumsum(shares) / shares.sum() * samples).astype(np.int64)
            counts[c] = np.diff(ends, prepend=0)
            counts[c, shares.argmax()] += samples - ends[-1]  # the rest of rounding
        return counts


@dataclass(frozen=True)
class Classes(Partition):
    """Every client gets samples of k classes, in disjoint shards (FedAvg-nonIID: two; FedLGA: P).

    The numbers of clients per class differ by at most one. With balanced sizes all shards are
    equal, as large as the scarcest class allows, and the remaining samples stay unused. With other
    sizes all samples of a class are shared out over its clients in proportion to their sizes, as
    in FedProx's power-law data.

    Parameters
    ----------
    k
        number of classes per client
    sizes
        the size skew; equal sizes by default
    cyclic
        whether client i gets class i mod C and k − 1 others at random, as in NIID-Bench; the
        numbers of clients per class then vary, and all clients of a class get equal shares of it
    min_size
        smallest number of samples of a client
    """

    k: int = 2
    sizes: Sizes = field(default=Balanced(), kw_only=True)
    cyclic: bool = field(default=False, kw_only=True)
    min_size: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        require_whole("k", self.k, at_least=1)
        object.__setattr__(self, "sizes", as_sizes(self.sizes))
        require_whole("min_size", self.min_size, at_least=0)
        require(
            not self.cyclic or self.sizes == Balanced(),
            "With cyclic classes all clients of a class get equal shares: leave sizes out.",
        )

    def _split(self, labels: np.ndarray, clients: int, seed: int) -> Split:
        rng = generator(seed, "partition")
        names, place, left = _classes(labels)
        require(
            self.k <= len(names),
            f"Every client should get {self.k} classes, but there are only {len(names)}.",
        )
        draw = self._cyclic_holders if self.cyclic else self._holders
        holders = draw(len(names), clients, rng)
        if self.cyclic:
            counts = self._shares(holders, left, names, np.ones(clients))
        elif isinstance(self.sizes, Balanced):
            counts = self._shards(holders, left, names)
        else:
            counts = self._shares(holders, left, names, self.sizes.weights(clients, seed))
        who, what = np.repeat(np.arange(clients), self.k), holders.ravel()
        owner = np.repeat(who, counts.ravel())
        drawn = np.repeat(what, counts.ravel())
        rows = _samples_of(drawn, place, rng)
        absent = len(names) - len(np.unique(what))
        note = f"{absent} of {len(names)} classes are given to no client."
        bounds = _bounds(np.bincount(owner, minlength=clients))
        return Split(rows, bounds, (note,) if absent else ())

    def _holders(self, classes: int, clients: int, rng: np.random.Generator) -> np.ndarray:
        """The classes of each client, `[N, k]`.

        Classes are dealt out in random permutations, one after another, so their numbers of clients
        differ by at most one. A client may get the end of one permutation and the beginning of
        the next; as its k classes must differ, those it has move to the end of the new permutation.
        """
        held = np.empty((clients, self.k), dtype=np.int64)
        waiting: list[int] = []
        for client in range(clients):
            own: list[int] = []
            while len(own) < self.k:
                if not waiting:
                    waiting = rng.permutation(classes).tolist()
                    waiting.sort(key=own.__contains__)  # classes that the client has come last
                own.append(waiting.pop(0))
            held[client] = own
        return held

    def _cyclic_holders(self, classes: int, clients: int, rng: np.random.Generator) -> np.ndarray:
        """The classes of each client, `[N, k]`: its own, and others drawn at random."""
        own = np.arange(clients) % classes
        held = np.empty((clients, self.k), dtype=np.int64)
        for first in range(0, clients, BLOCK_SAMPLES):
            some = own[first : first + BLOCK_SAMPLES]
            others = np.arange(classes - 1) + (np.arange(classes - 1) >= some[:, None])
            others = rng.permuted(others, axis=1)
            held[first : first + BLOCK_SAMPLES, 0] = some
            held[first : first + BLOCK_SAMPLES, 1:] = others[:, : self.k - 1]
        return held

    def _shards(self, holders: np.ndarray, left: np.ndarray, names: np.ndarray) -> np.ndarray:
        """The size of each client's shard of each of its classes, all equal, `[N, k]`."""
        times = np.bincount(holders.ravel(), minlength=len(left))
        shards = np.where(times > 0, left // np.maximum(times, 1), left.max())
        scarcest = int(shards.argmin())
        size = int(shards[scarcest])
        wanted = self.sizes.samples if isinstance(self.sizes, Balanced) else None
        require(
            wanted is None or wanted >= max(self.k, self.min_size),
            f"Clients of {wanted} samples cannot have {self.k} classes and at least "
            f"{self.min_size} samples.",
        )
        each = -(-max(1, self.min_size) // self.k) if wanted is None else -(-wanted // self.k)
        require(
            size >= each,
            f"Class {names[scarcest]} has {left[scarcest]} samples for {times[scarcest]} clients, "
            f"but each needs {each} of them.",
        )
        if wanted is None:
            return np.full(holders.shape, size)
        counts = np.full(holders.shape, wanted // self.k)
        counts[:, : wanted % self.k] += 1
        return counts

    def _shares(
        self, holders: np.ndarray, left: np.ndarray, names: np.ndarray, weights: np.ndarray
    ) -> np.ndarray:
        """The number of samples of each class per client, in proportion to weights, `[N, k]`."""
        each = -(-max(1, self.min_size) // self.k)
        counts = np.zeros(holders.shape, dtype=np.int64)
        for c, samples in enumerate(left):
            mine = holders == c
            if not mine.any():
                continue
            require(
                each * mine.sum() <= samples,
                f"Class {names[c]} has {samples} samples for {mine.sum()} clients, but each needs "
                f"{each} of them.",
            )
            counts[mine] = apportion(weights[np.nonzero(mine)[0]], int(samples), each)
        return counts


@dataclass(frozen=True)
class Natural(Partition):
    """Every client is one owner of samples in the data, such as a writer or a role.

    Parameters
    ----------
    most
        largest number of samples of a client, chosen at random from its own; None for all of them
    min_size
        owners with fewer samples are left out, and the notes count them
    """

    most: int | None = field(default=None, kw_only=True)
    min_size: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        require_whole("min_size", self.min_size, at_least=0)
        if self.most is not None:
            require_whole("most", self.most, at_least=max(1, self.min_size))

    def split(
        self,
        labels: Any,
        clients: int | None,
        seed: int = 0,
        owners: Sequence[Hashable] | None = None,
    ) -> Split:
        """Like `Partition.split`; `clients` owners are chosen at random, or all if it is None."""
        if owners is None:
            raise UndriftError(
                "These data do not name the owner of each sample, so there is no natural "
                "partition: use IID, Dirichlet, DirichletPerClass or Classes."
            )
        require_whole("seed", seed, at_least=0)
        names, owner = _owners(owners)
        require(
            len(owner) == len(labels), f"{len(owner)} owners are given for {len(labels)} samples."
        )
        sizes = np.bincount(owner, minlength=len(names))
        fit = np.flatnonzero(sizes >= max(1, self.min_size))
        notes = []
        if len(fit) < len(names):
            notes.append(
                f"{len(names) - len(fit)} of {len(names)} owners with fewer than "
                f"{max(1, self.min_size)} samples are left out."
            )
        if clients is not None:
            clients = require_whole("clients", clients, at_least=1)
            require(
                clients <= len(fit),
                f"There are {len(fit)} owners with at least {max(1, self.min_size)} samples, but "
                f"clients is {clients}.",
            )
            fit = np.sort(generator(seed, "owners").permutation(fit)[:clients])
        order = np.argsort(owner, kind="stable")
        starts = np.concatenate([[0], np.cumsum(sizes)])
        kept = np.zeros(len(names), dtype=bool)
        kept[fit] = True
        used = np.repeat(kept, sizes)
        if self.most is not None:
            large = fit[sizes[fit] > self.most].tolist()
            several = generators(seed, "most", 0, (names[k] for k in large))
            for k, rng in zip(large, several, strict=True):
                used[starts[k] : starts[k + 1]] = False
                used[starts[k] + rng.choice(int(sizes[k]), self.most, replace=False)] = True
            sizes = np.minimum(sizes, self.most)
        return Split(order[used], _bounds(sizes[fit]), tuple(notes), [names[k] for k in fit])


PARTITIONS: dict[str, type[Partition]] = {
    "iid": IID,
    "dirichlet": Dirichlet,
    "dirichlet-per-class": DirichletPerClass,
    "classes": Classes,
    "natural": Natural,
}


def as_partition(value: Partition | Assign | str, sizes: str | None = None) -> Partition:
    """A partition from a partition, a function (see `Partition`) or a text.

    Parameters
    ----------
    value
        a partition, a function (targets, clients, rng), or one of "iid", "dirichlet:0.3",
        "dirichlet-per-class:0.1", "classes:2" and "natural"
    sizes
        the size skew of a partition given as text: "balanced", "balanced:500", "lognormal:0.3",
        "power-law:0.73" or "dirichlet:0.5"
    """
    if isinstance(value, Partition):
        return value
    if callable(value) and not isinstance(value, type):
        return FunctionPartition(value)
    require_type("partition", value, (str, Partition), "a partition such as Dirichlet(0.3)")
    assert isinstance(value, str)
    kind, arguments = _parsed(value, "partition", PARTITIONS)
    options = {}
    if sizes is not None:
        require(
            any(f.name == "sizes" for f in fields(kind)),  # type: ignore[arg-type]
            f"The partition {value!r} determines the sizes itself: leave sizes={sizes!r} out.",
        )
        law, numbers = _parsed(sizes, "sizes", SIZES)
        options["sizes"] = law(*numbers)
    return kind(*arguments, **options)


def _parsed(text: str, what: str, known: dict[str, type[Any]]) -> tuple[type[Any], list[Any]]:
    """The class and its argument that a text such as "dirichlet:0.3" stands for."""
    word, colon, number = text.partition(":")
    require_choice(what, word, known)
    kind = known[word]
    takes = [f for f in fields(kind) if not f.kw_only]
    require(not colon or bool(takes), f"{what} {word!r} takes no number, but {text!r} has one.")
    if not colon:
        return kind, []
    try:
        value = float(number)
    except ValueError:
        raise UndriftError(f"{what} {text!r} must have a number after the colon.") from None
    return kind, [int(value) if value.is_integer() and "int" in str(takes[0].type) else value]


def _checked_split(assigned: Any, samples: int, clients: int, partition: Partition) -> Split:
    """The result of `assign` as a split, after a check that it is a valid partition."""
    rule = f"The partition {partition}"
    wanted = f"{rule} must return {clients} arrays of sample numbers, one per client"
    try:
        rows = [np.asarray(own) for own in assigned]
    except (TypeError, ValueError):
        raise UndriftError(f"{wanted}, but returned {type(assigned).__name__}.") from None
    require(len(rows) == clients, f"{wanted}, but returned {len(rows)}.")
    for k, own in enumerate(rows):
        require(
            own.ndim == 1 and (own.dtype.kind in "iu" or own.size == 0),
            f"{wanted}, but that of client {k} has shape {list(own.shape)} and type {own.dtype}.",
        )
        require(
            own.size == 0 or (own.min() >= 0 and own.max() < samples),
            f"{rule} gives client {k} a sample number outside 0 … {samples - 1}.",
        )
        require(
            len(own) >= partition.min_size,
            f"{rule} gives client {k} {len(own)} samples, but min_size is {partition.min_size}.",
        )
    joined = np.concatenate(rows).astype(np.int64)
    numbers, times = np.unique(joined, return_counts=True)
    require(
        len(numbers) == len(joined),
        f"{rule} gives sample {numbers[times.argmax()] if len(numbers) else 0} to more than one "
        f"client.",
    )
    return Split(joined, _bounds(np.array([len(own) for own in rows])))


def _bounds(sizes: np.ndarray) -> np.ndarray:
    """0 and the cumulative sums of sizes: where each client's rows begin and end."""
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def _owners(owners: Any) -> tuple[list[Hashable], np.ndarray]:
    """The distinct owners in order, and the index of each sample's owner among them."""
    try:
        given = owners.tolist() if hasattr(owners, "tolist") else list(owners)
    except TypeError:
        raise UndriftError("owners must be a list with the owner of each sample.") from None
    if set(map(type, given)) == {int}:
        try:
            whole = np.array(given, dtype=np.int64)
        except OverflowError:  # an owner's number has more than 64 bits
            pass
        else:
            numbers, owner = np.unique(whole, return_inverse=True)
            return numbers.tolist(), owner
    place: dict[Hashable, int] = {}
    first = np.array([place.setdefault(plain_id(each), len(place)) for each in given], np.int64)
    names = sorted(place, key=lambda id: (type(id).__name__, id))
    ordered = np.empty(len(names), dtype=np.int64)
    ordered[[place[name] for name in names]] = np.arange(len(names))
    return names, ordered[first]


def _classes(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The distinct labels, the index of each sample's label among them, and each one's count."""
    require(
        labels.ndim == 1 and np.issubdtype(labels.dtype, np.integer),
        "A partition by label needs one whole number per sample: use IID for other targets.",
    )
    return np.unique(labels, return_inverse=True, return_counts=True)


def _samples_of(drawn: np.ndarray, place: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A random sample of each drawn class, without replacement."""
    shuffled = rng.permutation(len(place))
    by_class = shuffled[np.argsort(place[shuffled], kind="stable")]
    starts = np.concatenate([[0], np.cumsum(np.bincount(place))])
    order = np.argsort(drawn, kind="stable")
    counts = np.bincount(drawn, minlength=len(starts) - 1)
    which = np.arange(len(drawn)) - np.repeat(np.cumsum(counts) - counts, counts)
    rows = np.empty(len(drawn), dtype=np.int64)
    rows[order] = by_class[starts[drawn[order]] + which]
    return rows


def _in_turn(
    prior: np.ndarray, who: np.ndarray, left: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """The class of each turn, from its client's prior over the classes that have samples left then.

    This is the sequential procedure, vectorised. All turns draw at once. If more turns draw a class
    than it has samples, the earliest turns get them and the class closes after the last of these;
    later turns draw again from their prior over the classes open to them. The distribution is the
    same, because a draw conditioned on not being a closed class is a draw from that restricted
    prior. The class is −1 where the restricted prior has no mass.
    """
    chosen = np.full(len(who), -1)
    closes = np.where(left > 0, len(who), 0)  # the first turn at which a class has no samples left
    waiting = np.arange(len(who))
    while len(waiting):
        chosen[waiting] = _drawn_classes(prior, who, waiting, closes, rng)
        taken = np.flatnonzero(chosen >= 0)
        order = taken[np.argsort(chosen[taken], kind="stable")]  # by class, then by turn
        counts = np.bincount(chosen[taken], minlength=len(left))
        starts = np.cumsum(counts) - counts
        rank = np.arange(len(order)) - np.repeat(starts, counts)
        waiting = order[rank >= left[chosen[order]]]
        full = np.flatnonzero(counts >= np.maximum(left, 1))
        closes[full] = order[starts[full] + left[full] - 1] + 1
    return chosen


def _drawn_classes(
    prior: np.ndarray,
    who: np.ndarray,
    turns: np.ndarray,
    closes: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """A class for each of some turns, from its client's prior over the classes open then."""
    found = np.empty(len(turns), dtype=np.int64)
    step = max(1, BLOCK_CELLS // prior.shape[1])
    for first in range(0, len(turns), step):
        some = turns[first : first + step]
        cumulative = np.cumsum(prior[who[some]] * (some[:, None] < closes), axis=1)
        uniform = rng.random(len(some)) * cumulative[:, -1]
        place = (cumulative <= uniform[:, None]).sum(1)
        # The product may round up to the total mass; then take the last class with any mass.
        place = np.minimum(place, (cumulative < cumulative[:, -1:]).sum(1))
        found[first : first + step] = np.where(cumulative[:, -1] > 0, place, -1)
    return found


def _fill(owner: np.ndarray, clients: int, min_size: int, rng: np.random.Generator) -> int:
    """Move samples from the largest clients to those with fewer than `min_size`, in `owner`.

    The largest clients come down to a common size. Returns the number of samples moved.
    """
    sizes = np.bincount(owner, minlength=clients)
    missing = np.maximum(min_size - sizes, 0)
    total = int(missing.sum())
    if not total:
        return 0
    low, level = min_size, int(sizes.max())
    while low < level:  # bisection for the largest size at which the surplus suffices
        middle = (low + level + 1) // 2
        if np.maximum(sizes - middle, 0).sum() >= total:
            low = middle
        else:
            level = middle - 1
    surplus = np.maximum(sizes - level, 0)
    shuffled = rng.permutation(len(owner))
    by_owner = shuffled[np.argsort(owner[shuffled], kind="stable")]
    rank = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    given = by_owner[rank < surplus[owner[by_owner]]]
    given = rng.permutation(given)[:total]
    owner[given] = np.repeat(np.arange(clients), missing)
    return total
