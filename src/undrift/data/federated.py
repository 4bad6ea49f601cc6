"""Federated data: the samples of every client, in a few tensors whatever the number of clients.

Every source, partition and reader of users' files returns a `FederatedData`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from undrift.data.arrays import Pair, as_pair
from undrift.data.augmentation import Augmentation
from undrift.data.holdout import hold_out
from undrift.data.part import Part
from undrift.data.partitions import IID, Assign, Natural, Partition, Split, as_partition
from undrift.utils.errors import UndriftError, first_line, require, require_choice, require_type
from undrift.utils.keys import plain_id
from undrift.utils.threads import one_thread

if TYPE_CHECKING:
    from undrift.data.description import Description

Source = Pair | Dataset[Any]
"""A client's samples: a pair (inputs, targets), or a torch Dataset of (input, target) items."""


class FederatedData:
    """Training data by client, with test and validation data by client or common to all.

    Parameters
    ----------
    train
        the training part, by client
    test
        the test part, by client or common to all clients
    ids
        the clients' ids, int or str; by default the numbers 0, 1, …
    name
        the name of the data in reports
    validation
        the part on which settings are chosen, by client or common to all clients
    classes
        the names of the classes 0, 1, …; every label must be one of these numbers
    notes
        sentences about how the data were made, shown by `describe`
    augmentations
        random changes of the training inputs, such as `RandomCrop()`
    """

    def __init__(
        self,
        train: Part,
        test: Part | None = None,
        ids: Sequence[Hashable] | None = None,
        name: str = "data",
        *,
        validation: Part | None = None,
        classes: Sequence[str] | None = None,
        notes: Sequence[str] = (),
        augmentations: Sequence[Augmentation] = (),
    ):
        require(train.by_client, "The training part must have bounds, which say who holds what.")
        self.train = train
        self.test = test
        self.validation = validation
        given = range(len(train.sizes)) if ids is None else ids
        self.ids: list[Hashable] = [plain_id(id) for id in given]
        self.name = name
        self.classes = None if classes is None else tuple(str(each) for each in classes)
        self.notes = tuple(notes)
        self.augmentations = tuple(augmentations)
        self._require_clients()
        for what, part in self.parts().items():
            self._require_alike(what, part)
            self._require_finite(what, part)
            self._require_labels(what, part)

    def parts(self) -> dict[str, Part]:
        """The parts that exist, by name: "training", "validation", "test"."""
        found = {"training": self.train, "validation": self.validation, "test": self.test}
        return {name: part for name, part in found.items() if part is not None}

    def client(self, id: Hashable) -> tuple[Tensor, Tensor]:
        """A client's training inputs and targets."""
        if id not in self.ids:
            raise UndriftError(
                f"There is no client {id!r} among the {len(self)} clients of {self.name}."
            )
        return self.train.client(self.ids.index(id))

    def pooled(self) -> FederatedData:
        """The same samples, all held by one client: the data of a centralised baseline."""
        everything = torch.tensor([0, len(self.train)])
        train = Part(self.train.x, self.train.y, self.train.rows, everything)
        others = {
            name: None if part is None else Part(part.x, part.y, part.rows, None)
            for name, part in (("test", self.test), ("validation", self.validation))
        }
        return self._with(train=train, ids=["all"], **others)

    def with_test(self, share: float, seed: int = 0, by: str = "client") -> FederatedData:
        """A copy with a share of the training samples moved to a test part.

        With `by="client"` the share is taken from every client and stays with it; with "overall" it
        is taken from all samples and becomes a common part. Every client keeps at least one
        training sample.
        """
        require(self.test is None, f"{self.name} already has a test part.")
        train, test = hold_out(self.train, self.ids, share, seed, "test", by)
        return self._with(train=train, test=test)

    def with_validation(self, share: float, seed: int = 0, by: str = "client") -> FederatedData:
        """A copy with a share of the training samples moved to a validation part.

        `by` means the same as in `with_test`.
        """
        require(self.validation is None, f"{self.name} already has a validation part.")
        train, validation = hold_out(self.train, self.ids, share, seed, "validation", by)
        return self._with(train=train, validation=validation)

    def normalised(self, by: str | None = None) -> FederatedData:
        """A copy whose inputs have mean 0 and standard deviation 1 over the training samples.

        `by` is "channels" (per channel, the default if a sample has two or more dimensions) or
        "features" (per number, the default for vectors; a constant feature becomes 0).
        """
        x = self.train.x
        by = by or ("channels" if x.ndim >= 3 else "features")
        require_choice("by", by, ("channels", "features"))
        require(
            x.is_floating_point(),
            f"Inputs of type {x.dtype} cannot be normalised: they must be floating-point numbers.",
        )
        mean, deviation = moments(x[self.train.rows], by)
        return self.with_inputs(lambda x: (x - mean) / deviation)

    def with_inputs(self, change: Callable[[Tensor], Tensor]) -> FederatedData:
        """A copy whose inputs are `change(x)`, called with all inputs `[n, …]` of a part."""
        done: dict[tuple[Any, ...], Tensor] = {}
        parts = {}
        for name in ("train", "validation", "test"):
            part: Part | None = getattr(self, name)
            if part is not None:
                key = part.x.data_ptr(), part.x.shape, part.x.stride()
                if key not in done:  # parts that share a tensor share the result too
                    done[key] = change(part.x)
                parts[name] = Part(done[key], part.y, part.rows, part.bounds)
        return self._with(**parts)

    def augmented(self, *augmentations: Augmentation) -> FederatedData:
        """A copy with augmentations, which change training inputs anew whenever they are used."""
        for each in augmentations:
            require_type("An augmentation", each, Augmentation, "such as RandomCrop(padding=4)")
            _require_same_shape(each, self.train.x[:2])
        return self._with(augmentations=(*self.augmentations, *augmentations))

    def describe(
        self,
        model: nn.Module | None = None,
        gamma: bool = False,
        objective: str = "samples",
        weight_decay: float = 1e-4,
    ) -> Description:
        """Measure how the clients differ: in sizes, labels and, given a model, in gradients.

        Print the result, or use its `.plot("picture.png")` or `.as_dict()`.

        Parameters
        ----------
        model
            a module at whose weights the clients' gradients are compared
        gamma
            whether to find Γ = F* − Σ q_k F_k* too, by minimising every client's loss
        objective
            the weights q_k: "samples" for n_k/n, "clients" for 1/N
        weight_decay
            weight decay of the losses that are minimised for Γ
        """
        from undrift.data.description import describe

        return describe(self, model, gamma, objective, weight_decay)

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        parts = ", ".join(f"{len(part)} {name}" for name, part in self.parts().items())
        return f"FederatedData({self.name}: {len(self)} clients; {parts} samples)"

    def _repr_html_(self) -> str:
        return self.describe()._repr_html_()

    @staticmethod
    def from_clients(
        clients: Sequence[Source] | Mapping[Hashable, Source],
        test: Source | Sequence[Source] | Mapping[Hashable, Source] | None = None,
        name: str = "data",
        *,
        classes: Sequence[str] | None = None,
    ) -> FederatedData:
        """Federated data from the samples of each client.

        Parameters
        ----------
        clients
            the samples of each client, as a list or as a mapping from client ids: pairs (inputs,
            targets) or torch Datasets
        test
            one pair or Dataset that is common to all clients, or one per client as in `clients`
        name
            the name of the data in reports
        classes
            the names of the classes 0, 1, …
        """
        own = _by_id(clients)
        ids = list(own)
        require(len(ids) > 0, "There are no clients, but at least one is needed.")
        pairs = [as_pair(own[id], f"client {id!r}") for id in ids]
        _require_alike(ids, pairs, pairs[0], f"client {ids[0]!r}")
        part: Part | None = None
        if isinstance(test, tuple | Dataset):
            common = as_pair(test, "the test part")
            _require_alike(None, [common], pairs[0], f"client {ids[0]!r}")
            part = Part.common(*common)
        elif test is not None:
            tests = _by_id(test)
            for id in ids:
                require(id in tests, f"The test part has no entry for client {id!r}.")
            each = [as_pair(tests[id], f"client {id!r}") for id in ids]
            _require_alike(ids, each, pairs[0], f"client {ids[0]!r}")
            part = Part.joined(each)
        return FederatedData(Part.joined(pairs), part, ids, name, classes=classes)

    @staticmethod
    def from_arrays(
        x: Any,
        y: Any,
        parts: Sequence[Sequence[int]] | Mapping[Hashable, Sequence[int]] | None = None,
        test: Source | None = None,
        name: str = "data",
        *,
        partition: Partition | Assign | str | None = None,
        clients: int | None = None,
        seed: int = 0,
        owners: Sequence[Hashable] | None = None,
        classes: Sequence[str] | None = None,
    ) -> FederatedData:
        """Federated data from one array of samples, which a partition shares out over clients.

        Parameters
        ----------
        x, y
            inputs and targets, a row per sample
        parts
            the row numbers of each client's samples, as a list or as a mapping from client ids;
            give either `parts` or a partition
        test
            a test part that is common to all clients
        name
            the name of the data in reports
        partition
            the rule that shares the samples out, such as `Dirichlet(0.3)`, "dirichlet:0.3" or a
            function (see `Partition`); by default `Natural()` with owners and `IID()` without
        clients
            number of clients
        seed
            seed of the partition
        owners
            the owner of each sample, for the `Natural` partition
        classes
            the names of the classes 0, 1, …
        """
        pair = as_pair((x, y), "the data")
        common = None if test is None else as_pair(test, "the test part")
        if common is not None:
            _require_alike(None, [common], pair, "the data")
        part = None if common is None else Part.common(*common)
        if parts is not None:
            for word, value in (("partition", partition), ("clients", clients), ("owners", owners)):
                require(
                    value is None,
                    f"parts already says which samples each client holds: leave {word} out.",
                )
            train, ids = _part_of_rows(*pair, parts)
            return FederatedData(train, part, ids, name, classes=classes)
        default = IID() if owners is None else Natural()
        rule = as_partition(default if partition is None else partition)
        split = rule.split(pair[1], clients, seed, owners)  # type: ignore[arg-type]
        return federated(*pair, split, part, name, classes)

    @staticmethod
    def from_dataset(
        dataset: Dataset[Any],
        test: Source | None = None,
        name: str = "data",
        *,
        partition: Partition | Assign | str | None = None,
        clients: int | None = None,
        seed: int = 0,
        owners: Sequence[Hashable] | None = None,
        classes: Sequence[str] | None = None,
    ) -> FederatedData:
        """Federated data from one torch Dataset of (input, target) items.

        The samples are shared out as in `from_arrays`, which explains the parameters. Use
        `from_clients` for one Dataset per client.
        """
        require_type("dataset", dataset, Dataset, "a torch.utils.data.Dataset")
        x, y = as_pair(dataset, "the data")
        return FederatedData.from_arrays(
            x,
            y,
            test=test,
            name=name,
            partition=partition,
            clients=clients,
            seed=seed,
            owners=owners,
            classes=classes,
        )

    @staticmethod
    def from_huggingface(
        source: Any,
        inputs: str | Sequence[str],
        target: str,
        test: Any = None,
        name: str = "data",
        *,
        split: str = "train",
        by: str | None = None,
        partition: Partition | Assign | str | None = None,
        clients: int | None = None,
        seed: int = 0,
    ) -> FederatedData:
        """Federated data from Hugging Face's `datasets` library or from `flwr-datasets`.

        Parameters
        ----------
        source
            a `datasets.Dataset` or `DatasetDict`, shared out by `partition`; a list or mapping with
            a Dataset per client; or a `Partitioner` or `FederatedDataset` of flwr-datasets, whose
            partitions become the clients
        inputs, target
            names of the columns; several input columns of numbers are put side by side
        test
            a `datasets.Dataset` that becomes a common test part; by default the split "test" of a
            `DatasetDict`
        name
            the name of the data in reports
        split
            which split of a `DatasetDict` or `FederatedDataset` to train on
        by
            the column with the owner of each sample, for the natural partition
        partition, clients, seed
            as in `from_arrays`
        """
        from undrift.data.huggingface import from_huggingface

        return from_huggingface(
            source, inputs, target, test, name, split, by, partition, clients, seed
        )

    @staticmethod
    def from_function(
        function: Callable[[str], Any], sites: Sequence[str], name: str = "sites"
    ) -> FederatedData:
        """Federated data from a function that a deployment calls to read a site's data.

        Parameters
        ----------
        function
            takes a site's name and returns a pair (inputs, targets), or {"train": pair, "test":
            pair}
        sites
            the names of the sites, which become the clients' ids
        name
            the name of the data in reports
        """
        require_type("sites", sites, (list, tuple), "a list of names")
        require(len(sites) > 0, "sites is empty, but must name at least one site.")
        for site in sites:
            require_type("A site", site, str, "a name")
        found = {}
        for site in sites:
            try:
                found[site] = function(site)
            except Exception as error:
                raise UndriftError(
                    f"The data of site {site!r} cannot be read: {first_line(error)}."
                ) from error
        train: dict[Hashable, Source] = {}
        test: dict[Hashable, Source] = {}
        for site, own in found.items():
            parts = own if isinstance(own, Mapping) else {"train": own}
            for part in parts:
                require_choice(f"A part of site {site!r}'s data", part, ("train", "test"))
            require("train" in parts, f"The data of site {site!r} must have a part 'train'.")
            train[site] = parts["train"]
            if "test" in parts:
                test[site] = parts["test"]
        require(
            not test or len(test) == len(train),
            f"Either all sites or none must have a test part, but "
            f"{next((s for s in train if s not in test), '')!r} has none and others have one.",
        )
        return FederatedData.from_clients(train, test or None, name)

    @staticmethod
    def from_folder(
        folder: str | Path,
        target: str | None = None,
        inputs: Sequence[str] | None = None,
        name: str | None = None,
        *,
        classes: Sequence[str] | None = None,
        normalise: str | None = None,
    ) -> FederatedData:
        """Federated data from a folder with one file per client: npz, csv or parquet; or LEAF json.

        Npz files hold arrays x and y. Csv files begin with a line of column names. Columns are
        matched by name in every file. Normalise features that have different units.

        Parameters
        ----------
        folder
            a folder with a file for each client, whose name is the client's id; or with folders
            `train` and `test` of such files
        target
            the column of csv and parquet files to predict; by default "label", "target" or "y"
        inputs
            the input columns of csv and parquet files; by default all except the target
        name
            the name of the data in reports; by default the folder's name
        classes
            the names of the classes 0, 1, …; required if the target column holds words
        normalise
            "features" or "channels" scales inputs as `normalised` does; None leaves them unchanged.
            In an experiment file, the scale is computed after test and validation samples are held
            out
        """
        from undrift.data.folders import from_folder

        if normalise is not None:  # checked before large files are read
            require_choice("normalise", normalise, ("channels", "features"))
        data = from_folder(Path(folder), target, inputs, name, classes)
        return data if normalise is None else data.normalised(normalise)

    def _with(self, **changed: Any) -> FederatedData:
        """A copy with some constructor arguments replaced."""
        same = ("train", "test", "ids", "name", "validation", "classes", "notes", "augmentations")
        return FederatedData(**{each: getattr(self, each) for each in same} | changed)

    def _require_clients(self) -> None:
        clients = len(self.train.sizes)
        require(clients > 0, f"{self.name} has no clients, but needs at least one.")
        require(len(self.ids) == clients, f"There are {clients} clients but {len(self.ids)} ids.")
        if len(set(self.ids)) < clients:
            seen: set[Hashable] = set()
            twice = next(id for id in self.ids if id in seen or seen.add(id))  # type: ignore[func-returns-value]
            raise UndriftError(f"Two clients have the same id {twice!r}.")
        empty = torch.nonzero(self.train.sizes == 0).flatten().tolist()
        if empty:
            raise UndriftError(
                f"Client {self.ids[empty[0]]!r} has no data ({len(empty)} of {len(self)} clients "
                f"are empty): leave empty clients out."
            )

    def _require_alike(self, name: str, part: Part) -> None:
        """Check that a part has the clients of the training part, and samples of the same shape."""
        require(
            not part.by_client or len(part.sizes) == len(self),
            f"The {name} part has {len(part.sizes) if part.by_client else 0} clients, but the "
            f"training part has {len(self)}.",
        )
        for what, values, like in (
            ("inputs", part.x, self.train.x),
            ("targets", part.y, self.train.y),
        ):
            require(
                values.shape[1:] == like.shape[1:],
                f"The {name} {what} have shape {list(values.shape[1:])} per sample, but the "
                f"training {what} have {list(like.shape[1:])}.",
            )
            require(
                values.is_floating_point() == like.is_floating_point() or not len(part),
                f"The {name} {what} are {values.dtype}, but the training {what} are {like.dtype}.",
            )

    def _require_finite(self, name: str, part: Part) -> None:
        for what, values in (("inputs", part.x), ("targets", part.y)):
            # The sum is finite only if every term is, so the slow check is rarely needed.
            if not values.is_floating_point() or bool(values.sum().isfinite()):
                continue
            bad = ~values.reshape(len(values), -1).isfinite().all(1)[part.rows]
            if bad.any():
                raise UndriftError(
                    f"The {name} {what}{self._whose(part, bad)} contain NaN or Inf "
                    f"({int(bad.sum())} samples in all)."
                )

    def _require_labels(self, name: str, part: Part) -> None:
        if self.classes is None or not len(part):
            return
        require(
            not part.y.is_floating_point(),
            f"The {name} targets are {part.y.dtype}, but must be whole numbers, the numbers of the "
            f"{len(self.classes)} classes.",
        )
        labels = part.y[part.rows]
        bad = (labels < 0) | (labels >= len(self.classes))
        if bad.any():
            raise UndriftError(
                f"A {name} label{self._whose(part, bad.reshape(len(labels), -1).any(1))} is "
                f"{int(labels[bad][0])}, but there are {len(self.classes)} classes, 0 … "
                f"{len(self.classes) - 1}."
            )

    def _whose(self, part: Part, bad: Tensor) -> str:
        """ " of client …" for the first bad sample of a part; empty for a common part."""
        if part.bounds is None:
            return ""
        first = torch.nonzero(bad).flatten()[:1]
        return (
            f" of client {self.ids[int(torch.searchsorted(part.bounds, first, right=True)) - 1]!r}"
        )


def federated(
    x: Tensor,
    y: Tensor,
    split: Split,
    test: Part | None,
    name: str,
    classes: Sequence[str] | None = None,
    notes: Sequence[str] = (),
) -> FederatedData:
    """Federated data from samples and a partition's split; empty clients are left out."""
    ids = split.ids if split.ids is not None else list(range(len(split.sizes)))
    bounds, partition_notes = split.bounds, split.notes
    full = np.flatnonzero(split.sizes)
    if len(full) < len(split.sizes):
        bounds = np.concatenate([[0], split.bounds[1:][full]])
        left_out = f"{len(split.sizes) - len(full)} clients without samples are left out."
        partition_notes = (*partition_notes, left_out)
        ids = [ids[k] for k in full]
    train = Part(x, y, torch.from_numpy(split.rows), torch.from_numpy(bounds))
    return FederatedData(train, test, ids, name, classes=classes, notes=(*notes, *partition_notes))


def _require_same_shape(augmentation: Augmentation, x: Tensor) -> None:
    """Try an augmentation on a few inputs, so that a mistake shows before training starts."""
    changed = augmentation.apply(x.clone(), augmentation.draw(len(x), np.random.default_rng(0)))
    require_type(f"The result of {augmentation}.apply", changed, Tensor, "a tensor")
    require(
        changed.shape == x.shape and changed.dtype == x.dtype,
        f"{augmentation}.apply must keep the shape {list(x.shape)} and the type {x.dtype}, but "
        f"returned {list(changed.shape)} and {changed.dtype}.",
    )


def moments(x: Tensor, by: str) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of inputs, in shapes that broadcast with the inputs."""
    over = [0] if by == "features" else [d for d in range(x.ndim) if d != 1 or x.ndim < 3]
    with one_thread():  # so that the sums do not depend on the number of cores
        deviation, mean = torch.std_mean(x.double(), over, correction=0, keepdim=True)
    return mean.to(x.dtype), torch.where(deviation > 0, deviation, 1.0).to(x.dtype)


def _by_id(values: Sequence[Any] | Mapping[Hashable, Any]) -> dict[Hashable, Any]:
    """Values by client id; the ids of a list are 0, 1, …"""
    require(
        isinstance(values, Mapping | Sequence | np.ndarray) and not isinstance(values, str),
        f"The clients are a {type(values).__name__}, but must be a list or a mapping from ids.",
    )
    return dict(values) if isinstance(values, Mapping) else dict(enumerate(values))


def _require_alike(
    ids: Sequence[Hashable] | None,
    pairs: Sequence[tuple[Tensor, Tensor]],
    first: tuple[Tensor, Tensor],
    whose: str,
) -> None:
    """Check that all samples have the shape of the first client's."""
    for number, pair in enumerate(pairs):
        for what, values, wanted in zip(("inputs", "targets"), pair, first, strict=True):
            if values.shape[1:] != wanted.shape[1:]:
                who = "the test part" if ids is None else f"client {ids[number]!r}"
                raise UndriftError(
                    f"The {what} of {who} have shape {list(values.shape[1:])} per sample, but "
                    f"those of {whose} have {list(wanted.shape[1:])}."
                )


def _part_of_rows(
    x: Tensor, y: Tensor, parts: Sequence[Sequence[int]] | Mapping[Hashable, Sequence[int]]
) -> tuple[Part, list[Hashable]]:
    """A part from the row numbers of each client, and the clients' ids."""
    held = _by_id(parts)
    ids = list(held)
    require(len(ids) > 0, "There are no clients, but at least one is needed.")
    try:
        rows = [np.asarray(held[id]) for id in ids]
    except ValueError:
        raise UndriftError("parts must have a list of row numbers for each client.") from None
    for id, own in zip(ids, rows, strict=True):
        require(
            own.dtype != bool,
            f"The rows of client {id!r} are a mask, but must be row numbers.",
        )
        require(
            own.ndim == 1 and (own.dtype.kind in "iu" or own.size == 0),
            f"The rows of client {id!r} must be a list of whole numbers.",
        )
        require(
            own.size == 0 or (own.min() >= 0 and own.max() < len(y)),
            f"Client {id!r} has a row number outside 0 … {len(y) - 1}.",
        )
    ends = np.cumsum([0] + [len(own) for own in rows])
    joined = np.concatenate(rows).astype(np.int64)
    return Part(x, y, torch.from_numpy(joined), torch.from_numpy(ends)), ids
