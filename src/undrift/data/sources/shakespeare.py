"""Shakespeare's plays by role: 80 characters are the input, the next character is the target."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from undrift.data.downloads import StandardFile, chosen_folder, fetch
from undrift.data.federated import FederatedData, federated
from undrift.data.formats import read_bytes, read_leaf, read_speeches
from undrift.data.part import Part
from undrift.data.partitions import Assign, Natural, Partition, Split, as_partition
from undrift.data.sources.cache import Tables, cached
from undrift.data.sources.femnist import part_of
from undrift.utils.errors import UndriftError, first_line, require, require_whole
from undrift.utils.keys import generator

ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's 80 characters; any other character is encoded as the last one, as in LEAF's code."""
WINDOW = 80
"""Number of characters of an input."""
TRAIN_SHARE = 0.8
"""Share of a role's text, from its beginning, that is used for training."""
TRAIN_PER_TEST = 5
"""Number of training points per test point, where `most` limits them."""
TEXT = StandardFile(
    "shakespeare/input.txt",
    ("https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",),
    "sha256:86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
    1115394,
)


def shakespeare(
    partition: Partition | Assign | str | None = None,
    clients: int | None = 100,
    seed: int = 0,
    *,
    most: int | None = 2000,
    folder: str | Path | None = None,
    verify: bool = True,
) -> FederatedData:
    """Shakespeare's plays by role, as FedDyn takes them from LEAF: predict the next character.

    A point is 80 characters of a role's text and the character that follows. The first four fifths
    of a text are for training, the rest for test. Inputs are views of one long tensor, not copies.
    The text is read from the folder `shakespeare`, in the first of these forms that exists: LEAF's
    `train/*.json` and `test/*.json`; `plays_by_role.json` ({"play / role": [speech, …]}, also
    .json.gz); `*.txt` with speakers, such as Project Gutenberg's complete works. If there is none,
    "Tiny Shakespeare" (1.1 MB) is downloaded.

    Parameters
    ----------
    partition
        by default `Natural()`: every client is a role. Any other partition, such as `IID()`, shares
        out the points of all roles, and the test part is common
    clients
        number of clients, chosen at random from the roles with at least `most` points if there are
        enough of these; None for all roles
    seed
        seed of all random choices
    most
        largest number of training points of a client, consecutive in its text, with a fifth as many
        test points; None for all
    folder
        the folder that contains `shakespeare`; by default `UNDRIFT_DATA`, or the user's cache
    verify
        whether a downloaded text must have its published checksum
    """
    rule = as_partition(Natural() if partition is None else partition)
    require(
        not isinstance(rule, Natural) or rule == Natural(),
        f"shakespeare takes Natural() without options, not {rule}: use shakespeare's own `most`.",
    )
    require_whole("seed", seed, at_least=0)
    if most is not None:
        require_whole("most", most, at_least=TRAIN_PER_TEST)
    root = chosen_folder(folder) / "shakespeare"
    if (root / "train").is_dir():
        return _from_leaf(root, rule, clients, seed, most)
    texts = _texts(root, verify)
    x, y, first, train, test = _points(texts)
    require(
        bool((train > 0).any()), f"No role in {root} has more than {WINDOW} characters of text."
    )
    if isinstance(rule, Natural):
        return _by_role(list(texts), x, y, first, train, test, clients, seed, most)
    gap = WINDOW - 1
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
    """One client per role, with consecutive points of its text."""
    chosen, notes = _chosen_roles(train, test, clients, seed, most)
    rows: dict[str, list[np.ndarray]] = {"train": [], "test": []}
    for k in chosen:
        rng = generator(seed, "crop", 0, roles[k])
        starts = {"train": first[k], "test": first[k] + train[k] + WINDOW - 1}
        counts = {"train": train[k], "test": test[k]}
        limits = {"train": most, "test": None if most is None else most // TRAIN_PER_TEST}
        for name, limit in limits.items():
            have = int(counts[name])
            take = have if limit is None else min(have, limit)
            start = int(starts[name] + rng.integers(0, have - take + 1))
            rows[name].append(np.arange(start, start + take))
    train_part, test_part = (_part(x, y, rows[name]) for name in ("train", "test"))
    ids = [roles[k] for k in chosen]
    return FederatedData(
        train_part, test_part, ids, "shakespeare", classes=list(ALPHABET), notes=notes
    )


def _chosen_roles(
    train: np.ndarray, test: np.ndarray, clients: int | None, seed: int, most: int | None
) -> tuple[np.ndarray, list[str]]:
    """The indices of the roles that become clients, and notes about the choice."""
    usable = np.flatnonzero(train > 0)
    if clients is None:
        left = len(train) - len(usable)
        note = f"{left} of {len(train)} roles with at most {WINDOW} characters are left out."
        return usable, [note] if left else []
    clients = require_whole("clients", clients, at_least=1)
    require(
        clients <= len(usable),
        f"There are {len(usable)} roles with more than {WINDOW} characters, but clients is "
        f"{clients}.",
    )
    enough = usable
    if most is not None:
        enough = usable[(train[usable] >= most) & (test[usable] >= most // TRAIN_PER_TEST)]
    if len(enough) >= clients:
        return np.sort(generator(seed, "roles").permutation(enough)[:clients]), []
    longest = usable[np.argsort(-train[usable], kind="stable")][:clients]
    note = (
        f"Only {len(enough)} roles have {most} points for training and a fifth as many for test: "
        f"the {clients} longest roles are taken, and some have fewer points."
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
    """The points of all roles, shared out by a partition; the test part is common."""
    if most is not None and clients is not None:
        rng = generator(seed, "pool")
        pool = rng.permutation(pool)[: clients * most]
        tests = np.sort(rng.permutation(tests)[: clients * most // TRAIN_PER_TEST])
    split = rule.split(y[torch.from_numpy(pool)], clients, seed)  # type: ignore[arg-type]
    split = Split(pool[split.rows], split.bounds, split.notes)
    common = Part(x, y, torch.from_numpy(tests), None)
    return federated(x, y, split, common, f"shakespeare, {rule}", list(ALPHABET))


def _from_leaf(
    root: Path, rule: Partition, clients: int | None, seed: int, most: int | None
) -> FederatedData:
    """Federated data from LEAF's json files, which hold points by role."""
    parts = [sorted((root / name).glob("*.json*")) for name in ("train", "test")]
    require(
        all(parts),
        f"{root} has a folder train, so it must have files train/*.json and test/*.json.",
    )
    tensors, words = cached("shakespeare", [*parts[0], *parts[1]], lambda: _read_leaf(*parts))
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
    chosen, notes = _chosen_roles(train, test, clients, seed, most)
    ids = [roles[k] for k in chosen]
    names = np.array(roles)
    train_part = _cropped(part_of(ids, names[owners], x, y), most, ids, seed)
    limit = None if most is None else most // TRAIN_PER_TEST
    test_part = _cropped(part_of(ids, names[test_owners], test_x, test_y), limit, ids, seed)
    return FederatedData(
        train_part, test_part, ids, "shakespeare", classes=list(ALPHABET), notes=notes
    )


def _cropped(part: Part, most: int | None, ids: list[str], seed: int) -> Part:
    """A part with at most `most` consecutive points of each client, from a random start."""
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
    """A part from the rows of each client."""
    bounds = np.cumsum([0] + [len(own) for own in rows])
    return Part(x, y, torch.from_numpy(np.concatenate(rows)), torch.from_numpy(bounds))


def _texts(root: Path, verify: bool) -> dict[str, str]:
    """The text of each role as one line, from the folder or by download."""
    for name in ("plays_by_role.json", "plays_by_role.json.gz"):
        if (root / name).is_file():
            return _joined(_read_json(root / name))
    files = sorted(root.glob("*.txt"))
    if not files:
        files = [fetch(TEXT, root.parent)]
    elif files == [root / "input.txt"]:
        fetch(TEXT, root.parent, verify)
    speeches: dict[str, list[str]] = {}
    for file in files:
        text = read_bytes(file).decode("utf-8", errors="replace")
        for role, own in read_speeches(text, str(file)).items():
            speeches.setdefault(role, []).extend(own)
    return _joined(speeches)


def _read_json(path: Path) -> dict[str, list[str]]:
    """The speeches of each role from plays_by_role.json."""
    try:
        found = json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        if isinstance(error, UndriftError):
            raise
        raise UndriftError(f"{path} is truncated or not JSON: {first_line(error)}.") from error
    require(
        isinstance(found, dict)
        and all(
            isinstance(speeches, list) and all(isinstance(s, str) for s in speeches)
            for speeches in found.values()
        ),
        f'{path} must have the form {{"play / role": [speech, …]}}.',
    )
    return found


def _joined(speeches: dict[str, list[str]]) -> dict[str, str]:
    """The speeches of each role as one line."""
    return {role: re.sub(r"\s+", " ", " ".join(own)).strip() for role, own in speeches.items()}


def _codes(text: str) -> np.ndarray:
    """The index in `ALPHABET` of every character of a text."""
    table = np.full(128, len(ALPHABET) - 1, dtype=np.int32)
    table[np.frombuffer(ALPHABET.encode(), np.uint8)] = np.arange(len(ALPHABET))
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    return table[np.minimum(points, 127)]


def _points(
    texts: dict[str, str],
) -> tuple[Tensor, Tensor, np.ndarray, np.ndarray, np.ndarray]:
    """All points of all texts: inputs, targets, and where the points of each role are.

    The last three results have an entry per role: its first point, and its numbers of training and
    of test points. Training and test windows must not overlap, so the 79 points between them are
    left out, as in LEAF.
    """
    codes = torch.from_numpy(_codes("".join(texts.values())))
    lengths = np.array([len(text) for text in texts.values()])
    first = np.cumsum(lengths) - lengths
    points = np.maximum(lengths - WINDOW, 0)
    train = np.where(points > 0, np.maximum((TRAIN_SHARE * points).astype(np.int64), 1), 0)
    test = np.maximum(points - train - (WINDOW - 1), 0)
    y = codes[WINDOW:].long()
    x = codes.unfold(0, WINDOW, 1)[: len(y)] if len(y) else codes.new_empty(0, WINDOW)
    return x, y, first, train, test


def _ranges(first: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The concatenation of the ranges first[i] … first[i] + counts[i] − 1."""
    starts = np.repeat(first - (np.cumsum(counts) - counts), counts)
    return starts + np.arange(counts.sum())


def _read_leaf(train: list[Path], test: list[Path]) -> Tables:
    """LEAF's points as a few tensors of bytes, for the cache."""
    train_users, test_users = read_leaf(train), read_leaf(test)
    roles = list(train_users)
    tensors: dict[str, Tensor] = {}
    for prefix, users in (("", train_users), ("test_", test_users)):
        chosen = [role for role in roles if role in users]
        texts: list[str] = []
        targets: list[str] = []
        who: list[int] = []
        for role in chosen:
            x, y = users[role]
            require(
                all(isinstance(s, str) and len(s) == WINDOW for s in x)
                and all(isinstance(s, str) and len(s) == 1 for s in y),
                f"The points of role {role!r} must be strings of {WINDOW} characters with one "
                f"character as target.",
            )
            texts += list(x)
            targets += list(y)
            who += [roles.index(role)] * len(y)
        tensors |= {
            f"{prefix}x": torch.from_numpy(_codes("".join(texts)).reshape(-1, WINDOW)).to(
                torch.uint8
            ),
            f"{prefix}y": torch.from_numpy(_codes("".join(targets))).to(torch.uint8),
            f"{prefix}role": torch.tensor(who, dtype=torch.int64),
        }
    return tensors, {"roles": roles}
