"""The section about the sites of a deployment: what they claim, what counts, what was rejected.

Everything in it may come from a site or from a damaged file, so values of wrong types are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from html import escape
from typing import Any

from undrift.report.html.html_parts import html_table
from undrift.report.recorded_runs import Folder, RunFiles, Runs
from undrift.utils.plain_text import plain_text

PARTS = ("train", "validation", "test")
REASON_CHARACTERS = 200
"""How much of a reason is shown."""


def sites_section(runs: Runs) -> str:
    """Return a table per deployment; empty if there is none."""
    blocks = []
    for folder in runs.folders:
        own = [run for group in runs.groups if group.folder is folder for run in group.runs]
        claimed = _numbers(folder.sites.get("samples"))
        if claimed:
            blocks.append(_table(folder, claimed, own))
    return "\n".join(blocks)


def _table(folder: Folder, claimed: Mapping[str, Mapping[str, int]], runs: list[RunFiles]) -> str:
    counted = _numbers(folder.sites.get("counted")) or claimed
    parts = [part for part in PARTS if any(part in own for own in claimed.values())]
    total = sum(own.get("train", 0) for own in counted.values())
    rejections: Counter[str] = Counter()
    reasons: dict[str, str] = {}
    for run in runs:
        for record in run.records:
            for site, why in record.rejected:
                rejections[str(site)] += 1
                reasons[str(site)] = f"round {record.round}: {why}"
    rows = []
    for site, own in claimed.items():
        shown = counted.get(site, {})
        cells = [_claim(own.get(part), shown.get(part)) for part in parts]
        share = f"{shown.get('train', 0) / total:.1%}" if total else "–"
        since = folder.expelled.get(site)
        state = f"expelled {escape(plain_text(since, 40))}" if since is not None else ""
        last = escape(plain_text(reasons.get(site, ""), REASON_CHARACTERS))
        rows.append([escape(site), *cells, share, f"{rejections[site]:,}", last, state])
    head = ["site", *(f"{part} samples" for part in parts), "share of training samples"]
    head += ["rejected", "last reason", "state"]
    if not any(row[-1] for row in rows):
        head, rows = head[:-1], [row[:-1] for row in rows]
    width = len(parts)
    table = html_table(head, rows, "Sites", text=(width + 4,), long=(width + 3,))
    return f"""{table}
<p class="note">Numbers of samples are what the sites claim; the server cannot check them. Where the
operator fixed or capped a number, → shows the one that counts in weights and metrics. Rejected:
replies and metrics of all runs that were not used.</p>"""


def _claim(claimed: int | None, counted: int | None) -> str:
    if claimed is None:
        return "–"
    if counted is None or counted == claimed:
        return f"{claimed:,}"
    return f"{claimed:,} → <b>{counted:,}</b>"


def _numbers(value: Any) -> dict[str, dict[str, int]]:
    """The numbers of samples by site and part, as far as they have the right types."""
    if not isinstance(value, Mapping):
        return {}
    return {
        plain_text(site, 80): {part: n for part, n in own.items() if type(n) is int}
        for site, own in value.items()
        if isinstance(own, Mapping)
    }
