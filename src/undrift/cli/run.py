"""`undrift run` and `undrift resume`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from undrift.cli import completion
from undrift.cli.app import app, parse_settings, print_next
from undrift.utils.display import print_wrapped, redraws
from undrift.utils.errors import require

if TYPE_CHECKING:
    from undrift.experiments.experiment import Experiment
    from undrift.report.live import LiveRuns
    from undrift.runs.driver import RunOutcome

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the final table.")]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Number of worker processes (ray engine only). Default: the file's engine.workers.",
        show_default=False,
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        help="Ray cluster to join (ray engine only): 'auto' or the head node's host:port. Default: "
        "the file's engine.address.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print each record as one line of JSON.")]
SIMULATED_SECURELY = (
    "Secure aggregation is part of deployments: this simulation sums uploads without masks, does "
    "not round them to privacy.word_bits, and adds the noise once, not in shares of the sites."
)
Live = Annotated[
    bool,
    typer.Option(
        "--live",
        help="Serve a page that shows the runs while they are going, for browsers on this machine. "
        "Its address is printed; it ends with the runs.",
    ),
]


@app.command()
def run(
    experiment: Annotated[
        Path,
        typer.Argument(
            help="Experiment file (TOML). `undrift init` writes one. It can name Python files, "
            "which are executed: trust it like code.",
            autocompletion=completion.experiments,
        ),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Override a key of the file, e.g. rounds=10, local.lr=0.01 or "
            "method.FedDyn.alpha=0.1. Repeatable.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Run folder to write. Default: the file's output.folder.", show_default=False
        ),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(
            help="Run only the method with this label.",
            show_default=False,
            autocompletion=completion.labels,
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print the experiment with all defaults and its expected cost; run nothing.",
        ),
    ] = False,
    engine: Annotated[
        str | None,
        typer.Option(
            help="Engine that computes the clients' work: auto, tuned, vectorised, serial or ray. "
            "Default: the file's engine.name.",
            show_default=False,
            autocompletion=completion.choices(completion.ENGINES),
        ),
    ] = None,
    workers: Workers = None,
    address: Address = None,
    live: Live = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Run an experiment: every method with every seed, on the same cohorts and batches.

    Each round is committed to the run folder. Ctrl-C stops after the current round. After Ctrl-C,
    a crash or a kill, `undrift resume FOLDER` continues; the results are the same, to the bit, as
    those of a run that was never interrupted.
    """
    from undrift.experiments.experiment import Experiment
    from undrift.runs.experiment_runs import only as only_method

    changes = parse_settings(settings or []) | _engine(
        name=engine, workers=workers, address=address
    )
    found = Experiment.load(experiment, changes)
    found = found if only is None else only_method(found, only)
    folder = out or Path(str(found.output.folder))
    if dry_run:
        _dry_run(found, folder)
    else:
        _do(found, folder, quiet, json, live)


app.command(
    name="compare",
    help="Compare the methods of an experiment file: another name for `undrift run`.",
)(run)


@app.command()
def resume(
    folder: Annotated[
        Path,
        typer.Argument(
            help="Run folder of `undrift run` or `undrift deploy server`. Its experiment file can "
            "name Python files, which are executed: trust it like code.",
            autocompletion=completion.run_folders,
        ),
    ],
    rounds: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Extend the runs to this total number of rounds. Default: as started.",
            show_default=False,
        ),
    ] = None,
    from_round: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Go back to this round first, and drop what came after it. The last "
            "output.keep_rounds rounds are available.",
            show_default=False,
        ),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(
            help="With --from-round: take back only the runs of the method with this label.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="With --from-round: take back only the runs with this seed.", show_default=False
        ),
    ] = None,
    workers: Workers = None,
    address: Address = None,
    live: Live = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Continue the runs of a folder, each from its last committed round.

    Finished runs can be extended: `undrift resume FOLDER --rounds 200`.

    A run that diverged or was ruined can go back: `undrift resume FOLDER --from-round 37`. The
    records of the rounds after it are kept in records-dropped.jsonl in the folder of the run.
    """
    from undrift.runs.experiment_runs import resumed
    from undrift.runs.folder import is_deployed
    from undrift.runs.going_back import go_back

    require(
        not (live and is_deployed(folder)),
        f"--live shows simulations only, and {folder} is the run folder of a deployment.",
    )
    longer = {} if rounds is None else {"rounds": rounds}
    found = resumed(folder, longer | _engine(workers=workers, address=address))
    if from_round is not None:
        require(
            found.privacy is None or not is_deployed(folder),
            "A private deployment cannot go back: its rounds were released, and their "
            "contributions must not be released again under other noise.",
        )
        go_back(folder, found.labels, found.seeds, from_round, only, seed)
    else:
        require(only is None and seed is None, "--only and --seed need --from-round.")
    if is_deployed(folder):
        # Deployments need packages that a simulation does not.
        from undrift.cli.deploy import check_files, serving
        from undrift.deploy.launch import certs_of, resume_server
        from undrift.deploy.private_files import written_privately

        with written_privately():
            console = Console(stderr=True, highlight=False, markup=False)
            check_files(console, folder, certs_of(folder))
            serving(found, folder, partial(resume_server, found, folder), quiet, json)
    else:
        _do(found, folder, quiet, json, live, extend=True)


def _engine(**asked: str | int | None) -> dict[str, object]:
    """The engine options that were given, as keys of the experiment file."""
    return {f"engine.{key}": value for key, value in asked.items() if value is not None}


def _do(
    experiment: Experiment,
    folder: Path,
    quiet: bool,
    as_json: bool,
    live: bool,
    extend: bool = False,
) -> None:
    from undrift.runs.experiment_runs import run_experiment
    from undrift.runs.observers import make_observer

    said = Console(stderr=True, highlight=False, markup=False, quiet=quiet or as_json)
    reading = said.status("reading the data") if redraws(said) else nullcontext()
    labels, seeds = experiment.labels, len(experiment.seeds)
    with (
        _live_page(experiment, folder) if live else nullcontext() as page,
        make_observer(labels, experiment.rounds, seeds, quiet, as_json) as observer,
    ):
        shown = observer if page is None else page.before(observer)
        outcomes = run_experiment(experiment, folder, None, shown, reading, extend)
    if live and all(outcome.before for outcome in outcomes):
        typer.echo(
            f"No live page: the runs have finished; undrift report {folder} shows them.", err=True
        )
    conclude(outcomes, experiment, folder, said, as_json)


@contextmanager
def _live_page(experiment: Experiment, folder: Path) -> Iterator[LiveRuns]:
    """Serve a live page during a block.

    Its address goes to standard error when the first round is due, even with --quiet: of runs that
    have ended before, a page would be gone at once.
    """
    from undrift.report.live import LiveRuns, serving

    live = LiveRuns(
        name=experiment.name or folder.resolve().name,
        labels=experiment.labels,
        seeds=experiment.seeds,
        rounds=experiment.rounds,
        folder=folder,
    )
    with serving(live) as address:
        live.announce = partial(typer.echo, f"Live page: {address}", err=True)
        yield live


def conclude(
    outcomes: Sequence[RunOutcome],
    experiment: Experiment,
    folder: Path,
    said: Console,
    as_json: bool,
) -> None:
    """Print the final metrics, except with `as_json`, and the next command to `said`.

    Exits with 130 if a run was interrupted.
    """
    from undrift.core.records import estimate_note
    from undrift.privacy.spending import spending
    from undrift.report.recorded_runs import read_runs
    from undrift.report.terminal_table import final_metrics_table

    console = Console(highlight=False, markup=False, quiet=as_json)
    runs = read_runs(folder)
    console.print(final_metrics_table(runs, console.width))
    for note in dict.fromkeys(filter(None, (estimate_note(run.records) for run in runs))):
        print_wrapped(console, note)
    for run in runs:
        spent = spending(run.records, run.released)
        if spent is not None:
            print_wrapped(console, f"{run.label}, seed {run.seed}: {spent.sentence()}")
    for outcome in outcomes:
        if outcome.reason:
            print_wrapped(console, f"{outcome.label}, seed {outcome.seed}: {outcome.reason}")
    wanted = len(experiment.labels) * len(experiment.seeds)
    if len(outcomes) < wanted or any(o.status == "interrupted" for o in outcomes):
        print_next(said, "Interrupted. Go on with:", f"undrift resume {folder}")
        raise typer.Exit(130)
    if all(outcome.before for outcome in outcomes):
        print_wrapped(
            said,
            "All of this was run before, so nothing was run now.\n"
            "To run it again, name another folder with --out.",
        )
    print_next(said, f"The runs are in {folder}. Make a report:", f"undrift report {folder}")


def _dry_run(experiment: Experiment, folder: Path) -> None:
    from rich.syntax import Syntax

    from undrift.experiments.building import build_data, build_model
    from undrift.experiments.cost import estimate
    from undrift.runs.experiment_runs import check_experiment

    console = Console(highlight=False, markup=False)
    console.print(Syntax(experiment.to_toml(), "toml", background_color="default"))
    data = build_data(experiment)
    model = build_model(experiment, data, experiment.seeds[0])
    cost = estimate(experiment, data, model)
    check_experiment(experiment, data)
    console.print(cost.table())
    if experiment.secure_aggregation() is not None:
        console.print(SIMULATED_SECURELY, soft_wrap=True)
    console.print(f"Nothing was run; it would go to {folder}.")
