"""`undrift bench`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

from undrift.cli import completion
from undrift.cli.app import app
from undrift.utils.display import progress
from undrift.utils.errors import UndriftError, require_choice

if TYPE_CHECKING:
    from undrift.bench import Workload
    from undrift.bench.timing import Tick


@app.command()
def bench(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="W1 … W10",
            help="Workloads to time, also X1 to X5, models without a target of their own. Default: "
            "W1 to W10; W1 to W6 with --default and --memory, W1 and W2 with --unequal, W3, W5 and "
            "W9 with --precision, W1 with --scaling, W2 with --profile, W1 to W10 and X1 to X5 "
            "with --strategies.",
            show_default=False,
            autocompletion=completion.choices(completion.WORKLOADS),
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="Method to time: FedAvg (the default), FedProx, SCAFFOLD, FedNova, FedDyn, FedDR "
            "or FedLGA. Repeatable. FedAvg is always timed too, for comparison.",
            show_default=False,
            autocompletion=completion.choices(completion.NAMES["methods"]),
        ),
    ] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(
            help="Engine to time: auto (the default), tuned, vectorised, serial or ray. "
            "Repeatable.",
            show_default=False,
            autocompletion=completion.choices(completion.ENGINES),
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of threads for the engine, and the most that the bare loop tries. "
            "Default: one per core.",
            show_default=False,
        ),
    ] = None,
    population: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Change the number of clients, but not the cohort. Clients beyond the workload's "
            "own number share samples with others.",
            show_default=False,
        ),
    ] = None,
    repeats: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of rounds to time; the fastest counts. Default: 5, more if rounds are "
            "short.",
            show_default=False,
        ),
    ] = None,
    commits: Annotated[
        bool,
        typer.Option("--commits", help="Also time rounds that are committed to a run's store."),
    ] = False,
    unequal: Annotated[
        bool,
        typer.Option(
            "--unequal",
            help="Instead, compare clients that do 1 to 96 steps (30 on average) with clients that "
            "all do 30.",
        ),
    ] = False,
    scaling: Annotated[
        bool,
        typer.Option(
            "--scaling",
            help="Instead, time cohorts of 10 to 300 clients, populations of 100 to 1,000,000 "
            "with and without a virtual clock, their partition and the start-up.",
        ),
    ] = False,
    default: Annotated[
        bool,
        typer.Option(
            "--default",
            help="Instead, time a run with all defaults (evaluation, records, commits) against the "
            "same rounds without them.",
        ),
    ] = False,
    precision: Annotated[
        bool,
        typer.Option(
            "--precision",
            help="Instead, compare float32 with mixed precision (bf16): the time of a round, and "
            "the training loss round by round.",
        ),
    ] = False,
    picture: Annotated[
        Path | None,
        typer.Option(
            help="With --precision: file for a picture of the loss curves (.svg, .png or .pdf).",
            show_default=False,
        ),
    ] = None,
    memory: Annotated[
        bool,
        typer.Option(
            "--memory",
            help="Instead, compare the peak memory with the bare loop's, each in a new process.",
        ),
    ] = False,
    profile: Annotated[
        bool,
        typer.Option("--profile", help="Instead, show how a round's time is divided."),
    ] = False,
    strategies: Annotated[
        bool,
        typer.Option(
            "--strategies",
            help="Instead, time every strategy that suits a workload, and show which one auto "
            "chooses.",
        ),
    ] = False,
    json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print a JSON list of {workload, method, engine, strategy, ratio, bare_seconds, "
            "our_seconds, peak_mb, target}; seconds are per round.",
        ),
    ] = False,
) -> None:
    """Compare the time of a round with a bare PyTorch loop that does the same work.

    For each client, the bare loop loads the global weights into one module, computes gradients,
    applies fused updates and adds the model to a running mean. It does nothing else, and it uses
    one thread or all threads, whichever is faster. Rounds of undrift and of the bare loop are timed
    in turn; the first two are not counted, and the fastest of each is compared.

    W1 logistic regression, W2 MLP on MNIST's shape, W3 CNN on CIFAR's shape, W4 10,000 tiny
    clients, W5 the CNN of pfl-research's benchmark, W6 LSTM over 80 characters, W7 transformer over
    64 bytes, W8 MLP of 10 million parameters, W9 ResNet-18, W10 adapters in a frozen transformer.
    The data are random numbers in memory; nothing is downloaded. All ten workloads take several
    minutes.

    Examples:

    - `undrift bench W1 W2`: two of the workloads

    - `undrift bench W2 --method SCAFFOLD --method FedDyn`: methods compared with FedAvg

    - `undrift bench W4 --population 100000`: the same cohort, drawn from more clients

    - `undrift bench W2 --commits`: the cost of committing every round

    - `undrift bench --profile W2 --engine serial`: how a round's time is divided

    - `undrift bench --strategies W6`: all strategies, and the one that auto chooses

    - `undrift bench --default`: what evaluation, records and commits of a default run cost

    - `undrift bench --precision --picture curves.svg`: bf16 against float32, with loss curves

    - `undrift bench --memory W3 W5`: peak memory, each in a new process

    - `undrift bench --scaling`: from 100 to a million clients

    - `undrift bench --json > bench.json`: results for a program

    peak_mb is the largest memory of the process so far; --memory measures each workload alone.
    """
    from undrift import bench as measuring
    from undrift.bench import bench_output
    from undrift.engines.thread_pool import cores

    modes = {
        "--unequal": unequal,
        "--scaling": scaling,
        "--default": default,
        "--precision": precision,
        "--memory": memory,
        "--profile": profile,
        "--strategies": strategies,
    }
    chosen = [name for name, asked in modes.items() if asked]
    if len(chosen) > 1:
        raise UndriftError(f"{' and '.join(chosen)} are different measurements: choose one.")
    mode = chosen[0] if chosen else ""
    if commits and mode:
        raise UndriftError(f"--commits cannot be combined with {mode}.")
    if population is not None and mode == "--scaling":
        raise UndriftError(
            "--population cannot be combined with --scaling, which tries several populations."
        )
    if picture is not None:
        if mode != "--precision":
            raise UndriftError("--picture shows the loss curves of --precision: add --precision.")
        from undrift.utils.pictures import require_suffix

        require_suffix(picture)
    methods, engines = method or ["FedAvg"], engine or ["auto"]
    _require_known(methods, engines)
    defaults = {"--unequal": ["W1", "W2"], "--scaling": ["W1"], "--profile": ["W2"]}
    defaults["--default"] = defaults["--memory"] = [f"W{number}" for number in range(1, 7)]
    defaults["--precision"] = ["W3", "W5", "W9"]
    defaults["--strategies"] = [*measuring.WORKLOADS, *measuring.FURTHER]
    workloads = _workloads(names or defaults.get(mode) or list(measuring.WORKLOADS))
    threads = threads or cores()

    def measured(w: Workload, m: str, e: str, tick: Tick) -> Sequence[bench_output.Measurement]:
        how: dict[str, Any] = {"repeats": repeats, "tick": tick}
        if mode == "--scaling":
            return measuring.scale(w, m, e, threads, **how)
        how["population"] = population
        if mode == "--unequal":
            return [measuring.time_unequal(w, m, e, threads, **how)]
        if mode == "--default":
            return [measuring.time_default(w, m, e, threads, **how)]
        if mode == "--strategies":
            return measuring.time_strategies(w, m, e, threads, **how)
        if mode == "--precision":
            return [measuring.time_precision(w, m, e, threads, **how)]
        if mode == "--memory":
            return [measuring.measure_memory(w, m, e, threads, **how)]
        if mode == "--profile":
            return [measuring.take_profile(w, m, e, threads, **how)]
        return measuring.compare(w, methods, engines, threads, commits=commits, **how)

    variants = [(m, e) for m in methods for e in engines] if mode else [("", "")]
    jobs = [(w, m, e) for w in workloads for m, e in variants]
    console = Console(highlight=False)
    found: list[bench_output.Measurement] = []
    for number, (w, m, e) in enumerate(jobs, 1):
        what = " ".join(filter(None, (w.name, m, e)))
        with _progress(f"{what} ({number} of {len(jobs)})") as tick:
            own = measured(w, m, e, tick)
        if not json:
            for part in bench_output.renderables(own, first=not found):
                console.print(part)
        found += own
    if picture is not None:
        drawn = [each for each in found if isinstance(each, measuring.PrecisionTiming)]
        measuring.draw_curves(drawn, picture)
    if json:
        typer.echo(bench_output.as_json(found))
        return
    for note in bench_output.notes(found):
        console.print(f"\n{note}")


def _require_known(methods: list[str], engines: list[str]) -> None:
    """Raise if a method or an engine does not exist, before anything is timed."""
    from undrift.bench.bench_run import METHODS
    from undrift.engines import ENGINES

    for name in methods:
        require_choice("The method to time", name, METHODS)
    for name in engines:
        require_choice("engine", name, ENGINES)


def _workloads(names: list[str]) -> list[Workload]:
    from undrift.bench import FURTHER, WORKLOADS

    known = {**WORKLOADS, **FURTHER}
    for name in names:
        require_choice("The workload", name.upper(), known)
    return [known[name] for name in dict.fromkeys(name.upper() for name in names)]


@contextmanager
def _progress(what: str) -> Iterator[Tick]:
    """Show a progress bar on a terminal while the block runs; yields the function to update it."""
    bar = progress(
        TextColumn("timing {task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        transient=True,
    )
    with bar:
        task = bar.add_task(what, total=1.0)
        yield lambda share: bar.update(task, completed=share)
