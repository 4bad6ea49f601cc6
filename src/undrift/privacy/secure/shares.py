"""Shamir's secret sharing of 32-byte secrets: t of n shares give the secret, fewer tell nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations, islice

from undrift.privacy.secure.attempt import SecureError
from undrift.utils.errors import UndriftError

try:
    from Crypto.Protocol.SecretSharing import Shamir
except ImportError:
    raise UndriftError(
        "Secure aggregation needs the package pycryptodome, which is not installed: "
        "pip install 'undrift[flower]'."
    ) from None

BLOCK_BYTES = 16
"""The library shares secrets of this length, so that a longer one is shared in blocks."""
SHARE_BYTES = 32
MAX_SUBSETS = 2000
"""How many sets of shares are tried if some of the shares are wrong."""


def split(secret: bytes, threshold: int, count: int) -> dict[int, bytes]:
    """Shares of a secret, by their numbers from 1."""
    shares: dict[int, bytes] = dict.fromkeys(range(1, count + 1), b"")
    for block in _blocks(secret):
        for number, share in Shamir.split(threshold, count, block, False):
            shares[number] += share
    return shares


def combine(shares: Mapping[int, bytes]) -> bytes:
    """The secret of at least as many shares as the threshold; wrong shares give a wrong secret."""
    length = len(next(iter(shares.values())))
    return b"".join(
        Shamir.combine([(n, share[at : at + BLOCK_BYTES]) for n, share in shares.items()], False)
        for at in range(0, length, BLOCK_BYTES)
    )


def recovered(
    shares: Mapping[int, bytes], threshold: int, published: Callable[[bytes], bytes], wanted: bytes
) -> bytes:
    """The secret whose published value is `wanted`; some of the shares may be wrong.

    Secret sharing does not detect a wrong share, so that sets of shares are tried until one gives
    the right secret.
    """
    usable = {n: share for n, share in shares.items() if len(share) == SHARE_BYTES}
    for numbers in islice(combinations(sorted(usable), threshold), MAX_SUBSETS):
        secret = combine({number: usable[number] for number in numbers})
        if published(secret) == wanted:
            return secret
    raise SecureError("Too few right shares of a mask were revealed.")


def _blocks(secret: bytes) -> list[bytes]:
    return [secret[at : at + BLOCK_BYTES] for at in range(0, len(secret), BLOCK_BYTES)]
