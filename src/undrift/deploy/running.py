"""A deployment's processes from the outside: a server, a site, or all of it on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from undrift.deploy.certificates import require_site
from undrift.deploy.flower.surroundings import (
    PARENT,
    free_port,
    last_words,
    require_flower,
    stop,
)
from undrift.deploy.server import DEPLOYMENT, require_deployable, serve, sites_of
from undrift.deploy.site import Site
from undrift.experiments.experiment import Experiment
from undrift.runs.driver import Observer, RunOutcome
from undrift.runs.folder import locked_folder, read_json, write_json
from undrift.runs.planning import claim
from undrift.utils.errors import UndriftError, require

CONNECTION = "connection.json"
"""Where the server of a run folder listens, and which sites it starts itself."""
HERE = ("127.0.0.1", "localhost", "::1")

Waiting = Callable[[Collection[str]], None]


def experiment_of(app: Path) -> Path:
    """The experiment file of an app: the folder's, or the file itself."""
    path = app / "experiment.toml" if app.is_dir() else app
    require(path.is_file(), f"There is no {path}: undrift deploy init DIR writes an app.")
    return path


def run_server(
    experiment: Experiment,
    folder: Path,
    host: str,
    port: int,
    certs: Path | None = None,
    watcher: Observer | None = None,
    waiting: Waiting = lambda sites: None,
) -> list[RunOutcome]:
    """Start a SuperLink, and run an experiment with the sites that come."""
    _require_ready(experiment)
    host = host.strip("[]")
    require(
        certs is not None or host in HERE,
        f"Without certificates a server may listen on this machine only, and {host!r} is open to "
        f"others: make some by undrift deploy certs.",
    )
    if certs is not None:
        certs = _checked(certs, ("ca.crt", "server.pem", "server.key", "secret"), "server")
    with _held(experiment, folder, host, port, certs):
        return _serve(experiment, folder, host, port, certs, watcher, waiting)


def _require_ready(experiment: Experiment) -> None:
    require_flower()
    require_deployable(experiment)
    for name in sites_of(experiment):
        require_site(name)


@contextmanager
def _held(
    experiment: Experiment,
    folder: Path,
    host: str,
    port: int,
    certs: Path | None = None,
    sites: Sequence[str] | None = None,
) -> Iterator[None]:
    """Have a run folder for as long as its server lives, and write down how to go on there."""
    claim(experiment, folder)
    require(
        is_deployed(folder) or (folder / DEPLOYMENT).is_file() or not any(folder.glob("*/seed-*")),
        f"{folder} has the runs of a simulation: choose another folder with --out.",
    )
    with locked_folder(folder / "flower"):
        found = {"host": host, "port": port, "certs": None if certs is None else str(certs)}
        write_json(folder / CONNECTION, {**found, "sites": None if sites is None else list(sites)})
        yield


def _serve(
    experiment: Experiment,
    folder: Path,
    host: str,
    port: int,
    certs: Path | None,
    watcher: Observer | None,
    waiting: Waiting,
) -> list[RunOutcome]:
    from undrift.deploy.flower.post import FlowerPost
    from undrift.deploy.flower.session import SuperLink

    with (
        SuperLink(folder / "flower", host, port, certs) as link,
        link.grid() as grid,
        FlowerPost(grid) as post,
    ):
        return serve(experiment, folder, post, watcher, waiting)


def is_deployed(folder: Path) -> bool:
    """Whether a run folder is that of a deployment."""
    return (folder / CONNECTION).is_file()


def resume_server(
    experiment: Experiment,
    folder: Path,
    watcher: Observer | None = None,
    waiting: Waiting = lambda sites: None,
) -> list[RunOutcome]:
    """Go on with a deployment where its server was stopped; sites that it had started come too."""
    found = read_json(folder / CONNECTION)
    if found.get("sites"):
        return _all_here(experiment, folder, watcher, waiting)
    certs = None if found["certs"] is None else Path(found["certs"])
    return run_server(experiment, folder, found["host"], found["port"], certs, watcher, waiting)


def run_site(
    experiment: Experiment,
    name: str,
    superlink: str,
    state: Path,
    certs: Path | None,
    stopped: Callable[[], bool],
    say: Callable[[str], None],
) -> None:
    """Be a site, until told to stop."""
    _require_ready(experiment)
    require_site(name)
    host, _, port = superlink.rpartition(":")
    host = host.strip("[]")
    require(
        bool(host) and port.isdecimal() and 1 <= int(port) <= 65535,
        f"The SuperLink's address is {superlink!r}, but must be like host:8000, with a port from 1 "
        f"to 65535.",
    )
    superlink = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    require(
        certs is not None or host in HERE,
        f"Without certificates a site may only be on its server's machine, and {host!r} is "
        f"elsewhere: give --certs.",
    )
    if certs is not None:
        certs = _checked(certs, ("ca.crt", "key", "secret"), "site")
    from undrift.deploy.flower.node import Node

    site = Site(experiment, name, state / "state")
    say(f"Site {name!r} has {len(site.data.train)} training samples and waits for its server.")
    Node(site, superlink, state / "flower" / name, certs, say).serve(stopped)


@contextmanager
def sites_here(
    file: Path, names: Sequence[str], superlink: str, folder: Path, certs: Path | None = None
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Sites as processes on this machine."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for name in names:
            processes.append(start_site(file, name, superlink, folder, certs))
        yield processes
    finally:
        stop(processes)


def start_site(
    file: Path, name: str, superlink: str, folder: Path, certs: Path | None = None
) -> subprocess.Popen[bytes]:
    """A site as a process on this machine; what it says is in a file of the folder."""
    own = folder / name
    own.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "undrift", "deploy", "site", str(file), "--site", name]
    command += ["--superlink", superlink, "--state", str(own), "--with-parent"]
    if certs is not None:
        command += ["--certs", str(certs / name)]
    with (own / "site.log").open("ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, PARENT: str(os.getpid())},
            start_new_session=True,
        )


def run_here(
    app: Path,
    sites: int | None,
    folder: Path,
    watcher: Observer | None = None,
    waiting: Waiting = lambda sites: None,
) -> list[RunOutcome]:
    """A server and its sites on this machine, over loopback; they are gone afterwards."""
    experiment = Experiment.load(experiment_of(app))
    _require_ready(experiment)
    names = sites_of(experiment)
    if sites is not None:
        require(
            sites <= len(names),
            f"The experiment has {len(names)} sites ({', '.join(names)}): name more of them in "
            f"data.sites for {sites}.",
        )
        names = names[:sites]
        experiment = experiment.with_settings({"data.sites": names})
    return _all_here(experiment, folder, watcher, waiting)


def _all_here(
    experiment: Experiment, folder: Path, watcher: Observer | None, waiting: Waiting
) -> list[RunOutcome]:
    from undrift.deploy.flower.session import LEFT

    _require_ready(experiment)
    left = folder / "flower" / LEFT  # the SuperLink of a server that was killed stays where it is
    port = int(read_json(left)["port"]) if left.is_file() else free_port()
    names = sites_of(experiment)
    file, own = folder / "app.toml", folder / "sites"
    with _held(experiment, folder, "127.0.0.1", port, sites=names):
        experiment.write(file)
        with sites_here(file, names, f"127.0.0.1:{port}", own) as processes:

            def look(missing: Collection[str]) -> None:
                waiting(missing)
                for name, process in zip(names, processes, strict=True):
                    if process.poll() is not None:
                        words = last_words(own / name / "site.log")
                        raise UndriftError(
                            f"The site {name!r} ended: {words or 'it did not say why.'}"
                        )

            return _serve(experiment, folder, "127.0.0.1", port, None, watcher, look)


def _checked(certs: Path, files: Sequence[str], what: str) -> Path:
    for name in files:
        require(
            (certs / name).is_file(),
            f"{certs} is not the folder of a {what}'s certificates: it has no {name}.",
        )
    return certs.resolve()
