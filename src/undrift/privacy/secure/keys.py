"""Keys of an attempt: agreement of two sites, streams of masks, and sealed shares."""

from __future__ import annotations

import os

import numpy as np

from undrift.privacy.secure.attempt import SecureError
from undrift.privacy.secure.fixed_point import Words
from undrift.utils.errors import UndriftError

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError:
    raise UndriftError(
        "Secure aggregation needs the package cryptography, which is not installed: "
        "pip install 'undrift[flower]'."
    ) from None

SEED_BYTES = 32
KEY_BYTES = 32
"""The length of a private or public key."""
NONCE_BYTES = 12
PIECE_WORDS = 1 << 17
"""How many words of a stream are made at a time: at most 1 MB, so that they stay in cache."""


class KeyPair:
    """A fresh X25519 key pair, from the operating system's generator."""

    def __init__(self) -> None:
        self._private = X25519PrivateKey.generate()

    @property
    def private(self) -> bytes:
        """The private key."""
        return self._private.private_bytes_raw()

    @property
    def public(self) -> bytes:
        """The public key."""
        return self._private.public_key().public_bytes_raw()


def public_key(private: bytes) -> bytes:
    """The public key of a private key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agreed_seed(private: bytes, other: bytes, info: bytes) -> bytes:
    """The seed that the owners of two key pairs share; `info` says what it is for."""
    try:
        own, peer = (
            X25519PrivateKey.from_private_bytes(private),
            X25519PublicKey.from_public_bytes(other),
        )
        secret = own.exchange(peer)
    except ValueError as error:  # a wrong length, or a point of small order
        raise SecureError("A public key is invalid.") from error
    return HKDF(hashes.SHA256(), SEED_BYTES, salt=None, info=info).derive(secret)


def derived_seed(seed: bytes, info: bytes) -> bytes:
    """A seed for one purpose, from a seed of an attempt."""
    return HKDF(hashes.SHA256(), SEED_BYTES, salt=None, info=info).derive(seed)


def add_mask(words: Words, seed: bytes, sign: int) -> None:
    """Add the stream of a seed to words, or subtract it if `sign` is −1; both wrap around."""
    # A seed makes one stream only, so that the nonce may be constant.
    stream = Cipher(ChaCha20(seed, bytes(16)), mode=None).encryptor()
    size = words.dtype.itemsize
    zeros = bytes(size * min(PIECE_WORDS, len(words)))
    for first in range(0, len(words), PIECE_WORDS):
        piece = words[first : first + PIECE_WORDS]
        mask = np.frombuffer(stream.update(zeros[: size * len(piece)]), dtype=f"<u{size}")
        if sign > 0:
            piece += mask
        else:
            piece -= mask


def seal(key: bytes, content: bytes, about: bytes) -> bytes:
    """Content encrypted and authenticated together with `about`, which is not encrypted."""
    nonce = os.urandom(NONCE_BYTES)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, content, about)


def opened(key: bytes, sealed: bytes, about: bytes) -> bytes:
    """The content of sealed bytes; raises if they were changed, or sealed about something else."""
    try:
        return ChaCha20Poly1305(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], about)
    except (InvalidTag, ValueError) as error:
        raise SecureError("A sealed share was changed on its way.") from error
