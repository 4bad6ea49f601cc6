"""Take the guide's picture of a report, with Chromium.

    undrift demo
    python -m tools.pages.report_picture undrift-demo.html docs/report.png

It needs playwright and Chromium, as the tests of the report do.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

WIDTH, HEIGHT = 1200, 800


def main(report: str, picture: str) -> None:
    """Write the top of a report as a picture."""
    with sync_playwright() as started:
        path = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.goto(Path(report).resolve().as_uri())
        page.wait_for_selector("canvas")
        page.screenshot(path=picture)
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
