"""What a run gives back: the model, the records, a summary and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from safetensors.torch import save_file
from torch import Tensor, nn

from undrift.errors import UndriftError, require
from undrift.loops.synchronous import Synchronous
from undrift.methods.base import Method
from undrift.modules import ModuleLosses
from undrift.records import Record


class Result:
    """A finished run of one method."""

    def __init__(self, label: str, run: Synchronous):
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
        """The last metrics that were measured."""
        return next((r.metrics for r in reversed(self.records) if r.metrics), {})

    def history(self, metric: str) -> tuple[list[int], list[float]]:
        """The rounds in which a metric was measured, and its values."""
        pairs = [(r.round, r.metrics[metric]) for r in self.records if metric in r.metrics]
        if not pairs:
            known = ", ".join(sorted(self.metrics)) or "none"
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

    def model(self) -> nn.Module:
        """A module with the final parameters."""
        losses = self.run.losses
        if not isinstance(losses, ModuleLosses):
            raise UndriftError("An analytic problem has no module; its solution is `result.x`.")
        return losses.flat.filled(self.x, self.run.buffers)

    def save(self, path: str | Path) -> None:
        """Write the final model as a safetensors file."""
        path = Path(path)
        partial = path.with_name(path.name + ".partial")
        save_file(
            {name: value.contiguous() for name, value in self.model().state_dict().items()}, partial
        )
        partial.replace(path)

    def summary(self) -> str:
        """What came of the run, as a small table."""
        return Comparison([self]).summary()

    def plot(self, path: str | Path, metrics: Sequence[str] | None = None) -> Path:
        """Draw metrics against rounds."""
        return Comparison([self]).plot(path, metrics)

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
        console = Console(width=100, color_system=None, force_terminal=False)
        with console.capture() as capture:
            console.print(self.table())
            for result in self.results:
                if result.stopped:
                    console.print(f"{result.label}: {result.stopped}")
        return capture.get().rstrip()

    def plot(self, path: str | Path, metrics: Sequence[str] | None = None) -> Path:
        """Draw metrics against rounds, one line per method."""
        from undrift.plots import plot_histories

        return plot_histories(self.results, path, metrics)

    def __repr__(self) -> str:
        return f"Comparison({', '.join(result.label for result in self.results)})"


SHOWN = {
    "objective": "objective",
    "train_loss": "train loss",
    "train_accuracy": "train acc",
    "test_loss": "test loss",
    "test_accuracy": "test acc",
    "test_absolute_error": "test error",
    "gradient_norm": "gradient",
    "client_accuracy_worst_tenth": "worst 10%",
}
"""The metrics of the summary, with the heads of their columns."""


def results_table(results: Sequence[Result]) -> Table:
    """A row per method: metrics, rounds, traffic and work."""
    metrics = [name for name in SHOWN if any(name in r.metrics for r in results)]
    if "test_loss" in metrics:
        metrics = [name for name in metrics if name not in ("train_loss", "train_accuracy")]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("method", no_wrap=True)
    for name in ["rounds", *(SHOWN[m] for m in metrics), "MB down", "MB up", "gradients"]:
        table.add_column(name, justify="right", no_wrap=True)
    for r in results:
        cells = [f"{r.metrics[m]:.4f}" if m in r.metrics else "–" for m in metrics]
        rounds = str(r.records[-1].round) if r.records else "0"
        traffic = [f"{r.bytes_down / 1e6:.2f}", f"{r.bytes_up / 1e6:.2f}"]
        table.add_row(r.label, rounds, *cells, *traffic, f"{r.gradients:,}")
    return table
