"""`TabularSource`: the features behind federated data, from which they are encoded anew.

Statistics come from training samples only, so data are encoded again whenever samples are set aside
for testing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from undrift.data.part import Part
from undrift.data.tabular.columns import Columns
from undrift.data.tabular.encoding import Encoding, report_unknown
from undrift.data.tabular.features import Features
from undrift.data.tabular.statistics import ClientSamples, Needs, encoding_of
from undrift.utils.errors import UndriftError, require

if TYPE_CHECKING:
    from undrift.data.federated import FederatedData

TRAIN, TEST = "train", "test"


@dataclass(frozen=True)
class TabularSource:
    """The features and targets of all samples, and how they are encoded."""

    columns: Columns
    features: Mapping[str, Features]
    """those of the training files, and of the test files if there are any"""
    targets: Mapping[str, np.ndarray]
    whole: tuple[bool, ...]
    """whether the targets of each client can be class numbers"""
    encoding: Encoding | None = None
    """the encoding of the data; None before they are encoded"""
    fixed: bool = False
    """whether the encoding was given, and does not follow from the training samples"""
    deferred: bool = False
    """whether the data stay without inputs until they get an encoding, as at a site"""

    def files_of(self, part: str) -> str:
        """Which files the samples of a part come from: held-out ones are in the training files."""
        return TEST if part == TEST and TEST in self.features else TRAIN

    def samples_of(self, train: Part, k: int) -> ClientSamples:
        """The training samples of client k, from which it answers questions."""
        rows = train.of(k).numpy()
        # Pooled data have one client in place of all that were read.
        whole = self.whole[k] if len(train.sizes) == len(self.whole) else all(self.whole)
        return ClientSamples(self.features[TRAIN], rows, whole)

    def standardised(self) -> TabularSource:
        """The same source with its numbers standardised."""
        return replace(self, columns=replace(self.columns, standardise=True), fixed=False)

    def encode(self, data: FederatedData) -> FederatedData:
        """The data encoded by statistics of their training samples, or by the fixed encoding."""
        encoding = self.encoding
        if self.deferred:
            return data._with(tabular=self)
        if encoding is None or not self.fixed:
            clients = {id: self.samples_of(data.train, k) for k, id in enumerate(data.ids)}
            encoding = encoding_of(Needs(self.columns), clients)
        return replace(self, encoding=encoding).apply(data)

    def apply(self, data: FederatedData) -> FederatedData:
        """The data with this source's encoding."""
        encoding = self.encoding
        assert encoding is not None
        made = {
            name: (encoding.inputs(each), encoding.targets(self.targets[name]))
            for name, each in self.features.items()
        }
        parts: dict[str, Any] = {}
        for name in ("train", "validation", "test"):
            part: Part | None = getattr(data, name)
            if part is not None:
                files = self.files_of(name)
                parts[name] = Part(*made[files], part.rows, part.bounds)
                rows = part.rows.numpy()
                report_unknown(encoding, self.features[files], rows, name, self.columns.unknown)
        return data._with(**parts, tabular=self)

    def order(self, column: str) -> np.ndarray:
        """Numbers by which the samples of the training files are ordered."""
        return self.features[TRAIN].order(column)


def require_matching(source: TabularSource, encoding: Encoding) -> None:
    """Raise unless an encoding is one of these features."""
    own = {each.name: each.kind for each in source.features[TRAIN].features}
    plain = encoding.plain()["columns"]
    sent = {each["name"]: each["kind"] for each in plain}
    require(own == sent, "The encoding has other columns than the data.")
    for each in plain:
        declared = source.columns.vocabulary(each["name"]) if each["kind"] == "word" else None
        if declared is not None and declared != each["values"]:
            raise UndriftError(f"The encoding has other values of {each['name']!r} than declared.")
        if each["kind"] == "word" and each["coded"] != source.columns.coded(each["name"]):
            raise UndriftError(f"The encoding of {each['name']!r} is of another kind.")
