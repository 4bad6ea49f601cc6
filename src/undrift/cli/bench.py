"""`undrift bench`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

from undrift.cli import completing
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
            metavar="W1 … W6",
            help="Which workloads. Left out: all six (W1 and W2 with --unequal, W1 with --scaling, "
            "W2 with --profile).",
            show_default=False,
            autocompletion=completing.words(completing.WORKLOADS),
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="FedAvg (the default), FedProx, SCAFFOLD, FedNova, FedDyn, FedDR or FedLGA; may "
            "be repeated. FedAvg is timed with every other one, as what that is compared with.",
            show_default=False,
            autocompletion=completing.words(completing.WORDS["methods"]),
        ),
    ] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(
            help="auto (the default), vectorised, serial or ray; may be repeated.",
            show_default=False,
            autocompletion=completing.words(completing.ENGINES),
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="How many an engine may use, and the most that the bare loop tries (default: the "
            "cores there are).",
            show_default=False,
        ),
    ] = None,
    population: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Another number of clients; the cohort stays. Beyond the workload's own number "
            "they share samples.",
            show_default=False,
        ),
    ] = None,
    repeats: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Rounds of each, of which the best counts (default: at least five, more where "
            "they are short).",
            show_default=False,
        ),
    ] = None,
    commits: Annotated[
        bool,
        typer.Option("--commits", help="Also time rounds that are committed to a store."),
    ] = False,
    unequal: Annotated[
        bool,
        typer.Option(
            "--unequal",
            help="Instead: clients that do 1 to 96 steps, 30 on average, against 30 for all.",
        ),
    ] = False,
    scaling: Annotated[
        bool,
        typer.Option(
            "--scaling",
            help="Instead: cohorts of 10 to 300 and populations of 100 to 100 000, and how long "
            "the start takes.",
        ),
    ] = False,
    profile: Annotated[
        bool,
        typer.Option("--profile", help="Instead: where a round's time goes, part by part."),
    ] = False,
    json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print a list of {workload, method, engine, strategy, ratio, bare_seconds, "
            "our_seconds, peak_mb, target}; seconds are those of a round.",
        ),
    ] = False,
) -> None:
    """Time rounds against the same work in plain PyTorch, the bare loop.

    The bare loop is one module, the global weights loaded for each client, a gradient, a fused
    update, a running mean of the models, and nothing around it, with one thread or all, whichever
    is faster. Both are timed in turn, without the first two rounds, and the best of each counts.

    W1 logistic regression, W2 MLP on MNIST's shape, W3 CNN on CIFAR's, W4 10 000 tiny clients,
    W5 the CNN of pfl-research's benchmark, W6 LSTM over 80 characters. Data are random and in
    memory; nothing is downloaded. All six take some minutes.

    Examples:

    - `undrift bench W1 W2`: two of the workloads

    - `undrift bench W2 --method SCAFFOLD --method FedDyn`: what methods cost beside FedAvg

    - `undrift bench W4 --population 100000`: the same cohort, drawn from more clients

    - `undrift bench W2 --commits`: what it costs to keep every round

    - `undrift bench --profile W2 --engine serial`: where a round's time goes

    - `undrift bench --json > bench.json`: for a machine

    peak_mb is the most memory the process had so far: for one workload's own, time it alone.
    """
    from undrift import bench as measuring
    from undrift.bench import output
    from undrift.engines.pool import cores

    modes = {"--unequal": unequal, "--scaling": scaling, "--profile": profile}
    chosen = [name for name, asked in modes.items() if asked]
    if len(chosen) > 1:
        raise UndriftError(f"{' and '.join(chosen)} are different measurements: ask for one.")
    mode = chosen[0] if chosen else ""
    if commits and mode:
        raise UndriftError(f"--commits means nothing with {mode}.")
    if population is not None and mode == "--scaling":
        raise UndriftError("--population means nothing with --scaling, which tries several.")
    methods, engines = method or ["FedAvg"], engine or ["auto"]
    _require_known(methods, engines)
    usual = {"--unequal": ["W1", "W2"], "--scaling": ["W1"], "--profile": ["W2"]}
    workloads = _workloads(names or usual.get(mode) or list(measuring.WORKLOADS))
    threads = threads or cores()

    def measured(w: Workload, m: str, e: str, tick: Tick) -> Sequence[output.Measurement]:
        how: dict[str, Any] = {"repeats": repeats, "tick": tick}
        if mode == "--scaling":
            return measuring.scale(w, m, e, threads, **how)
        how["population"] = population
        if mode == "--unequal":
            return [measuring.time_unequal(w, m, e, threads, **how)]
        if mode == "--profile":
            return [measuring.take_profile(w, m, e, threads, **how)]
        return measuring.compare(w, methods, engines, threads, commits=commits, **how)

    each_by_itself = [(m, e) for m in methods for e in engines] if mode else [("", "")]
    pieces = [(w, m, e) for w in workloads for m, e in each_by_itself]
    console = Console(highlight=False)
    found: list[output.Measurement] = []
    for number, (w, m, e) in enumerate(pieces, 1):
        what = " ".join(filter(None, (w.name, m, e)))
        with _progress(f"{what} ({number} of {len(pieces)})") as tick:
            own = measured(w, m, e, tick)
        if not json:
            for part in output.renderables(own, first=not found):
                console.print(part)
        found += own
    if json:
        typer.echo(output.as_json(found))
        return
    for note in output.notes(found):
        console.print(f"\n{note}")


def _require_known(methods: list[str], engines: list[str]) -> None:
    """Refuse names that do not exist before anything is timed."""
    from undrift.bench.bench_run import METHODS
    from undrift.engines import ENGINES

    for name in methods:
        require_choice("A method to time", name, METHODS)
    for name in engines:
        require_choice("engine", name, ENGINES)


def _workloads(names: list[str]) -> list[Workload]:
    from undrift.bench import WORKLOADS

    for name in names:
        require_choice("A workload", name.upper(), WORKLOADS)
    return [WORKLOADS[name] for name in dict.fromkeys(name.upper() for name in names)]


@contextmanager
def _progress(what: str) -> Iterator[Tick]:
    """A bar on a terminal, that is gone when the work is done."""
    bar = progress(
        TextColumn("timing {task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        transient=True,
    )
    with bar:
        task = bar.add_task(what, total=1.0)
        yield lambda share: bar.update(task, completed=share)
