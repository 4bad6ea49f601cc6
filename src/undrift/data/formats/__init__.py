"""Readers of the file formats in which data sets are published, for `undrift.data.sources`."""

from undrift.data.formats.cifar import read_cifar_binary, read_cifar_python
from undrift.data.formats.idx import read_idx
from undrift.data.formats.leaf import LeafUsers, Values, read_leaf
from undrift.data.formats.reading import read_bytes
from undrift.data.formats.speakers import read_speeches

__all__ = [
    "LeafUsers",
    "Values",
    "read_bytes",
    "read_cifar_binary",
    "read_cifar_python",
    "read_idx",
    "read_leaf",
    "read_speeches",
]
