"""Refresh the table of the mutation score on the guide's page about verification.

    python -m benchmarks.mutants --write benchmarks/mutants.json
    python -m tools.pages.mutants docs/verify.md

The first command judges all mutants, which takes half an hour; it resumes where it stopped.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from benchmarks.mutant_runs import BREAKS
from benchmarks.mutants import EQUIVALENT, EQUIVALENT_ONE

from tools.pages.methods.generated_blocks import refreshed
from undrift.utils.files import written_whole

NUMBERS = EQUIVALENT.with_name("mutants.json")


def page(text: str) -> str:
    """The page with its table made from the stored numbers."""
    return refreshed(text, {"mutants": _score}, "The page")


def _score() -> Iterator[str]:
    """Yield the score, a row for every method file, and the reasons of equivalent mutants."""
    found = json.loads(NUMBERS.read_text(encoding="utf-8"))
    yield (
        f"**{found['killed']} of {found['of']}** mutants are killed. Another {found['equivalent']} "
        f"compute the same as the original, and {found['breaks']} raise an error in any run."
    )
    yield ""
    yield "| method file | mutants | killed | equivalent | the fact that failed first |"
    yield "|---|---|---|---|---|"
    for file, verdicts in sorted(found["files"].items()):
        facts = {
            name: count
            for name, count in verdicts.items()
            if name not in (BREAKS, EQUIVALENT_ONE, "survives")
        }
        most_first = sorted(facts.items(), key=lambda item: (-item[1], item[0]))
        words = ", ".join(f"{name} {count}" for name, count in most_first)
        counted = sum(verdicts.values()) - verdicts.get(BREAKS, 0)
        same = verdicts.get(EQUIVALENT_ONE, 0)
        yield f"| `{file}` | {counted} | {sum(facts.values())} | {same or '·'} | {words} |"
    yield ""
    yield "Why mutants are equivalent:"
    yield ""
    for each in tomllib.loads(EQUIVALENT.read_text(encoding="utf-8"))["equivalent"]:
        files = sorted({name.partition(":")[0] for name in each["mutants"]})
        where = ", ".join(f"`{file}`" for file in files)
        yield f"- {where}: {each['why']} ({len(each['mutants'])})."


def main() -> None:
    """Refresh the page that is named on the command line."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tools.pages.mutants docs/verify.md")
    path = Path(sys.argv[1])
    text = page(path.read_text(encoding="utf-8"))
    with written_whole(path) as partial:
        partial.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
