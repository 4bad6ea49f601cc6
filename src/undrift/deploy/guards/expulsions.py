"""Sites that the operator expelled from a run, in a file that its server looks at all the time.

`undrift deploy expel` writes the file, also while the server runs in another process.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from undrift.experiments.experiment import Experiment
from undrift.runs.folder import EXPELLED, EXPERIMENT, read_json, write_json
from undrift.utils.errors import require, require_choice


def expel(folder: Path, site: str, undo: bool = False) -> bool:
    """Expel a site from a run, or take it back; returns whether that changed anything."""
    require(
        (folder / EXPERIMENT).is_file(),
        f"{folder} is not the folder of a deployment: it has no {EXPERIMENT}.",
    )
    sites = Experiment.load(folder / EXPERIMENT).data.parameters.get("sites", [])
    require_choice("The site", site, [str(each) for each in sites])
    path = folder / EXPELLED
    found = dict(_read(path))
    if (site in found) != undo:
        return False
    if undo:
        del found[site]
    else:
        found[site] = datetime.now(UTC).isoformat(timespec="seconds")
    write_json(path, found)
    return True


class Expulsions:
    """The expelled sites of a run folder; reads the file again only when it has changed."""

    def __init__(self, folder: Path):
        self._path = folder / EXPELLED
        self._stamp: tuple[int, int] | None = None
        self._sites: frozenset[str] = frozenset()

    def __call__(self) -> frozenset[str]:
        """The names of the sites that are expelled now."""
        try:
            about = self._path.stat()
            stamp = about.st_mtime_ns, about.st_ino
        except OSError:
            stamp = None
        if stamp != self._stamp:
            self._sites = frozenset(_read(self._path)) if stamp else frozenset()
            self._stamp = stamp
        return self._sites


def _read(path: Path) -> Mapping[str, Any]:
    return read_json(path) if path.is_file() else {}
