"""The sections about devices as HTML: what the virtual clock says, and who took part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from undrift.core.records import LOST, Record
from undrift.report.html_parts import (
    MAX_PICTURE_BYTES,
    csv_link,
    histogram,
    html_table,
    method_cell,
    plural,
    svg_image,
)
from undrift.report.reading import Runs
from undrift.report.reply_counts import ReplyCounts, count_replies
from undrift.report.tables import OverSeeds, format_cost
from undrift.report.timeline import MOST, timeline_figure
from undrift.report.virtual_time import VirtualTime, percent, virtual_time_table
from undrift.utils.plot_style import svg_bytes


def time_section(runs: Runs, text: str) -> str:
    """What the virtual clock says, where there is one."""
    table = virtual_time_table(runs)
    if not table:
        return ""
    return f"""{_spent(runs, table)}{_lost(runs, table)}
<p>{csv_link("time", text)}</p>
{_staleness(table)}{_timelines(runs)}"""


def _spent(runs: Runs, table: Sequence[VirtualTime]) -> str:
    """The time, and what it was spent on."""
    stale = any(row.staleness for row in table)
    head = ["method", "virtual time", "updates", "skipped", "replies", "partial", "wasted", "idle"]
    head += ["staleness", "largest"] * stale + ["never replied"]
    rows = []
    for row in table:
        cells = [format_cost(row.clock, "virtual_seconds")]
        cells += [
            format_cost(each) for each in (row.updates, row.skipped, row.replies, row.partial)
        ]
        cells += [percent(row.wasted), percent(row.idle)]
        cells += [_old(row.stale), f"{max(row.staleness, default='–')}"] if stale else []
        rows.append(
            [method_cell(runs, row.method), *map(escape, cells), escape(format_cost(row.never))]
        )
    old = (
        """ Staleness: how many updates the server made while a client worked, as the mean over
replies and the largest of all seeds."""
        if stale
        else ""
    )
    return f"""{html_table(head, rows, "Time")}
<p class="note">Virtual time: the clock of the simulated devices after the last round. Updates: how
often the server’s model changed. Skipped: rounds that changed nothing, as too few clients replied.
Replies: those that were used. Partial: those of them with less work than was asked for. Wasted: the
part of all gradient evaluations that came to nothing. Idle: how long clients that had replied
waited for the others, as a part of waiting and working.{old} Never replied: clients of whom no
reply was used. Over seeds: mean ± standard deviation (n − 1).</p>
"""


def _old(stale: OverSeeds) -> str:
    if not stale.values:
        return "–"
    return f"{stale.mean:.2f}" + (f" ± {stale.std:.2f}" if stale.std else "")


def _lost(runs: Runs, table: Sequence[VirtualTime]) -> str:
    """How often work came to nothing, for the reasons that occurred."""
    reasons = [why for why in LOST if any(sum(row.lost[why].values) for row in table)]
    if not reasons:
        return '<p class="note">No work was lost.</p>'
    rows = [
        [method_cell(runs, row.method), *(escape(format_cost(row.lost[why])) for why in reasons)]
        for row in table
    ]
    meaning = "; ".join(f"{why}: the client {LOST[why]}" for why in reasons).capitalize()
    return f"""<h3>Work that was lost</h3>
{html_table(["method", *reasons], rows, "Work that was lost")}
<p class="note">How often work that was begun came to nothing. {escape(meaning)}.</p>"""


def _staleness(table: Sequence[VirtualTime]) -> str:
    """How old the replies of asynchronous methods were."""
    pictures = [
        histogram(
            f"{row.method}: staleness of replies",
            row.staleness,
            "updates since the client began",
            "replies",
            lambda count, reach: f"{count:,} replies were {reach} updates old",
        )
        for row in table
        if row.staleness
    ]
    return f'<div class="charts small">{"".join(pictures)}</div>\n' if pictures else ""


def _timelines(runs: Runs) -> str:
    """Who worked when, of the first seed of every method."""
    figures, left_out = [], []
    left = MAX_PICTURE_BYTES
    for labels, records in _alike(runs):
        svg = svg_bytes(timeline_figure(records))
        if len(svg) > left:
            left_out += labels
            continue
        left -= len(svg)
        image = svg_image(svg, f"Who worked when in the first rounds of {', '.join(labels)}")
        figures.append(
            f"<figure><h3>{', '.join(method_cell(runs, label) for label in labels)}</h3>"
            f'<div class="scroll" tabindex="0" role="region" aria-label="Timeline">{image}</div>'
            "</figure>"
        )
    if not figures and not left_out:
        return ""
    more = (
        f" There is no room for {escape(', '.join(left_out))}: undrift report --figures draws them."
        if left_out
        else ""
    )
    return f"""<h3>Who worked when</h3>
<p class="note">The first rounds of each method’s first seed: a row per client, at most the busiest
{MOST}; methods whose clients worked at the same times are together. Hatched: work that was not
used. Thin lines: the ends of rounds.{more}</p>
<div class="timelines">{"".join(figures)}</div>"""


def _alike(runs: Runs) -> Iterable[tuple[list[str], list[Record]]]:
    """Timelines, each with the labels of the methods that had it."""
    found: dict[tuple[Any, ...], tuple[list[str], list[Record]]] = {}
    for group in runs.groups:
        records = group.timeline
        if records:
            known = tuple((record.virtual_seconds, *record.spans) for record in records)
            found.setdefault(known, ([], records))[0].append(group.label)
    return found.values()


def participation_section(runs: Runs, text: str) -> str:
    """How often clients replied, and who was left out."""
    table = count_replies(runs)
    if not any(set(each.times) - {0} for each in table):
        return ""
    rows = [
        [
            method_cell(runs, method),
            f"{_span([each.clients - n for n in each.never])} of {each.clients:,}",
            *(f"{n:,g}" for n in each.summary),
            f"{each.rejected[method]:,}",
            f"{each.absent[method]:,}",
            f"{each.lost[method]:,}",
            escape(each.reasons.get(method, "")),
        ]
        for each in table
        for method in each.methods
    ]
    head = ["method", "clients that replied", "fewest replies", "median", "most"]
    head += ["rejected replies", "absent", "lost", "first rejection"]
    if not any(row[-1] for row in rows):
        head, rows = head[:-1], [row[:-1] for row in rows]
    pictures = "".join(
        histogram(
            _title(each, len(table) == 1),
            each.times,
            "replies that were used",
            "clients",
            lambda count, reach: f"{plural(count, 'client')} replied {reach} times",
        )
        for each in table[:6]
    )
    return f"""{_left_out(table, "virtual_seconds" in runs.costs)}
<div class="charts small">{pictures}</div>
{html_table(head, rows, "Participation", long=(8,))}
<p class="note">How many replies of each client were used, every seed counted by itself. A rejected
reply was not finite or of the wrong shape; an absent client managed no work; lost is work that was
begun and came to nothing.</p>
<p>{csv_link("participation", text)}</p>"""


def _left_out(table: Sequence[ReplyCounts], clock: bool) -> str:
    """Whether some clients had no part in the model, in a sentence per group of methods."""
    lines = []
    for each in table:
        if not any(each.never):
            continue
        who = "" if len(table) == 1 else f"{_together(each.methods)}: "
        never = f"{_span(each.never)} of {each.clients:,} clients never replied"
        why = ", being in no cohort"
        if each.in_vain:
            client, times = each.in_vain
            why = f"; client {client!r}, for example, was asked {plural(times, 'time')} in vain"
        kind = "warning" if clock or each.in_vain else "note"
        lines.append(f'<p class="{kind}">{escape(f"{who}{never}{why}.")}</p>')
    return "\n".join(lines) or "<p>Every client replied at least once.</p>"


def _span(numbers: Sequence[int]) -> str:
    """A number of every seed: "3", or "2 to 4"."""
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _together(methods: Sequence[str]) -> str:
    if len(methods) > 3:
        return f"{methods[0]} and {len(methods) - 1} others"
    return ", ".join(methods)


def _title(each: ReplyCounts, alone: bool) -> str:
    methods = "all methods" if alone and len(each.methods) > 1 else _together(each.methods)
    seeds = len(each.never)
    return f"{methods}, {seeds} seeds together" if seeds > 1 else methods
