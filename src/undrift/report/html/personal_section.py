"""The section about personalisation: clients' own and fine-tuned models beside the server's."""

from __future__ import annotations

from html import escape

from undrift.report.html.html_parts import html_table, method_cell
from undrift.report.naming import metric_label
from undrift.report.recorded_runs import Runs
from undrift.report.tables import OverSeeds, final_table, format_metric, sort_metrics

MODELS = {
    "own": "each client's own",
    "tuned": "the server's, fine-tuned by each client",
}
"""Models that differ from client to client, with what the table calls them."""


def personal_section(runs: Runs) -> str:
    """Return the last metrics of personal models and of the server's; empty without such models."""
    names = [m for m in sort_metrics(runs.metrics) if m.partition("/")[0] in MODELS]
    kinds = list(dict.fromkeys(name.partition("/")[2] for name in names))
    tested = [kind for kind in kinds if not kind.startswith("train_")]
    kinds = [kind for kind in tested or kinds if "_client_" not in kind]
    rows = []
    for row in final_table(runs):
        own = [model for model in MODELS if any(f"{model}/{kind}" in row.metrics for kind in kinds)]
        if not own:
            continue
        for model, words in {"": "the server's", **{m: MODELS[m] for m in own}}.items():
            found = [row.metrics.get(f"{model}/{kind}" if model else kind) for kind in kinds]
            rows.append([method_cell(runs, row.method), words, *map(_cell, found)])
    if not rows:
        return ""
    head = ["method", "model", *(escape(metric_label(kind)) for kind in kinds)]
    return f"""{html_table(head, rows, "Personalisation", text=(1,))}
<p class="note">The last evaluation: mean ± standard deviation over seeds (n − 1). Personal models
are measured on the data of their own client.</p>"""


def _cell(value: OverSeeds | None) -> str:
    return "–" if value is None else escape(format_metric(value))
