"""Shakespeare by role: 80 characters in, the next character out."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from undrift.data.downloads import StandardFile, chosen_folder, fetch
from undrift.data.federated import FederatedData, federated
from undrift.data.formats import contents, read_leaf, read_speeches
from undrift.data.part import Part
from undrift.data.partitions import Natural, Partition, Split, as_partition
from undrift.data.prepared import Tables, prepared
from undrift.data.sources.femnist import part_of
from undrift.utils.errors import UndriftError, first_line, require, require_whole
from undrift.utils.keys import generator

ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's 80 characters; any other counts as the last of them, as in LEAF's code."""
LENGTH = 80
TRAINED = 0.8
"""the share of a role's text, from its beginning, that is for training"""
PER_TEST = 5
"""training points for each test point"""
TEXT = StandardFile(
    "shakespeare/input.txt",
    ("https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",),
    "sha256:86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
    1115394,
)


def shakespeare(
    partition: Partition | str | None = None,
    clients: int | None = 100,
    seed: int = 0,
    *,
    most: int | None = 2000,
    folder: str | Path | None = None,
    verify: bool = True,
) -> FederatedData:
    """Shakespeare's plays by role, as FedDyn takes them from LEAF: predict the next character.

    A point is 80 characters of a role's text and the one that follows; the first four fifths of a
    text are for training, the rest for test. Inputs are windows on one long tensor, not copies.
    The text is found in the folder `shakespeare`, in the first of these forms: LEAF's
    `train/*.json` and `test/*.json`; `plays_by_role.json` ({"play / role": [speech, …]}, also
    .json.gz); `*.txt` with speakers, such as Project Gutenberg's complete works. Otherwise the
    1.1 MB of "Tiny Shakespeare" are downloaded.

    Parameters
    ----------
    partition
        `Natural()` without one: every client is a role; another one, such as `IID()`, shares out
        points of all roles, and the test part is common
    clients
        their number, drawn from the roles that have `most` points, if these are enough; None for
        all roles
    seed
        keys every draw
    most
        the most training points of a client, a random stretch of its text, with a fifth as many
        for test; None for all
    folder
        the folder that has `shakespeare`; without it, `UNDRIFT_DATA` or the user's cache
    verify
        whether a text that was downloaded must have its published checksum
    """
    rule = as_partition(Natural() if partition is None else partition)
    require(
        not isinstance(rule, Natural) or rule == Natural(),
        f"shakespeare takes {rule} without options of its own: `most` is one of shakespeare's.",
    )
    require_whole("seed", seed, at_least=0)
    if most is not None:
        require_whole("most", most, at_least=PER_TEST)
    root = chosen_folder(folder) / "shakespeare"
    if (root / "train").is_dir():
        return _of_leaf(root, rule, clients, seed, most)
    texts = _texts(root, verify)
    x, y, first, train, test = _points(texts)
    require(bool((train > 0).any()), f"No role in {root} says more than {LENGTH} characters.")
    if isinstance(rule, Natural):
        return _by_role(list(texts), x, y, first, train, test, clients, seed, most)
    gap = LENGTH - 1
    pool = _ranges(first, train)
    tests = _ranges(first + train + gap, test)
    return _pooled(x, y, pool, tests, rule, clients, seed, most)


def _by_role(
    roles: list[str],
    x: Tensor,
    y: Tensor,
    first: np.ndarray,
    train: np.ndarray,
    test: np.ndarray,
    clients: int | None,
    seed: int,
    most: int | None,
) -> FederatedData:
    """A role per client, with a stretch of its text."""
    chosen, notes = _chosen(train, test, clients, seed, most)
    rows: dict[str, list[np.ndarray]] = {"train": [], "test": []}
    for k in chosen:
        rng = generator(seed, "crop", 0, roles[k])
        starts = {"train": first[k], "test": first[k] + train[k] + LENGTH - 1}
        counts = {"train": train[k], "test": test[k]}
        limits = {"train": most, "test": None if most is None else most // PER_TEST}
        for name, limit in limits.items():
            have = int(counts[name])
            take = have if limit is None else min(have, limit)
            start = int(starts[name] + rng.integers(0, have - take + 1))
            rows[name].append(np.arange(start, start + take))
    own, others = (_part(x, y, rows[name]) for name in ("train", "test"))
    ids = [roles[k] for k in chosen]
    return FederatedData(own, others, ids, "shakespeare", classes=list(ALPHABET), notes=notes)


def _chosen(
    train: np.ndarray, test: np.ndarray, clients: int | None, seed: int, most: int | None
) -> tuple[np.ndarray, list[str]]:
    """The roles that become clients."""
    speak = np.flatnonzero(train > 0)
    if clients is None:
        left = len(train) - len(speak)
        note = f"{left} of {len(train)} roles say at most {LENGTH} characters and are left out."
        return speak, [note] if left else []
    clients = require_whole("clients", clients, at_least=1)
    require(
        clients <= len(speak),
        f"There are {len(speak)} roles with more than {LENGTH} characters, but clients is "
        f"{clients}.",
    )
    enough = speak
    if most is not None:
        enough = speak[(train[speak] >= most) & (test[speak] >= most // PER_TEST)]
    if len(enough) >= clients:
        return np.sort(generator(seed, "roles").permutation(enough)[:clients]), []
    longest = speak[np.argsort(-train[speak], kind="stable")][:clients]
    note = (
        f"Only {len(enough)} roles have {most} points for training and a fifth as many for test: "
        f"the {clients} longest are taken, and some have fewer."
    )
    return np.sort(longest), [note]


def _pooled(
    x: Tensor,
    y: Tensor,
    pool: np.ndarray,
    tests: np.ndarray,
    rule: Partition,
    clients: int | None,
    seed: int,
    most: int | None,
) -> FederatedData:
    """Points of all roles together, shared out by a partition."""
    if most is not None and clients is not None:
        rng = generator(seed, "pool")
        pool = rng.permutation(pool)[: clients * most]
        tests = np.sort(rng.permutation(tests)[: clients * most // PER_TEST])
    split = rule.split(y[torch.from_numpy(pool)], clients, seed)  # type: ignore[arg-type]
    split = Split(pool[split.rows], split.bounds, split.notes)
    common = Part(x, y, torch.from_numpy(tests), None)
    return federated(x, y, split, common, f"shakespeare, {rule}", list(ALPHABET))


def _of_leaf(
    root: Path, rule: Partition, clients: int | None, seed: int, most: int | None
) -> FederatedData:
    """LEAF's own points by role."""
    parts = [sorted((root / name).glob("*.json*")) for name in ("train", "test")]
    require(all(parts), f"{root} has a folder train, so it must have train/*.json and test/*.json.")
    tensors, words = prepared("shakespeare", [*parts[0], *parts[1]], lambda: _read_leaf(*parts))
    roles = words["roles"]
    owners, test_owners = tensors["role"].numpy(), tensors["test_role"].numpy()
    train = np.bincount(owners, minlength=len(roles))
    test = np.bincount(test_owners, minlength=len(roles))
    x, y = tensors["x"].int(), tensors["y"].long()
    test_x, test_y = tensors["test_x"].int(), tensors["test_y"].long()
    if not isinstance(rule, Natural):
        both = torch.cat([x, test_x]), torch.cat([y, test_y])
        rows = np.arange(len(both[1]))
        return _pooled(*both, rows[: len(y)], rows[len(y) :], rule, clients, seed, most)
    chosen, notes = _chosen(train, test, clients, seed, most)
    ids = [roles[k] for k in chosen]
    names = np.array(roles)
    own = _cropped(part_of(ids, names[owners], x, y), most, ids, seed)
    limit = None if most is None else most // PER_TEST
    others = _cropped(part_of(ids, names[test_owners], test_x, test_y), limit, ids, seed)
    return FederatedData(own, others, ids, "shakespeare", classes=list(ALPHABET), notes=notes)


def _cropped(part: Part, most: int | None, ids: list[str], seed: int) -> Part:
    """At most so many points of each client: a random stretch of them."""
    if most is None:
        return part
    rows = []
    for k, id in enumerate(ids):
        own = part.of(k).numpy()
        take = min(most, len(own))
        start = generator(seed, "crop", 0, id).integers(0, len(own) - take + 1)
        rows.append(own[start : start + take])
    return _part(part.x, part.y, rows)


def _part(x: Tensor, y: Tensor, rows: list[np.ndarray]) -> Part:
    bounds = np.cumsum([0] + [len(own) for own in rows])
    return Part(x, y, torch.from_numpy(np.concatenate(rows)), torch.from_numpy(bounds))


def _texts(root: Path, verify: bool) -> dict[str, str]:
    """What each role says, in one line."""
    for name in ("plays_by_role.json", "plays_by_role.json.gz"):
        if (root / name).is_file():
            return _joined(_json(root / name))
    files = sorted(root.glob("*.txt"))
    if not files:
        files = [fetch(TEXT, root.parent)]
    elif files == [root / "input.txt"]:
        fetch(TEXT, root.parent, verify)
    speeches: dict[str, list[str]] = {}
    for file in files:
        text = contents(file).decode("utf-8", errors="replace")
        for role, said in read_speeches(text, str(file)).items():
            speeches.setdefault(role, []).extend(said)
    return _joined(speeches)


def _json(path: Path) -> dict[str, list[str]]:
    try:
        found = json.loads(contents(path))
    except (ValueError, RecursionError) as error:
        if isinstance(error, UndriftError):
            raise
        raise UndriftError(f"{path} is truncated or no JSON: {first_line(error)}.") from error
    require(
        isinstance(found, dict)
        and all(
            isinstance(said, list) and all(isinstance(s, str) for s in said)
            for said in found.values()
        ),
        f'{path} must be of the form {{"play / role": [speech, …]}}.',
    )
    return found


def _joined(speeches: dict[str, list[str]]) -> dict[str, str]:
    return {role: re.sub(r"\s+", " ", " ".join(said)).strip() for role, said in speeches.items()}


def _codes(text: str) -> np.ndarray:
    """The places of characters in the alphabet."""
    table = np.full(128, len(ALPHABET) - 1, dtype=np.int32)
    table[np.frombuffer(ALPHABET.encode(), np.uint8)] = np.arange(len(ALPHABET))
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    return table[np.minimum(points, 127)]


def _points(
    texts: dict[str, str],
) -> tuple[Tensor, Tensor, np.ndarray, np.ndarray, np.ndarray]:
    """Windows on all texts, the characters after them, and for each role its first window and how
    many are for training and for test.

    Windows of training and test do not overlap: 79 points between them are left out, as in LEAF.
    """
    codes = torch.from_numpy(_codes("".join(texts.values())))
    lengths = np.array([len(text) for text in texts.values()])
    first = np.cumsum(lengths) - lengths
    points = np.maximum(lengths - LENGTH, 0)
    train = np.where(points > 0, np.maximum((TRAINED * points).astype(np.int64), 1), 0)
    test = np.maximum(points - train - (LENGTH - 1), 0)
    y = codes[LENGTH:].long()
    x = codes.unfold(0, LENGTH, 1)[: len(y)] if len(y) else codes.new_empty(0, LENGTH)
    return x, y, first, train, test


def _ranges(first: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """All numbers of several ranges, one after another."""
    starts = np.repeat(first - (np.cumsum(counts) - counts), counts)
    return starts + np.arange(counts.sum())


def _read_leaf(train: list[Path], test: list[Path]) -> Tables:
    """LEAF's points in a few tensors, as bytes."""
    own, others = read_leaf(train), read_leaf(test)
    roles = list(own)
    tensors: dict[str, Tensor] = {}
    for prefix, users in (("", own), ("test_", others)):
        chosen = [role for role in roles if role in users]
        texts: list[str] = []
        after: list[str] = []
        who: list[int] = []
        for role in chosen:
            x, y = users[role]
            require(
                all(isinstance(s, str) and len(s) == LENGTH for s in x)
                and all(isinstance(s, str) and len(s) == 1 for s in y),
                f"The points of role {role!r} must be texts of {LENGTH} characters and the one "
                f"after.",
            )
            texts += list(x)
            after += list(y)
            who += [roles.index(role)] * len(y)
        tensors |= {
            f"{prefix}x": torch.from_numpy(_codes("".join(texts)).reshape(-1, LENGTH)).to(
                torch.uint8
            ),
            f"{prefix}y": torch.from_numpy(_codes("".join(after))).to(torch.uint8),
            f"{prefix}role": torch.tensor(who, dtype=torch.int64),
        }
    return tensors, {"roles": roles}
