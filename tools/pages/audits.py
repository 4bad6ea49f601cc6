"""Refresh the table of audited libraries on the guide's page, from what `undrift audit` printed.

undrift audit benchmarks/audits/pfl_adapters.py --python PYTHON --json > pfl.json
python -m tools.pages.audits docs/audit.md FedLab=fedlab.json fluke=fluke.json pfl=pfl.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.pages.methods.generated_blocks import refreshed
from undrift.audit import FACTS
from undrift.utils.files import written_whole

Rows = Sequence[Mapping[str, Any]]
"""What `undrift audit --json` prints."""


def page(text: str, found: Mapping[str, Rows]) -> str:
    """The page with its table made from the verdicts on each library."""
    return refreshed(text, {"audits": lambda: table(found)}, "The page")


def table(found: Mapping[str, Rows]) -> Iterator[str]:
    """Yield a row for every adapter of every library."""
    names = [fact.name for fact in FACTS]
    yield f"| library | adapter | {' | '.join(names)} |"
    yield "|---" * (2 + len(names)) + "|"
    for library, rows in found.items():
        errors = {(row["method"], row["fact"]): _cell(row) for row in rows}
        for adapter in dict.fromkeys(row["method"] for row in rows):
            cells = [errors.get((adapter, name), "·") for name in names]
            yield f"| {library} | {adapter} | {' | '.join(cells)} |"


def _cell(row: Mapping[str, Any]) -> str:
    error = row["error"]
    text = "inf" if error is None else f"{error:.0e}" if error else "0"
    return text if row["holds"] else f"**{text}**"


def main() -> None:
    """Refresh the page that is named on the command line."""
    if len(sys.argv) < 3 or not all("=" in each for each in sys.argv[2:]):
        sys.exit("usage: python -m tools.pages.audits docs/audit.md LIBRARY=FILE.json …")
    path, given = Path(sys.argv[1]), (each.partition("=") for each in sys.argv[2:])
    found = {name: json.loads(Path(file).read_text(encoding="utf-8")) for name, _, file in given}
    text = page(path.read_text(encoding="utf-8"), found)
    with written_whole(path) as partial:
        partial.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
