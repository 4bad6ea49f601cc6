"""Debian's Chromium for tests, if it is installed."""

import shutil
import time
from contextlib import contextmanager

import pytest


@contextmanager
def chromium():
    """A headless browser; the test is skipped with the reason if there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


def watched(page, allowed="file:"):
    """Errors of a page, and what it asked of the network, as they come.

    Only addresses that begin with `allowed` are let through.
    """
    troubles = []
    page.on("console", lambda m: troubles.append(m.text) if m.type in ("error", "warning") else 0)
    page.on("pageerror", lambda error: troubles.append(str(error)))

    def decide(route):
        if route.request.url.startswith(allowed):
            route.continue_()
        else:
            troubles.append(f"asked for {route.request.url}")
            route.abort()

    page.route("**/*", decide)
    return troubles


def wait_for(page, expression, seconds=10.0):
    """Wait until an expression is true; the page's policy forbids it to evaluate texts itself."""
    end = time.monotonic() + seconds
    while not page.evaluate(f"Boolean({expression})"):
        assert time.monotonic() < end, f"{expression} never became true"
        page.wait_for_timeout(20)
