"""What `train` and `compare` return: the model, the records, a summary and plots."""

from __future__ import annotations

import io
import math
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from torch import Tensor, nn

from undrift.core.method import Method
from undrift.core.records import Record, estimate_note
from undrift.loops.base import Loop
from undrift.loops.measuring import client_rows
from undrift.nets.modes import unmark_eval_parts
from undrift.nets.module_losses import ModuleLosses
from undrift.nets.weights import save_weights
from undrift.privacy.spending import spending
from undrift.report.headings import METRIC_HEADINGS
from undrift.report.timeline import plot_timeline
from undrift.utils.display import as_html
from undrift.utils.errors import UndriftError, require, require_choice
from undrift.utils.formatting import duration

WASTE_WORTH_A_REMARK = 0.01
"""The share of wasted work from which on a summary mentions it."""
MAX_REPR_METRICS = 5


class Result:
    """The outcome of one run: one method with one seed."""

    def __init__(self, label: str, run: Loop, folder: Path | None = None):
        self.label = label
        self.folder = folder
        """the folder of the run, if it is kept in one"""
        self.run = run
        self.method: Method = run.method
        self.records: list[Record] = run.records
        self.x: Tensor = run.server.x
        """the server's final model as a flat vector, `[P]`"""
        self.stopped: str | None = run.stopped
        """why the run ended before its last round; None if it did not"""

    @property
    def metrics(self) -> dict[str, float]:
        """The last metrics that were measured; empty if the run diverged."""
        if self.run.diverged:
            return {}
        return next((r.metrics for r in reversed(self.records) if r.metrics), {})

    def history(self, metric: str) -> tuple[list[int], list[float]]:
        """Return the rounds in which a metric was measured, and its values."""
        pairs = [(r.round, r.metrics[metric]) for r in self.records if metric in r.metrics]
        if not pairs:
            known = ", ".join(sorted(self.records[0].metrics)) or "none"
            raise UndriftError(f"{self.label} has no metric {metric!r}; it has: {known}.")
        rounds, values = zip(*pairs, strict=True)
        return list(rounds), list(values)

    @property
    def epsilon(self) -> float | None:
        """The ε that a private run spent, at its δ; None without privacy, ∞ without noise."""
        mechanism = self.run.mechanism
        return None if mechanism is None else mechanism.spent()

    @property
    def bytes_down(self) -> int:
        """Bytes sent from the server to clients, over all rounds."""
        return sum(sum(r.bytes_down.values()) for r in self.records)

    @property
    def bytes_up(self) -> int:
        """Bytes sent from clients to the server, over all rounds."""
        return sum(sum(r.bytes_up.values()) for r in self.records)

    @property
    def gradients(self) -> int:
        """Gradients of single samples computed for replies that were used."""
        return sum(r.gradients for r in self.records)

    @property
    def rejected(self) -> int:
        """The number of replies that were rejected as unusable."""
        return sum(len(r.rejected) for r in self.records)

    def remarks(self) -> list[str]:
        """Return sentences about an early end, rejected replies, and clients that never replied."""
        found = [self.stopped] if self.stopped else []
        note = estimate_note(self.records)
        found += [note.rstrip(".")] if note else []
        spent = spending(self.records)
        found += [spent.sentence().rstrip(".")] if spent else []
        if not self.stopped and self.run.target:
            found.append(f"the target {self.run.target} was not reached")
        on_clock = bool(_virtual_seconds(self))
        found += self._remarks_on_devices() if on_clock else self._remarks_on_absence()
        if self.rejected:
            first = next(r for r in self.records if r.rejected)
            client, reason = first.rejected[0]
            found.append(
                f"{self.rejected} replies were rejected, the first in round {first.round} from "
                f"client {client!r}: {reason}"
            )
        return found

    def _remarks_on_absence(self) -> list[str]:
        absent = {client for r in self.records for client in r.absent}
        never = absent - set(self.run.states.seen())
        if not never:
            return []
        return [
            f"{len(never)} of {len(self.run.roster)} clients never completed any work, for "
            f"example client {sorted(never, key=str)[0]!r}"
        ]

    def _remarks_on_devices(self) -> list[str]:
        """Return sentences about clients that never replied, skipped rounds and wasted work."""
        found = []
        replied = {client for r in self.records for client in r.replied}
        never = [client for client in self.run.roster.ids if client not in replied]
        if never:
            noun = "client" if len(self.run.roster) == 1 else "clients"
            found.append(
                f"{len(never)} of {len(self.run.roster)} {noun} never replied, for example "
                f"client {never[0]!r}"
            )
        skipped = sum(r.round > 0 and not r.updates for r in self.records)
        # Rounds of asynchronous training without an update are not skipped ones.
        if skipped and not any(r.staleness for r in self.records):
            rounds = "round was" if skipped == 1 else "rounds were"
            found.append(f"{skipped} {rounds} skipped because too few clients replied")
        wasted = sum(r.wasted_gradients for r in self.records)
        share = wasted / (wasted + self.gradients) if wasted else 0.0
        if share >= WASTE_WORTH_A_REMARK:
            found.append(f"{100 * share:.0f} % of the work was wasted")
        return found

    def model(self) -> nn.Module:
        """Return a module with the final parameters and buffers.

        Personal parameters rest with the clients, so they have their initial values here.
        """
        return self.run.model()

    def client_model(self, client: Hashable) -> nn.Module:
        """Return a module with a client's own parameters after its last work.

        These are its personal model in a method that has one (Ditto, pFedMe), else its last
        model, which a run keeps with `evaluate=ud.Evaluation(models=["server", "own"])`, else, if
        some parameters are personal, the server's model with these. A client that never took part
        has the initial model.
        """
        losses = self.run.losses
        if not isinstance(losses, ModuleLosses):
            raise UndriftError("An analytic problem has no modules.")
        known = self.run.roster.position
        require(client in known, f"There is no client {client!r} in this run.")
        require(
            self.run.keeps_own_models,
            f"{self.label} keeps no models of clients: run it with "
            f"evaluate=ud.Evaluation(models=['server', 'own']).",
        )
        return unmark_eval_parts(losses.module_with(self.run.last_of(client), self.run.buffers))

    def clients(self) -> list[dict[str, Any]]:
        """Return the metrics of every client, a row per client and reported model.

        They are those of the last evaluation of a run with `ud.Evaluation(clients=True)`; for
        other runs they are measured now, on the final models. Parts that are common to all
        clients have no results per client.
        """
        return client_rows(self.run)

    def frame(self, of: str = "records") -> Any:
        """Return a pandas data frame: a row per round, or with "clients" a row per client."""
        return Comparison([self]).frame(of)

    def save(self, path: str | Path) -> None:
        """Write the final model to a safetensors file."""
        save_weights(self.model(), Path(path))

    def summary(self) -> str:
        """Return the final metrics and costs as a small text table."""
        return Comparison([self]).summary()

    def plot(
        self,
        path: str | Path | None = None,
        metrics: Sequence[str] | None = None,
        against: str = "rounds",
        width: str | float | None = None,
    ) -> Any:
        """Draw metrics to a file, or return a figure for a notebook; see `Comparison.plot`."""
        return Comparison([self]).plot(path, metrics, against, width)

    def timeline(self, path: str | Path | None = None) -> Any:
        """Draw which client worked when in the first rounds of a run with a virtual clock.

        Returns the path, or without one a figure that a notebook shows.
        """
        return plot_timeline(self.records, path, self.label)

    def report(self, path: str | Path) -> Path:
        """Write one self-contained HTML page about the run."""
        return Comparison([self]).report(path)

    def __repr__(self) -> str:
        metrics = {METRIC_HEADINGS.get(name, name): value for name, value in self.metrics.items()}
        shown = [f"{name} {value:.4g}" for name, value in metrics.items() if name]
        rounds = self.records[-1].round if self.records else 0
        state = "diverged" if self.run.diverged else ", ".join(shown[:MAX_REPR_METRICS])
        return f"Result({self.label}, seed {self.run.seed}: {rounds} rounds; {state})"

    def _repr_html_(self) -> str:
        return Comparison([self])._repr_html_()


class Comparison(Sequence[Result]):
    """Several methods on the same cohorts and batches, with one or several seeds.

    Indexed by a label it returns the result of that method or, with several seeds, the comparison
    of its seeds.
    """

    def __init__(self, results: Sequence[Result]):
        require(len(results) > 0, "A comparison needs at least one result.")
        self.results = list(results)

    def __getitem__(self, which):  # type: ignore[no-untyped-def]
        if isinstance(which, str):
            found = [result for result in self.results if result.label == which]
            known = ", ".join(self.labels)
            require(bool(found), f"The comparison has no method {which!r}; it has: {known}.")
            return found[0] if len(found) == 1 else Comparison(found)
        if isinstance(which, slice):
            return Comparison(self.results[which])
        return self.results[which]

    def __len__(self) -> int:
        return len(self.results)

    @property
    def labels(self) -> list[str]:
        """The labels of the methods."""
        return list(dict.fromkeys(result.label for result in self.results))

    @property
    def seeds(self) -> list[int]:
        """The seeds of the runs."""
        return list(dict.fromkeys(result.run.seed for result in self.results))

    def table(self) -> Table:
        """Return the final metrics and the cost of every method."""
        return results_table(self.results)

    def summary(self) -> str:
        """Return the table as text, with remarks below it."""
        text = io.StringIO()
        console = Console(file=text, width=160, color_system=None, force_jupyter=False)
        console.print(self.table())
        for remark in self._remarks():
            console.print(remark, soft_wrap=True, markup=False, highlight=False)
        return text.getvalue().rstrip()

    def _remarks(self) -> list[str]:
        several = len(self.seeds) > 1
        return [
            f"{result.label}{f', seed {result.run.seed}' if several else ''}: {remark}"
            for result in self.results
            for remark in result.remarks()
        ]

    def plot(
        self,
        path: str | Path | None = None,
        metrics: Sequence[str] | None = None,
        against: str = "rounds",
        width: str | float | None = None,
    ) -> Any:
        """Draw metrics, one line per method: the mean over seeds, with the standard deviation.

        Returns the path, or without one a figure that a notebook shows.

        Parameters
        ----------
        path
            a .png, .svg or .pdf file to write; without a path the figure is returned
        metrics
            which metrics to draw; by default a loss, and an accuracy or an error
        against
            "rounds", "bytes", "gradients" or "virtual_seconds"
        width
            size for a paper: "column" (3.25 inches), "page" (6.75 inches) or a number of inches;
            the text is then small and the legend below the panels
        """
        from undrift.report.plots import plot_histories

        return plot_histories(self.results, path, metrics, against, width)

    def frame(self, of: str = "records") -> Any:
        """Return a pandas data frame with the methods and seeds of all runs.

        It has a row per round, or with "clients" a row per client and reported model.
        """
        from undrift.report.recorded_runs import as_frame, frame

        require_choice("A frame", of, ("records", "clients"))
        if of == "records":
            return frame(self.results)
        return as_frame(
            {"method": result.label, "seed": result.run.seed, **row}
            for result in self.results
            for row in result.clients()
        )

    def report(self, path: str | Path) -> Path:
        """Write one self-contained HTML page about the runs."""
        from undrift.report import of_results, write_page

        return write_page(of_results(self.results), path)

    def __repr__(self) -> str:
        seeds = f"; {len(self.seeds)} seeds" if len(self.seeds) > 1 else ""
        return f"Comparison({', '.join(self.labels)}{seeds})"

    def _repr_html_(self) -> str:
        return as_html([self.table(), *map(Text, self._remarks())], 160)


def results_table(results: Sequence[Result]) -> Table:
    """Return a row per method and reported model: rounds, metrics, and traffic in both directions.

    Several seeds of a method are shown as mean ± standard deviation.
    """
    rows: dict[tuple[str, str], list[tuple[Result, dict[str, float]]]] = {}
    for r in results:
        for model in _models(r):
            rows.setdefault((r.label, model), []).append((r, _of_model(r.metrics, model)))
    found = {name for several in rows.values() for _, own in several for name in own}
    metrics = [name for name in METRIC_HEADINGS if name in found and METRIC_HEADINGS[name]]
    own = sorted(found - set(METRIC_HEADINGS))  # user-defined metrics
    metrics += [name for name in own if "_client_" not in name]
    if any(name.startswith("test_") for name in metrics):
        kept = "train_client_accuracy_worst_tenth"
        metrics = [name for name in metrics if not name.startswith("train_") or name == kept]
    elif "objective" in metrics:
        metrics = [name for name in metrics if name != "train_loss"]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("method", no_wrap=True)
    heads = [METRIC_HEADINGS.get(name) or name.replace("_", " ") for name in metrics]
    clock = any(map(_virtual_seconds, results))
    many = any(len(several) > 1 for several in rows.values())
    for name in [*["seeds"] * many, "rounds", *heads, "MB sent", *["virtual time"] * clock]:
        table.add_column(name, justify="right", no_wrap=True)
    for (label, model), several in rows.items():
        cells = [_over([own[m] for _, own in several if m in own], len(several)) for m in metrics]
        done = [r.records[-1].round if r.records else 0 for r, _ in several]
        sent = fmean((r.bytes_down + r.bytes_up) / 1e6 for r, _ in several)
        table.add_row(
            escape(label if model == "server" else f"{label}, {model}"),
            *[str(len(several))] * many,
            str(min(done)) if min(done) == max(done) else f"{min(done)}–{max(done)}",
            *cells,
            f"{sent:.2f}",
            *[duration(fmean(_virtual_seconds(r) for r, _ in several))] * clock,
        )
    return table


def _over(values: Sequence[float], seeds: int) -> str:
    """Format a metric: "0.9731", or over seeds "0.9731 ± 0.0012", without seeds that diverged."""
    if not values:
        return "–"
    text = f"{fmean(values):.4g}"
    if len(values) > 1:
        text += f" ± {stdev(values) if all(map(math.isfinite, values)) else math.nan:.2g}"
    return text if len(values) == seeds else f"{text} ({len(values)} seeds)"


def _virtual_seconds(result: Result) -> float:
    """Return the final time of the virtual clock in seconds; 0 without a clock."""
    return result.records[-1].virtual_seconds if result.records else 0.0


def _models(result: Result) -> tuple[str, ...]:
    return result.run.evaluation.models


def _of_model(metrics: Mapping[str, float], model: str) -> dict[str, float]:
    """Return the metrics of one reported model, without its prefix."""
    if model == "server":
        return {name: value for name, value in metrics.items() if "/" not in name}
    prefix = f"{model}/"
    return {n.removeprefix(prefix): v for n, v in metrics.items() if n.startswith(prefix)}
