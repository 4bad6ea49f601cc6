"""Federated data: the samples of every client, in a few tensors whatever the number of clients.

Every source, partition and reader of users' files returns a `FederatedData`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from undrift.data.arrays import Pair, as_pair, as_tensor
from undrift.data.augmentation import Augmentation, Transform
from undrift.data.holdout import hold_out
from undrift.data.noise import noisy
from undrift.data.part import Part
from undrift.data.partitions import IID, Assign, Natural, Partition, Split, as_partition
from undrift.data.samples.alike import require_alike, require_same_structure, warn_of_merging
from undrift.data.samples.parts import (
    common_part,
    is_common,
    labels_for,
    labels_in_memory,
    lazy_part,
)
from undrift.data.samples.reading import Lazy, as_lazy, is_dataset, known_targets
from undrift.data.samples.sources import SampleSource
from undrift.data.samples.structure import (
    Tree,
    named_tensors,
    rows_in,
    tensors_of,
)
from undrift.data.tabular.columns import MIN_COUNT, MISSING_WORDS, Columns
from undrift.data.tabular.encoding import Encoding
from undrift.data.tabular.source import TabularSource, require_matching
from undrift.utils.errors import UndriftError, first_line, require, require_choice, require_type
from undrift.utils.keys import plain_ids
from undrift.utils.threads import one_thread

if TYPE_CHECKING:
    from undrift.data.description import Description

Source = Pair | tuple[Any, ...] | Mapping[str, Any] | Dataset[Any] | SampleSource | Any
"""A client's samples: a pair (inputs, targets), a tuple with several inputs and the targets last,
a mapping of named arrays, inputs alone, or a torch Dataset of such items."""


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
    tabular
        the table columns that the inputs were made of, if they were
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
        tabular: TabularSource | None = None,
    ):
        require(train.by_client, "The training part must have bounds, which say who holds what.")
        self.train = train
        self.test = test
        self.validation = validation
        given = range(len(train.sizes)) if ids is None else ids
        self.ids = plain_ids(given)
        self.name = name
        self.classes = None if classes is None else tuple(str(each) for each in classes)
        self.notes = tuple(notes)
        self.augmentations = tuple(augmentations)
        self.tabular = tabular
        self._require_clients()
        for what, part in self.parts().items():
            self._require_alike(what, part)
            self._require_finite(what, part)
            self._require_labels(what, part)

    def parts(self) -> dict[str, Part]:
        """The parts that exist, by name: "training", "validation", "test"."""
        found = {"training": self.train, "validation": self.validation, "test": self.test}
        return {name: part for name, part in found.items() if part is not None}

    def client(self, id: Hashable) -> tuple[Tree, Tree]:
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

    def with_test(
        self,
        share: float,
        seed: int = 0,
        by: str = "client",
        *,
        stratified: bool = False,
        order: str | Sequence[Any] | None = None,
    ) -> FederatedData:
        """A copy with a share of the training samples moved to a test part.

        Every client keeps at least one training sample. The statistics by which columns of tables
        are encoded are computed anew, from the training samples that are left.

        Parameters
        ----------
        share
            the share of the samples, between 0 and 1
        seed
            seed of the random choice
        by
            "client" takes the share from every client, where it stays; "overall" takes it from all
            samples, and makes a common part
        stratified
            whether to take the share from every class; of a class with one sample, nothing is taken
        order
            holds out the newest samples in place of random ones: the name of a column of tables,
            such as a date, or an array with a number or a time for each training sample
        """
        require(self.test is None, f"{self.name} already has a test part.")
        train, test = self._held_out("test", share, seed, by, stratified, order)
        return self._with(train=train, test=test)._encoded_anew()

    def with_validation(
        self,
        share: float,
        seed: int = 0,
        by: str = "client",
        *,
        stratified: bool = False,
        order: str | Sequence[Any] | None = None,
    ) -> FederatedData:
        """A copy with a share of the training samples moved to a validation part.

        The parameters mean the same as in `with_test`.
        """
        require(self.validation is None, f"{self.name} already has a validation part.")
        train, held = self._held_out("validation", share, seed, by, stratified, order)
        return self._with(train=train, validation=held)._encoded_anew()

    def _held_out(
        self,
        purpose: str,
        share: float,
        seed: int,
        by: str,
        stratified: bool,
        order: str | Sequence[Any] | None,
    ) -> tuple[Part, Part]:
        labels = self._labels_of_samples() if stratified else None
        ordered = None if order is None else self._order_of_samples(order)
        return hold_out(self.train, self.ids, share, seed, purpose, by, labels, ordered)

    def _labels_of_samples(self) -> np.ndarray:
        """The label of every training sample."""
        y = self.train.y
        require(
            isinstance(y, Tensor) and y.ndim == 1 and not y.is_floating_point(),
            "A stratified split needs one class number as the target of every sample.",
        )
        return y[self.train.rows].cpu().numpy()  # type: ignore[no-any-return]

    def _order_of_samples(self, order: str | Sequence[Any]) -> np.ndarray:
        """A number for every training sample by which samples are ordered."""
        if isinstance(order, str):
            if self.tabular is None:
                raise UndriftError(
                    f"order is the column {order!r}, but {self.name} has no tables: give an array "
                    f"with a number for each training sample."
                )
            return self.tabular.order(order)[self.train.rows.numpy()]  # type: ignore[no-any-return]
        values = np.asarray(order)
        require(
            values.shape == (len(self.train),) and values.dtype.kind in "iufM",
            f"order must have a number or a time for each of the {len(self.train)} training "
            f"samples.",
        )
        values = values.astype("datetime64[us]") if values.dtype.kind == "M" else values
        found = values.astype(np.float64)
        gone = np.isnat(values) if values.dtype.kind == "M" else ~np.isfinite(found)
        require(not gone.any(), "order has missing values.")
        return found

    def _encoded_anew(self) -> FederatedData:
        """The same data with table columns encoded by statistics of the training samples."""
        return self if self.tabular is None else self.tabular.encode(self)

    @property
    def encoding(self) -> Encoding | None:
        """How columns of tables became inputs; None if the inputs are not made of tables."""
        return None if self.tabular is None else self.tabular.encoding

    def encoded(self, encoding: Encoding) -> FederatedData:
        """A copy whose table columns have a given encoding, such as that of other data."""
        require(self.tabular is not None, f"{self.name} has no table columns to encode.")
        assert self.tabular is not None
        require_matching(self.tabular, encoding)
        given = replace(self.tabular, encoding=encoding, fixed=True, deferred=False)
        return given.apply(self)

    def class_counts(self) -> list[int]:
        """The number of training samples of each class, over all clients."""
        from undrift.data.labels import class_counts

        return class_counts(self)

    def class_weights(self) -> Tensor:
        """The weight n/(C·n_c) of each class c, from the training samples of all clients.

        With these weights all classes count the same together, and the mean weight is 1.
        """
        from undrift.data.labels import balanced_weights

        return balanced_weights(self.class_counts())

    def normalised(self, by: str | None = None) -> FederatedData:
        """A copy whose inputs have mean 0 and standard deviation 1 over the training samples.

        `by` is "channels" (per channel, the default if a sample has two or more dimensions) or
        "features" (per number, the default for vectors; a constant feature becomes 0). Of tables,
        only numbers are scaled, and categories and indicators stay 0 and 1.
        """
        self._require_in_memory("normalised")
        x = self.train.x
        if self.tabular is not None and by in (None, "features"):
            return self.tabular.standardised().encode(self)
        require(
            isinstance(x, Tensor),
            "Several inputs cannot be normalised at once: normalise the arrays before.",
        )
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
        self._require_in_memory("changed at once")
        done: dict[tuple[Any, ...], Tensor] = {}
        parts = {}
        for name in ("train", "validation", "test"):
            part: Part | None = getattr(self, name)
            if part is not None:
                key = tuple((t.data_ptr(), t.shape, t.stride()) for t in tensors_of(part.x))
                if key not in done:  # parts that share a tensor share the result too
                    done[key] = change(part.x)
                parts[name] = Part(done[key], part.y, part.rows, part.bounds)
        return self._with(**parts, tabular=None)

    def with_noise(self, deviation: float, seed: int = 0) -> FederatedData:
        """A copy with Gaussian noise on the inputs, stronger from client to client.

        This is the feature skew of NIID-Bench (Li et al., ICDE 2022): the noise of client i of N
        has the standard deviation `deviation`·i/(N − 1). Samples of a common part have the noise of
        each client in turn. The noise is drawn once, not anew in every epoch.
        """
        found = {
            name: noisy(part, name, deviation, len(self), seed)
            for name in ("train", "validation", "test")
            if (part := getattr(self, name)) is not None
        }
        return self._with(**found, tabular=None)

    def augmented(self, *augmentations: Augmentation | Callable[..., Any]) -> FederatedData:
        """A copy with augmentations, which change training inputs anew whenever they are used.

        Targets that are images change with their inputs. Besides an `Augmentation`, a function of
        one (image, target) that returns both serves, such as a v2 transform of torchvision.
        """
        found = [_as_augmentation(each) for each in augmentations]
        x, y = self.train.samples(self.train.rows[:2])
        for each in found:
            _require_same_shape(each, x, x if y is None else y)
        return self._with(augmentations=(*self.augmentations, *found))

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
        lazy: bool | Lazy | None = None,
    ) -> FederatedData:
        """Federated data from the samples of each client.

        The samples of a client are a pair (inputs, targets); a tuple of several inputs with the
        targets last, for a model that is called as `model(*inputs)`; a mapping of named arrays, for
        `model(**batch)`; inputs alone; or a torch Dataset of such items.

        Parameters
        ----------
        clients
            the samples of each client, as a list or as a mapping from client ids
        test
            samples that are common to all clients (a pair, a Dataset or a mapping of named arrays),
            or those of each client as in `clients`
        name
            the name of the data in reports
        classes
            the names of the classes 0, 1, …
        lazy
            whether samples are read when a batch needs them, not at once into memory: True, False,
            or `Lazy(workers=2, collate=…)`. By default, mapped arrays stay on disk and Datasets
            that change their items at random stay lazy
        """
        own = _by_id(clients)
        ids = list(own)
        require(len(ids) > 0, "There are no clients, but at least one is needed.")
        reading, note = as_lazy(lazy, list(own.values()))
        named = [f"client {id!r}" for id in ids]
        common = test is not None and is_common(test, ids)
        tests: list[Any] = []
        if test is not None and not common:
            by_id = _by_id(test)  # type: ignore[arg-type]
            for id in ids:
                require(id in by_id, f"The test part has no entry for client {id!r}.")
            tests = [by_id[id] for id in ids]
        part: Part | None = None
        if reading is not None:
            train = lazy_part(reading, list(own.values()), named)
            if tests:
                part = lazy_part(reading, tests, named)
            elif test is not None:
                part = common_part(reading, test)
            return FederatedData(
                train, part, ids, name, classes=classes, notes=(note,) if note else ()
            )
        pairs = [as_pair(own[id], who) for id, who in zip(ids, named, strict=True)]
        require_alike(ids, pairs, pairs[0], named[0])
        warn_of_merging(ids, pairs)
        if tests:
            each = [as_pair(pair, who) for pair, who in zip(tests, named, strict=True)]
            require_alike(ids, each, pairs[0], named[0])
            part = Part.joined(each)
        elif test is not None:
            part = common_part(as_lazy(None, [test])[0], test)
            if part.lazy is None:
                require_alike(None, [(part.x, part.y)], pairs[0], named[0])
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
        lazy: bool | Lazy | None = None,
    ) -> FederatedData:
        """Federated data from one array of samples, which a partition shares out over clients.

        Parameters
        ----------
        x, y
            inputs and targets, a row per sample; x may be a tuple or a mapping of arrays, and y is
            None for samples without targets, and for a mapping that holds them
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
        lazy
            as in `from_clients`
        """
        whole = (x, y) if y is not None else x
        reading, _ = as_lazy(lazy, [whole])
        pair: tuple[Tree, Tree]
        if reading is not None:
            samples = reading.samples([whole], ["the data"])
            pair = samples, labels_in_memory(y, x)
            part = None if test is None else common_part(reading, test)
        else:
            pair = as_pair(whole, "the data")
            common = None if test is None else as_pair(test, "the test part")
            if common is not None:
                require_alike(None, [common], pair, "the data")
            part = None if common is None else Part.common(*common)
        if parts is not None:
            for word, value in (("partition", partition), ("clients", clients), ("owners", owners)):
                require(
                    value is None,
                    f"parts already says which samples each client holds: leave {word} out.",
                )
            train, ids = _part_of_rows(pair[0], pair[1], parts)
            return FederatedData(train, part, ids, name, classes=classes)
        default = IID() if owners is None else Natural()
        rule = as_partition(default if partition is None else partition)
        labels = labels_for(rule, pair[1], rows_in(pair[0]))
        split = rule.split(labels, clients, seed, owners)  # type: ignore[arg-type]
        return federated(pair[0], pair[1], split, part, name, classes)

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
        lazy: bool | Lazy | None = None,
        targets: Any = None,
    ) -> FederatedData:
        """Federated data from one torch Dataset, such as one of (input, target) items.

        The samples are shared out as in `from_arrays`, which explains the parameters. Use
        `from_clients` for one Dataset per client. If the Dataset is lazy, a partition by labels
        takes them from `targets`, or else from the Dataset's attribute `targets` or `labels`.
        """
        require(is_dataset(dataset), "dataset must be a torch.utils.data.Dataset.")
        reading, note = as_lazy(lazy, [dataset])
        if reading is not None:
            samples = reading.samples([dataset], ["the data"])
            labels = known_targets(dataset) if targets is None else as_tensor(targets, "the data")
            default = IID() if owners is None else Natural()
            rule = as_partition(default if partition is None else partition)
            known = labels_for(rule, labels, len(samples))
            split = rule.split(known, clients, seed, owners)  # type: ignore[arg-type]
            part = None if test is None else common_part(reading, test)
            notes = (note,) if note else ()
            return federated(samples, labels, split, part, name, classes, notes)
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
        target: str | None = None,
        test: Any = None,
        name: str = "data",
        *,
        split: str = "train",
        by: str | None = None,
        partition: Partition | Assign | str | None = None,
        clients: int | None = None,
        seed: int = 0,
        lazy: bool | Lazy = False,
    ) -> FederatedData:
        """Federated data from Hugging Face's `datasets` library or from `flwr-datasets`.

        Parameters
        ----------
        source
            a `datasets.Dataset` or `DatasetDict`, shared out by `partition`; a list or mapping with
            a Dataset per client; or a `Partitioner` or `FederatedDataset` of flwr-datasets, whose
            partitions become the clients
        inputs, target
            names of the columns; several input columns of numbers are put side by side. If lazy, a
            list of columns makes batches of named tensors, for `model(**batch)`, and the target may
            be left out
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
        lazy
            whether rows are read from disk when a batch needs them: True, or
            `Lazy(workers=2, collate=…)`; a transform of the Dataset is then applied anew every time
        """
        from undrift.data.huggingface import from_huggingface

        return from_huggingface(
            source, inputs, target, test, name, split, by, partition, clients, seed, lazy
        )

    @staticmethod
    def from_function(
        function: Callable[[str], Any],
        sites: Sequence[str],
        name: str = "sites",
        lazy: bool = False,
        workers: int = 0,
    ) -> FederatedData:
        """Federated data from a function that a deployment calls to read a site's data.

        Parameters
        ----------
        function
            takes a site's name and returns a pair (inputs, targets), a Dataset or other samples as
            in `from_clients`, or {"train": samples, "test": samples}
        sites
            the names of the sites, which become the clients' ids
        name
            the name of the data in reports
        lazy
            whether Datasets are read when a batch needs them, not at once into memory
        workers
            processes that read lazy samples ahead
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
            arrays = isinstance(own, Mapping) and all(
                isinstance(each, Tensor | np.ndarray) for each in own.values()
            )
            parts = own if isinstance(own, Mapping) and not arrays else {"train": own}
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
        reading = Lazy(workers) if lazy else None
        return FederatedData.from_clients(train, test or None, name, lazy=reading)

    @staticmethod
    def from_folder(
        folder: str | Path,
        target: str | None = None,
        inputs: Sequence[str] | None = None,
        name: str | None = None,
        *,
        classes: Sequence[str] | None = None,
        normalise: str | None = None,
        categories: Sequence[str] | Mapping[str, Any] = (),
        encoding: str | Mapping[str, str] = "one-hot",
        unknown: str = "zero",
        min_count: int = MIN_COUNT,
        dates: Sequence[str] | Mapping[str, Sequence[str]] = (),
        date_format: str | None = None,
        drop: Sequence[str] = (),
        missing: str | float | Mapping[str, Any] = "error",
        missing_words: Sequence[str] = MISSING_WORDS,
        indicators: bool | Sequence[str] = False,
        sites: Sequence[str] | None = None,
    ) -> FederatedData:
        """Federated data from a folder with one file per client: npz, csv or parquet; or LEAF json.

        Npz files hold arrays x and y. Csv files begin with a line of column names. Columns are
        matched by name in every file. Normalise features that have different units. Statistics,
        such as means and vocabularies, come from the training samples of all clients, and are
        computed anew when `with_test` sets samples aside.

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
            The scale follows from the training samples that are left after test and validation
            samples are held out
        categories
            columns whose values are words: a list, or a mapping from each column to the list of its
            values, or to "agreed". Without a list the values are those of all clients, sorted
        encoding
            "one-hot", an input for each value; "codes", integers for embeddings, so that the model
            is called with (numbers, codes); or a mapping from columns to one of these
        unknown
            what a value outside the vocabulary is: "zero", zeros (the code 0), announced by a
            warning; or "error"
        min_count
            fewest training samples of a value at a client for it to enter an agreed vocabulary
        dates
            columns of dates: a list, each becomes days since 1970-01-01; or a mapping from columns
            to lists of "days", "year", "month", "day", "weekday" (0 is Monday), "hour"
        date_format
            the form of dates, such as "%d.%m.%Y"; by default ISO 8601, such as 2024-05-31 14:00
        drop
            columns that are no inputs, such as identifiers
        missing
            what replaces a missing value: "error", "mean", "median" (to 1.6e-5 standard
            deviations), a number, or a mapping from columns to one of these. A missing category is
            zeros (the code 0)
        missing_words
            texts that mean a missing value, besides an empty one
        indicators
            whether to add an input that is 1 where a value is missing: True for every column with
            missing values, or a list of columns
        sites
            the clients to read, in this order; by default all files
        """
        from undrift.data.folders import from_folder

        if normalise is not None:  # checked before large files are read
            require_choice("normalise", normalise, ("channels", "features"))
        columns = Columns(
            target,
            [inputs] if isinstance(inputs, str) else inputs or None,
            classes,
            categories,
            encoding,
            unknown,
            min_count,
            dates,
            date_format,
            drop,
            missing,
            missing_words,
            indicators,
            normalise == "features",
        )
        data = from_folder(Path(folder), columns, name, sites)
        if normalise is None or (data.tabular is not None and normalise == "features"):
            return data
        return data.normalised(normalise)

    def _with(self, **changed: Any) -> FederatedData:
        """A copy with some constructor arguments replaced."""
        same = ("train", "test", "ids", "name", "validation", "classes", "notes", "augmentations")
        return FederatedData(**{each: getattr(self, each) for each in (*same, "tabular")} | changed)

    def _require_in_memory(self, what: str) -> None:
        require(
            all(part.lazy is None for part in self.parts().values()),
            f"Samples that are read when they are needed cannot be {what}: change them where they "
            f"are read, in the Dataset's __getitem__.",
        )

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
        if part.lazy is not None or self.train.lazy is not None:
            return  # known only once they are read
        for what, values, like in (
            ("inputs", part.x, self.train.x),
            ("targets", part.y, self.train.y),
        ):
            require_same_structure(
                f"of the {name} part", what, values, like, "those of the training part"
            )
            same = dict(named_tensors(like))
            for where, own in named_tensors(values):
                wanted = same[where]
                require(
                    own.shape[1:] == wanted.shape[1:],
                    f"The {name} {what}{where} have shape {list(own.shape[1:])} per sample, but "
                    f"the training {what} have {list(wanted.shape[1:])}.",
                )
                require(
                    own.is_floating_point() == wanted.is_floating_point() or not len(part),
                    f"The {name} {what}{where} are {own.dtype}, but the training {what} are "
                    f"{wanted.dtype}.",
                )

    def _require_finite(self, name: str, part: Part) -> None:
        checked = [("inputs" + at, each) for at, each in named_tensors(part.x)]
        checked += [("targets" + at, each) for at, each in named_tensors(part.y)]
        for what, values in checked:
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
        if self.classes is None or not len(part) or not isinstance(part.y, Tensor):
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
    x: Tree,
    y: Tree,
    split: Split,
    test: Part | None,
    name: str,
    classes: Sequence[str] | None = None,
    notes: Sequence[str] = (),
) -> FederatedData:
    """Federated data from samples and a partition's split; empty clients are left out."""
    ids: Sequence[Hashable] = range(len(split.sizes)) if split.ids is None else split.ids
    bounds, partition_notes = split.bounds, split.notes
    full = np.flatnonzero(split.sizes)
    if len(full) < len(split.sizes):
        bounds = np.concatenate([[0], split.bounds[1:][full]])
        left_out = f"{len(split.sizes) - len(full)} clients without samples are left out."
        partition_notes = (*partition_notes, left_out)
        ids = [ids[k] for k in full.tolist()]
    train = Part(x, y, torch.from_numpy(split.rows), torch.from_numpy(bounds))
    return FederatedData(train, test, ids, name, classes=classes, notes=(*notes, *partition_notes))


def _as_augmentation(value: Augmentation | Callable[..., Any]) -> Augmentation:
    """An augmentation from itself, or from a function of one (image, target)."""
    if callable(value) and not isinstance(value, type | Augmentation):
        return Transform(value)
    require_type("An augmentation", value, Augmentation, "such as RandomCrop(padding=4)")
    return value  # type: ignore[return-value]


def _require_same_shape(augmentation: Augmentation, x: Tree, y: Tree) -> None:
    """Try an augmentation on a few samples, so that a mistake shows before training starts."""
    require(
        isinstance(x, Tensor),
        f"{augmentation} changes one input, but the samples have several: change them in a "
        f"Dataset's __getitem__.",
    )
    drawn = augmentation.draw(len(x), np.random.default_rng(0))
    try:
        changed, targets = augmentation.apply_both(x.clone(), y, drawn)
    except UndriftError:
        raise
    except Exception as error:
        raise UndriftError(f"{augmentation} failed on a sample: {first_line(error)}.") from error
    if isinstance(y, Tensor):
        require(
            isinstance(targets, Tensor) and targets.shape == y.shape and targets.dtype == y.dtype,
            f"{augmentation} must keep the shape {list(y.shape)} and the type {y.dtype} of the "
            f"targets.",
        )
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


def _part_of_rows(
    x: Tree, y: Tree, parts: Sequence[Sequence[int]] | Mapping[Hashable, Sequence[int]]
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
            own.size == 0 or (own.min() >= 0 and own.max() < rows_in(x)),
            f"Client {id!r} has a row number outside 0 … {rows_in(x) - 1}.",
        )
    ends = np.cumsum([0] + [len(own) for own in rows])
    joined = np.concatenate(rows).astype(np.int64)
    return Part(x, y, torch.from_numpy(joined), torch.from_numpy(ends)), ids
