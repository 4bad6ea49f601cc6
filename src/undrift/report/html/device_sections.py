"""The sections about simulated devices as HTML: virtual time, and participation of clients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from undrift.core.records import LOST, Record
from undrift.report.html.html_parts import (
    MAX_PICTURE_BYTES,
    csv_link,
    histogram,
    html_table,
    method_cell,
    plural,
    svg_image,
)
from undrift.report.recorded_runs import Runs
from undrift.report.reply_counts import ReplyCounts, count_replies
from undrift.report.tables import OverSeeds, format_cost
from undrift.report.timeline import MAX_CLIENTS, timeline_figure
from undrift.report.virtual_time import VirtualTime, percent, virtual_time_table
from undrift.utils.plot_style import svg_bytes


def time_section(runs: Runs, text: str) -> str:
    """Return tables and timelines of virtual time; empty without a virtual clock."""
    table = virtual_time_table(runs)
    if not table:
        return ""
    return f"""{_spent(runs, table)}{_lost(runs, table)}
<p>{csv_link("time", text)}</p>
{_staleness(table)}{_timelines(runs)}"""


def _spent(runs: Runs, table: Sequence[VirtualTime]) -> str:
    """Return the table of virtual time, updates, replies and waiting."""
    stale = any(row.staleness for row in table)
    clock = runs.costs["virtual_seconds"]
    head = ["method", clock, "updates", "skipped", "replies", "partial", "wasted", "idle"]
    head += ["staleness", "largest"] * stale + ["never replied"]
    rows = []
    for row in table:
        cells = [format_cost(row.clock, "virtual_seconds")]
        cells += [
            format_cost(each) for each in (row.updates, row.skipped, row.replies, row.partial)
        ]
        cells += [percent(row.wasted), percent(row.idle)]
        cells += [_mean_staleness(row.stale), f"{max(row.staleness, default='–')}"] if stale else []
        rows.append(
            [method_cell(runs, row.method), *map(escape, cells), escape(format_cost(row.never))]
        )
    staleness = (
        """ Staleness: updates that the server made while a client worked, as the mean over
replies, and the largest of all seeds."""
        if stale
        else ""
    )
    of_whom = "clock of the simulated devices"
    if runs.deployed:
        of_whom = "clock of the server, without the time between a stop and a resume,"
    return f"""{html_table(head, rows, "Time")}
<p class="note">{clock.capitalize()}: {of_whom} after the last round. Updates: changes of the
server’s model. Skipped: rounds without an update because too few clients replied. Replies:
replies that were used. Partial: used replies with less work than was asked for. Wasted: share of
gradient evaluations whose result was not used. Idle: share of their time that clients waited for
others after they had replied.{staleness} Never replied: clients without a used reply. Over seeds:
mean ± standard deviation (n − 1).</p>
"""


def _mean_staleness(stale: OverSeeds) -> str:
    if not stale.values:
        return "–"
    return f"{stale.mean:.2f}" + (f" ± {stale.std:.2f}" if stale.std else "")


def _lost(runs: Runs, table: Sequence[VirtualTime]) -> str:
    """Return how often work was lost, by reason."""
    reasons = [why for why in LOST if any(sum(row.lost[why].values) for row in table)]
    if not reasons:
        return '<p class="note">No work was lost.</p>'
    rows = [
        [method_cell(runs, row.method), *(escape(format_cost(row.lost[why])) for why in reasons)]
        for row in table
    ]
    meaning = "; ".join(f"{why}: the client {LOST[why]}" for why in reasons).capitalize()
    return f"""<h3>Lost work</h3>
{html_table(["method", *reasons], rows, "Lost work")}
<p class="note">How often work was begun and not used. {escape(meaning)}.</p>"""


def _staleness(table: Sequence[VirtualTime]) -> str:
    """Return histograms of the staleness of replies in asynchronous training."""
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
    """Return the timeline of the first seed of every method."""
    figures, left_out = [], []
    left = MAX_PICTURE_BYTES
    for labels, records in _distinct_timelines(runs):
        svg = svg_bytes(timeline_figure(records, clock=runs.costs["virtual_seconds"]))
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
        f" No room for {escape(', '.join(left_out))}: undrift report --figures draws them."
        if left_out
        else ""
    )
    return f"""<h3>Who worked when</h3>
<p class="note">The first rounds of each method’s first seed, with a row for each of the busiest
{MAX_CLIENTS} clients. Methods with the same timeline share one figure. Hatched: work that was not
used. Thin lines: ends of rounds.{more}</p>
<div class="timelines">{"".join(figures)}</div>"""


def _distinct_timelines(runs: Runs) -> Iterable[tuple[list[str], list[Record]]]:
    """Return every distinct timeline with the labels of the methods that have it."""
    found: dict[tuple[Any, ...], tuple[list[str], list[Record]]] = {}
    for group in runs.groups:
        records = group.timeline
        if records:
            known = tuple((record.virtual_seconds, *record.spans) for record in records)
            found.setdefault(known, ([], records))[0].append(group.label)
    return found.values()


def participation_section(runs: Runs, text: str) -> str:
    """Return how often clients replied, and which clients never did."""
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
            "used replies",
            "clients",
            lambda count, reach: f"{plural(count, 'client')} replied {reach} times",
        )
        for each in table[:6]
    )
    return f"""{_never_replied(table, "virtual_seconds" in runs.costs)}
<div class="charts small">{pictures}</div>
{html_table(head, rows, "Participation", long=(8,))}
<p class="note">Used replies of each client, each seed counted separately. Rejected replies were not
finite or had a wrong shape. Absent clients did no work in a round they were asked in. Lost work was
begun and not used.</p>
<p>{csv_link("participation", text)}</p>"""


def _never_replied(table: Sequence[ReplyCounts], clock: bool) -> str:
    """Return a sentence per group of methods about clients that never replied."""
    lines = []
    for each in table:
        if not any(each.never):
            continue
        who = "" if len(table) == 1 else f"{_method_names(each.methods)}: "
        never = f"{_span(each.never)} of {each.clients:,} clients never replied"
        why = " because they were in no cohort"
        if each.most_asked:
            client, times = each.most_asked
            asked = plural(times, "time")
            why = f"; client {client!r}, for example, was asked {asked} without a used reply"
        kind = "warning" if clock or each.most_asked else "note"
        lines.append(f'<p class="{kind}">{escape(f"{who}{never}{why}.")}</p>')
    return "\n".join(lines) or "<p>Every client replied at least once.</p>"


def _span(numbers: Sequence[int]) -> str:
    """Format the numbers of all seeds: "3", or "2 to 4"."""
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _method_names(methods: Sequence[str]) -> str:
    if len(methods) > 3:
        return f"{methods[0]} and {len(methods) - 1} others"
    return ", ".join(methods)


def _title(each: ReplyCounts, alone: bool) -> str:
    methods = "all methods" if alone and len(each.methods) > 1 else _method_names(each.methods)
    seeds = len(each.never)
    return f"{methods}, {seeds} seeds together" if seeds > 1 else methods
