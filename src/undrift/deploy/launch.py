"""Starts deployments on Flower: a server, a site, or a server with all its sites on this machine.

The commands `undrift deploy` and `undrift resume` call these functions.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import NoneType

from undrift.deploy.ending.stopping import Stopping
from undrift.deploy.flower.environment import require_flower
from undrift.deploy.flower.processes import PARENT, free_port, last_error, stop
from undrift.deploy.policy.gate import Approve
from undrift.deploy.policy.limits import LIMITS_FILE, Limits
from undrift.deploy.remote import Waiting
from undrift.deploy.server import require_deployable, serve, sites_of
from undrift.deploy.site import Site
from undrift.deploy.site_names import require_site_name
from undrift.experiments.experiment import Experiment
from undrift.runs.driver import Observer, RunOutcome
from undrift.runs.experiment_runs import claim
from undrift.runs.folder import (
    CONNECTION,
    DEPLOYMENT,
    is_deployed,
    locked_folder,
    read_json,
    write_json,
)
from undrift.utils.errors import UndriftError, require
from undrift.utils.shapes import require_shapes

CONNECTION_SHAPES = {
    "host": str,
    "port": int,
    "certs": (str, NoneType),
    "sites": ([str], NoneType),
}
LOOPBACK = ("127.0.0.1", "localhost", "::1")
SERVER_FILES = ("ca.crt", "server.pem", "server.key", "secret")
SITE_FILES = ("ca.crt", "key", "secret")


def experiment_file(app: Path) -> Path:
    """The experiment file of an app: `experiment.toml` in a folder, or the file itself."""
    path = app / "experiment.toml" if app.is_dir() else app
    require(path.is_file(), f"There is no {path}: undrift deploy init DIR writes an app.")
    return path


# The server


def run_server(
    experiment: Experiment,
    folder: Path,
    host: str,
    port: int,
    certs: Path | None = None,
    observer: Observer | None = None,
    waiting: Waiting = lambda sites: None,
    extend: bool = False,
) -> list[RunOutcome]:
    """Start a SuperLink, wait for the sites, and run the experiment with them.

    Parameters
    ----------
    folder
        the run folder
    host, port
        where the SuperLink listens
    certs
        the folder `server` of the certificates; None for no encryption, on this machine only
    observer, waiting, extend
        as for `serve`
    """
    _require_ready(experiment)
    host = host.strip("[]")
    require(
        certs is not None or host in LOOPBACK,
        f"Without certificates a server may listen on this machine only, but {host!r} can be "
        f"reached from others: create certificates with undrift deploy certs.",
    )
    if certs is not None:
        certs = _require_files(certs, SERVER_FILES, "server")
    with _reserved(experiment, folder, host, port, certs, extend=extend):
        return _serve(experiment, folder, host, port, certs, observer, waiting, extend)


def resume_server(
    experiment: Experiment,
    folder: Path,
    observer: Observer | None = None,
    waiting: Waiting = lambda sites: None,
) -> list[RunOutcome]:
    """Continue a deployment where its server was stopped, with the sites it had started itself.

    The experiment may have more rounds than the one in the folder: the runs are then extended.
    """
    found = read_json(folder / CONNECTION)
    require_shapes(folder / CONNECTION, found, CONNECTION_SHAPES)
    if found.get("sites"):
        return _run_all_here(experiment, folder, observer, waiting, extend=True)
    host, port = found["host"], found["port"]
    certs = certs_of(folder)
    return run_server(experiment, folder, host, port, certs, observer, waiting, extend=True)


def certs_of(folder: Path) -> Path | None:
    """The server's folder of certificates that a run folder was started with, if any."""
    found = read_json(folder / CONNECTION)["certs"]
    return None if found is None else Path(found)


def _require_ready(experiment: Experiment) -> None:
    require_flower()
    require_deployable(experiment)
    for name in sites_of(experiment):
        require_site_name(name)


@contextmanager
def _reserved(
    experiment: Experiment,
    folder: Path,
    host: str,
    port: int,
    certs: Path | None = None,
    sites: Sequence[str] | None = None,
    extend: bool = False,
) -> Iterator[None]:
    """Hold a run folder for this server, after writing what `resume_server` needs into it."""
    claim(experiment, folder, extend)
    require(
        is_deployed(folder) or (folder / DEPLOYMENT).is_file() or not any(folder.glob("*/seed-*")),
        f"{folder} has the runs of a simulation: choose another folder with --out.",
    )
    # Not the lock of the run folder itself, which `serve` takes for each of its steps.
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
    observer: Observer | None,
    waiting: Waiting,
    extend: bool,
) -> list[RunOutcome]:
    from undrift.deploy.flower.superlink import SuperLink
    from undrift.deploy.flower.transport import FlowerTransport
    from undrift.deploy.signing.keys import SigningKey, SiteKeys
    from undrift.deploy.signing.server import SignedTransport

    key = keys = None
    if certs is not None:
        key = SigningKey(certs / "server.key", certs / "server.pem")
        keys = SiteKeys(certs / "sites")
    with (
        SuperLink(folder / "flower", host, port, certs, len(sites_of(experiment))) as link,
        link.grid() as grid,
        FlowerTransport(grid, link.revoke) as transport,
    ):
        signed = SignedTransport(transport, key, keys)
        return serve(experiment, folder, signed, observer, waiting, extend)


# Sites


def run_site(
    experiment: Experiment,
    name: str,
    superlink: str,
    state: Path,
    certs: Path | None,
    stopped: Callable[[], bool],
    say: Callable[[str], None],
    limits: Limits | None = None,
    approve: Approve | None = None,
    stopping: Stopping | None = None,
) -> None:
    """Be a site until `stopped` returns True.

    Parameters
    ----------
    name
        which of the experiment's sites this is
    superlink
        the server's address, HOST:PORT
    state
        the folder for the states of its client
    certs
        the site's folder of the certificates; None for no encryption, on the server's machine only
    say
        is told what happens, in sentences
    limits, approve
        the site's own limits, and whom to ask before a run, as for `Site`
    stopping
        ends the process on signals; it learns what the site is doing
    """
    _require_ready(experiment)
    require_site_name(name)
    host, _, port = superlink.rpartition(":")
    host = host.strip("[]")
    require(
        bool(host) and port.isdecimal() and 1 <= int(port) <= 65535,
        f"The address of the server is {superlink!r}, but must be HOST:PORT with a port from 1 to "
        f"65535, such as fl.example.org:8000.",
    )
    superlink = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    require(
        certs is not None or host in LOOPBACK,
        f"Without certificates a site must be on its server's machine, but {host!r} is another "
        f"one: give the site's certificates with --certs.",
    )
    if certs is not None:
        _require_signed(certs)
        certs = _require_files(certs, SITE_FILES, "site")
    from undrift.deploy.flower.supernode import SuperNode
    from undrift.deploy.secure.site_rounds import SiteIdentity
    from undrift.deploy.signing.site import SignedSite

    if stopping is not None:
        stopping.doing = lambda: "reading its data"
    with locked_folder(state / "state" / name):
        identity = None if certs is None else SiteIdentity.of(certs)
        site = Site(experiment, name, state / "state", limits, approve, identity)
        say(f"Site {name!r} has {len(site.data.train)} training samples and waits for its server.")
        say(f"It logs every request in {site.audit.path}.")
        signed = SignedSite(site, certs, say)
        node = SuperNode(
            signed, superlink, state / "flower" / name, certs, say, len(sites_of(experiment))
        )
        if stopping is not None:
            stopping.doing = lambda: site.doing
            stopping.last_acts += [site.audit.stopped, lambda *_: node.kill()]
        node.serve(stopped)


@contextmanager
def sites_here(
    file: Path, names: Sequence[str], superlink: str, folder: Path, certs: Path | None = None
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Sites as processes on this machine, stopped at the end."""
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
    """Start a site as a process on this machine; its output goes to NAME/site.log in the folder."""
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


# A server and its sites on this machine


def run_local(
    app: Path,
    sites: int | None,
    folder: Path,
    observer: Observer | None = None,
    waiting: Waiting = lambda sites: None,
) -> list[RunOutcome]:
    """Run an app with a server and its first `sites` sites, all on this machine; None for all."""
    experiment = Experiment.load(experiment_file(app))
    _require_ready(experiment)
    names = sites_of(experiment)
    if sites is not None:
        require(
            sites <= len(names),
            f"The experiment has {len(names)} sites ({', '.join(names)}), but {sites} were asked "
            f"for: name more of them in data.sites.",
        )
        experiment = experiment.with_settings({"data.sites": names[:sites]})
    limits = Limits.beside(experiment_file(app))
    return _run_all_here(experiment, folder, observer, waiting, limits=limits)


def _run_all_here(
    experiment: Experiment,
    folder: Path,
    observer: Observer | None,
    waiting: Waiting,
    extend: bool = False,
    limits: Limits | None = None,
) -> list[RunOutcome]:
    """Run a server and its sites; without `limits`, the sites have those of their last start."""
    from undrift.deploy.flower.superlink import PROCESS_FILE

    _require_ready(experiment)
    # The SuperLink of a server that was killed may still run: then it is used again, at its port.
    process = folder / "flower" / PROCESS_FILE
    port = int(read_json(process)["port"]) if process.is_file() else free_port()
    names = sites_of(experiment)
    file, own = folder / "app.toml", folder / "sites"
    secure = experiment.secure_aggregation() is not None
    with _reserved(experiment, folder, "127.0.0.1", port, sites=names, extend=extend):
        certs = _certificates_here(folder, names) if secure else None
        experiment.write(file)
        if limits is not None:
            limits.write(folder / LIMITS_FILE)
        keys = None if certs is None else certs / "sites"
        with sites_here(file, names, f"127.0.0.1:{port}", own, keys) as processes:

            def watch(missing: Collection[str]) -> None:
                waiting(missing)
                for name, process in zip(names, processes, strict=True):
                    if process.poll() is not None:
                        error = last_error(own / name / "site.log")
                        raise UndriftError(
                            f"The process of site {name!r} ended: {error or 'it gave no reason.'}"
                        )

            server = None if certs is None else certs / "server"
            return _serve(experiment, folder, "127.0.0.1", port, server, observer, watch, extend)


def _certificates_here(folder: Path, sites: Sequence[str]) -> Path:
    """Certificates for sites on this machine, whose uploads are masked with the help of keys.

    One process makes all keys, which shows how secure aggregation works but protects nobody.
    """
    from undrift.deploy.flower.certificates import make_certificates

    certs = (folder / "certs").resolve()
    exists = (certs / "server" / "server.pem").is_file()
    make_certificates(certs, [] if exists else ["127.0.0.1"], sites)
    return certs


def _require_signed(certs: Path) -> None:
    from undrift.deploy.signing.key_requests import is_unsigned

    require(
        not is_unsigned(certs, SITE_FILES),
        f"{certs} has a key that was not registered: send its .request file to where the CA is, "
        f"have it registered with undrift deploy sign, and copy the ca.crt that this writes here.",
    )


def _require_files(certs: Path, files: Sequence[str], role: str) -> Path:
    for name in files:
        require(
            (certs / name).is_file(),
            f"{certs} is not a {role}'s folder of certificates: it has no {name}.",
        )
    return certs.resolve()
