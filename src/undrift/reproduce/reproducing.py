"""Runs a reproduction and writes its findings, figure and page into its folder."""

from __future__ import annotations

import platform
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from undrift.report.html.html_page import write_report
from undrift.reproduce.figure import draw
from undrift.reproduce.findings import Findings
from undrift.reproduce.findings_page import CURVES, FIGURE, FINDINGS, write_page
from undrift.reproduce.lab import Lab
from undrift.reproduce.registry import find
from undrift.reproduce.reproduction import Reproduction
from undrift.runs.folder import locked_folder, write_json
from undrift.utils.errors import require, require_whole


def reproduce(
    name: str,
    out: str | Path | None = None,
    quick: bool = False,
    seeds: int | None = None,
    parts: Sequence[str] = (),
    console: Console | None = None,
) -> Findings:
    """Reproduce a figure or table of a paper and return the findings.

    Runs that the folder already has are resumed, or read if they are finished.

    Parameters
    ----------
    name
        one of `undrift.reproduce.NAMES`
    out
        the folder to write to; by default `reproductions/<name>`, with "-quick" for the quick
        version
    quick
        run a reduced version, in about a minute
    seeds
        number of seeds; by default the reproduction's own, and 1 for the quick version
    parts
        which parts to run, by default all; the findings include the parts the folder already has
    console
        where progress is printed; None prints nothing
    """
    reproduction = find(name)
    require(not (quick and parts), "The quick version has no parts: leave out --part or --quick.")
    usual = 1 if quick else reproduction.seeds
    seeds = usual if seeds is None else require_whole("seeds", seeds, at_least=1)
    folder = Path(out) if out is not None else default_folder(name, quick)
    with locked_folder(folder), _papers_own_parameters():
        lab = Lab(reproduction, folder, quick, seeds, parts, console)
        found = reproduction.reproduce(lab)
        lab.done()
        write(reproduction, lab, found)
    return found


def default_folder(name: str, quick: bool) -> Path:
    """Return the default folder of a reproduction."""
    return Path("reproductions") / (f"{name}-quick" if quick else name)


def write(reproduction: Reproduction, lab: Lab, found: Findings) -> None:
    """Write the findings, the figure, the report of the runs and the page."""
    write_json(lab.folder / FINDINGS, _as_json(reproduction, lab, found))
    if found.panels:
        draw(found.panels, lab.folder / FIGURE)
    if lab.folders:
        write_report(lab.folders, lab.folder / CURVES)
    write_page(reproduction, lab.folder)


def _as_json(reproduction: Reproduction, lab: Lab, found: Findings) -> dict[str, Any]:
    from undrift import __version__

    return {
        "name": reproduction.name,
        "revision": reproduction.revision,
        "quick": lab.quick,
        "seeds": lab.most_seeds,
        "parts": lab.parts,
        "seconds": round(lab.seconds, 1),
        "undrift": __version__,
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "made": datetime.now(UTC).date().isoformat(),
        **found.as_dict(),
    }


@contextmanager
def _papers_own_parameters() -> Iterator[None]:
    """Hide the warning about AsyncFedDR's alpha: the paper itself uses one above its bound."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="asyncFedDR's alpha")
        yield
