"""Serves a live page to browsers on this machine, from threads beside the one that trains.

The server listens on 127.0.0.1 only. Its address has a random word, so that other users of the
machine cannot read the page. Requests for another host name are refused: a web site could otherwise
let its own name point to 127.0.0.1 and read the page (DNS rebinding). There are two addresses, the
page and its state; no file is served.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import BoundedSemaphore, Event, Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

from undrift.report.live.live_page import live_page
from undrift.report.live.live_runs import LiveRuns
from undrift.utils.errors import UndriftError, first_line

HOST = "127.0.0.1"
WAIT_SECONDS = 10.0
"""How long a question waits for a new round before it is answered without one."""
REQUEST_SECONDS = 20.0
"""How long a connection may take to send its request."""
LAST_SECONDS = 1.0
"""How long the end of the runs waits for an open page to learn of it."""
RECENT_SECONDS = 2.0
"""A page whose last question is older than this counts as closed."""
MAX_CONNECTIONS = 16
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@contextmanager
def serving(live: LiveRuns) -> Iterator[str]:
    """Serve the page of `live` during a block, and yield its address."""
    try:
        server = _Server(live)
    except OSError as error:
        raise UndriftError(f"The live page cannot be served: {first_line(error)}.") from error
    thread = Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.2}, name="live-page", daemon=True
    )
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_port}/{server.word}/"
    finally:
        live.finish()
        server.wait_for_page()
        server.shutdown()
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a browser that keeps a connection open must not keep the run

    def __init__(self, live: LiveRuns):
        super().__init__((HOST, 0), _Handler)
        self.live = live
        self.word = secrets.token_urlsafe(12)
        self.hosts = {f"{name}:{self.server_port}" for name in (HOST, "localhost")}
        self.last_asked = -RECENT_SECONDS
        self.asking = 0
        self.told_end = Event()
        self._free = BoundedSemaphore(MAX_CONNECTIONS)

    def wait_for_page(self) -> None:
        """Give a page that is open the time to learn that the runs are over."""
        if self.asking or time.monotonic() - self.last_asked < RECENT_SECONDS:
            self.told_end.wait(LAST_SECONDS)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a page that was closed while it was answered is no news for the terminal."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = REQUEST_SECONDS
    server_version, sys_version = "undrift", ""

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        base = f"/{self.server.word}/"
        if self.headers.get("Host") not in self.server.hosts:
            self._send(403, "text/plain", "This page is for 127.0.0.1 only.")
        elif asked.path == base:
            self._send(200, "text/html", live_page(self.server.live))
        elif asked.path == f"{base}state":
            self._send_state(parse_qs(asked.query))
        else:
            self._send(404, "text/plain", "There is nothing here.")

    def _send_state(self, query: dict[str, list[str]]) -> None:
        given = [query.get(name, ["0"])[0] for name in ("after", "version")]
        if not all(each.isascii() and each.isdigit() and len(each) < 16 for each in given):
            self._send(400, "text/plain", "'after' and 'version' must be whole numbers.")
            return
        after, version = map(int, given)
        self.server.asking += 1
        try:
            answer = self.server.live.answer(after, version, WAIT_SECONDS)
            self._send(200, "application/json", json.dumps(answer, allow_nan=False))
        finally:
            self.server.asking -= 1
            self.server.last_asked = time.monotonic()
        if answer["done"]:
            self.server.told_end.set()

    def _send(self, status: int, kind: str, text: str) -> None:
        content = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *values: Any) -> None:
        """Write no log: standard error shows the progress of the runs."""
