"""The guide's page of measured speed, and the table of it in the README.

    undrift bench --json > bench.json
    python -m tools.pages.speed bench.json docs/bench.md README.md

writes them from what was measured, on the machine where that was.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import torch

from tools.pages.methods.generated_blocks import refreshed
from undrift import __version__
from undrift.bench.output import milliseconds
from undrift.bench.workloads import WORKLOADS
from undrift.utils.files import written_whole

HEAD = """# Measured speed

What `undrift bench` found. A ratio above 1 means that a round of undrift is faster than the bare
PyTorch loop that does the same work; [Engines and speed](speed.md) explains what that is. Ratios
depend on the machine: measure on yours.
"""

FOOT = """Milliseconds are those of a round without evaluation, the best of several; the target is
the ratio that the project wants to reach. Made by

```sh
undrift bench --json > bench.json
python -m tools.pages.speed bench.json docs/bench.md README.md
```
"""


def page(found: Sequence[Mapping[str, Any]], machine: str) -> str:
    """The page as text, from the list that `undrift bench --json` prints."""
    return "\n".join([HEAD, machine + "\n", *_table(found), "", FOOT])


def _table(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "| workload | a round | method | bare loop, ms | undrift, ms | ratio | target | how |"
    yield "|---|---|---|---:|---:|---:|---:|---|"
    for row in found:
        work = WORKLOADS[row["workload"]]
        yield (
            f"| {work.name}, {work.stands_for} | {work.cohort} of {work.clients} clients × "
            f"{work.steps} steps | {row['method']} | "
            f"{milliseconds(row['bare_seconds'])} | {milliseconds(row['our_seconds'])} | "
            f"{row['ratio']:.2f} | {work.target:g} | {row['strategy']} |"
        )


def summary(found: Sequence[Mapping[str, Any]], machine: str) -> Iterator[str]:
    """The README's table: a line for each workload, with FedAvg."""
    yield "| workload | clients in a round | bare loop | undrift | times as fast |"
    yield "|---|---|---:|---:|---:|"
    for row in found:
        work = WORKLOADS[row["workload"]]
        yield (
            f"| {work.is_about} | {work.cohort} of {work.clients} | "
            f"{milliseconds(row['bare_seconds'])} ms | {milliseconds(row['our_seconds'])} ms | "
            f"{row['ratio']:.1f} |"
        )
    yield ""
    yield machine


def this_machine() -> str:
    """What it was measured on, in a sentence."""
    return (
        f"undrift {__version__}, torch {torch.__version__}, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores ({platform.machine()}), {date.today().isoformat()}."
    )


def write(measured: Path, guide: Path, readme: Path) -> None:
    """Write the guide's page, and refresh the README."""
    found, machine = json.loads(measured.read_text(encoding="utf-8")), this_machine()
    made = {"speed": lambda: summary(found, machine)}
    texts = {
        guide: page(found, machine),
        readme: refreshed(readme.read_text(encoding="utf-8"), made, str(readme)),
    }
    for path, text in texts.items():
        with written_whole(path) as partial:
            partial.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(*map(Path, sys.argv[1:]))
