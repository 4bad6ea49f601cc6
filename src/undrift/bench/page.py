"""The guide's page of measured speed.

    undrift bench --json > bench.json
    python -m undrift.bench.page bench.json docs/bench.md

writes it from what was measured, on the machine where that was.
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

from undrift import __version__
from undrift.bench.workloads import WORKLOADS
from undrift.files import written_whole

HEAD = """# Measured speed

What `undrift bench` found. A ratio above 1 means that a round of undrift is faster than the bare
PyTorch loop that does the same work; [Engines and speed](speed.md) explains what that is. Ratios
depend on the machine: measure on yours.
"""

FOOT = """Milliseconds are those of a round without evaluation, the best of several. Made by

```sh
undrift bench --json > bench.json
python -m undrift.bench.page bench.json docs/bench.md
```
"""


def page(found: Sequence[Mapping[str, Any]], machine: str) -> str:
    """The page as text, from the list that `undrift bench --json` prints."""
    return "\n".join([HEAD, machine + "\n", *_table(found), "", FOOT])


def _table(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "| workload | a round | method | engine | bare loop, ms | undrift, ms | ratio | how |"
    yield "|---|---|---|---|---:|---:|---:|---|"
    for row in found:
        work = WORKLOADS[row["workload"]]
        yield (
            f"| {work.name}, {work.stands_for} | {work.cohort} of {work.clients} clients × "
            f"{work.steps} steps | {row['method']} | {row['engine']} | "
            f"{1e3 * row['bare_seconds']:.3g} | {1e3 * row['our_seconds']:.3g} | "
            f"{row['ratio']:.2f} | {row['strategy']} |"
        )


def this_machine() -> str:
    """What it was measured on, in a sentence."""
    return (
        f"undrift {__version__}, torch {torch.__version__}, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores ({platform.machine()}), {date.today().isoformat()}."
    )


if __name__ == "__main__":
    measured = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    with written_whole(Path(sys.argv[2])) as partial:
        partial.write_text(page(measured, this_machine()), encoding="utf-8")
