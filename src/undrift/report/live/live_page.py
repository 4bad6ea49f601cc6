"""The live page as HTML: the charts of the report, and a row per run."""

from __future__ import annotations

from html import escape

from undrift.report.html.chart_data import chart_data
from undrift.report.html.html_page import assemble
from undrift.report.html.html_parts import method_cell, plural
from undrift.report.html.sections import progress_section, title
from undrift.report.live.live_runs import LiveRuns, run_cells, run_headings
from undrift.report.recorded_runs import Runs


def live_page(live: LiveRuns) -> str:
    """Return the page with everything that is known now; its script asks for the rest."""
    now = live.snapshot()
    records, thinned = chart_data(now.runs)
    for method in records["methods"]:
        method["state"] = ""  # the script says which methods diverged; all others are under way
    records["live"] = {
        **{"next": now.next, "version": now.version, "layout": now.layout},
        "advice": live.advice(),
    }
    shown = live.shown_metrics()
    head = {
        "title": title(now.runs),
        "summary": f"{plural(len(live.labels), 'method')}, {plural(len(live.seeds), 'seed')}, "
        f"{plural(live.rounds, 'round')} each. This page follows the runs while they are going.",
    }
    sections = {
        "Progress": progress_section(now.runs, thinned),
        "Runs": _table(now.runs, shown),
    }
    status = f'<p id="live-state" class="live" role="status">{escape(now.text)}</p>'
    return assemble(head, sections, records, warnings=status, live=True)


def _table(runs: Runs, metrics: list[str]) -> str:
    rows = []
    for number, run in enumerate(runs):
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in run_cells(run, metrics))
        rows.append(
            f'<tr data-run="{number}"><th scope="row">{method_cell(runs, run.label)}</th>'
            f'<td>{run.seed}</td><td class="text"><span class="status {escape(run.status)}">'
            f"{escape(run.status)}</span></td>{cells}</tr>"
        )
    head = "".join(
        f'<th scope="col"{" class=text" if name == "status" else ""}>{escape(name)}</th>'
        for name in run_headings(metrics)
    )
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Runs"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )
