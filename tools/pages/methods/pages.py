"""Refreshes the pages about methods: their generated blocks and figures."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from tools.pages.methods import method_sections, overview
from tools.pages.methods.generated_blocks import Maker, refreshed
from tools.pages.methods.path_plot import draw
from tools.pages.methods.verification import stored
from tools.pages.methods.walks import WALKS
from undrift.methods import METHODS
from undrift.utils.errors import UndriftError
from undrift.utils.files import written_whole

INDEX, SERVERS = "index", "servers"
PAGES = {INDEX: INDEX, **{name: name.lower() for name in METHODS}, SERVERS: SERVERS}
"""The file of every page, by its subject."""
ORDER = ("problem", "traffic", "options", "paper", "verified", "ends", "file")
"""The blocks of every method's page, in this order."""


def makers(name: str, folder: Path) -> Mapping[str, Maker]:
    """Return the functions that generate the blocks of a page, by the word in their mark."""
    if name == INDEX:
        purposes = partial(overview.purposes, folder)
        side_by_side = {
            "overview": overview.overview,
            "costs": overview.costs,
            "facts": overview.facts,
        }
        return {"purposes": purposes, **side_by_side}
    if name == SERVERS:
        own = {
            part: partial(getattr(method_sections, part), name)
            for part in ("options", "ends", "file")
        }
        return {"servers": overview.servers, **own}
    found: dict[str, Maker] = {
        part: partial(getattr(method_sections, part), name) for part in ORDER if part != "verified"
    }
    if name == "FedAvg":
        found["schemes"] = overview.schemes
    return {**found, "verified": lambda: method_sections.verified(name, stored(folder))}


def page(name: str, folder: Path) -> str:
    """Return a page with current blocks."""
    path = folder / f"{PAGES[name]}.md"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        raise UndriftError(f"There is no page {path}: write its text first.") from None
    return refreshed(text, makers(name, folder), str(path))


def write(folder: Path) -> list[Path]:
    """Write every page and figure, and return their paths."""
    written = []
    for name, stem in PAGES.items():
        path, text = folder / f"{stem}.md", page(name, folder)
        with written_whole(path) as whole:
            whole.write_text(text, encoding="utf-8")
        written.append(path)
        if name in WALKS:
            written.append(draw(name, method_sections.walks(name), folder / f"{stem}.png"))
    return written
