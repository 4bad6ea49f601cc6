"""Reading of plain and gzipped files."""

import gzip
import zlib
from pathlib import Path

from undrift.utils.errors import UndriftError, first_line


def read_bytes(path: Path) -> bytes:
    """The bytes of a file, decompressed if its name ends in .gz."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UndriftError(f"{path} cannot be read: {first_line(error)}.") from error
    if path.suffix != ".gz":
        return content
    try:
        return gzip.decompress(content)
    except EOFError as error:
        raise UndriftError(f"{path} is truncated: its gzip data end early.") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise UndriftError(f"{path} is damaged or not a gzip file: {first_line(error)}.") from error
