"""Flower's SuperLink with a guard before it; runs as a process of its own.

Whoever reaches a SuperLink may start runs and register nodes: Flower leaves that open. Here only
the server that started it may, who alone knows the token; and no request may be endless.
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
ALIVE = "UNDRIFT_SUPERLINK_ALIVE"
"""What the environment says: who may start runs, and which file a server touches."""
ALONE = 900.0
"""Seconds for which it waits for a server that died to come back."""
HEADER = b"x-undrift-token"
OPEN = ("/v1/fleet/", "/v1/runtime/")
"""What sites use, with keys of their own."""
LIMIT = 64 * 2**20
"""Bytes of a request: Flower cuts tensors into pieces of five megabytes."""


class Guard:
    """Refuses who may not ask, and what is too large, before Flower sees it."""

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
        admitted = hmac.compare_digest(headers.get(HEADER, b""), self._token)
        if not (path.startswith(OPEN) or path == "/health" or admitted):
            await _refuse(send, 404, b"not found")
            return
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > LIMIT:
            await _refuse(send, 413, b"too large")
            return
        seen = 0

        async def bounded() -> Any:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > LIMIT:
                raise RuntimeError("the request is too large")
            return message

        await self._app(scope, bounded, send)


async def _refuse(send: Callable[..., Any], status: int, why: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": why})


def _watch(alive: Path) -> None:
    """End this process when no server has been there for a while."""
    while True:
        time.sleep(1)
        try:
            silent = time.time() - alive.stat().st_mtime
        except OSError:
            silent = ALONE + 1  # the run folder is gone
        if silent > ALONE:
            os.kill(os.getpid(), signal.SIGTERM)
            return


def main() -> None:
    """Run a SuperLink, with its own arguments."""
    threading.Thread(target=_watch, args=(Path(os.environ[ALIVE]),), daemon=True).start()
    from flwr.superlink import extensions
    from flwr.superlink.cli import flower_superlink
    from starlette.middleware import Middleware

    extensions.get_middleware = lambda: (Middleware(Guard),)
    flower_superlink()


if __name__ == "__main__":
    main()
