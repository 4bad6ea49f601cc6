"""The page of results: what full runs of the reproductions found.

    python -m tools.pages.reproductions docs reproductions/feddyn-mnist …

takes the findings and figures of those folders into docs/reproductions/, and writes
docs/reproductions.md from all that is there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from undrift.report.html_parts import plural
from undrift.reproduce.findings import Findings, Number
from undrift.reproduce.findings_page import FIGURE, FINDINGS, VERDICTS, command, not_done
from undrift.reproduce.registry import papers
from undrift.reproduce.reproduction import PAPERS, Reproduction
from undrift.runs.folder import read_json, write_json
from undrift.utils.errors import UndriftError, require
from undrift.utils.files import written_whole
from undrift.utils.formatting import duration

PAGE, STORED = "reproductions.md", "reproductions"
HEAD = """# The papers, reproduced

Every figure and table below is one command, `undrift reproduce NAME`. It runs the experiment as the
paper describes it, prints the published numbers next to its own, and says which of the paper's
claims hold. This page is made from the stored findings of full runs, docs/reproductions/*.json, by
`python -m tools.pages.reproductions docs`; measured numbers are means over seeds with the standard
deviation beside them, where there were several. Wall times are of two busy cores without a GPU, of
which a run had one or both. What a paper leaves open, and what was chosen, is said with each.

    undrift reproduce --list                          # all, with what they cost
    undrift reproduce feddyn-mnist --quick            # a reduced version, in about a minute
    undrift reproduce feddyn-mnist --part "10 %, IID" # a row of its tables, with the same settings
    undrift reproduce fednova-synthetic --seeds 3     # Ctrl-C, and the same command goes on

Each is a short script beside an experiment file, in `src/undrift/reproduce`.
"""


def take_in(folder: Path, docs: Path) -> None:
    """Store the findings and the figure of a full run."""
    told = read_json(folder / FINDINGS)
    require(not told["quick"], f"{folder} has a quick version: only full runs are shown.")
    stored = docs / STORED
    stored.mkdir(parents=True, exist_ok=True)
    write_json(stored / f"{told['name']}.json", told)
    if (folder / FIGURE).is_file():
        with written_whole(stored / f"{told['name']}.png") as partial:
            partial.write_bytes((folder / FIGURE).read_bytes())


def results_page(docs: Path) -> str:
    """The page as text."""
    lines = [HEAD, "| reproduction | shows | claims | wall time |", "|---|---|---|---|"]
    sections: list[str] = []
    for paper, reproductions in papers().items():
        sections += [f"## {paper}", "", PAPERS[paper] + ".", ""]
        for each in reproductions:
            path = docs / STORED / f"{each.name}.json"
            if path.is_file():
                told = read_json(path)
                lines.append(_row(each, told))
                sections += [*_section(each, told, docs), ""]
            else:
                lines.append(f"| [{each.name}](#{each.name}) | {each.shows} | not run here | – |")
                sections += [*_not_run(each), ""]
    return "\n".join([*lines, "", *sections]).rstrip() + "\n"


def write_results(docs: Path) -> Path:
    """Write the page."""
    path = docs / PAGE
    with written_whole(path) as partial:
        partial.write_text(results_page(docs), encoding="utf-8")
    return path


def _row(reproduction: Reproduction, told: dict[str, Any]) -> str:
    verdicts = [claim.holds for claim in Findings.from_dict(told).claims]
    counts = {"hold": True, "do not": False, "cannot be told": None}
    claims = ", ".join(
        f"{verdicts.count(verdict)} {word}"
        for word, verdict in counts.items()
        if verdict in verdicts
    )
    name = f"[{reproduction.name}](#{reproduction.name})"
    return f"| {name} | {reproduction.shows} | {claims} | {duration(told['seconds'])} |"


def _section(reproduction: Reproduction, told: dict[str, Any], docs: Path) -> Iterator[str]:
    found = Findings.from_dict(told)
    yield f"### {reproduction.name}"
    yield ""
    yield f"{reproduction.shows}. {reproduction.about}"
    yield ""
    yield f"    {command(reproduction, told)}"
    yield ""
    yield f"{duration(told['seconds'])}, {plural(told['seeds'], 'seed')}, {told['made']}."
    left_out = not_done(reproduction, told)
    if left_out:
        yield f"Not run here: {'; '.join(left_out)}."
    for note in found.notes:
        yield ""
        yield note
    if (docs / STORED / f"{reproduction.name}.png").is_file():
        yield ""
        yield f"![{reproduction.name}]({STORED}/{reproduction.name}.png)"
    if found.claims:
        rows = ((c.text, VERDICTS[c.holds], c.evidence) for c in found.claims)
        yield from _table(("claim", "here", "evidence"), rows)
    if found.numbers:
        yield from _numbers(found.numbers)
    yield from _left_open(reproduction)


def _not_run(reproduction: Reproduction) -> Iterator[str]:
    needs = f" Needs {', '.join(reproduction.needs)}." if reproduction.needs else ""
    yield f"### {reproduction.name}"
    yield ""
    yield f"{reproduction.shows}. {reproduction.about} Not run in full here: {reproduction.cost}."
    yield f"{needs} The quick version: {reproduction.quick_is}".strip()
    yield ""
    yield f"    undrift reproduce {reproduction.name}"
    yield from _left_open(reproduction)


def _numbers(numbers: Sequence[Number]) -> Iterator[str]:
    """A row per place and a column per method, as papers have it; or a plain list."""
    rows: dict[str, list[Number]] = {}
    for number in numbers:
        rows.setdefault(number.where, []).append(number)
    heads = [[n.what for n in own] for own in rows.values()]
    if len(rows) > 1 and all(head == heads[0] for head in heads) and 1 < len(heads[0]) <= 7:
        cells = (
            (where, *(f"{n.printed()} / {n.shown()}" for n in own)) for where, own in rows.items()
        )
        yield from _table(("published / measured", *heads[0]), cells)
    else:
        plain = ((n.where, n.what, n.printed(), n.shown()) for n in numbers)
        yield from _table(("where", "of", "published", "measured"), plain)


def _left_open(reproduction: Reproduction) -> Iterator[str]:
    if reproduction.left_open:
        yield ""
        yield "Left open by the paper, or done differently:"
        yield ""
        yield from (f"- {each}" for each in reproduction.left_open)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield ""
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


if __name__ == "__main__":
    try:
        target, *taken = map(Path, sys.argv[1:])
        for each in taken:
            take_in(each, target)
        print(write_results(target))
    except (UndriftError, ValueError) as error:
        sys.exit(f"error: {error}")
