"""The server's side: a transport that signs requests and verifies the answers to them."""

from __future__ import annotations

import hmac
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Collection
from typing import NamedTuple

from undrift.deploy.signing.envelopes import (
    ANSWER,
    ENVELOPE_BYTES,
    NONCE_BYTES,
    REQUEST,
    Envelope,
    NotAnEnvelope,
    digest,
    signed_content,
    unpacked,
)
from undrift.deploy.signing.keys import SigningKey, SiteKeys
from undrift.deploy.transport import REFUSED, Answer, Transport

REMEMBERED_NONCES = 10_000
"""How many finished requests are remembered, to name the site of an answer that comes too late."""

logger = logging.getLogger("undrift.deploy")


class OpenRequest(NamedTuple):
    """A request that was sent, as its answer must refer to it."""

    nonce: bytes
    site: str
    request: bytes
    """the hash of the request"""


class SignedTransport(Transport):
    """A transport that returns only answers which the site asked gave to this very request.

    Any other answer comes back as a failure that says what is wrong with it.

    Parameters
    ----------
    inner
        carries the bytes; it need not be trusted to know who sent them
    key
        the server's key with its certificate; None for no signatures: nonces are still checked
    sites
        the sites' public keys; None for no signatures
    """

    def __init__(
        self, inner: Transport, key: SigningKey | None = None, sites: SiteKeys | None = None
    ):
        self._inner = inner
        self._key = key
        self._site_keys = sites
        self._open: dict[str, OpenRequest] = {}
        """by ticket"""
        self._finished: OrderedDict[str, str] = OrderedDict()
        """the site of each finished request, by ticket"""
        self._last_hashed: tuple[bytes, bytes] = (b"", digest(b""))

    def sites(self) -> Collection[str]:
        return self._inner.sites()

    def send(self, site: str, request: bytes, seconds: float, max_bytes: int) -> str:
        asked = OpenRequest(secrets.token_bytes(NONCE_BYTES), site, self._hash(request))
        signature, certificate = b"", b""
        if self._key is not None:
            content = signed_content(REQUEST, asked.nonce, site, asked.request)
            signature, certificate = self._key.sign(content), self._key.certificate
        sealed = Envelope(REQUEST, asked.nonce, request, signature, certificate).packed()
        ticket = self._inner.send(site, sealed, seconds, max_bytes + ENVELOPE_BYTES)
        self._open[ticket] = asked
        return ticket

    def next(self, seconds: float) -> Answer | None:
        until = time.monotonic() + seconds
        while True:
            answer = self._inner.next(max(0.0, until - time.monotonic()))
            if answer is None:
                return None
            asked = self._open.pop(answer.ticket, None)
            if asked is not None:
                self._finish(answer.ticket, asked.site)
                return answer if answer.failure is not None else self._opened(asked, answer)
            site = self._finished.get(answer.ticket)
            logger.warning(
                "An answer is %s: %s.",
                REFUSED,
                "it belongs to no request of this server"
                if site is None
                else f"the request to site {site!r} was answered or given up before",
            )

    def revoke(self, site: str) -> None:
        self._inner.revoke(site)

    def forget(self, ticket: str) -> None:
        asked = self._open.pop(ticket, None)
        if asked is not None:
            self._finish(ticket, asked.site)
        self._inner.forget(ticket)

    def _hash(self, request: bytes) -> bytes:
        # An evaluation sends the same model to every site.
        if request is not self._last_hashed[0]:
            self._last_hashed = request, digest(request)
        return self._last_hashed[1]

    def _finish(self, ticket: str, site: str) -> None:
        self._finished[ticket] = site
        while len(self._finished) > REMEMBERED_NONCES:
            self._finished.popitem(last=False)

    def _opened(self, asked: OpenRequest, answer: Answer) -> Answer:
        """The answer without its envelope, or why it is refused."""
        try:
            found = unpacked(answer.data, ANSWER)
        except NotAnEnvelope:
            why = (
                f"it does not say which request site {asked.site!r} answers; is undrift old there?"
            )
            return _refused(answer, why)
        if not hmac.compare_digest(found.nonce, asked.nonce):
            return _refused(answer, f"it answers another request than that to site {asked.site!r}")
        if self._site_keys is not None:
            content = signed_content(
                ANSWER, asked.nonce, asked.site, asked.request, digest(found.payload)
            )
            fault = self._site_keys.verify(asked.site, content, found.signature)
            if fault is not None:
                return _refused(answer, fault)
        return Answer(answer.ticket, found.payload)


def _refused(answer: Answer, why: str) -> Answer:
    return Answer(answer.ticket, failure=f"{REFUSED}: {why}")
