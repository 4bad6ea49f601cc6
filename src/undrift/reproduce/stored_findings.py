"""Finds the findings of a full run that are stored already, so that nothing has to run again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import undrift
from undrift.reproduce.findings_page import FINDINGS
from undrift.runs.folder import read_json
from undrift.utils.errors import UndriftError

PACKAGED = "stored"
"""The folder of this package that has the project's own findings, in an installed wheel."""
IN_CHECKOUT = Path("docs", "reproductions")
"""Where a checkout of the project has them."""


def stored_findings(name: str, folder: Path) -> tuple[dict[str, Any], Path]:
    """Return the findings of a reproduction and their file.

    Findings in `folder`, which the user's own runs left there, come before the project's.
    """
    for path in (folder / FINDINGS, *_published(name)):
        if path.is_file():
            return read_json(path), path
    raise UndriftError(
        f"There is no stored result of {name}: neither in {folder} nor among those of the project. "
        f"Run it first: undrift reproduce {name}."
    )


def _published(name: str) -> tuple[Path, Path]:
    package = Path(undrift.__file__).parent
    return (
        package / "reproduce" / PACKAGED / f"{name}.json",
        package.parents[1] / IN_CHECKOUT / f"{name}.json",
    )
