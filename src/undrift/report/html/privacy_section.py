"""The section about privacy: what each private run spent, and what the guarantee does not cover."""

from __future__ import annotations

from html import escape
from typing import Any

from undrift.privacy.spending import spending
from undrift.report.html.html_parts import html_table, method_cell
from undrift.report.recorded_runs import RunFiles, Runs
from undrift.utils.plain_text import plain_text

SHOWN_CHARACTERS = 120
POINTS = 8
"""How many rounds of the course of ε are shown."""


def privacy_section(runs: Runs) -> str:
    """Return a table of the private runs, and the course of ε; empty if no run is private."""
    rows, courses = [], []
    for group in runs.groups:
        for run in group.runs:
            last = next((each.privacy for each in reversed(run.records) if each.privacy), None)
            if last is None:
                continue
            spent = spending(run.records, run.released)
            final = last if spent is None else {**spent.record, "epsilon": spent.epsilon}
            cells = [_number(final, name) for name in ("epsilon", "delta", "noise")]
            if spent is not None and spent.missing:  # it cannot be computed here
                cells[0] = f"above {cells[0]}"
            cells.append(_number(last, "clip"))
            words = [escape(plain_text(final.get(name, ""), SHOWN_CHARACTERS)) for name in WORDS]
            who = [method_cell(runs, group.label), str(run.seed)]
            rows.append([*who, f"{run.done:,}", *cells, *words])
            courses.append([*who, _course(run)])
    if not rows:
        return ""
    head = ["method", "seed", "rounds", "ε", "δ", "noise multiplier", "last clipping norm"]
    head += ["neighbours", "sampling", "metrics"]
    table = html_table(head, rows, "Privacy", text=(0, 7, 8, 9), long=(8, 9))
    course = html_table(
        ["method", "seed", "ε after rounds"], courses, "Course of ε", text=(0, 2), long=(2,)
    )
    return f"""{table}
{course}
<p class="note">Client-level differential privacy of the models: ε bounds what they reveal about any
one client with all its data, and noisy metrics with them. Cohorts, numbers of replies, times and
exact metrics on clients' data are outside the guarantee; publishing the cohorts voids the
amplification by sampling. A simulation draws its noise from its seed: whoever knows the seed can
subtract it.</p>"""


WORDS = ("neighbours", "sampling", "metrics")


def _number(values: dict[str, Any], name: str) -> str:
    value = values.get(name)
    return f"{value:.4g}" if isinstance(value, int | float) else "∞" if name == "epsilon" else "–"


def _course(run: RunFiles) -> str:
    """The ε after some rounds, evenly spaced among those that have one."""
    known = [record for record in run.records if "epsilon" in record.privacy]
    step = max(1, -(-len(known) // POINTS))
    some = known[::-1][::step][::-1]
    return ", ".join(f"{each.round}: {_number(each.privacy, 'epsilon')}" for each in some) or "–"
