"""The site's side: verifies that a request comes from the server, and signs the answer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from undrift.deploy.protocol import IDENTIFY
from undrift.deploy.signing.envelopes import (
    ANSWER,
    REQUEST,
    Envelope,
    NotAnEnvelope,
    digest,
    signed_content,
    unpacked,
)
from undrift.deploy.signing.keys import ServerTrust, SigningKey
from undrift.deploy.wire_format import encode

REMEMBERED_NONCES = 100_000
"""How many nonces a site remembers, to refuse a request that comes twice."""


class Answering(Protocol):
    """Answers requests, such as a `Site`."""

    name: str

    def answer(self, request: bytes) -> bytes:
        """The answer to a request."""


class LoggingSite(Answering, Protocol):
    """Also logs the requests that never reach it."""

    def log_refusal(self, sentence: str) -> bool:
        """Log a refused request; False if there is a flood of them, which is only counted."""


class SignedSite:
    """Hands a site only requests that its server signed for it, and signs the site's answers.

    Parameters
    ----------
    site
        answers the requests, and logs the refused ones
    certs
        the site's folder of the certificates; None for no signatures
    say
        is told which requests were refused, and why, unless there is a flood of them
    """

    def __init__(
        self,
        site: LoggingSite,
        certs: Path | None = None,
        say: Callable[[str], None] = lambda sentence: None,
    ):
        self.name = site.name
        self._site = site
        self._key = None if certs is None else SigningKey(certs / "key")
        self._trust = None if certs is None else ServerTrust(certs / "ca.crt")
        self._say = say
        self._seen: set[bytes] = set()
        self._seen_in_order: deque[bytes] = deque()

    def answer(self, data: bytes) -> bytes:
        """The signed answer to a signed request; another request gets an error sentence."""
        try:
            request = unpacked(data, REQUEST)
        except NotAnEnvelope:
            # Without certificates a transport may have to ask for a site's name.
            if self._trust is None and data == encode({"kind": IDENTIFY}, {}):
                return self._site.answer(data)
            return self._refusal("it is not signed")
        fault = self._fault(request)
        if fault is not None:
            # Not signed: whoever repeats a request must not obtain a second valid answer to it.
            return Envelope(ANSWER, request.nonce, self._refusal(fault)).packed()
        return self._signed(request, self._site.answer(request.payload)).packed()

    def _fault(self, request: Envelope) -> str | None:
        """Why a request is refused; None if it is not."""
        if self._trust is not None:
            content = signed_content(REQUEST, request.nonce, self.name, digest(request.payload))
            fault = self._trust.verify(request.certificate, content, request.signature)
            if fault is not None:
                return fault
        if request.nonce in self._seen:
            return "it was received before"
        # After the signature was verified: nobody else can make a site forget.
        self._seen.add(request.nonce)
        self._seen_in_order.append(request.nonce)
        if len(self._seen_in_order) > REMEMBERED_NONCES:
            self._seen.discard(self._seen_in_order.popleft())
        return None

    def _signed(self, request: Envelope, answer: bytes) -> Envelope:
        signature = b""
        if self._key is not None:
            signature = self._key.sign(
                signed_content(
                    ANSWER, request.nonce, self.name, digest(request.payload), digest(answer)
                )
            )
        return Envelope(ANSWER, request.nonce, answer, signature)

    def _refusal(self, why: str) -> bytes:
        sentence = f"A request was refused: {why}."
        if self._site.log_refusal(sentence):
            self._say(sentence)
        return encode({"error": f"The site {self.name!r} refused the request: {why}."}, {})
