"""The guard in front of a SuperLink: who may ask for what, and how much of it at once.

Flower reads the whole body of a request before it checks who sent it, without a limit on the number
of such requests, and lets everyone who reaches a SuperLink start runs and register nodes. So the
guard is the first to see a request. It lets the server pass, who knows the token; it rejects a site
without a registered key before it reads a byte; and it bounds what every site may have under way.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from undrift.deploy.flower.superlink_side import polls

HEADER = b"x-undrift-token"
SITE_PATHS = "/v1/fleet/"
"""The paths that sites use."""
MAX_SERVER_REQUEST_BYTES = 64 * 2**20
"""The largest request of the server."""
MAX_REQUEST_BYTES = 8 * 2**20
"""The largest request of a site; Flower splits tensors into chunks of five megabytes."""
REQUESTS_EACH = 8
"""How many unfinished requests a site may have: Flower's SuperNode has at most four."""
BYTES_EACH = 4 * MAX_REQUEST_BYTES
"""How many bytes the unfinished requests of a site may have together."""
BYTES_IN_ALL = 512 * 2**20
"""How many bytes all unfinished requests may have together."""
IDLE_SECONDS = 30.0
"""How long a site may send nothing in the middle of a request."""
BODY_SECONDS = 600.0
"""How long the whole body of a request may take."""
UNKNOWN_KEY = 412, '{"code": 2004, "detail": "The key of this SuperNode is not registered."}'
"""What Flower itself answers to an unknown key, so that a SuperNode says so; at a 401 it ends in
silence."""
KEYS_FRESH_SECONDS = 1.0
"""How long the list of registered keys is used before it is read again."""

Receive = Callable[[], Any]
Send = Callable[[MutableMapping[str, Any]], Any]


class Refused(Exception):
    """A request is not passed on; the status says why."""

    def __init__(self, status: int, why: str):
        super().__init__(why)
        self.status = status
        self.why = why


@dataclass(frozen=True)
class Limits:
    """What may be under way at once."""

    requests_each: int = REQUESTS_EACH
    bytes_each: int = BYTES_EACH
    bytes_in_all: int = BYTES_IN_ALL

    @classmethod
    def on_one_machine(cls, sites: int) -> Limits:
        """For sites without keys: they share one address, and so the limits of one site."""
        each = cls()
        return cls(each.requests_each * sites, each.bytes_each * sites, each.bytes_in_all)


class InFlight:
    """Counts unfinished requests and their bytes, in all and for each sender."""

    def __init__(self, limits: Limits):
        self._limits = limits
        self._requests: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()

    @property
    def total_bytes(self) -> int:
        """The bytes of all unfinished requests."""
        return self._bytes.total()

    @contextmanager
    def request(self, sender: str) -> Any:
        """Count a request while it is worked on; yields a function that reserves its bytes.

        Refusals have the status 503, after which Flower's SuperNode tries again.
        """
        if self._requests[sender] >= self._limits.requests_each:
            raise Refused(503, "too many unfinished requests")
        reserved = 0

        def reserve(number: int) -> None:
            nonlocal reserved
            more = number - reserved
            if more <= 0:
                return
            if number > MAX_REQUEST_BYTES:
                raise Refused(413, "too large")
            if self._bytes[sender] + more > self._limits.bytes_each:
                raise Refused(503, "too many bytes in unfinished requests")
            if self.total_bytes + more > self._limits.bytes_in_all:
                raise Refused(503, "too many bytes in unfinished requests of all sites")
            self._bytes[sender] += more
            reserved = number

        self._requests[sender] += 1
        try:
            yield reserve
        finally:
            self._requests[sender] -= 1
            self._bytes[sender] -= reserved
            for count in (self._requests, self._bytes):
                if not count[sender]:
                    del count[sender]  # senders come and go


class RegisteredKeys:
    """The public keys of the sites, in a folder that the server may change at any time."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic):
        self._folder = folder
        self._clock = clock
        self._read_at = float("-inf")
        self._names: dict[bytes, str] = {}
        """the site of each key, which is written as Flower writes it"""

    def site(self, headers: dict[bytes, bytes]) -> str:
        """The site that signed these headers; refuses any other."""
        from flwr.common.constant import TIMESTAMP_HEADER
        from flwr.supercore.constant import (
            FLEET_HTTP_PUBLIC_KEY_HEADER,
            FLEET_HTTP_SIGNATURE_HEADER,
        )
        from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

        self._refresh()
        try:
            key = b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER.encode()], validate=True)
            signature = b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER.encode()], validate=True)
            site, stamp = self._names[key], headers[TIMESTAMP_HEADER.encode()]
        except (KeyError, ValueError):
            raise Refused(*UNKNOWN_KEY) from None
        # Flower checks the time itself, after it has read the body.
        if not verify_signature(bytes_to_public_key(key), stamp, signature):
            raise Refused(*UNKNOWN_KEY)
        return site

    def _refresh(self) -> None:
        if self._clock() - self._read_at < KEYS_FRESH_SECONDS:
            return
        from cryptography.hazmat.primitives.serialization import load_ssh_public_key
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes

        found = {}
        for file in self._folder.glob("*.pub"):
            try:
                key: Any = load_ssh_public_key(file.read_bytes())
                found[public_key_to_bytes(key)] = file.stem
            except (OSError, ValueError):
                continue  # it is being written or deleted
        self._names, self._read_at = found, self._clock()


class Guard:
    """ASGI middleware that passes on only requests that are allowed, complete and within limits.

    Parameters
    ----------
    app
        Flower's SuperLink
    token
        the token of the server
    keys
        the keys of the sites; None to tell senders apart by their addresses, on one machine
    limits
        what may be under way at once
    held
        has sites that ask for a request wait for one; None to let Flower reply at once
    """

    def __init__(
        self,
        app: Callable[..., Any],
        token: str,
        keys: RegisteredKeys | None,
        limits: Limits,
        held: polls.Polls | None = None,
    ):
        self._app = app
        self._token = token.encode()
        self._keys = keys
        self._held = held
        self.in_flight = InFlight(limits)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # without an answer the connection is closed
        headers = dict(scope["headers"])
        try:
            length = _content_length(headers)
            if hmac.compare_digest(headers.get(HEADER, b""), self._token):
                if length > MAX_SERVER_REQUEST_BYTES:
                    raise Refused(413, "too large")
                await self._app(scope, receive, send)
            else:
                await self._from_site(scope, headers, length, receive, send)
        except Refused as refused:
            await _reject(send, refused)

    async def _from_site(
        self,
        scope: MutableMapping[str, Any],
        headers: dict[bytes, bytes],
        length: int,
        receive: Receive,
        send: Send,
    ) -> None:
        path = scope["path"]
        if not (path.startswith(SITE_PATHS) or path == "/health"):
            raise Refused(404, "not found")
        sender = str((scope.get("client") or ("",))[0])
        if self._keys is not None and path != "/health":
            sender = f"site {self._keys.site(headers)}"
        with self.in_flight.request(sender) as reserve:
            reserve(length)
            body = await _whole_body(receive, reserve)
            if self._held is not None and path == polls.PATH:
                reply = await self._held.answer(body)
                if reply is not None:
                    await _reply(send, reply)
                    return
            # Flower holds the body until it has answered, so it is counted until then.
            await self._app(scope, _replay(body, receive), send)


async def _whole_body(receive: Receive, reserve: Callable[[int], None]) -> bytes:
    """The body of a request, as far as the limits allow, and not slower than they say."""
    parts: list[bytes] = []
    received, until = 0, time.monotonic() + BODY_SECONDS
    while True:
        left = min(IDLE_SECONDS, until - time.monotonic())
        try:
            message = await asyncio.wait_for(receive(), max(left, 0.0))
        except TimeoutError:
            raise Refused(408, "too slow") from None
        if message["type"] == "http.disconnect":
            raise Refused(400, "incomplete")
        part = message.get("body", b"")
        received += len(part)
        reserve(received)  # a request without a length, or with a wrong one
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    """The `receive` of a request whose body was read."""
    sent = False

    async def again() -> Any:
        nonlocal sent
        if sent:
            return await receive()  # waits for the end of the connection
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _content_length(headers: dict[bytes, bytes]) -> int:
    """The number of bytes that a request announces; 0 if it does not."""
    length = headers.get(b"content-length", b"0")
    if not length.isdigit() or len(length) > 18:
        raise Refused(413, "too large")
    return int(length)


async def _reply(send: Send, body: bytes) -> None:
    """Send a reply as Flower does."""
    from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE

    length = str(len(body)).encode()
    headers = [(b"content-type", PROTOBUF_MEDIA_TYPE.encode()), (b"content-length", length)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _reject(send: Send, refused: Refused) -> None:
    # Closing the connection keeps the rest of the body from being received.
    headers = [(b"connection", b"close")]
    status: MutableMapping[str, Any] = {"type": "http.response.start", "status": refused.status}
    await send({**status, "headers": headers})
    await send({"type": "http.response.body", "body": refused.why.encode()})
