"""Writes the tables of a report as LaTeX, for a paper: tabulars that need the package booktabs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from undrift.report.csv_files import ensure_folder
from undrift.report.headings import METRIC_HEADINGS, shown_at_the_end
from undrift.report.naming import main_metrics, metric_label
from undrift.report.paired import PairedTest, paired_table
from undrift.report.plots import lower_is_better
from undrift.report.recorded_runs import Runs, as_runs
from undrift.report.tables import (
    FinalMetrics,
    TargetCost,
    Targets,
    describe_target,
    final_table,
    format_cost,
    format_metric,
    sort_metrics,
    target_table,
)
from undrift.utils.files import written_whole

GREEK = {
    **{"α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "varepsilon", "η": "eta"},
    **{"λ": "lambda", "μ": "mu", "ρ": "rho", "σ": "sigma", "τ": "tau"},
}
SPECIAL = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "≤": r"$\le$",
    "≥": r"$\ge$",
    "<": r"$<$",
    ">": r"$>$",
    "∞": r"$\infty$",
    "−": r"$-$",
    "–": "--",
    **{letter: rf"$\{name}$" for letter, name in GREEK.items()},
}
POWER = re.compile(r"(?<![\w.])([+-]?\d+(?:\.\d+)?)e([+-]?\d+)")
"""A number with a power of ten, such as 1.5e-06."""


def write_latex(
    folders: Sequence[str | Path] | str | Path | Runs,
    out_dir: str | Path,
    targets: Targets | None = None,
    baseline: str | None = None,
) -> list[Path]:
    """Write the tables as .tex files, and return their paths.

    `final` has the last metrics, `targets` the rounds and bytes to each target, and `paired` the
    paired tests over seeds, if there are several.
    """
    runs = as_runs(folders)
    tables = {
        "final": _final(runs, final_table(runs)),
        "targets": _targets(runs, target_table(runs, targets, baseline)),
        "paired": _paired(runs, paired_table(runs, baseline)),
    }
    out_dir = ensure_folder(out_dir)
    paths = []
    for name, text in tables.items():
        if text:
            path = out_dir / f"{name}.tex"
            with written_whole(path) as partial:
                partial.write_text(text, encoding="utf-8")
            paths.append(path)
    return paths


def latex_text(text: str) -> str:
    """Return plain text with LaTeX's special characters escaped, and powers of ten written out."""
    escaped = "".join(SPECIAL.get(character, character) for character in text)
    return POWER.sub(lambda found: f"${_power(found)}$", escaped)


def _number(text: str) -> str:
    """Return a formatted number as LaTeX."""
    return f"${POWER.sub(_power, text)}$"


def _power(found: re.Match[str]) -> str:
    return rf"{found[1]}\times 10^{{{int(found[2])}}}"


def _tabular(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a tabular of cells that are LaTeX already: names left, numbers right."""
    lines = [
        r"% needs \usepackage{booktabs}",
        rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
        r"\toprule",
        " & ".join(head) + r" \\",
        r"\midrule",
        *(" & ".join(row) + r" \\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _final(runs: Runs, table: Sequence[FinalMetrics]) -> str:
    metrics = [m for m in sort_metrics(runs.metrics) if shown_at_the_end(m)]
    if any(m.startswith("test_") for m in metrics):
        metrics = [m for m in metrics if not m.startswith("train_")]
    if not metrics:
        return ""
    best = {
        m: _best(m, [row.metrics[m].mean for row in table if m in row.metrics]) for m in metrics
    }

    def cell(row: FinalMetrics, metric: str) -> str:
        if metric not in row.metrics:
            return "--"
        text = latex_text(format_metric(row.metrics[metric]))
        return _bold(text) if row.metrics[metric].mean == best[metric] else text

    head = ["method", *(latex_text(METRIC_HEADINGS.get(m) or metric_label(m)) for m in metrics)]
    return _tabular(head, ([latex_text(r.method), *(cell(r, m) for m in metrics)] for r in table))


def _targets(runs: Runs, table: Sequence[TargetCost]) -> str:
    """Return rounds and bytes to each target, with the saving against the baseline."""
    costs = [name for name in ("rounds", "bytes") if name in runs.costs]
    goals = list(dict.fromkeys((row.metric, row.target) for row in table))
    if not goals:
        return ""
    head = ["method"]
    head += [latex_text(f"{describe_target(*goal)}, {cost}") for goal in goals for cost in costs]
    rows = []
    for group in runs.groups:
        own = {(row.metric, row.target): row for row in table if row.method == group.label}
        cells = [
            latex_text(f"{format_cost(own[goal].costs[cost], cost)} ({own[goal].savings[cost]})")
            if cost in own[goal].costs
            else "--"
            for goal in goals
            for cost in costs
        ]
        rows.append([latex_text(group.label), *cells])
    return _tabular(head, rows)


def _paired(runs: Runs, table: Sequence[PairedTest]) -> str:
    shown = main_metrics(runs)
    rows = [
        [
            latex_text(f"{test.method} − {test.baseline}"),
            latex_text(metric_label(test.metric)),
            str(len(test.differences)),
            *(
                _number(f"{value:{form}}")
                for value, form in zip(
                    (test.mean, test.t, test.p), ("+.4g", ".3g", ".3g"), strict=True
                )
            ),
        ]
        for test in table
        if test.metric in shown
    ]
    head = ["methods", "metric", "seeds", "mean difference", "$t$", "$p$"]
    return _tabular(head, rows) if rows else ""


def _best(metric: str, values: Sequence[float]) -> float | None:
    choose: Callable[[Sequence[float]], float] = min if lower_is_better(metric) else max
    return choose(values) if len(values) > 1 else None


def _bold(text: str) -> str:
    return rf"\textbf{{{text}}}"
