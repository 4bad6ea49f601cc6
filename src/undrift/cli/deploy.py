"""`undrift deploy`: run experiments at the sites where the data are."""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from undrift.cli import completion
from undrift.cli.app import CommandGroup, app, print_next
from undrift.cli.run import Json, Quiet, conclude
from undrift.utils.display import print_wrapped

if TYPE_CHECKING:
    from undrift.deploy.policy.limits import Limits
    from undrift.experiments.experiment import Experiment
    from undrift.runs.driver import Observer, RunOutcome

deploy = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Run an experiment at the sites where the data are, with Flower as the transport.",
)
app.add_typer(deploy, name="deploy")


@deploy.callback()
def _privately(context: typer.Context) -> None:
    from undrift.deploy.private_files import written_privately

    # Updates, states and databases are nobody's business but their owner's.
    context.with_resource(written_privately())


App = Annotated[
    Path,
    typer.Argument(
        help="Folder of the app, as `undrift deploy init` writes it. Its experiment file can name "
        "Python files, which are executed: trust it like code.",
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
    print_next(console, "Try it on this machine with:", f"undrift deploy local {folder}")


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

    check_files(Console(stderr=True, highlight=False, markup=False), run_folder)
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

    check_files(Console(stderr=True, highlight=False, markup=False), run_folder, certs)
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
            help="Folder for the state of the site's client, its ledger of answered orders and its "
            "audit log; the user's data folder if left out.",
            show_default=False,
        ),
    ] = None,
    limits: Annotated[
        Path | None,
        typer.Option(
            help="File with the site's own limits; site.toml beside the experiment if left out.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Show what the site would send for one round, write the values to a file, and "
            "send nothing. No server is needed.",
        ),
    ] = False,
    approve: Annotated[
        bool,
        typer.Option("--approve", help="Ask at the terminal before the first round of every run."),
    ] = False,
    json: Annotated[
        bool,
        typer.Option("--json", help="With --dry-run: print all values as JSON, and write no file."),
    ] = False,
    with_parent: Annotated[bool, typer.Option("--with-parent", hidden=True)] = False,
) -> None:
    """Start a site: it answers the server's requests with its own data until it is stopped.

    The data stay here, and only code that is installed here is executed. The site does only what
    its own copy of the experiment says, within its own limits, and logs every request.
    """
    from platformdirs import user_data_path

    from undrift.deploy.ending.stopping import Stopping
    from undrift.deploy.flower.processes import die_with_parent
    from undrift.deploy.launch import experiment_file, run_site
    from undrift.deploy.policy.approval import asking, require_terminal
    from undrift.deploy.policy.limits import Limits
    from undrift.experiments.experiment import Experiment

    if with_parent:
        die_with_parent()
    file = experiment_file(folder)
    console = Console(stderr=True, highlight=False, markup=False)

    def say(sentence: str) -> None:
        print_wrapped(console, sentence)

    state_folder = state or user_data_path("undrift", appauthor=False) / "sites" / site
    check_files(console, state_folder, certs)
    if approve:
        require_terminal()
    with Stopping(site) as stopping:
        experiment = Experiment.load(file)
        own_limits = Limits.beside(file) if limits is None else Limits.load(limits)
        if dry_run:
            _show_preview(experiment, site, own_limits, json)
            return
        run_site(
            experiment,
            site,
            superlink,
            state_folder,
            certs,
            stopping.stopped,
            say,
            own_limits,
            asking(experiment, site, say) if approve else None,
            stopping,
        )


def _show_preview(experiment: Experiment, site: str, limits: Limits, as_json: bool) -> None:
    """Print what a site would send, and write the values unless they are printed."""
    from undrift.deploy.policy.preview import as_lines, as_values, preview
    from undrift.utils.files import slug

    found = preview(experiment, site, limits)
    if as_json:
        typer.echo(dumps([as_values(each) for each in found]))
        return
    folder = Path(f"dry-run-{slug(site)}")
    folder.mkdir(exist_ok=True)
    console = Console(highlight=False, markup=False)
    for each in found:
        path = folder / f"{slug(each.label)}.safetensors"
        path.write_bytes(each.answer)
        for line in [*as_lines(each), f"  all values: {path}"]:
            console.print(line, soft_wrap=True)
    console.print("Nothing was sent.")


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
        print_wrapped(console, found.warning)
    print_wrapped(
        console,
        f"\nKeep {found.ca_key} here. Copy {found.server} to the server, and each folder of "
        f"{folder / 'sites'} to its site. Then start:\n",
    )
    for machine, command in commands(found, host[0] if host else found.hosts[0], port):
        console.print(f"{machine}:\n  {command}", soft_wrap=True)


@deploy.command()
def request(
    folder: Annotated[
        Path, typer.Argument(help="Folder of this site's certificates; it is created if missing.")
    ],
    site: Annotated[str, typer.Option(help="Name of this site in the experiment.")],
) -> None:
    """Make a site's key at the site itself, and a request to register it.

    Send the request file to where the CA is; the private key stays here.
    """
    from undrift.deploy.signing.key_requests import make_request

    path, made = make_request(folder, site)
    console = Console(highlight=False, markup=False)
    console.print(f"Wrote {path}", soft_wrap=True)
    print_next(
        console,
        "Send it to where the CA is, and have it registered with:",
        f"undrift deploy sign CERTS {path.name}",
    )
    print_wrapped(
        console,
        f"The fingerprint of the key must be the same there: {made.fingerprint}\n"
        f"Then copy the ca.crt that this writes into {folder}.",
    )


@deploy.command()
def sign(
    folder: Annotated[
        Path, typer.Argument(help="Folder with the CA, from `undrift deploy certs`.")
    ],
    request: Annotated[
        Path, typer.Argument(help="Request file that `undrift deploy request` made at a site.")
    ],
) -> None:
    """Register a key that a site made itself, where the CA is.

    Compare the fingerprint that this prints with the site's, over the telephone for example.
    """
    from undrift.deploy.signing.key_requests import fingerprint, read_request, register

    found = read_request(request)
    made = register(folder, found)
    console = Console(highlight=False, markup=False)
    for path in made.written:
        console.print(f"Wrote {path}", soft_wrap=True)
    ca = made.site(found.site) / "ca.crt"
    console.print(
        f"The key of site {found.site} has the fingerprint {found.fingerprint}: use it only if the "
        f"site says the same.\nCopy {made.public_key(found.site)} into the folder sites of the "
        f"server's certificates, and {ca} to the site: it has the fingerprint "
        f"{fingerprint(ca.read_bytes())}. With secure aggregation, also copy {ca.parent / 'peers'} "
        f"to the site once all sites are signed.",
        soft_wrap=True,
    )


@deploy.command()
def expel(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="Run folder of `undrift deploy server`.",
            autocompletion=completion.run_folders,
        ),
    ],
    site: Annotated[str, typer.Argument(metavar="SITE", help="Name of the site.")],
    undo: Annotated[
        bool, typer.Option("--undo", help="Let an expelled site take part again.")
    ] = False,
) -> None:
    """Expel a site from a run: while its server runs, or before it is resumed.

    The server stops asking the site, refuses its answers and revokes its key. Records and report
    name it. What the site contributed before stays in the model.
    """
    from undrift.deploy.guards.expulsions import expel as write_expulsion

    changed = write_expulsion(folder, site, undo)
    console = Console(highlight=False, markup=False)
    if not changed:
        said = "is not expelled" if undo else "is expelled already"
        print_wrapped(console, f"The site {site!r} {said}.")
    elif undo:
        print_wrapped(
            console,
            f"The site {site!r} may take part again. A key that was revoked stays so: give the "
            f"site a new one with undrift deploy certs, and resume the run.",
        )
    else:
        print_wrapped(
            console,
            f"The site {site!r} is expelled. A server that runs notices it within seconds.",
        )


def check_files(console: Console, folder: Path, certs: Path | None = None) -> None:
    """Say which files of a deployment others can read; private keys are closed to them at once."""
    from undrift.deploy.private_files import close_secrets, warning_of_open_files

    if certs is not None:
        for path in close_secrets(certs):
            print_wrapped(
                console,
                f"Other users of this machine could read {path}: it is now closed to them. If they "
                f"may have read it, create a new one.",
            )
    warning = warning_of_open_files([folder])
    if warning is not None:
        print_wrapped(console, warning)


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
                print_wrapped(console, f"Waiting for {', '.join(last)}.")

    signal.signal(signal.SIGTERM, _interrupt)  # as Ctrl-C, so that started processes are stopped
    with make_observer(
        experiment.labels, experiment.rounds, len(experiment.seeds), quiet, as_json
    ) as observer:
        outcomes = run(observer, waiting)
    conclude(outcomes, experiment, folder, console, as_json)
