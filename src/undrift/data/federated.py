"""Federated data: what each client holds, in a few tensors however many clients there are."""

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
from undrift.data.holding_out import hold_out
from undrift.data.part import Part
from undrift.data.partitions import IID, Natural, Partition, Split, as_partition
from undrift.utils.errors import UndriftError, first_line, require, require_choice, require_type
from undrift.utils.keys import plain_id
from undrift.utils.threads import one_thread

if TYPE_CHECKING:
    from undrift.data.description import Description

Source = Pair | Dataset[Any]
"""A client's samples: (inputs, targets), or a torch Dataset of such pairs."""


class FederatedData:
    """Training data by client; test and validation data by client or in common.

    Parameters
    ----------
    train
        the training part, by client
    test
        the test part, by client or in common
    ids
        the clients' ids, int or str; without them they are numbered from 0
    name
        what the data are called
    validation
        the part on which choices are made, never on the test part
    classes
        the names of the classes 0, 1, …: labels must lie among them
    notes
        what was done to make the data, where that is not evident
    augmentations
        random changes of training inputs, such as `RandomCrop()`
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
        require(train.by_client, "The training part must say which samples each client holds.")
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
        """The parts there are, by name."""
        found = {"training": self.train, "validation": self.validation, "test": self.test}
        return {name: part for name, part in found.items() if part is not None}

    def client(self, id: Hashable) -> tuple[Tensor, Tensor]:
        """A client's training inputs and targets."""
        if id not in self.ids:
            raise UndriftError(f"There is no client {id!r} among the {len(self)} of {self.name}.")
        return self.train.client(self.ids.index(id))

    def pooled(self) -> FederatedData:
        """The same samples in the hands of one client, for a centralised baseline."""
        everything = torch.tensor([0, len(self.train)])
        train = Part(self.train.x, self.train.y, self.train.rows, everything)
        others = {
            name: None if part is None else Part(part.x, part.y, part.rows, None)
            for name, part in (("test", self.test), ("validation", self.validation))
        }
        return self._with(train=train, ids=["all"], **others)

    def with_test(self, share: float, seed: int = 0, by: str = "client") -> FederatedData:
        """The same with a share of the training samples set aside for test.

        `by` is "client" for the share of every client's, or "overall" for a common part. Every
        client keeps at least one sample for training.
        """
        require(self.test is None, f"{self.name} already has a test part.")
        train, test = hold_out(self.train, self.ids, share, seed, "test", by)
        return self._with(train=train, test=test)

    def with_validation(self, share: float, seed: int = 0, by: str = "client") -> FederatedData:
        """The same with a share of the training samples set aside to choose settings on.

        `by` is "client" for the share of every client's, or "overall" for a common part. Every
        client keeps at least one sample for training.
        """
        require(self.validation is None, f"{self.name} already has a validation part.")
        train, validation = hold_out(self.train, self.ids, share, seed, "validation", by)
        return self._with(train=train, validation=validation)

    def normalised(self, by: str | None = None) -> FederatedData:
        """The same with inputs of mean 0 and standard deviation 1 over the training samples.

        `by` is "channels" (dimension 1 of images: the default for them) or "features" (every
        input on its own, the default for the rest; one that never changes becomes 0).
        """
        x = self.train.x
        by = by or ("channels" if x.ndim >= 3 else "features")
        require_choice("by", by, ("channels", "features"))
        require(
            x.is_floating_point(),
            f"Inputs of type {x.dtype} cannot be normalised: they are not floating-point numbers.",
        )
        mean, deviation = moments(x[self.train.rows], by)
        return self.with_inputs(lambda x: (x - mean) / deviation)

    def with_inputs(self, change: Callable[[Tensor], Tensor]) -> FederatedData:
        """The same with all inputs of every part changed, `[n, …]` at once."""
        done: dict[tuple[Any, ...], Tensor] = {}
        parts = {}
        for name in ("train", "validation", "test"):
            part: Part | None = getattr(self, name)
            if part is not None:
                key = part.x.data_ptr(), part.x.shape, part.x.stride()
                if key not in done:  # parts may share their samples
                    done[key] = change(part.x)
                parts[name] = Part(done[key], part.y, part.rows, part.bounds)
        return self._with(**parts)

    def augmented(self, *augmentations: Augmentation) -> FederatedData:
        """The same with random changes of the training inputs, each time they are used."""
        for each in augmentations:
            require_type("An augmentation", each, Augmentation, "such as RandomCrop(padding=4)")
            each.apply(self.train.x[:1], each.draw(1, np.random.default_rng(0)))
        return self._with(augmentations=(*self.augmentations, *augmentations))

    def describe(
        self,
        model: nn.Module | None = None,
        gamma: bool = False,
        objective: str = "samples",
        weight_decay: float = 1e-4,
    ) -> Description:
        """How the clients differ: sizes, labels and, for a model, gradients and minima.

        Print it, `.plot("picture.png")` it, or take `.as_dict()`.

        Parameters
        ----------
        model
            at whose weights the clients' gradients are compared
        gamma
            whether to find Γ = F* − Σ q_k F_k* as well, which minimises every client's loss
        objective
            the q_k: "samples" or "clients"
        weight_decay
            of the losses that Γ minimises
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
        """Each client's own samples, as a list or by id: pairs (inputs, targets), or Datasets.

        `test` is one common pair or Dataset, or one per client in the same form. `classes` are
        the names of the classes.
        """
        own = _by_id(clients)
        ids = list(own)
        require(len(ids) > 0, "There are no clients.")
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
                require(id in tests, f"The test part has nothing for client {id!r}.")
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
        partition: Partition | str | None = None,
        clients: int | None = None,
        seed: int = 0,
        owners: Sequence[Hashable] | None = None,
        classes: Sequence[str] | None = None,
    ) -> FederatedData:
        """One array of samples, shared out over clients.

        Parameters
        ----------
        x, y
            inputs and targets, a row per sample
        parts
            the numbers of the samples each client holds, as a list or by id; or instead
        partition, clients, seed
            a rule that shares them out over so many clients, such as `Dirichlet(0.3)` or
            "dirichlet:0.3"; IID without one
        owners
            to whom each sample belongs, for the `Natural` partition, which is then the default
        test
            a common test part
        classes
            the names of the classes
        """
        pair = as_pair((x, y), "the data")
        common = None if test is None else as_pair(test, "the test part")
        if common is not None:
            _require_alike(None, [common], pair, "the data")
        part = None if common is None else Part.common(*common)
        if parts is not None:
            for word, value in (("partition", partition), ("clients", clients), ("owners", owners)):
                require(value is None, f"Give either parts or a partition, not both: {word}.")
            train, ids = _held(*pair, parts)
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
        partition: Partition | str | None = None,
        clients: int | None = None,
        seed: int = 0,
        owners: Sequence[Hashable] | None = None,
        classes: Sequence[str] | None = None,
    ) -> FederatedData:
        """A torch Dataset of (input, target) items, shared out as in `from_arrays`.

        For a Dataset per client use `from_clients`.
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
        partition: Partition | str | None = None,
        clients: int | None = None,
        seed: int = 0,
    ) -> FederatedData:
        """Data of the Hugging Face `datasets` library, or partitions of `flwr-datasets`.

        Parameters
        ----------
        source
            a `datasets.Dataset` or `DatasetDict`, shared out by `partition`; a list or mapping with
            a Dataset per client; or a `Partitioner` or `FederatedDataset` of flwr-datasets with its
            own partitions
        inputs, target
            the columns; several input columns of numbers lie side by side
        test
            a `datasets.Dataset` for a common test part; of a `DatasetDict`, its split "test"
        split
            which split of a `DatasetDict` or `FederatedDataset`
        by
            the column that says whose each sample is: the natural partition
        """
        from undrift.data.huggingface import from_huggingface

        return from_huggingface(
            source, inputs, target, test, name, split, by, partition, clients, seed
        )

    @staticmethod
    def from_function(
        function: Callable[[str], Any], sites: Sequence[str], name: str = "sites"
    ) -> FederatedData:
        """What a function gives for each site: the way in which a deployment reads its data.

        Parameters
        ----------
        function
            of a site's name; gives the pair (inputs, targets), or {"train": pair, "test": pair}
        sites
            their names, which are the clients' ids
        name
            what the data are called
        """
        require_type("sites", sites, (list, tuple), "a list of names")
        require(len(sites) > 0, "There are no sites.")
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
            require("train" in parts, f"The data of site {site!r} have no part 'train'.")
            train[site] = parts["train"]
            if "test" in parts:
                test[site] = parts["test"]
        require(
            not test or len(test) == len(train),
            f"Some sites have a test part and others, such as "
            f"{next((s for s in train if s not in test), '')!r}, have none.",
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
        """A folder with one file per client: npz, csv or parquet, or LEAF json of many clients.

        Npz files hold arrays x and y. Csv files begin with the names of their columns, and columns
        are found by name in every file. Features of different units want to be normalised.

        Parameters
        ----------
        folder
            its files are the clients, named for them; or it has folders `train` and, for test
            samples by client, `test`
        target
            the column of csv and parquet files to predict: "label", "target" or "y" if left out
        inputs
            the columns to learn from: all others if left out
        name
            what the data are called: the folder's name if left out
        classes
            the names of the classes; a target column of words must have them
        normalise
            inputs of mean 0 and standard deviation 1 over the training samples, by "features" (each
            on its own) or by "channels", as `normalised` makes them; None leaves them as they are.
            In an experiment file, over what is left for training once other parts are set aside
        """
        from undrift.data.folders import from_folder

        if normalise is not None:  # before files are read that may be large
            require_choice("normalise", normalise, ("channels", "features"))
        data = from_folder(Path(folder), target, inputs, name, classes)
        return data if normalise is None else data.normalised(normalise)

    def _with(self, **changed: Any) -> FederatedData:
        """The same but for what is changed."""
        same = ("train", "test", "ids", "name", "validation", "classes", "notes", "augmentations")
        return FederatedData(**{each: getattr(self, each) for each in same} | changed)

    def _require_clients(self) -> None:
        clients = len(self.train.sizes)
        require(clients > 0, f"There are no clients in {self.name}.")
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
        """Every part has the clients of the training part, and samples of the same form."""
        require(
            not part.by_client or len(part.sizes) == len(self),
            f"The {name} part is of {len(part.sizes) if part.by_client else 0} clients, but there "
            f"are {len(self)}.",
        )
        for what, values, like in (
            ("inputs", part.x, self.train.x),
            ("targets", part.y, self.train.y),
        ):
            require(
                values.shape[1:] == like.shape[1:],
                f"The {name} {what} have shape {list(values.shape[1:])} per sample, but those for "
                f"training have {list(like.shape[1:])}.",
            )
            require(
                values.is_floating_point() == like.is_floating_point() or not len(part),
                f"The {name} {what} are {values.dtype}, but those for training are {like.dtype}.",
            )

    def _require_finite(self, name: str, part: Part) -> None:
        for what, values in (("inputs", part.x), ("targets", part.y)):
            # A sum is finite only if all its terms are; if not, look at each.
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
            f"The {name} targets are {part.y.dtype}, but must be whole numbers: the places of "
            f"their classes among the {len(self.classes)} names.",
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
        """Of whom the first bad one of a part's samples is."""
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
    """Samples and who holds which of them; clients that a partition left empty are left out."""
    ids = split.ids if split.ids is not None else list(range(len(split.sizes)))
    bounds, said = split.bounds, split.notes
    full = np.flatnonzero(split.sizes)
    if len(full) < len(split.sizes):
        bounds = np.concatenate([[0], split.bounds[1:][full]])
        said = (*said, f"{len(split.sizes) - len(full)} clients without samples are left out.")
        ids = [ids[k] for k in full]
    train = Part(x, y, torch.from_numpy(split.rows), torch.from_numpy(bounds))
    return FederatedData(train, test, ids, name, classes=classes, notes=(*notes, *said))


def moments(x: Tensor, by: str) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of inputs, shaped to be taken off and divided by."""
    over = [0] if by == "features" else [d for d in range(x.ndim) if d != 1 or x.ndim < 3]
    with one_thread():  # so that the sums are the same to the last bit on every machine
        deviation, mean = torch.std_mean(x.double(), over, correction=0, keepdim=True)
    return mean.to(x.dtype), torch.where(deviation > 0, deviation, 1.0).to(x.dtype)


def _by_id(values: Sequence[Any] | Mapping[Hashable, Any]) -> dict[Hashable, Any]:
    """What each client has, under its id: a list is numbered from 0."""
    require(
        isinstance(values, Mapping | Sequence | np.ndarray) and not isinstance(values, str),
        f"The clients are {type(values).__name__}, but must be a list or a mapping from ids.",
    )
    return dict(values) if isinstance(values, Mapping) else dict(enumerate(values))


def _require_alike(
    ids: Sequence[Hashable] | None,
    pairs: Sequence[tuple[Tensor, Tensor]],
    first: tuple[Tensor, Tensor],
    whose: str,
) -> None:
    """All samples have the shape of the first."""
    for number, pair in enumerate(pairs):
        for what, values, wanted in zip(("inputs", "targets"), pair, first, strict=True):
            if values.shape[1:] != wanted.shape[1:]:
                who = "the test part" if ids is None else f"client {ids[number]!r}"
                raise UndriftError(
                    f"The {what} of {who} have shape {list(values.shape[1:])} per sample, but "
                    f"those of {whose} have {list(wanted.shape[1:])}."
                )


def _held(
    x: Tensor, y: Tensor, parts: Sequence[Sequence[int]] | Mapping[Hashable, Sequence[int]]
) -> tuple[Part, list[Hashable]]:
    """The samples whose numbers each client is given."""
    held = _by_id(parts)
    ids = list(held)
    require(len(ids) > 0, "There are no clients.")
    try:
        rows = [np.asarray(held[id]) for id in ids]
    except ValueError:
        raise UndriftError("parts must give a list of sample numbers for each client.") from None
    for id, own in zip(ids, rows, strict=True):
        require(
            own.dtype != bool,
            f"Client {id!r} is given by a mask, but must be by the numbers of its samples.",
        )
        require(
            own.ndim == 1 and (own.dtype.kind in "iu" or own.size == 0),
            f"Client {id!r} must be given by a list of whole numbers, those of its samples.",
        )
        require(
            own.size == 0 or (own.min() >= 0 and own.max() < len(y)),
            f"Client {id!r} holds a sample number outside 0 … {len(y) - 1}.",
        )
    ends = np.cumsum([0] + [len(own) for own in rows])
    joined = np.concatenate(rows).astype(np.int64)
    return Part(x, y, torch.from_numpy(joined), torch.from_numpy(ends)), ids
