"""Checksums of the values in a run's store, and the digest of all of them.

Every value ends with a CRC-32 of its key and its content, so a damaged value and one that belongs
to another key are found when they are read. What a checksum of single values cannot find, a value
that is missing or of an older commit, changes the digest: the sum of a hash of every key with its
checksum. A sum can be kept up to date at the cost of what a commit writes, whatever the number of
clients.

CRC-32 was chosen by speed: it takes 0.1 ms per 800 kB, BLAKE2b 0.5 ms. It protects against
accidents, not against somebody who changes the file on purpose.
"""

from __future__ import annotations

import zlib
from hashlib import blake2b

CHECKSUM_BYTES = 4
DIGEST_BYTES = 16
MODULUS = 1 << 8 * DIGEST_BYTES


def sealed(key: bytes, content: bytes) -> bytes:
    """The content with its checksum, as it is stored under a key."""
    return content + _checksum(key, content)


def seal(key: bytes, content: bytearray) -> bytearray:
    """The same for content whose last `CHECKSUM_BYTES` are free: it is not copied."""
    with memoryview(content) as view:
        view[-CHECKSUM_BYTES:] = _checksum(key, view[:-CHECKSUM_BYTES])
    return content


def _checksum(key: bytes, content: bytes | memoryview) -> bytes:
    return zlib.crc32(content, zlib.crc32(key)).to_bytes(CHECKSUM_BYTES, "little")


def unsealed(key: bytes, value: bytes | memoryview) -> memoryview | None:
    """The content of a stored value, without copying it; None if the checksum does not fit."""
    view = memoryview(value)
    content, checksum = view[:-CHECKSUM_BYTES], view[-CHECKSUM_BYTES:]
    return content if checksum == _checksum(key, content) else None


def summand(key: bytes, value: bytes | bytearray | memoryview) -> int:
    """What an entry adds to the digest."""
    checksum = bytes(memoryview(value)[-CHECKSUM_BYTES:])
    return int.from_bytes(blake2b(checksum + key, digest_size=DIGEST_BYTES).digest(), "little")


def as_text(digest: int) -> str:
    """The digest in hexadecimal."""
    return f"{digest % MODULUS:0{2 * DIGEST_BYTES}x}"
