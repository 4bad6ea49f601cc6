"""`undrift deploy`: run an experiment across real sites, with Flower as the transport."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from undrift.cli import completion
from undrift.cli.app import app
from undrift.cli.run import Json, Quiet, conclude

if TYPE_CHECKING:
    from undrift.experiments.experiment import Experiment
    from undrift.runs.driver import Observer, RunOutcome

deploy = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Run an experiment across real sites that keep their data, over Flower.",
)
app.add_typer(deploy, name="deploy")

App = Annotated[
    Path,
    typer.Argument(
        help="App folder with experiment.toml and site.py, as `undrift deploy init` writes it.",
        autocompletion=completion.apps,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        help="Run folder to write. Default: the file's output.folder.", show_default=False
    ),
]
Certs = Annotated[
    Path | None,
    typer.Option(
        help="Folder with this machine's certificates, made by `undrift deploy certs`. Without "
        "it, connections are not encrypted: use that on one machine only.",
        show_default=False,
    ),
]


@deploy.command()
def init(
    folder: Annotated[Path, typer.Argument(help="New or empty folder to write the app to.")],
) -> None:
    """Write an example app to edit: an experiment file and `site.py`.

    It runs without changes: `undrift deploy local FOLDER`.
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
            min=1,
            help="Number of sites to start. Default: all sites of the experiment.",
            show_default=False,
        ),
    ] = None,
    out: Out = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Try a deployment on this machine, with a server and sites that talk over loopback.

    The command starts Flower's SuperLink and SuperNodes, runs the experiment and stops them.
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
        str,
        typer.Option(help="Address the server listens on; 0.0.0.0 means all addresses."),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port the server listens on.")] = 8000,
    certs: Certs = None,
    out: Out = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Start the server: wait for the sites, run the experiment with them, and exit.

    After a stop or a crash, `undrift resume FOLDER` continues the run, where FOLDER is the run
    folder. `undrift report FOLDER` shows its results.
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
    site: Annotated[str, typer.Option(help="Name of this site, one of the file's data.sites.")],
    superlink: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address of the server.")
    ] = "127.0.0.1:8000",
    certs: Certs = None,
    state: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the state that this client keeps between rounds. Default: in the "
            "user's data folder.",
            show_default=False,
        ),
    ] = None,
    with_parent: Annotated[bool, typer.Option("--with-parent", hidden=True)] = False,
) -> None:
    """Start a site: train on its data when the server asks, until stopped.

    The data never leave the site, and the site runs only code that is installed on it.
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
    folder: Annotated[Path, typer.Argument(help="Folder to write the keys and certificates to.")],
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="Host name or IP address by which the sites reach the server. Repeatable.",
            show_default=False,
        ),
    ] = None,
    site: Annotated[
        list[str] | None,
        typer.Option(help="Name of a site to make a key for. Repeatable.", show_default=False),
    ] = None,
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port the server will listen on.")
    ] = 8000,
    days: Annotated[
        int, typer.Option(min=1, help="Days until the server's certificate expires.")
    ] = 365,
) -> None:
    """Make a certificate authority, the server's certificate and a key for each site.

    The command prints which folder to copy to which machine. Called again on the same folder, it
    adds new sites, renews the server's certificate if it expires within 30 days or --host has
    changed, and keeps everything else.
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
    """Run a server; print which sites it waits for, the progress of the runs, and their results."""
    from undrift.runs.observers import make_observer

    said = Console(stderr=True, highlight=False, markup=False, quiet=quiet or as_json)
    last: list[str] = []

    def waiting(missing: Collection[str]) -> None:
        nonlocal last
        if sorted(missing) != last:
            last = sorted(missing)
            if last:
                said.print(f"Waiting for {', '.join(last)}.", soft_wrap=True)

    signal.signal(signal.SIGTERM, _interrupt)  # so that all that was started is ended
    with make_observer(
        experiment.labels, experiment.rounds, len(experiment.seeds), quiet, as_json
    ) as watcher:
        outcomes = run(watcher, waiting)
    conclude(outcomes, experiment, folder, said)
