"""FEMNIST: handwritten characters by writer, read from json files that LEAF makes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from undrift.data.downloads import chosen_folder
from undrift.data.federated import FederatedData
from undrift.data.formats import LeafUsers, read_leaf
from undrift.data.part import Part
from undrift.data.partitions import Assign, Natural, Partition, as_partition
from undrift.data.sources.cache import Tables, cached
from undrift.data.sources.images import EMNIST_CLASSES
from undrift.utils.errors import UndriftError, require

HOW_TO_GET_FILES = (
    "make them with LEAF (data/femnist, ./preprocess.sh -s niid --sf 1.0 -k 0 -t sample) and copy "
    "its folders train and test"
)


def femnist(
    partition: Partition | Assign | str | None = None,
    clients: int | None = 200,
    seed: int = 0,
    *,
    folder: str | Path | None = None,
) -> FederatedData:
    """FEMNIST of LEAF: digits and letters in 62 classes, 28 × 28, by writer.

    Reads `femnist/train/*.json` and `femnist/test/*.json`. LEAF makes these files from NIST's
    images; they are not published, so they cannot be downloaded. Reading large files takes long the
    first time; the result is stored in the user's cache.

    Parameters
    ----------
    partition
        by default `Natural()`: every client is a writer with its own test images. Any other
        partition shares out the training images of all writers, and the test images are common
    clients
        number of clients, chosen at random from the writers; None for all writers
    seed
        seed of all random choices
    folder
        the folder that contains `femnist`; by default `UNDRIFT_DATA`, or the user's cache
    """
    rule = as_partition(Natural() if partition is None else partition)
    root = chosen_folder(folder) / "femnist"
    train, test = leaf_files(root, HOW_TO_GET_FILES)
    tensors, words = cached("femnist", [*train, *test], lambda: _read(train, test))
    x, y, writer = tensors["x"], tensors["y"], tensors["writer"].numpy()
    test_pair = tensors["test_x"], tensors["test_y"]
    classes = EMNIST_CLASSES["byclass"]
    if not isinstance(rule, Natural):
        return FederatedData.from_arrays(
            x,
            y,
            None,
            test_pair,
            "femnist",
            partition=rule,
            clients=clients,
            seed=seed,
            classes=classes,
        )
    names = words["writers"]
    owners = np.array(names)[writer]
    data = FederatedData.from_arrays(
        x, y, None, None, "femnist", partition=rule, clients=clients, seed=seed, owners=owners
    )
    own = part_of(data.ids, np.array(names)[tensors["test_writer"].numpy()], *test_pair)
    return FederatedData(data.train, own, data.ids, data.name, classes=classes, notes=data.notes)


def leaf_files(root: Path, how_to_get_them: str) -> tuple[list[Path], list[Path]]:
    """The json files in LEAF's folders train and test; raises if there are none."""
    for place in (root, root / "data"):
        train = sorted((place / "train").glob("*.json*"))
        test = sorted((place / "test").glob("*.json*"))
        if train and test:
            return train, test
    raise UndriftError(
        f"There are no files {root}/train/*.json and {root}/test/*.json: {how_to_get_them} to "
        f"{root}, or set UNDRIFT_DATA to the folder of the data."
    )


def part_of(ids: list, owners: np.ndarray, x: torch.Tensor, y: torch.Tensor) -> Part:
    """A part with the samples of the given clients, in the order of `ids`."""
    order = np.argsort(owners, kind="stable")
    ordered = owners[order]
    starts, ends = (np.searchsorted(ordered, ids, side=side) for side in ("left", "right"))
    rows = [order[start:end] for start, end in zip(starts, ends, strict=True)]
    bounds = np.concatenate([[0], np.cumsum(ends - starts)])
    return Part(x, y, torch.from_numpy(np.concatenate(rows)), torch.from_numpy(bounds))


def _read(train: list[Path], test: list[Path]) -> Tables:
    """The images, labels and writers of all files as a few tensors, for the cache."""
    train_users, test_users = read_leaf(train), read_leaf(test)
    writers = list(train_users)
    tensors: dict[str, torch.Tensor] = {}
    for prefix, users in (("", train_users), ("test_", test_users)):
        chosen = {writer: users[writer] for writer in writers if writer in users}
        x, y = _images(chosen)
        place = {writer: k for k, writer in enumerate(writers)}
        counts = [len(users[writer][1]) for writer in chosen]
        who = np.repeat([place[writer] for writer in chosen], counts)
        tensors |= {f"{prefix}x": x, f"{prefix}y": y, f"{prefix}writer": torch.from_numpy(who)}
    return tensors, {"writers": writers}


def _images(users: LeafUsers) -> tuple[torch.Tensor, torch.Tensor]:
    """The images `[n, 1, 28, 28]` and labels `[n]` of all writers, after checks."""
    for writer, (x, y) in users.items():
        shape = list(x.shape[1:]) if isinstance(x, np.ndarray) else "text"
        require(
            shape == [784],
            f"The images of writer {writer!r} have shape {shape}, but must have 784 pixels.",
        )
        labels = np.asarray(y)
        require(
            labels.dtype.kind in "iu" and labels.min() >= 0 and labels.max() < 62,
            f"The labels of writer {writer!r} must be whole numbers from 0 to 61.",
        )
    x = np.concatenate([np.asarray(x) for x, _ in users.values()])
    y = np.concatenate([np.asarray(y) for _, y in users.values()])
    return torch.from_numpy(x).float().reshape(-1, 1, 28, 28), torch.from_numpy(y).long()
