"""Writes the packages that an extra of this project needs, pinned and with hashes of their files.

    python -m tools.hashed_requirements flower requirements-flower.txt
    python -m tools.hashed_requirements dev requirements-dev.txt

pip resolves the packages; the hashes are those of all files of each version in pip's index, so that
the list also works on other platforms that need the same packages. torch is left out with what only
it needs: its builds for CPU and CUDA have the same version and different files, so it is installed
before, by constraints.txt.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import tomllib
import urllib.parse
import urllib.request
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).parents[1]
LEFT_OUT = ("torch",)
TIMEOUT_SECONDS = 60
HEADER = """\
# The packages of undrift[{extra}] without torch, pinned and with the hashes of their files.
# Made by `make hashes` for Python {python} on {system}.
# Install torch first, then these, then undrift:
#   pip install -c constraints.txt torch
#   pip install --require-hashes -r {name}
#   pip install --no-deps .
"""


def main(extra: str, output: Path) -> None:
    """Write the file."""
    found = resolve(requirements(extra))
    blocks = []
    for name, version, used in sorted(found):
        hashes = hashes_of(name, version)
        if used not in hashes:
            raise SystemExit(f"The index does not list the file of {name} {version} that pip uses.")
        lines = [f"{name}=={version}", *(f"    --hash=sha256:{each}" for each in sorted(hashes))]
        blocks.append(" \\\n".join(lines))
    header = HEADER.format(
        extra=extra,
        python=".".join(platform.python_version_tuple()[:2]),
        system=f"{platform.system()} {platform.machine()}",
        name=output.name,
    )
    output.write_text(header + "\n".join(blocks) + "\n", encoding="utf-8")


def requirements(extra: str) -> list[str]:
    """What the project and one of its extras need, without the packages that are left out."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = list(project["dependencies"])
    extras = [extra]
    while extras:
        for each in project["optional-dependencies"][extras.pop()]:
            own = re.fullmatch(rf"{project['name']}\[(.*)\]", each)  # an extra that includes others
            if own:
                extras += own[1].split(",")
            else:
                wanted.append(each)
    return [each for each in wanted if normalised(re.split(r"[^\w.-]", each)[0]) not in LEFT_OUT]


def resolve(wanted: list[str]) -> list[tuple[str, str, str]]:
    """Name, version and SHA-256 of every file that pip would install for these requirements."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "install", "--quiet", "--dry-run"),
                *("--ignore-installed", "--report", str(report)),
                *("-c", str(ROOT / "constraints.txt"), *wanted),
            ],
            check=True,
        )
        installs = json.loads(report.read_text(encoding="utf-8"))["install"]
    return [
        (
            normalised(each["metadata"]["name"]),
            each["metadata"]["version"],
            each["download_info"]["archive_info"]["hashes"]["sha256"],
        )
        for each in installs
        if normalised(each["metadata"]["name"]) not in LEFT_OUT
    ]


def hashes_of(name: str, version: str) -> set[str]:
    """The SHA-256 of every file of one version in pip's index."""
    page = f"{index_url().rstrip('/')}/{name}/"
    with urllib.request.urlopen(page, timeout=TIMEOUT_SECONDS) as answer:
        links = _Links()
        links.feed(answer.read().decode())
    found = (urllib.parse.urlsplit(link) for link in links.found)
    return {
        file.fragment.removeprefix("sha256=")
        for file in found
        if file.fragment.startswith("sha256=")
        and _version_of(urllib.parse.unquote(file.path.rpartition("/")[2]), name) == version
    }


class _Links(HTMLParser):
    """Collects the addresses that a page links to (PEP 503: one link per file)."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for key, value in attrs if tag == "a" and key == "href" and value]


def index_url() -> str:
    """The address of the index that pip is configured to use."""
    from pip._internal.models.index import PyPI

    if "PIP_INDEX_URL" in os.environ:
        return os.environ["PIP_INDEX_URL"]
    found = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"],
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip() or PyPI.simple_url


def normalised(name: str) -> str:
    """The name of a package in its normal form (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _version_of(file: str, name: str) -> str | None:
    """The version in the name of a wheel or a source archive; None for other files."""
    if file.endswith(".whl"):
        return file.split("-")[1]
    base = re.sub(r"\.(tar\.gz|zip)$", "", file)
    if base == file:
        return None
    title, _, version = base.rpartition("-")
    return version if normalised(title) == name else None


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
