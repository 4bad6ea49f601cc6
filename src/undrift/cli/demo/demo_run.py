"""The body of `undrift demo`: all methods on synthetic(1,1), on the same cohorts and batches."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from undrift import methods as m
from undrift.bench.stopwatch import Stopwatch
from undrift.core.evaluation import Evaluation
from undrift.core.method import Method
from undrift.core.sampling import as_sampler
from undrift.data import FederatedData, synthetic
from undrift.devices import Devices, Ladder
from undrift.engines import EngineOptions
from undrift.local.solvers import SGD
from undrift.loops import Loop, RunSpec, base, loop
from undrift.loops.paces import Deadline
from undrift.nets import models
from undrift.nets.module_losses import ModuleLosses
from undrift.report import Runs, of_results, write_page
from undrift.report.html.result_sentence import result_sentence
from undrift.report.plots import plot_histories
from undrift.report.result import Result
from undrift.utils.display import redraws
from undrift.utils.errors import Diverged, UndriftError

SLOWEST_STEPS, STEPS = 2, 12
CLIENTS, BATCH = 30, 10
DEVICES = Devices(speed=Ladder(SLOWEST_STEPS, STEPS))
"""In one second, the fastest device does all of its steps and the slowest only two."""
PACE = Deadline(1.0)
ROUNDS = 100
TABLE_SECONDS = 0.5
"""Time between two updates of the table, on a terminal that can redraw."""
LINE_SECONDS = 5.0
"""Time between two progress lines elsewhere, such as in a pipe."""
PARTS = TRAINING, EVALUATION, TABLE, REPORT = "training", "evaluation", "table", "report"
"""The parts of the run that `--profile` times."""


@dataclass(frozen=True)
class Entry:
    """A method of the demo with the settings that suit it on this data."""

    method: Method
    lr: float
    """learning rate of the clients' SGD"""
    option: str = ""
    """the method's own parameter, as the table shows it"""

    @property
    def local(self) -> SGD:
        """The clients' solver."""
        return SGD(lr=self.lr, batch_size=BATCH, steps=STEPS)


def demo_entries() -> dict[str, Entry]:
    """The methods of the five papers and their baselines, each with its best settings of a grid.

    `python -m tools.demo_settings` chose them: one learning rate for all would favour the methods
    that it happens to suit.
    """
    return {
        "DistributedSGD": Entry(m.DistributedSGD(), 0.3),
        "FedAvg": Entry(m.FedAvg(), 0.03),
        "FedAvgMin": Entry(m.FedAvgMin(), 0.03),
        "FedProx": Entry(m.FedProx(mu=0.01), 0.03, "μ=0.01"),
        "SCAFFOLD": Entry(m.SCAFFOLD(), 0.03),
        "VRLSGD": Entry(m.VRLSGD(), 0.03),
        "FedNova": Entry(m.FedNova(), 0.03),
        "FedNova + VR": Entry(m.FedNova(variance_reduction=True), 0.03),
        "FedDyn": Entry(m.FedDyn(alpha=0.3), 0.03, "α=0.3"),
        "FedPD": Entry(m.FedPD(eta=1 / 0.3), 0.03, "1/η=0.3"),
        "FedSplit": Entry(m.FedSplit(eta=1 / 3.0), 0.03, "1/η=3"),
        "FedDR": Entry(m.FedDR(eta=1.0), 0.03, "1/η=1"),
        "FedLGA": Entry(m.FedLGA("extrapolate"), 0.03, "extrapolate"),
        "AsyncFedDR": Entry(m.AsyncFedDR(eta=1.0, alpha=1.0), 0.03, "1/η=1"),
        "FedAsync": Entry(m.FedAsync(alpha=0.2), 0.1, "α=0.2"),
        "FedBuff": Entry(m.FedBuff(buffer=5), 0.03, "M=5"),
    }


def demo_data(seed: int) -> FederatedData:
    """The data of the demo: synthetic(1,1) over 30 clients."""
    return synthetic(1, 1, clients=CLIENTS, seed=seed)


def demo_loop(
    entry: Entry, data: FederatedData, rounds: int, cohort: int | None, seed: int
) -> Loop:
    """The run of one method, with all clients in every round if `cohort` is None."""
    with warnings.catch_warnings():
        # The paper's figure uses α = 1, which its theorem does not cover.
        warnings.filterwarnings("ignore", message="asyncFedDR's alpha")
        spec = RunSpec(
            entry.method,
            ModuleLosses(models.logistic(60, 10), data),
            entry.local,
            as_sampler(cohort, by_weight=False),
            rounds,
            objective="clients",
            seed=seed,
            evaluation=Evaluation(every=2),
            devices=DEVICES,
            pace=None if entry.method.meant_asynchronous else PACE,
        )
        return loop(spec, EngineOptions())


def run_demo(
    console: Console,
    rounds: int = ROUNDS,
    cohort: int | None = None,
    seed: int = 0,
    picture: Path | None = None,
    report: Path = Path("undrift-demo.html"),
    watch: Stopwatch | None = None,
) -> list[Result]:
    """Train all methods with a live table, and write the report and, if asked, a picture.

    Parameters
    ----------
    console
        prints the table and the messages
    rounds, cohort, seed
        rounds to train; clients per round, None for all 30; seed of all random numbers
    picture, report
        files to write
    watch
        a stopwatch that records the seconds of each of `PARTS`
    """
    watch = watch or Stopwatch()
    data, entries = demo_data(seed), demo_entries()
    runs: dict[str, Loop] = {}
    for label, entry in entries.items():
        try:
            runs[label] = demo_loop(entry, data, rounds, cohort, seed)
        except UndriftError as error:
            if cohort is None or cohort > len(data):
                raise
            console.print(f"left out: {error}")  # the method needs all clients in every round
    who = "all" if cohort is None else f"{cohort}"
    console.print(
        f"{data.name}: {len(data)} clients with {len(data.train):,} samples, {who} in every round. "
        f"A round gives each client time for up to {STEPS} steps of SGD; the slowest device does "
        f"{SLOWEST_STEPS}. Asynchronous methods do not wait for slow devices. Time is virtual.",
        highlight=False,
    )
    console.print(
        "Each method has its own learning rate (lr) and option, the best of a small grid.",
        highlight=False,
    )
    _train(console, runs, entries, watch)
    results = [Result(label, run) for label, run in runs.items()]
    with watch.part(REPORT):
        found = _runs(results, entries, data.name)
        if picture is not None:
            plot_histories(results, picture)
        result = demo_result(found, len(data.test or ()))
        write_page(found, report, result=result)
    console.print(
        f"{result} FedAsync and FedBuff count a client as often as it replies, so fast ones more.",
        highlight=False,
    )
    return results


def demo_result(runs: Runs, test_samples: int) -> str:
    """What the demo shows, by the objective: the quantity that settings were chosen by.

    Most test accuracies differ by a few samples, so that the highest one says nothing.
    """
    found = [
        f"{result_sentence(runs, metric='objective')} Compare the objective, which every method "
        "minimises with the settings that make it smallest on a grid."
    ]
    shares = [run.metrics["test_accuracy"] for run in runs if "test_accuracy" in run.metrics]
    if shares:
        middle = median(shares)
        chance = 2 * math.sqrt(middle * (1 - middle) / test_samples)  # two standard errors
        found.append(
            f"Test accuracies come from {test_samples} samples: differences below {chance:.2f} may "
            "be chance."
        )
    return " ".join(found)


def _runs(results: list[Result], entries: Mapping[str, Entry], data: str) -> Runs:
    """The runs for the report, with the settings of every method beside its name."""
    runs = of_results(results)
    for run in runs:
        run.method += f", {entries[run.label].local!r}"
    for folder in runs.folders:
        folder.name = f"undrift demo: {data}"
    return runs


def _train(
    console: Console, runs: dict[str, Loop], entries: Mapping[str, Entry], watch: Stopwatch
) -> None:
    """Run all rounds and show the table: live on a terminal, otherwise once at the end."""
    rounds = max(run.total for run in runs.values())
    bar = Progress(
        TextColumn("rounds"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )
    task = bar.add_task("rounds", total=rounds)
    redrawn = redraws(console)
    with watch.part(TABLE), Live(console=console, auto_refresh=False) as live:

        def show(done: int) -> None:
            bar.update(task, completed=done)
            table = live_table([Result(label, run) for label, run in runs.items()], entries)
            live.update(Group(table, bar) if redrawn else table, refresh=True)

        done, shown = 0, time.monotonic()
        with watch.at(base, "measure", EVALUATION), watch.part(TRAINING):
            for done in rounds_in_turn(runs):
                if time.monotonic() - shown < (TABLE_SECONDS if redrawn else LINE_SECONDS):
                    continue
                with watch.part(TABLE):
                    if redrawn:
                        show(done)
                    else:
                        console.print(f"round {done} of {rounds}", highlight=False)
                shown = time.monotonic()
        show(done)
    console.print()


def rounds_in_turn(runs: dict[str, Loop]) -> Iterator[int]:
    """Run one round of each method in turn, so that the table compares equals; yields the round."""
    iterators = {label: run.rounds() for label, run in runs.items()}
    while iterators:
        for label in list(iterators):
            try:
                record = next(iterators[label])
                yield record.round
            except StopIteration:
                del iterators[label]
            except Diverged as error:
                runs[label].stopped, runs[label].diverged = str(error), True
                del iterators[label]


def live_table(results: list[Result], entries: Mapping[str, Entry]) -> Table:
    """Settings and last metrics of every method, in 80 columns; the best of a column is green."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("method", "lr", "option"):
        table.add_column(name, no_wrap=True)
    columns = {
        "objective": "objective",
        "test acc": "test_accuracy",
        "worst 10%": "test_client_accuracy_worst_tenth",
    }
    for name in [*columns, "MB", "time, s"]:
        table.add_column(name, justify="right", no_wrap=True)
    best = {
        metric: (max if "accuracy" in metric else min)(
            (r.metrics[metric] for r in results if metric in r.metrics), default=None
        )
        for metric in columns.values()
    }
    for result in results:
        entry, cells = entries[result.label], []
        for metric, top in best.items():
            value = result.metrics.get(metric)
            style = "[green]" if value is not None and value == top else ""
            cells.append("–" if value is None else f"{style}{value:.4f}")
        sent = (result.bytes_down + result.bytes_up) / 1e6
        spent = f"{result.run.now:.0f}" if result.run.now else "–"
        settings = (result.label, f"{entry.lr:g}", entry.option or "–")
        table.add_row(*settings, *cells, f"{sent:.1f}" if sent else "–", spent)
    return table
