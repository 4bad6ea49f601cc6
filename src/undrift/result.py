"""What a run gives back: the model, the records, a summary and a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from undrift.errors import UndriftError, require
from undrift.loops.base import Loop
from undrift.methods.base import Method
from undrift.modules import ModuleLosses, save_weights
from undrift.records import Record
from undrift.timeline import plot_timeline
from undrift.units import duration

LITTLE = 0.01
"""Less wasted work is not worth a remark."""


class Result:
    """A finished run of one method."""

    def __init__(self, label: str, run: Loop):
        self.label = label
        self.run = run
        self.method: Method = run.method
        self.records: list[Record] = run.records
        self.x: Tensor = run.server.x
        """the server's final model, flat"""
        self.stopped: str | None = run.stopped
        """why the run ended before its last round, or None"""

    @property
    def metrics(self) -> dict[str, float]:
        """The last metrics that were measured; none of a run that diverged."""
        if self.run.diverged:
            return {}
        return next((r.metrics for r in reversed(self.records) if r.metrics), {})

    def history(self, metric: str) -> tuple[list[int], list[float]]:
        """The rounds in which a metric was measured, and its values."""
        pairs = [(r.round, r.metrics[metric]) for r in self.records if metric in r.metrics]
        if not pairs:
            known = ", ".join(sorted(self.records[0].metrics)) or "none"
            raise UndriftError(f"{self.label} has no metric {metric!r}; there are: {known}.")
        rounds, values = zip(*pairs, strict=True)
        return list(rounds), list(values)

    @property
    def bytes_down(self) -> int:
        """What travelled from the server to clients, over all rounds."""
        return sum(sum(r.bytes_down.values()) for r in self.records)

    @property
    def bytes_up(self) -> int:
        """What travelled from clients to the server, over all rounds."""
        return sum(sum(r.bytes_up.values()) for r in self.records)

    @property
    def gradients(self) -> int:
        """Gradients of single samples that were computed."""
        return sum(r.gradients for r in self.records)

    @property
    def rejected(self) -> int:
        """Replies that were left out because they were unusable."""
        return sum(len(r.rejected) for r in self.records)

    def remarks(self) -> list[str]:
        """What a reader of the numbers must know: an early end, replies that were left out."""
        found = [self.stopped] if self.stopped else []
        if not self.stopped and self.run.target:
            found.append(f"the target {self.run.target} was not reached")
        found += self._remarks_on_devices() if _clock(self) else self._remarks_on_absence()
        if self.rejected:
            first = next(r for r in self.records if r.rejected)
            client, reason = first.rejected[0]
            found.append(
                f"{self.rejected} replies were left out, the first in round {first.round} from "
                f"client {client!r}: {reason}"
            )
        return found

    def _remarks_on_absence(self) -> list[str]:
        absent = {client for r in self.records for client in r.absent}
        never = absent - set(self.run.states.seen())
        if not never:
            return []
        return [
            f"{len(never)} of {len(self.run.roster)} clients never managed any work, for "
            f"example client {sorted(never, key=str)[0]!r}"
        ]

    def _remarks_on_devices(self) -> list[str]:
        """Who was left out, and what was done in vain."""
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
        if skipped and not any(r.staleness for r in self.records):  # those have no such rounds
            rounds = "round was" if skipped == 1 else "rounds were"
            found.append(f"{skipped} {rounds} skipped because too few clients replied")
        wasted = sum(r.wasted_gradients for r in self.records)
        share = wasted / (wasted + self.gradients) if wasted else 0.0
        if share >= LITTLE:
            found.append(f"{100 * share:.0f} % of the work was wasted")
        return found

    def model(self) -> nn.Module:
        """A module with the final parameters."""
        losses = self.run.losses
        if not isinstance(losses, ModuleLosses):
            raise UndriftError("An analytic problem has no module; its solution is `result.x`.")
        return losses.flat.filled(self.x, self.run.buffers)

    def save(self, path: str | Path) -> None:
        """Write the final model as a safetensors file."""
        save_weights(self.model(), Path(path))

    def summary(self) -> str:
        """What came of the run, as a small table."""
        return Comparison([self]).summary()

    def plot(self, path: str | Path, metrics: Sequence[str] | None = None) -> Path:
        """Draw metrics against rounds."""
        return Comparison([self]).plot(path, metrics)

    def timeline(self, path: str | Path) -> Path:
        """Draw which client worked when in the first rounds, where there is a virtual clock."""
        return plot_timeline(self.records, path, self.label)

    def report(self, path: str | Path) -> Path:
        """Write one self-contained HTML page about the run."""
        return Comparison([self]).report(path)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name} {value:.4g}" for name, value in self.metrics.items())
        return f"Result({self.label}: {len(self.records) - 1} rounds; {shown})"


class Comparison(Sequence[Result]):
    """Several methods on the same cohorts and batches."""

    def __init__(self, results: Sequence[Result]):
        require(len(results) > 0, "There is nothing to compare.")
        self.results = list(results)

    def __getitem__(self, which):  # type: ignore[no-untyped-def]
        if isinstance(which, str):
            for result in self.results:
                if result.label == which:
                    return result
            known = ", ".join(result.label for result in self.results)
            raise UndriftError(f"There is no method {which!r}; there are: {known}.")
        return self.results[which]

    def __len__(self) -> int:
        return len(self.results)

    def table(self) -> Table:
        """The final metrics and the cost of every method."""
        return results_table(self.results)

    def summary(self) -> str:
        """The table as text."""
        console = Console(width=160, color_system=None, force_terminal=False)
        with console.capture() as capture:
            console.print(self.table())
            for result in self.results:
                for remark in result.remarks():
                    console.print(f"{result.label}: {remark}", soft_wrap=True)
        return capture.get().rstrip()

    def plot(self, path: str | Path, metrics: Sequence[str] | None = None) -> Path:
        """Draw metrics against rounds, one line per method."""
        from undrift.plots import plot_histories

        return plot_histories(self.results, path, metrics)

    def report(self, path: str | Path) -> Path:
        """Write one self-contained HTML page about the runs."""
        from undrift.report import of_results, write_page

        return write_page(of_results(self.results), path)

    def __repr__(self) -> str:
        return f"Comparison({', '.join(result.label for result in self.results)})"


SHOWN = {
    "objective": "objective",
    "train_loss": "train loss",
    "train_accuracy": "train acc",
    "train_absolute_error": "train error",
    "validation_loss": "",
    "validation_accuracy": "val acc",
    "validation_absolute_error": "val error",
    "validation_client_accuracy_mean": "",
    "validation_client_accuracy_std": "",
    "validation_client_accuracy_worst_tenth": "",
    "test_loss": "test loss",
    "test_accuracy": "test acc",
    "test_absolute_error": "test error",
    "gradient_norm": "gradient",
    "gradient_mapping": "mapping",
    "train_client_accuracy_mean": "",
    "train_client_accuracy_std": "",
    "train_client_accuracy_worst_tenth": "worst train",
    "test_client_accuracy_mean": "",
    "test_client_accuracy_std": "",
    "test_client_accuracy_worst_tenth": "worst test",
}
"""The metrics of the summary, with the heads of their columns; those without are left out."""


def results_table(results: Sequence[Result]) -> Table:
    """A row per method and reported model: rounds, metrics and traffic, in both directions."""
    rows = [(r, model, _of_model(r.metrics, model)) for r in results for model in _models(r)]
    found = {name for _, _, metrics in rows for name in metrics}
    metrics = [name for name in SHOWN if name in found and SHOWN[name]]
    metrics += sorted(found - set(SHOWN))  # the user's own
    if any(name.startswith("test_") for name in metrics):
        kept = "train_client_accuracy_worst_tenth"
        metrics = [name for name in metrics if not name.startswith("train_") or name == kept]
    elif "objective" in metrics:
        metrics = [name for name in metrics if name != "train_loss"]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("method", no_wrap=True)
    heads = [SHOWN.get(name, name) for name in metrics]
    clock = any(map(_clock, results))
    for name in ["rounds", *heads, "MB sent", *["virtual time"] * clock]:
        table.add_column(name, justify="right", no_wrap=True)
    for r, model, own in rows:
        cells = [f"{own[m]:.4g}" if m in own else "–" for m in metrics]
        label = r.label if model == "server" else f"{r.label}, {model}"
        rounds = str(r.records[-1].round) if r.records else "0"
        sent = (r.bytes_down + r.bytes_up) / 1e6
        table.add_row(label, rounds, *cells, f"{sent:.2f}", *[duration(_clock(r))] * clock)
    return table


def _clock(result: Result) -> float:
    """The time of the virtual clock in the end, in seconds; 0 where there is none."""
    return result.records[-1].virtual_seconds if result.records else 0.0


def _models(result: Result) -> tuple[str, ...]:
    return result.run.evaluation.models


def _of_model(metrics: Mapping[str, float], model: str) -> dict[str, float]:
    """The metrics of one reported model, without its prefix."""
    if model == "server":
        return {name: value for name, value in metrics.items() if "/" not in name}
    prefix = f"{model}/"
    return {n.removeprefix(prefix): v for n, v in metrics.items() if n.startswith(prefix)}
