"""The bytes around a signed request or answer: nonce, signature, certificate, then the payload."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

NONCE_BYTES = 32
"""The length of a nonce: so long that nobody guesses one."""
MAX_PART_BYTES = 8000
"""The longest signature or certificate."""
REQUEST, ANSWER = b"undrift request 1\n", b"undrift answer 1\n"
"""How an envelope begins, and what a signature is for: one for a request is none for an answer."""
ENVELOPE_BYTES = len(REQUEST) + NONCE_BYTES + 2 * (2 + MAX_PART_BYTES)
"""An envelope adds at most this many bytes to its payload."""


class NotAnEnvelope(ValueError):
    """Bytes that are not an envelope of the kind that was expected."""


@dataclass(frozen=True)
class Envelope:
    """A request or an answer with what proves where it comes from."""

    kind: bytes
    nonce: bytes
    payload: bytes
    signature: bytes = b""
    """empty without certificates"""
    certificate: bytes = b""
    """the server's, in DER; empty in answers, since the server has the sites' keys"""

    def packed(self) -> bytes:
        """The envelope as bytes; `unpacked` is the inverse."""
        parts = [self.kind, self.nonce]
        for part in (self.signature, self.certificate):
            parts += [len(part).to_bytes(2, "big"), part]
        return b"".join([*parts, self.payload])


def unpacked(data: bytes, kind: bytes) -> Envelope:
    """The envelope of a kind in some bytes; raises `NotAnEnvelope` if there is none."""
    if not data.startswith(kind):
        raise NotAnEnvelope
    at = len(kind) + NONCE_BYTES
    nonce, parts = data[len(kind) : at], []
    for _ in range(2):
        length = int.from_bytes(data[at : at + 2], "big")
        part = data[at + 2 : at + 2 + length]
        if len(data) < at + 2 or len(part) != length or length > MAX_PART_BYTES:
            raise NotAnEnvelope
        parts.append(part)
        at += 2 + length
    return Envelope(kind, nonce, data[at:], *parts)


def signed_content(kind: bytes, nonce: bytes, site: str, *payloads: bytes) -> bytes:
    """What a signature covers: the kind, the nonce, the site, and the hashes of the payloads.

    Every part has a fixed length or is preceded by its length, so that no two messages share it.
    """
    name = site.encode()
    return b"".join([kind, nonce, len(name).to_bytes(2, "big"), name, *payloads])


def digest(payload: bytes) -> bytes:
    """The hash that stands for a payload in a signature."""
    return hashlib.sha384(payload).digest()
