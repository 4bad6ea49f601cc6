"""`undrift run` and `undrift resume`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from undrift.cli import completing
from undrift.cli.app import app, parsed
from undrift.utils.display import redraws

if TYPE_CHECKING:
    from undrift.experiments.experiment import Experiment
    from undrift.runs.driver import RunOutcome

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="With the ray engine: how many processes.", show_default=False),
]
Address = Annotated[
    str | None,
    typer.Option(
        help="With the ray engine: the cluster, auto or the head's host:port.", show_default=False
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print every record as a line of JSON.")]


@app.command()
def run(
    experiment: Annotated[
        Path,
        typer.Argument(
            help="An experiment file (TOML); `undrift init` writes one.",
            autocompletion=completing.experiments,
        ),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a key of the file, e.g. rounds=10, local.lr=0.01 or "
            "method.FedDyn.alpha=0.1; may be repeated.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The run folder; otherwise the file's output.folder.", show_default=False
        ),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(
            help="Run one method of the file, by its label.",
            show_default=False,
            autocompletion=completing.labels,
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print the resolved experiment and what it will cost, and stop."
        ),
    ] = False,
    engine: Annotated[
        str | None,
        typer.Option(
            help="How clients' work is computed: auto, vectorised, serial or ray; otherwise as the "
            "file says.",
            show_default=False,
            autocompletion=completing.words(completing.ENGINES),
        ),
    ] = None,
    workers: Workers = None,
    address: Address = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Run an experiment: every method with every seed, on the same cohorts and batches.

    Every round is committed to the run folder. Ctrl-C finishes the round; after that, a crash or a
    kill, `undrift resume DIR` goes on and ends as if nothing had happened.
    """
    from undrift.experiments.experiment import Experiment
    from undrift.runs.planning import only as only_method

    changes = parsed(settings or []) | _engine(name=engine, workers=workers, address=address)
    found = Experiment.load(experiment, changes)
    found = found if only is None else only_method(found, only)
    folder = out or Path(str(found.output.folder))
    if dry_run:
        _dry_run(found, folder)
    else:
        _do(found, folder, quiet, json)


app.command(
    name="compare",
    help="Compare the methods of an experiment on equal cohorts and batches: another name for run.",
)(run)


@app.command()
def resume(
    folder: Annotated[
        Path, typer.Argument(help="A run folder.", autocompletion=completing.run_folders)
    ],
    rounds: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Extend the runs to this many rounds; as many as before if left out.",
            show_default=False,
        ),
    ] = None,
    workers: Workers = None,
    address: Address = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Continue the runs of a folder, each from its last committed round.

    A finished run can be extended: `undrift resume DIR --rounds 200`.
    """
    from undrift.deploy.launch import is_deployed, resume_server
    from undrift.runs.planning import resumed

    longer = {} if rounds is None else {"rounds": rounds}
    found = resumed(folder, longer | _engine(workers=workers, address=address))
    if is_deployed(folder):
        from undrift.cli.deploy import serving

        serving(found, folder, partial(resume_server, found, folder), quiet, json)
    else:
        _do(found, folder, quiet, json, extend=True)


def _engine(**asked: str | int | None) -> dict[str, object]:
    """What the command says of the engine, as settings of the file."""
    return {f"engine.{key}": value for key, value in asked.items() if value is not None}


def _do(
    experiment: Experiment, folder: Path, quiet: bool, as_json: bool, extend: bool = False
) -> None:
    from undrift.runs.planning import run_experiment
    from undrift.runs.watching import watching

    said = Console(stderr=True, highlight=False, markup=False, quiet=quiet or as_json)
    reading = said.status("reading the data") if redraws(said) else nullcontext()
    labels, seeds = experiment.labels, len(experiment.seeds)
    with watching(labels, experiment.rounds, seeds, quiet, as_json) as observer:
        outcomes = run_experiment(experiment, folder, None, observer, reading, extend)
    conclude(outcomes, experiment, folder, said)


def conclude(
    outcomes: Sequence[RunOutcome], experiment: Experiment, folder: Path, said: Console
) -> None:
    """Show where the runs ended, and how to go on."""
    from undrift.report.reading import read_runs
    from undrift.report.terminal import final

    console = Console(highlight=False, markup=False, quiet=said.quiet)
    console.print(final(read_runs(folder), console.width))
    for outcome in outcomes:
        if outcome.reason:
            console.print(f"{outcome.label}, seed {outcome.seed}: {outcome.reason}", soft_wrap=True)
    wanted = len(experiment.labels) * len(experiment.seeds)
    if len(outcomes) < wanted or any(o.status == "interrupted" for o in outcomes):
        said.print(f"Interrupted; go on with: undrift resume {folder}", soft_wrap=True)
        raise typer.Exit(130)
    if all(outcome.before for outcome in outcomes):
        said.print(
            f"All of this was run before and is in {folder}, so nothing was run now; to run it "
            "again, name another folder: undrift run … --out FOLDER",
            soft_wrap=True,
        )
    said.print(
        f"The runs are in {folder}; look at them with: undrift report {folder}", soft_wrap=True
    )


def _dry_run(experiment: Experiment, folder: Path) -> None:
    from rich.syntax import Syntax

    from undrift.experiments.building import build_data, build_model
    from undrift.experiments.cost import estimate

    console = Console(highlight=False, markup=False)
    console.print(Syntax(experiment.to_toml(), "toml", background_color="default"))
    data = build_data(experiment)
    model = build_model(experiment, data, experiment.seeds[0])
    console.print(estimate(experiment, data, model).table())
    console.print(f"Nothing was run; it would go to {folder}.")
