"""`undrift deploy`: the same methods across sites."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from undrift.cli import completing
from undrift.cli.app import app
from undrift.cli.run import Json, Quiet, conclude

if TYPE_CHECKING:
    from undrift.experiments.experiment import Experiment
    from undrift.runs.driver import Observer, RunOutcome

deploy = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Run an experiment where the data are: across sites, on Flower.",
)
app.add_typer(deploy, name="deploy")

App = Annotated[
    Path,
    typer.Argument(
        help="An app: the folder that `undrift deploy init` writes.", autocompletion=completing.apps
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(help="The run folder; otherwise the file's output.folder.", show_default=False),
]
Certs = Annotated[
    Path | None,
    typer.Option(
        help="The folder of certificates for this machine, from `undrift deploy certs`; without "
        "it, everything is on one machine.",
        show_default=False,
    ),
]


@deploy.command()
def init(
    folder: Annotated[Path, typer.Argument(help="A new or empty folder.")],
) -> None:
    """Write a small complete app, to be edited: an experiment file and `site.py`.

    It runs as it is: `undrift deploy local DIR`.
    """
    from undrift.deploy.starting import init as write

    said = Console(highlight=False, markup=False)
    for path in write(folder):
        said.print(f"Wrote {path}", soft_wrap=True)
    said.print(f"Try it on this machine with: undrift deploy local {folder}", soft_wrap=True)


@deploy.command()
def local(
    folder: App,
    sites: Annotated[
        int | None,
        typer.Option(
            min=1, help="How many of the experiment's sites; otherwise all.", show_default=False
        ),
    ] = None,
    out: Out = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Try a deployment on this machine: a SuperLink, SuperNodes, sites, all over loopback.

    Everything is started, the experiment runs, and everything is stopped again.
    """
    from undrift.deploy.running import experiment_of, run_here
    from undrift.experiments.experiment import Experiment

    experiment = Experiment.load(experiment_of(folder))
    place = out or Path(str(experiment.output.folder))

    def run(
        watcher: Observer | None, waiting: Callable[[Collection[str]], None]
    ) -> list[RunOutcome]:
        return run_here(folder, sites, place, watcher, waiting)

    serving(experiment, place, run, quiet, json)


@deploy.command()
def server(
    folder: App,
    host: Annotated[
        str, typer.Option(help="Where to listen; 0.0.0.0 for all addresses of this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Where to listen.")] = 8000,
    certs: Certs = None,
    out: Out = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Be the server: wait for the sites, run the experiment with them, and end.

    Stopped or killed, it goes on with `undrift resume DIR`. `undrift report DIR` shows the run.
    """
    from undrift.deploy.running import experiment_of, run_server
    from undrift.experiments.experiment import Experiment

    experiment = Experiment.load(experiment_of(folder))
    place = out or Path(str(experiment.output.folder))

    def run(
        watcher: Observer | None, waiting: Callable[[Collection[str]], None]
    ) -> list[RunOutcome]:
        return run_server(experiment, place, host, port, certs, watcher, waiting)

    serving(experiment, place, run, quiet, json)


@deploy.command()
def site(
    folder: App,
    site: Annotated[str, typer.Option(help="Which of the experiment's sites this is.")],
    superlink: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="The server.")
    ] = "127.0.0.1:8000",
    certs: Certs = None,
    state: Annotated[
        Path | None,
        typer.Option(
            help="Where what its client remembers is kept; otherwise the user's data folder.",
            show_default=False,
        ),
    ] = None,
    with_parent: Annotated[bool, typer.Option("--with-parent", hidden=True)] = False,
) -> None:
    """Be a site: hold its data, and do what the server asks for, until stopped.

    The data stay here, and only code that is installed here is run.
    """
    from platformdirs import user_data_path

    from undrift.deploy.flower.surroundings import die_with_parent
    from undrift.deploy.running import experiment_of, run_site
    from undrift.experiments.experiment import Experiment

    if with_parent:
        die_with_parent()
    experiment = Experiment.load(experiment_of(folder))
    place = state or user_data_path("undrift", appauthor=False) / "sites" / site
    said = Console(stderr=True, highlight=False, markup=False)
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    run_site(
        experiment,
        site,
        superlink,
        place,
        certs,
        ended.is_set,
        lambda sentence: said.print(sentence, soft_wrap=True),
    )


@deploy.command()
def certs(
    folder: Annotated[Path, typer.Argument(help="Where they go.")],
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="The server as the sites call it, a name or an address; may be repeated.",
            show_default=False,
        ),
    ] = None,
    site: Annotated[
        list[str] | None,
        typer.Option(help="A site to make a key for; may be repeated.", show_default=False),
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="The server's.")] = 8000,
    days: Annotated[int, typer.Option(min=1, help="How long the server's is valid.")] = 365,
) -> None:
    """Make what server and sites know each other by: a CA, a certificate, and a key per site.

    Called again it adds sites, and leaves alone what is there. Prints who gets which folder.
    """
    from undrift.deploy.certificates import commands, make

    made = make(folder, host or [], site or [], days)
    said = Console(highlight=False, markup=False)
    for path in made.made:
        said.print(f"Made {path}", soft_wrap=True)
    called = host[0] if host else next(iter(made.hosts))
    said.print(
        f"\n{made.ca_key} stays here. {made.server} goes to the server, and each folder of "
        f"{folder / 'sites'} to its site. Then:\n",
        soft_wrap=True,
    )
    for where, command in commands(made, called, port):
        said.print(f"{where}:\n  {command}", soft_wrap=True)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def serving(
    experiment: Experiment,
    folder: Path,
    run: Callable[[Observer | None, Callable[[Collection[str]], None]], list[RunOutcome]],
    quiet: bool,
    as_json: bool,
) -> None:
    """Run as a server, and show who is waited for and how the runs go."""
    from undrift.runs.watching import watching

    said = Console(stderr=True, highlight=False, markup=False, quiet=quiet or as_json)
    last: list[str] = []

    def waiting(missing: Collection[str]) -> None:
        nonlocal last
        if sorted(missing) != last:
            last = sorted(missing)
            if last:
                said.print(f"Waiting for {', '.join(last)}.", soft_wrap=True)

    signal.signal(signal.SIGTERM, _interrupt)  # so that all that was started is ended
    with watching(
        experiment.labels, experiment.rounds, len(experiment.seeds), quiet, as_json
    ) as watcher:
        outcomes = run(watcher, waiting)
    conclude(outcomes, experiment, folder, said)
