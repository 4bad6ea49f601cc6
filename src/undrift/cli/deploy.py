"""`undrift deploy`: run experiments at the sites where the data are."""

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
    help="Run an experiment at the sites where the data are, with Flower as the transport.",
)
app.add_typer(deploy, name="deploy")

App = Annotated[
    Path,
    typer.Argument(
        help="Folder of the app, as `undrift deploy init` writes it.",
        autocompletion=completion.apps,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(help="Run folder; output.folder of the file if left out.", show_default=False),
]
Certs = Annotated[
    Path | None,
    typer.Option(
        help="Folder of this machine's certificates, from `undrift deploy certs`. Without it, "
        "server and sites must be on one machine.",
        show_default=False,
    ),
]


@deploy.command()
def init(
    folder: Annotated[Path, typer.Argument(help="New or empty folder for the app.")],
) -> None:
    """Write a small complete app to edit: an experiment file and `site.py`.

    It runs without changes: `undrift deploy local DIR`.
    """
    from undrift.deploy.starter_app import write_starter_app

    console = Console(highlight=False, markup=False)
    for path in write_starter_app(folder):
        console.print(f"Wrote {path}", soft_wrap=True)
    console.print(f"Try it on this machine with: undrift deploy local {folder}", soft_wrap=True)


@deploy.command()
def local(
    folder: App,
    sites: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of the experiment's sites to start; all if left out.",
            show_default=False,
        ),
    ] = None,
    out: Out = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Try a deployment on this machine: start a server and its sites, run, and stop them.

    The processes are those of a real deployment, and talk over the loopback interface.
    """
    from undrift.deploy.launch import experiment_file, run_local
    from undrift.experiments.experiment import Experiment

    experiment = Experiment.load(experiment_file(folder))
    run_folder = out or Path(str(experiment.output.folder))

    def run(
        observer: Observer | None, waiting: Callable[[Collection[str]], None]
    ) -> list[RunOutcome]:
        return run_local(folder, sites, run_folder, observer, waiting)

    serving(experiment, run_folder, run, quiet, json)


@deploy.command()
def server(
    folder: App,
    host: Annotated[
        str,
        typer.Option(
            help="Address the server listens on; 0.0.0.0 for all addresses of this machine."
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port the server listens on.")] = 8000,
    certs: Certs = None,
    out: Out = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Start the server: wait for the sites, run the experiment with them, and end.

    If it is stopped or killed, `undrift resume DIR` continues. `undrift report DIR` shows the run.
    """
    from undrift.deploy.launch import experiment_file, run_server
    from undrift.experiments.experiment import Experiment

    experiment = Experiment.load(experiment_file(folder))
    run_folder = out or Path(str(experiment.output.folder))

    def run(
        observer: Observer | None, waiting: Callable[[Collection[str]], None]
    ) -> list[RunOutcome]:
        return run_server(experiment, run_folder, host, port, certs, observer, waiting)

    serving(experiment, run_folder, run, quiet, json)


@deploy.command()
def site(
    folder: App,
    site: Annotated[str, typer.Option(help="Name of this site in the experiment.")],
    superlink: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address of the server.")
    ] = "127.0.0.1:8000",
    certs: Certs = None,
    state: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the state of the site's client; the user's data folder if left out.",
            show_default=False,
        ),
    ] = None,
    with_parent: Annotated[bool, typer.Option("--with-parent", hidden=True)] = False,
) -> None:
    """Start a site: it answers the server's requests with its own data until it is stopped.

    The data stay here, and only code that is installed here is executed.
    """
    from platformdirs import user_data_path

    from undrift.deploy.flower.processes import die_with_parent
    from undrift.deploy.launch import experiment_file, run_site
    from undrift.experiments.experiment import Experiment

    if with_parent:
        die_with_parent()
    experiment = Experiment.load(experiment_file(folder))
    state_folder = state or user_data_path("undrift", appauthor=False) / "sites" / site
    console = Console(stderr=True, highlight=False, markup=False)
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    run_site(
        experiment,
        site,
        superlink,
        state_folder,
        certs,
        ended.is_set,
        lambda sentence: console.print(sentence, soft_wrap=True),
    )


@deploy.command()
def certs(
    folder: Annotated[Path, typer.Argument(help="Folder for the certificates.")],
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="Name or address by which the sites reach the server; may be repeated.",
            show_default=False,
        ),
    ] = None,
    site: Annotated[
        list[str] | None,
        typer.Option(help="Site that needs a key; may be repeated.", show_default=False),
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port the server listens on.")] = 8000,
    days: Annotated[
        int, typer.Option(min=1, help="Days for which the server's certificate is valid.")
    ] = 365,
) -> None:
    """Create the certificates of a deployment: a CA, the server's certificate, a key per site.

    Called again, it adds sites and overwrites nothing. It prints which folder belongs where.
    """
    from undrift.deploy.flower.certificates import commands, make_certificates

    found = make_certificates(folder, host or [], site or [], days)
    console = Console(highlight=False, markup=False)
    for path in found.written:
        console.print(f"Wrote {path}", soft_wrap=True)
    if found.warning is not None:
        console.print(found.warning, soft_wrap=True)
    console.print(
        f"\nKeep {found.ca_key} here. Copy {found.server} to the server, and each folder of "
        f"{folder / 'sites'} to its site. Then start:\n",
        soft_wrap=True,
    )
    for machine, command in commands(found, host[0] if host else found.hosts[0], port):
        console.print(f"{machine}:\n  {command}", soft_wrap=True)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def serving(
    experiment: Experiment,
    folder: Path,
    run: Callable[[Observer | None, Callable[[Collection[str]], None]], list[RunOutcome]],
    quiet: bool,
    as_json: bool,
) -> None:
    """Call `run` as a server, and show which sites it waits for and how the runs progress."""
    from undrift.runs.observers import make_observer

    console = Console(stderr=True, highlight=False, markup=False, quiet=quiet or as_json)
    last: list[str] = []

    def waiting(missing: Collection[str]) -> None:
        nonlocal last
        if sorted(missing) != last:
            last = sorted(missing)
            if last:
                console.print(f"Waiting for {', '.join(last)}.", soft_wrap=True)

    signal.signal(signal.SIGTERM, _interrupt)  # as Ctrl-C, so that started processes are stopped
    with make_observer(
        experiment.labels, experiment.rounds, len(experiment.seeds), quiet, as_json
    ) as observer:
        outcomes = run(observer, waiting)
    conclude(outcomes, experiment, folder, console)
