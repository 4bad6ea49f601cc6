"""The body of `undrift demo`: all methods on synthetic(1,1), on the same cohorts and batches."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from undrift import methods as m
from undrift.bench.stopwatch import Stopwatch
from undrift.core.evaluation import Evaluation
from undrift.core.method import Method
from undrift.core.sampling import as_sampler
from undrift.data import synthetic
from undrift.devices import Devices, Ladder
from undrift.engines import EngineOptions
from undrift.local.solvers import SGD
from undrift.loops import Loop, RunSpec, base, loop
from undrift.loops.paces import Deadline
from undrift.nets import models
from undrift.nets.module_losses import ModuleLosses
from undrift.report import of_results, write_page
from undrift.report.plots import plot_histories
from undrift.report.result import Result
from undrift.utils.display import redraws
from undrift.utils.errors import Diverged, UndriftError

SLOWEST_STEPS, STEPS = 2, 12
LOCAL = SGD(lr=0.03, batch_size=10, steps=STEPS)
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


def demo_methods() -> dict[str, Method]:
    """The methods of the five papers and their baselines, with parameters that suit the data."""
    return {
        "DistributedSGD": m.DistributedSGD(),
        "FedAvg": m.FedAvg(),
        "FedAvgMin": m.FedAvgMin(),
        "FedProx": m.FedProx(mu=0.1),
        "SCAFFOLD": m.SCAFFOLD(),
        "VRLSGD": m.VRLSGD(),
        "FedNova": m.FedNova(),
        "FedNova + VR": m.FedNova(variance_reduction=True),
        "FedDyn": m.FedDyn(alpha=1.0),
        "FedPD": m.FedPD(eta=1.0),
        "FedSplit": m.FedSplit(eta=1.0),
        "FedDR": m.FedDR(eta=1.0, alpha=1.0),
        "FedLGA, capped": m.FedLGA(cap=True),  # the literal term grows with |g|² and diverges here
        "AsyncFedDR": m.AsyncFedDR(eta=1.0, alpha=1.0),
        "FedAsync": m.FedAsync(alpha=0.2),
        "FedBuff": m.FedBuff(buffer=10),
    }


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
    data = synthetic(1, 1, clients=30, seed=seed)
    losses = ModuleLosses(models.logistic(60, 10), data)
    runs: dict[str, Loop] = {}
    for label, method in demo_methods().items():
        try:
            with warnings.catch_warnings():
                # The paper's figure uses α = 1, which its theorem does not cover.
                warnings.filterwarnings("ignore", message="asyncFedDR's alpha")
                spec = RunSpec(
                    method,
                    losses,
                    LOCAL,
                    as_sampler(cohort, by_weight=False),
                    rounds,
                    objective="clients",
                    seed=seed,
                    evaluation=Evaluation(every=2),
                    devices=DEVICES,
                    pace=None if method.meant_asynchronous else PACE,
                )
                runs[label] = loop(spec, EngineOptions())
        except UndriftError as error:
            if cohort is None or cohort > len(data):
                raise
            console.print(f"left out: {error}")  # the method needs all clients in every round
    who = "all" if cohort is None else f"{cohort}"
    console.print(
        f"{data.name}: {len(data)} clients with {len(data.train):,} samples, {who} in every round. "
        f"A round gives each client time for up to {STEPS} steps of SGD; the slowest device does "
        f"{SLOWEST_STEPS}. Asynchronous methods do not wait for slow devices.",
        highlight=False,
    )
    _train(console, runs, rounds, watch)
    results = [Result(label, run) for label, run in runs.items()]
    with watch.part(REPORT):
        if picture is not None:
            plot_histories(results, picture)
        write_page(of_results(results), report)
    return results


def _train(console: Console, runs: dict[str, Loop], rounds: int, watch: Stopwatch) -> None:
    """Run all rounds and show the table: live on a terminal, otherwise once at the end."""
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
            table = live_table([Result(label, run) for label, run in runs.items()])
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


def live_table(results: list[Result]) -> Table:
    """The last metrics of every method, in 80 columns; the best value of a column is green."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("method", no_wrap=True)
    columns = {
        "objective": "objective",
        "test loss": "test_loss",
        "test acc": "test_accuracy",
        "worst 10%": "test_client_accuracy_worst_tenth",
    }
    for name in [*columns, "MB sent", "virtual s"]:
        table.add_column(name, justify="right", no_wrap=True)
    best = {
        metric: (max if "accuracy" in metric else min)(
            (r.metrics[metric] for r in results if metric in r.metrics), default=None
        )
        for metric in columns.values()
    }
    for result in results:
        cells = []
        for metric, top in best.items():
            value = result.metrics.get(metric)
            style = "[green]" if value is not None and value == top else ""
            cells.append("–" if value is None else f"{style}{value:.4f}")
        sent = (result.bytes_down + result.bytes_up) / 1e6
        spent = f"{result.run.now:.1f}" if result.run.now else "–"
        table.add_row(result.label, *cells, f"{sent:.1f}" if sent else "–", spent)
    return table
