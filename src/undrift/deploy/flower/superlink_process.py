"""The process of Flower's SuperLink, with a guard in front of it.

Flower lets everyone who reaches a SuperLink start runs and register nodes. The guard allows that
only to the server that started the process and knows its token, and limits the size of requests.
"""

from __future__ import annotations

import hmac
import os
import signal
import threading
import time
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

TOKEN = "UNDRIFT_SUPERLINK_TOKEN"
"""The environment variable with the token of the server."""
ALIVE = "UNDRIFT_SUPERLINK_ALIVE"
"""The environment variable with the file that a living server touches."""
ORPHAN_SECONDS = 900.0
"""How long the process lives on without a server, so that one that was killed can come back."""
CHECK_SECONDS = 1.0
"""How often the process checks whether its server lives."""
HEADER = b"x-undrift-token"
OPEN_PATHS = ("/v1/fleet/", "/v1/runtime/")
"""The paths that sites use; Flower checks the sites' own keys there."""
MAX_REQUEST_BYTES = 64 * 2**20
"""The largest HTTP request; Flower splits tensors into chunks of five megabytes."""


class Guard:
    """ASGI middleware that rejects requests without permission, and those that are too large."""

    def __init__(self, app: Callable[..., Any]):
        self._app = app
        self._token = os.environ[TOKEN].encode()

    async def __call__(
        self, scope: MutableMapping[str, Any], receive: Callable[..., Any], send: Callable[..., Any]
    ) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        path = scope["path"]
        from_server = hmac.compare_digest(headers.get(HEADER, b""), self._token)
        if not (path.startswith(OPEN_PATHS) or path == "/health" or from_server):
            await _reject(send, 404, b"not found")
            return
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > MAX_REQUEST_BYTES:
            await _reject(send, 413, b"too large")
            return
        received = 0

        async def receive_limited() -> Any:
            # A request without a length, or with a wrong one, is counted as it arrives.
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > MAX_REQUEST_BYTES:
                raise RuntimeError("the request is too large")
            return message

        await self._app(scope, receive_limited, send)


async def _reject(send: Callable[..., Any], status: int, why: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": why})


def _end_without_server(alive: Path) -> None:
    """End this process when no server has touched the file for a while."""
    while True:
        time.sleep(CHECK_SECONDS)
        try:
            silent = time.time() - alive.stat().st_mtime
        except OSError:
            silent = ORPHAN_SECONDS + 1  # the run folder was removed
        if silent > ORPHAN_SECONDS:
            os.kill(os.getpid(), signal.SIGTERM)
            return


def main() -> None:
    """Run a SuperLink; the command-line arguments are Flower's."""
    alive = Path(os.environ[ALIVE])
    threading.Thread(target=_end_without_server, args=(alive,), daemon=True).start()
    from flwr.superlink import extensions
    from flwr.superlink.cli import flower_superlink
    from starlette.middleware import Middleware

    extensions.get_middleware = lambda: (Middleware(Guard),)
    flower_superlink()


if __name__ == "__main__":
    main()
