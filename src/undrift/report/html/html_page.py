"""Writes the report as one HTML file that works offline.

`page.js` draws the charts from the records, which are embedded as columns; sections come with their
tables and texts. The page's Content-Security-Policy forbids it to load anything, or to run any
script but its own two.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from undrift.report.csv_files import csv_text, tables_as_rows
from undrift.report.html.chart_data import as_script, chart_data
from undrift.report.html.client_sections import clients_section
from undrift.report.html.device_sections import participation_section, time_section
from undrift.report.html.personal_section import personal_section
from undrift.report.html.privacy_section import privacy_section
from undrift.report.html.result_sentence import result_sentence
from undrift.report.html.sections import (
    configuration_section,
    data_section,
    diagnostics_section,
    final_section,
    paired_section,
    progress_section,
    runs_section,
    summary,
    targets_section,
    title,
    warnings,
)
from undrift.report.html.side_by_side import side_by_side_section
from undrift.report.html.site_section import sites_section
from undrift.report.recorded_runs import Runs, read_runs
from undrift.report.tables import Targets, target_table
from undrift.utils.errors import require
from undrift.utils.files import written_whole


def write_report(
    folders: Sequence[str | Path] | str | Path,
    out: str | Path,
    targets: Targets | None = None,
    baseline: str | None = None,
) -> Path:
    """Write the page of one or several run folders, and return its path.

    Parameters
    ----------
    targets
        metrics with the values they should reach; by default the targets of the experiment files,
        or 90, 95 and 99 % of the best accuracy
    baseline
        label of the method that savings are relative to; by default FedAvg, or the first method
    """
    return write_page(read_runs(folders), out, targets, baseline)


def require_page(path: Path) -> None:
    """Reject a path that does not end in .html or .htm."""
    require(path.suffix in (".html", ".htm"), f"The page {path} must end in .html.")


def write_page(
    runs: Runs,
    out: str | Path,
    targets: Targets | None = None,
    baseline: str | None = None,
    result: str | None = None,
) -> Path:
    """Write the page of runs, as `read_runs` or `of_results` return them.

    `result` stands below the title; by default it is the `result_sentence` of the runs.
    """
    out = Path(out)
    require_page(out)
    html = page(runs, targets, baseline, result)
    with written_whole(out) as partial:
        partial.write_text(html, encoding="utf-8")
    return out


def page(
    runs: Runs,
    targets: Targets | None = None,
    baseline: str | None = None,
    result: str | None = None,
) -> str:
    """Return the page as HTML; the parameters are those of `write_page`."""
    columns, thinned = chart_data(runs)
    costs = target_table(runs, targets, baseline)
    csvs = {name: csv_text(rows) for name, rows in tables_as_rows(runs, costs, baseline).items()}
    sections = {
        "Progress": progress_section(runs, thinned),
        "Side by side": side_by_side_section(runs),
        "Cost of targets": targets_section(runs, costs, baseline, csvs["targets"]),
        "Final metrics": final_section(runs, csvs["final"]),
        "Paired test": paired_section(runs, baseline, csvs.get("paired", "")),
        "Clients": clients_section(runs, csvs.get("clients", "")),
        "Personalisation": personal_section(runs),
        "Time": time_section(runs, csvs.get("time", "")),
        "Privacy": privacy_section(runs),
        "Data": data_section(runs.folders),
        "Diagnostics": diagnostics_section(runs),
        "Participation": participation_section(runs, csvs["participation"]),
        "Sites": sites_section(runs),
        "Runs": runs_section(runs, csvs["runs"]),
        "Configuration": configuration_section(runs.folders),
    }
    head = {
        "title": title(runs),
        "result": result_sentence(runs, baseline) if result is None else result,
        "summary": summary(runs),
    }
    return assemble(head, sections, columns, warnings=warnings(runs))


def assemble(
    head: Mapping[str, str],
    sections: Mapping[str, str],
    records: Mapping[str, Any],
    *,
    warnings: str = "",
    live: bool = False,
) -> str:
    """Fill the page's template.

    Parameters
    ----------
    head
        as plain text: the "title", the "result" below it if there is one, and the "summary"
    sections
        the HTML of each section by its heading; empty ones are left out
    records
        the data of the charts
    warnings
        HTML below the summary
    live
        whether the page asks the server it came from for new rounds
    """
    from undrift import __version__

    scripts = [_resource("vendor/uPlot.iife.min.js"), _resource("page.js")]
    if live:
        scripts.append(_resource("live.js"))
    sections = {name: body for name, body in sections.items() if body}
    result = head.get("result", "")
    values = {
        "css": _resource("page.css"),
        "uplot_css": _resource("vendor/uPlot.min.css"),
        "hashes": " ".join(_csp_hash(script) for script in scripts),
        "connect": "; connect-src 'self'" if live else "",
        "title": escape(head["title"]),
        "result": f'<p class="result">{escape(result)}</p>' if result else "",
        "summary": escape(head["summary"]),
        "warnings": warnings,
        "contents": " ".join(f'<a href="#{_anchor(name)}">{name}</a>' for name in sections),
        "sections": "\n".join(
            f'<section id="{_anchor(name)}"><h2>{name}</h2>\n{body}\n</section>'
            for name, body in sections.items()
        ),
        "version": escape(__version__),
        "records": as_script(records),
        "scripts": "\n".join(f"<script>{script}</script>" for script in scripts),
    }
    # One pass over the template: inserted text may itself contain double braces.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], _resource("page.html"))


def _resource(path: str) -> str:
    return (files("undrift.report.html") / path).read_text(encoding="utf-8")


def _csp_hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _anchor(name: str) -> str:
    return name.lower().replace(" ", "-")
