"""Who gets which samples: partitions of one data set over many clients.

Label skew and size skew compose: `Dirichlet(0.3, sizes=LogNormal(0.3))`. Every partition is a
function of the labels, the number of clients and the seed, gives a sample to at most one client,
takes bounded time whatever its parameters, and says in its notes what it left unused and what it
did about clients it could not fill.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from undrift.data.sizes import SIZES, Balanced, Sizes, apportion, as_sizes
from undrift.utils.errors import (
    UndriftError,
    require,
    require_choice,
    require_range,
    require_type,
    require_whole,
)
from undrift.utils.keys import generator, plain_id

DRAWS = 65536
"""How many labels are drawn at once: bounds the memory of a partition."""
CELLS = 1 << 22
"""How many shares of classes are looked at at once, for the same reason."""
HOPE = 10
"""With more clients short of samples than this, another draw is very unlikely to fill them all."""


@dataclass(frozen=True)
class Split:
    """The rows of each client, one after another: client k holds rows[bounds[k]:bounds[k + 1]]."""

    rows: np.ndarray
    bounds: np.ndarray
    notes: tuple[str, ...] = ()
    ids: list[Hashable] | None = None
    """the clients' ids, where the data name them"""

    @property
    def sizes(self) -> np.ndarray:
        """n_k, `[N]`"""
        return np.diff(self.bounds)

    def of(self, k: int) -> np.ndarray:
        """The rows of a client."""
        return self.rows[self.bounds[k] : self.bounds[k + 1]]


class Partition(ABC):
    """A rule that gives samples to clients."""

    min_size: int
    """every client gets at least so many samples, or the partition is refused"""

    def split(
        self, labels: Any, clients: int, seed: int = 0, owners: Sequence[Hashable] | None = None
    ) -> Split:
        """Give samples to clients.

        Parameters
        ----------
        labels
            the class of each sample, whole numbers (any targets for `IID` and `Natural`)
        clients
            N
        seed
            keys every draw
        owners
            to whom each sample belongs, where the data say so (`Natural`)
        """
        labels = np.asarray(labels)
        require(labels.ndim > 0, "The labels must be an array with one for each sample.")
        if clients is None:
            raise UndriftError("Say over how many clients the samples are shared out: clients=100.")
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

    @abstractmethod
    def _split(self, labels: np.ndarray, clients: int, seed: int) -> Split:
        """The partition itself, for arguments that are checked."""

    def __str__(self) -> str:
        """As it is called, without what is left at its default."""
        own = fields(self)  # type: ignore[arg-type]
        shown = [repr(getattr(self, f.name)) for f in own if not f.kw_only]
        shown += [
            f"{f.name}={getattr(self, f.name)}"
            for f in own
            if f.kw_only and getattr(self, f.name) != f.default
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass(frozen=True)
class IID(Partition):
    """Samples at random.

    Parameters
    ----------
    sizes
        the size skew; equal sizes by default
    min_size
        every client gets at least so many samples
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

    The sizes are fixed first. Then clients take turns at random: each draws a label from its prior
    among the classes that are not used up, and a sample of it without replacement. A client whose
    prior has nothing left among those classes takes a sample of what is left, and the notes count
    that.

    Parameters
    ----------
    alpha
        α: the smaller, the fewer classes a client has
    sizes
        the size skew; equal sizes by default
    min_size
        every client gets at least so many samples
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
        for start in range(0, len(turns), DRAWS):
            who = turns[start : start + DRAWS]
            drawn[start : start + DRAWS] = found = _in_turn(prior, who, left, rng)
            left = left - np.bincount(found[found >= 0], minlength=len(names))
        none = np.flatnonzero(drawn < 0)  # turns of clients whose classes were used up
        outside = len(none)
        remains = rng.permutation(np.repeat(np.arange(len(names)), left))
        drawn[none] = remains[:outside]
        rows = _samples_of(drawn, place, rng)
        rows = rows[np.argsort(turns, kind="stable")]
        note = (
            f"{outside} of {len(rows)} samples were taken from what was left, because the classes "
            f"of their clients were used up."
        )
        return Split(rows, _bounds(sizes), (note,) if outside else ())


@dataclass(frozen=True)
class DirichletPerClass(Partition):
    """Each class is shared out over the clients by a Dirichlet(α) draw (FedNova: Dir_16(0.1)).

    The sizes follow from the draws. They are repeated, up to `draws` times, until every client has
    `min_size` samples (only while few clients lack any: more draws would not help many). If none
    of them does, the fullest clients of the best draw give what is missing, and the notes say so.

    Parameters
    ----------
    alpha
        α: the smaller, the fewer clients share a class
    capped
        a client that has its share N-th of all samples gets nothing of further classes, as in the
        code of FedNova's authors; its paper has no such rule
    draws
        how often to draw for `min_size` before samples are moved
    min_size
        every client gets at least so many samples; with 0, clients may be empty
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
            if not 0 < short <= HOPE:
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
                f"{fewest} of {clients} clients were left with fewer than min_size="
                f"{self.min_size} samples: {moved} samples were moved to them from the fullest."
            )
        if sizes.min() == 0:
            notes.append(f"{int((sizes == 0).sum())} of {clients} clients have no samples.")
        return Split(rows[order], _bounds(sizes), tuple(notes))

    def _counts(self, left: np.ndarray, clients: int, rng: np.random.Generator) -> np.ndarray:
        """How many samples of each class each client gets, `[C, N]`."""
        counts = np.zeros((len(left), clients), dtype=np.int64)
        for c, samples in enumerate(left):
            shares = rng.dirichlet(np.full(clients, self.alpha))
            if self.capped:
                room = counts.sum(0) < left.sum() / clients
                shares = shares * room if (shares * room).sum() > 0 else room / room.sum()
            ends = np.floor(np.cumsum(shares) / shares.sum() * samples).astype(np.int64)
            counts[c] = np.diff(ends, prepend=0)
            counts[c, shares.argmax()] += samples - ends[-1]  # what rounding may leave
        return counts


@dataclass(frozen=True)
class Classes(Partition):
    """k classes for every client, in disjoint shards (FedAvg-nonIID: two; FedLGA: P).

    Every class goes to as many clients as any other, give or take one. With balanced sizes all
    shards are equal, as large as the scarcest class allows, and the rest stays unused. With other
    sizes each class is shared out whole, in proportion to the sizes of the clients that have it,
    as in FedProx's power-law data.

    Parameters
    ----------
    k
        the number of classes of a client
    sizes
        the size skew; equal sizes by default
    min_size
        every client gets at least so many samples
    """

    k: int = 2
    sizes: Sizes = field(default=Balanced(), kw_only=True)
    min_size: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        require_whole("k", self.k, at_least=1)
        object.__setattr__(self, "sizes", as_sizes(self.sizes))
        require_whole("min_size", self.min_size, at_least=0)

    def _split(self, labels: np.ndarray, clients: int, seed: int) -> Split:
        rng = generator(seed, "partition")
        names, place, left = _classes(labels)
        require(
            self.k <= len(names),
            f"Every client should have {self.k} classes, but there are only {len(names)}.",
        )
        holders = self._holders(len(names), clients, rng)
        if isinstance(self.sizes, Balanced):
            counts = self._shards(holders, left, names)
        else:
            counts = self._shares(holders, left, names, self.sizes.weights(clients, seed))
        who, what = np.repeat(np.arange(clients), self.k), holders.ravel()
        owner = np.repeat(who, counts.ravel())
        drawn = np.repeat(what, counts.ravel())
        rows = _samples_of(drawn, place, rng)
        absent = len(names) - len(np.unique(what))
        note = f"{absent} of {len(names)} classes belong to no client."
        bounds = _bounds(np.bincount(owner, minlength=clients))
        return Split(rows, bounds, (note,) if absent else ())

    def _holders(self, classes: int, clients: int, rng: np.random.Generator) -> np.ndarray:
        """The classes of each client, `[N, k]`: those that are held least often so far.

        Going round all classes before any comes again keeps their numbers of holders within one;
        two orders of the classes meet in a client whose k classes must still differ.
        """
        held = np.empty((clients, self.k), dtype=np.int64)
        waiting: list[int] = []
        for client in range(clients):
            own: list[int] = []
            while len(own) < self.k:
                if not waiting:
                    waiting = rng.permutation(classes).tolist()
                    waiting.sort(key=own.__contains__)  # what the client has comes last
                own.append(waiting.pop(0))
            held[client] = own
        return held

    def _shards(self, holders: np.ndarray, left: np.ndarray, names: np.ndarray) -> np.ndarray:
        """Equal shards, `[N, k]`."""
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
        """Each class shared out whole among its clients in proportion to weights, `[N, k]`."""
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
    """Every client is one of those the data belong to: a writer, a role.

    Parameters
    ----------
    most
        the most samples a client has, drawn at random from its own; None for all of them
    min_size
        who has fewer samples is left out, and the notes count them
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
        """As `Partition.split`; `clients` of the owners are drawn, or None for all of them."""
        if owners is None:
            raise UndriftError(
                "These data do not say whose samples are whose, so there is no natural partition: "
                "use IID, Dirichlet, DirichletPerClass or Classes."
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
        rows = []
        for k in fit:
            own = order[starts[k] : starts[k + 1]]
            if self.most is not None and len(own) > self.most:
                rng = generator(seed, "most", 0, names[k])
                own = np.sort(rng.choice(own, self.most, replace=False))
            rows.append(own)
        chosen = np.concatenate(rows) if rows else np.empty(0, dtype=np.int64)
        bounds = _bounds(np.array([len(own) for own in rows], dtype=np.int64))
        return Split(chosen, bounds, tuple(notes), [names[k] for k in fit])

    def _split(self, labels: np.ndarray, clients: int, seed: int) -> Split:
        raise NotImplementedError  # `split` does it, with the owners


PARTITIONS: dict[str, type[Partition]] = {
    "iid": IID,
    "dirichlet": Dirichlet,
    "dirichlet-per-class": DirichletPerClass,
    "classes": Classes,
    "natural": Natural,
}


def as_partition(value: Partition | str, sizes: str | None = None) -> Partition:
    """A partition, or the words for one: "iid", "dirichlet:0.3", "classes:2", "natural".

    `sizes` are the words for its size skew: "balanced", "balanced:500", "lognormal:0.3",
    "power-law:0.73".
    """
    if isinstance(value, Partition):
        return value
    require_type("partition", value, str, "a partition such as ud.data.Dirichlet(0.3)")
    kind, arguments = _words(value, "partition", PARTITIONS)
    options = {}
    if sizes is not None:
        require(
            any(f.name == "sizes" for f in fields(kind)),  # type: ignore[arg-type]
            f"A partition {value!r} decides the sizes itself, so sizes={sizes!r} means nothing.",
        )
        law, numbers = _words(sizes, "sizes", SIZES)
        options["sizes"] = law(*numbers)
    return kind(*arguments, **options)


def _words(text: str, what: str, known: dict[str, type[Any]]) -> tuple[type[Any], list[Any]]:
    """The class and the number that a word such as "dirichlet:0.3" stands for."""
    word, colon, number = text.partition(":")
    require_choice(what, word, known)
    kind = known[word]
    takes = [f for f in fields(kind) if not f.kw_only]
    require(not colon or bool(takes), f"{what} {word!r} takes no number, but {text!r} gives one.")
    if not colon:
        return kind, []
    try:
        value = float(number)
    except ValueError:
        raise UndriftError(f"{what} {text!r} must give a number after the colon.") from None
    return kind, [int(value) if value.is_integer() and "int" in str(takes[0].type) else value]


def _bounds(sizes: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def _owners(owners: Any) -> tuple[list[Hashable], np.ndarray]:
    """The owners in order, and the place of each sample's owner among them."""
    try:
        given = owners.tolist() if hasattr(owners, "tolist") else list(owners)
    except TypeError:
        raise UndriftError("owners must be a list with the owner of each sample.") from None
    place: dict[Hashable, int] = {}
    first = np.array([place.setdefault(plain_id(each), len(place)) for each in given], np.int64)
    names = sorted(place, key=lambda id: (type(id).__name__, id))
    ordered = np.empty(len(names), dtype=np.int64)
    ordered[[place[name] for name in names]] = np.arange(len(names))
    return names, ordered[first]


def _classes(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The classes, each sample's place among them, and how many samples each class has."""
    require(
        labels.ndim == 1 and np.issubdtype(labels.dtype, np.integer),
        "A partition by label needs one whole-number label per sample: use IID for other targets.",
    )
    return np.unique(labels, return_inverse=True, return_counts=True)


def _samples_of(drawn: np.ndarray, place: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A sample for each drawn class, without replacement: the samples of a class are shuffled."""
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
    """The class each turn gets: drawn from its client's prior among those not used up by then.

    All turns draw at once. A class with more takers than samples keeps the earliest turns, and the
    others draw again among the classes that are open to them; that a turn's draw was not one of the
    closed classes is what its prior over the open ones says. Gives −1 where that has no mass.
    """
    chosen = np.full(len(who), -1)
    closes = np.where(left > 0, len(who), 0)  # the turn from which a class is used up
    waiting = np.arange(len(who))
    while len(waiting):
        chosen[waiting] = _draws(prior, who, waiting, closes, rng)
        taken = np.flatnonzero(chosen >= 0)
        order = taken[np.argsort(chosen[taken], kind="stable")]  # by class, then by turn
        counts = np.bincount(chosen[taken], minlength=len(left))
        starts = np.cumsum(counts) - counts
        rank = np.arange(len(order)) - np.repeat(starts, counts)
        waiting = order[rank >= left[chosen[order]]]
        full = np.flatnonzero(counts >= np.maximum(left, 1))
        closes[full] = order[starts[full] + left[full] - 1] + 1
    return chosen


def _draws(
    prior: np.ndarray,
    who: np.ndarray,
    turns: np.ndarray,
    closes: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """A class for each of some turns, from its client's prior over the classes open to it."""
    found = np.empty(len(turns), dtype=np.int64)
    step = max(1, CELLS // prior.shape[1])
    for first in range(0, len(turns), step):
        some = turns[first : first + step]
        cumulative = np.cumsum(prior[who[some]] * (some[:, None] < closes), axis=1)
        uniform = rng.random(len(some)) * cumulative[:, -1]
        place = (cumulative <= uniform[:, None]).sum(1)
        # A product may be rounded up to the whole mass: then it is the last class that has any.
        place = np.minimum(place, (cumulative < cumulative[:, -1:]).sum(1))
        found[first : first + step] = np.where(cumulative[:, -1] > 0, place, -1)
    return found


def _fill(owner: np.ndarray, clients: int, min_size: int, rng: np.random.Generator) -> int:
    """Move samples from the fullest clients to those with fewer than `min_size`, in `owner`.

    The fullest come down to a common level. Gives how many samples moved.
    """
    sizes = np.bincount(owner, minlength=clients)
    missing = np.maximum(min_size - sizes, 0)
    total = int(missing.sum())
    if not total:
        return 0
    low, level = min_size, int(sizes.max())
    while low < level:  # the highest level at which the surplus is enough
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
