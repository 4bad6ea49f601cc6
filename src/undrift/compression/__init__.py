"""Compression of what travels: top-k, random-k, quantisation, sign; with error feedback.

`ud.train(..., compression=ud.compression.TopK(0.01))` compresses uploads;
`ud.compression.Compression(up=..., down=...)` compresses both directions.
"""

from undrift.compression.compressor import Compressor, InvalidEncoding
from undrift.compression.quantised import QSGD, Sign
from undrift.compression.settings import Compression, as_compression
from undrift.compression.sparse import RandomK, TopK

COMPRESSORS: dict[str, type[Compressor]] = {
    "top-k": TopK,
    "random-k": RandomK,
    "qsgd": QSGD,
    "sign": Sign,
}
"""The compressors by their names in files."""

__all__ = [
    "COMPRESSORS",
    "QSGD",
    "Compression",
    "Compressor",
    "InvalidEncoding",
    "RandomK",
    "Sign",
    "TopK",
    "as_compression",
]
