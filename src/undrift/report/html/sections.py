"""The sections of the page as HTML: tables, texts, and the elements that charts are drawn in.

Text that comes from a run is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from undrift.core.records import estimate_note
from undrift.privacy.spending import COMMON_ONLY
from undrift.report.headings import METRIC_HEADINGS, shown_at_the_end
from undrift.report.html.chart_data import shown_rows
from undrift.report.html.html_parts import (
    MAX_PICTURE_BYTES,
    chart_figure,
    csv_link,
    html_table,
    method_cell,
    plural,
    radios,
    svg_image,
)
from undrift.report.naming import (
    DIAGNOSTICS,
    STATUS_NOTES,
    main_metrics,
    metric_label,
    uses_log_scale,
)
from undrift.report.paired import paired_table
from undrift.report.recorded_runs import Folder, RunFiles, Runs
from undrift.report.tables import (
    TargetCost,
    describe_target,
    final_table,
    find_baseline,
    format_cost,
    format_metric,
    sort_metrics,
)


def title(runs: Runs) -> str:
    """Return the title of the page: the names of the experiments, or else of their data."""
    names = [folder.name or str(folder.data.get("name") or "") for folder in runs.folders]
    return ", ".join(dict.fromkeys(filter(None, names))) or "Report"


def summary(runs: Runs) -> str:
    """Return the numbers of methods, seeds, rounds, clients and parameters in a sentence."""
    seeds = {run.seed for run in runs}
    parts = [
        plural(len({run.label for run in runs}), "method"),
        *([f"{len(runs.folders)} run folders"] if len(runs.folders) > 1 else []),
        plural(len(seeds), "seed"),
        f"up to {plural(max(run.done for run in runs), 'round')}",
    ]
    clients = {folder.clients for folder in runs.folders} - {0}
    if len(clients) == 1:
        parts.append(plural(clients.pop(), "client"))
    sizes = {run.parameters for run in runs} - {0}
    if len(sizes) == 1:
        parts.append(f"a model of {plural(sizes.pop(), 'parameter')}")
    return ", ".join(parts) + "."


def warnings(runs: Runs) -> str:
    """Return warnings about runs that diverged, were interrupted or still run."""
    lines = []
    for state, meaning in STATUS_NOTES.items():
        those = [run for run in runs if run.status == state]
        if those:
            labels = ", ".join(f"{run.label} (seed {run.seed})" for run in those[:6])
            more = f" and {len(those) - 6} more" if len(those) > 6 else ""
            lines.append(f'<p class="warning {state}">{escape(labels + more)}: {meaning}.</p>')
    return "\n".join(lines)


NOTHING_YET = "No metric has been measured yet."
NOTHING_PUBLIC = (
    "No metric is shown: all data belong to clients, and the guarantee of [privacy] does not cover "
    "exact metrics of them. A table privacy.noisy_metrics releases noisy means, which ε includes; "
    "privacy.metrics = “exact” measures outside the guarantee."
)


def _withheld(runs: Runs) -> bool:
    """Whether runs have no metrics because they are private and all data belong to clients."""
    said = [record.privacy.get("metrics") for run in runs for record in run.records]
    return COMMON_ONLY in said


def progress_section(runs: Runs, thinned: int) -> str:
    """Return the charts of metrics against rounds and costs."""
    metrics = sort_metrics(runs.metrics)
    if not metrics:
        return f"<p>{NOTHING_PUBLIC if _withheld(runs) else NOTHING_YET}</p>"
    axes = {
        name: label for name, label in runs.costs.items() if name != "models"
    }  # "models" are bytes in another unit
    several = any(len([r for r in group.runs if r.records]) > 1 for group in runs.groups)
    spread = (
        '<label>Seeds: <select id="spread"><option value="std">mean ± standard deviation</option>'
        '<option value="range">mean, min to max</option>'
        '<option value="none">mean</option><option value="seeds">each seed</option>'
        "</select></label>"
        if several
        else ""
    )
    options = "".join(
        f'<option value="{escape(m)}">{escape(metric_label(m))}</option>' for m in metrics
    )
    charts = "".join(
        chart_figure(
            metric,
            f'<select aria-label="Metric of chart {number + 1}">{options}</select>',
            uses_log_scale(runs, metric),
        )
        for number, metric in enumerate(main_metrics(runs))
    )
    note = (
        f" Charts show one of {thinned} evaluated rounds; undrift report --csv writes all of them."
        if thinned > 1 or any(len(shown_rows(run.records)) < len(run.records) for run in runs)
        else ""
    )
    notes = dict.fromkeys(filter(None, (estimate_note(run.records) for run in runs)))
    note += "".join(f" {escape(each)}" for each in notes)
    return f"""<div class="controls">
<fieldset><legend>Against</legend>{radios("axis", axes, "rounds")}</fieldset>
<label><input type="checkbox" id="log-x"> log</label>
{spread}</div>
<div class="legend" role="group" aria-label="Methods: show or hide"></div>
<div class="charts">{charts}</div>
<p class="note">Drag across a chart to zoom in, double-click to zoom out. A curve over several seeds
ends where the first of them ends.{note}</p>
<p><button type="button" id="all-records" class="button">↓ records.csv</button></p>"""


def targets_section(
    runs: Runs, table: Sequence[TargetCost], baseline: str | None, text: str
) -> str:
    """Return what each method spent to reach each target."""
    if not table:
        return ""
    goals = list(dict.fromkeys((row.metric, row.target) for row in table))
    against = find_baseline(runs, baseline).label
    costs = runs.costs
    first = next(iter(costs))
    tables = []
    for cost, label in costs.items():
        best = {g: _cheapest(table, g, cost) for g in goals}
        rows = []
        for group in runs.groups:
            own = {(r.metric, r.target): r for r in table if r.method == group.label}
            cells = [
                _cell(own[g], cost, own[g].costs[cost].mean == best[g])
                for g in goals
                if cost in own[g].costs
            ]
            rows.append([method_cell(runs, group.label), *cells])
        head = ["method", *(escape(describe_target(*g)) for g in goals)]
        hidden = "" if cost == first else " hidden"
        tables.append(
            f'<div data-cost="{cost}"{hidden}>{html_table(head, rows, f"{label} to reach targets")}'
            "</div>"
        )
    unit = (
        " One model sent is the traffic of one round of FedAvg, down and up, with the median "
        "number of replies of a round."
        if "models" in costs
        else ""
    )
    return f"""<div class="controls">
<fieldset><legend>Measured in</legend>{radios("cost", costs, first)}</fieldset></div>
{"".join(tables)}
<p class="note">Cost until an evaluation first reached the target; in brackets, how many times less
than {escape(against)}.{unit} Over seeds: mean ± standard deviation (n − 1). &gt; marks targets that
not all seeds reached: the cost is then a lower bound.</p>
<p>{csv_link("targets", text)}</p>"""


def _cheapest(table: Iterable[TargetCost], goal: tuple[str, Any], cost: str) -> float | None:
    those = [r.costs[cost] for r in table if (r.metric, r.target) == goal and cost in r.costs]
    return min((c.mean for c in those if c.values and not c.missed), default=None)


def _cell(row: TargetCost, cost: str, best: bool) -> str:
    text = escape(format_cost(row.costs[cost], cost))
    text = f"<b>{text}</b>" if best and not row.costs[cost].missed else text
    return f'{text}<span class="saving">({escape(row.savings[cost])})</span>'


def final_section(runs: Runs, text: str) -> str:
    """Return the last metrics and the total cost of every method."""
    table = final_table(runs)
    metrics = [m for m in sort_metrics(runs.metrics) if shown_at_the_end(m)]
    if any(m.startswith("test_") for m in metrics):  # the CSV has the training metrics
        metrics = [m for m in metrics if not m.startswith("train_")]
    costs = {name: label for name, label in runs.costs.items() if name != "models"}
    heads = [METRIC_HEADINGS.get(m, metric_label(m)) for m in metrics]
    rows = []
    for row in table:
        cells = [
            escape(format_metric(row.metrics[m])) if m in row.metrics else "–" for m in metrics
        ]
        cells += [
            escape(format_cost(row.costs[c], c)) if row.costs[c].values else "–" for c in costs
        ]
        rows.append([method_cell(runs, row.method), str(row.seeds), *cells])
    head = ["method", "seeds", *map(escape, heads), *(costs | {"gradients": "gradients"}).values()]
    return f"""{html_table(head, rows, "Final metrics")}
<p class="note">The last evaluation of each seed, and the total cost until then: mean ± standard
deviation over seeds (n − 1). The metrics leave out seeds that diverged.</p>
<p>{csv_link("final", text)}</p>"""


def paired_section(runs: Runs, baseline: str | None, text: str) -> str:
    """Return the paired tests of the main metrics over seeds; empty for a single seed."""
    shown = main_metrics(runs)
    table = [test for test in paired_table(runs, baseline) if test.metric in shown]
    if not table:
        return ""
    rows = [
        [
            method_cell(runs, test.method),
            escape(metric_label(test.metric)),
            str(len(test.differences)),
            f"{test.mean:+.4g} ± {test.std:.2g}",
            f"{test.t:.3g}",
            f"{test.p:.3g}",
        ]
        for test in table
    ]
    against = escape(table[0].baseline)
    head = ["method", "metric", "seeds", f"difference from {against}", "t", "p"]
    return f"""{html_table(head, rows, "Paired test over seeds", text=(1,))}
<p class="note">Student's paired t-test: the final metric of each method minus that of {against},
seed by seed, with the mean and standard deviation of the differences. p is how likely so large a
|t| is if the methods do not differ; it is not corrected for testing several methods.</p>
<p>{csv_link("paired", text)}</p>"""


def data_section(folders: Sequence[Folder]) -> str:
    """Return the partition of the data and its numbers."""
    blocks: dict[str, None] = {}
    left = MAX_PICTURE_BYTES
    shown: list[dict[str, Any]] = []
    for folder in folders:
        # Pictures of the same data differ in their dates, so the numbers decide.
        if folder.data and folder.data in shown:
            continue
        shown.append(folder.data)
        image = ""
        if folder.picture and len(folder.picture) <= left:
            name = folder.data.get("name", folder.name)
            image = svg_image(folder.picture, f"Samples of each class and client of {name}")
        elif folder.picture:
            image = f"<p>The picture of the partition is in {escape(str(folder.path))}.</p>"
        numbers = _description(folder.data)
        if not image and not numbers:
            continue
        wide = " wide" if image and numbers else ""
        block = f'<div class="beside{wide}">{image}<div>{numbers}</div></div>'
        if block not in blocks:
            left -= len(image)
            blocks[block] = None
    return "\n".join(blocks)


def _description(data: Mapping[str, Any]) -> str:
    """Return the numbers of a `Description` as a table, as far as they are present."""
    rows = [
        ("data", data.get("name")),
        ("clients", data.get("clients")),
        *((f"{part} samples", n) for part, n in _part(data, "samples").items() if n),
        ("samples per client", _spread(_part(data, "sizes"))),
        ("classes", _part(data, "labels").get("classes")),
        ("classes per client", _spread(_part(data, "labels", "per_client"))),
        *(
            (f"classes that hold {percent} % of a client's data", _spread(_part(needed, "spread")))
            for percent, needed in _part(data, "labels", "needed").items()
        ),
        ("label distance ½ Σ |p_k − p|", _spread(_part(data, "labels", "distance"))),
        ("… weighted by samples", _part(data, "labels").get("distance_weighted")),
        ("gradient dissimilarity B²", _part(data, "gradients").get("ratio")),
        ("gradient variance σ_g²", _part(data, "gradients").get("variance")),
        ("Γ", _part(data, "gamma").get("value")),
    ]
    description = [
        (escape(name), escape(f"{value:,.4g}" if isinstance(value, float) else _grouped(value)))
        for name, value in rows
        if value not in (None, "")
    ]
    if not description:
        return ""
    notes = "".join(f'<p class="note">{escape(str(note))}</p>' for note in data.get("notes") or ())
    return html_table(("", ""), description, "Description of the data", long=(1,)) + notes


def _part(data: Mapping[str, Any], *path: str) -> dict[str, Any]:
    for name in path:
        found = data.get(name) if isinstance(data, dict) else None
        data = found if isinstance(found, dict) else {}
    return dict(data)


def _grouped(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _spread(spread: Mapping[str, Any]) -> str:
    try:
        low, middle, high = (float(spread[name]) for name in ("min", "median", "max"))
        mean, std = float(spread["mean"]), float(spread["std"])
    except (KeyError, TypeError, ValueError):
        return ""
    return f"{mean:,.4g} ± {std:,.3g} (from {low:,.4g} to {high:,.4g}, median {middle:,.4g})"


def diagnostics_section(runs: Runs) -> str:
    """Return the charts of drift, consistency and residuals."""
    names = [name for name in DIAGNOSTICS if name in runs.diagnostics]
    names += [name for name in runs.diagnostics if name not in DIAGNOSTICS]
    if not names:
        return ""
    charts = "".join(
        chart_figure(
            name,
            f"<h3>{escape(DIAGNOSTICS.get(name, metric_label(name)))}</h3>",
            uses_log_scale(runs, name),
        )
        for name in names
    )
    return f"""<div class="legend" role="group" aria-label="Methods: show or hide"></div>
<div class="charts small">{charts}</div>
<p class="note">Drift: root mean square distance of the cohort's models x_k from their mean x̄.
Moved: the same from the server's model x. τ_eff: effective number of local steps of a round. χ²:
how much the weights that the method gives to clients differ from those of the objective. Dual
residual: norm of the server's estimate of the mean gradient, if the method keeps one.</p>"""


def runs_section(runs: Runs, text: str) -> str:
    """Return a row per run: its state, rounds, wall time and parameters."""
    rows = []
    for group in runs.groups:
        for run in group.runs:
            rows.append([method_cell(runs, group.label), str(run.seed), *_state(run)])
    head = ["method", "seed", "status", "rounds", "wall time", "parameters", "reason"]
    if not any(row[-1] for row in rows):
        head, rows = head[:-1], [row[:-1] for row in rows]
    found = html_table(head, rows, "Runs", text=(2, 5), long=(6,))
    return f"{found}\n<p>{csv_link('runs', text)}</p>"


def _state(run: RunFiles) -> list[str]:
    kind = run.status if run.status.isalpha() else "unknown"
    rounds = f"{run.done:,} of {run.rounds:,}" if run.rounds else f"{run.done:,}"
    seconds = run.totals()["seconds"][-1:] or [0.0]
    paper = f" · {run.paper}" if run.paper else ""
    return [
        f'<span class="status {escape(kind)}">{escape(run.status)}</span>',
        rounds,
        f"{seconds[0]:,.1f} s",
        f"<code>{escape(run.method)}</code>{escape(paper)}",
        escape(run.reason or ""),
    ]


def configuration_section(folders: Sequence[Folder]) -> str:
    """Return the experiment files and the versions they ran with."""
    blocks = []
    for folder in folders:
        if not folder.experiment and not folder.about:
            continue
        rows = [(escape(str(k)), escape(str(v))) for k, v in folder.about.items()]
        versions = html_table(("", ""), rows, "Versions", text=(1,)) if rows else ""
        opened = " open" if len(folders) == 1 else ""
        blocks.append(
            f"<details{opened}><summary>{escape(folder.name)}: experiment.toml</summary>"
            f'<div class="beside wide"><pre tabindex="0">{escape(folder.experiment)}</pre>'
            f"<div>{versions}</div></div></details>"
        )
    return "\n".join(blocks)
