"""The server of a deployment: it has its sites describe themselves, then runs the experiment.

It works with any `Transport`; `undrift.deploy.launch` starts it with Flower's.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

import undrift
from undrift.core.clients import ClientStates
from undrift.core.losses import Federation
from undrift.core.method import NUMBER
from undrift.deploy.agreement import facts
from undrift.deploy.loops import DeployedAsynchronous, DeployedSynchronous
from undrift.deploy.protocol import DESCRIBE, OVERHEAD_BYTES, VERSION
from undrift.deploy.remote import RemoteEngine, RemoteFederation, Waiting
from undrift.deploy.transport import Transport
from undrift.deploy.wire_format import InvalidMessage, decode, encode
from undrift.engines.base import Job
from undrift.experiments.building import build_model
from undrift.experiments.experiment import Experiment
from undrift.experiments.tables.data import is_function
from undrift.loops import Loop, RunSpec, StatesFactory
from undrift.loops.paces import AsTheyArrive
from undrift.runs.driver import Observer, RunOutcome, execute
from undrift.runs.experiment_runs import claim, plan_of, storage_of
from undrift.runs.folder import locked_folder, read_json, write_json
from undrift.utils.errors import UndriftError, require

DEPLOYMENT = "deployment.json"
"""The file of a run folder with the descriptions of its sites."""
DEFAULT_TIMEOUT_SECONDS = 600.0
"""How long a site may take to answer if the experiment does not say."""
DESCRIBE_SECONDS = 60.0
"""How long a site may take to describe itself."""
POLL_SECONDS = 0.2
"""How often the server checks which sites are connected."""
REJOIN_SECONDS = 90.0
"""How long a resumed run waits for the sites it knows to connect again."""


@dataclass(frozen=True)
class SiteDescriptions:
    """What the sites told the server about themselves when the run began."""

    run: str
    """a random name for this run folder, by which sites keep states"""
    samples: Mapping[str, Mapping[str, int]]
    """the number of samples of each site, by part"""
    moving: tuple[str, ...]
    """the names of the model's buffers that training changes"""


@dataclass(frozen=True)
class Deployment:
    """Builds the loops of runs whose clients are at sites."""

    transport: Transport
    descriptions: SiteDescriptions
    timeout: float
    """the seconds that a site may take to answer"""
    waiting: Waiting

    def loop(self, label: str, spec: RunSpec, states: StatesFactory) -> Loop:
        """The loop of a run with sites; a `LoopFactory`."""
        pace = spec.effective_pace

        def engine(losses: Federation, job: Job) -> RemoteEngine:
            assert isinstance(losses, RemoteFederation)
            run = f"{self.descriptions.run} {label} {spec.seed}"
            return RemoteEngine(
                losses, job, self.transport, run, label, self.timeout, pace, self.waiting
            )

        def versions(kinds: Mapping[str, str], x0: Tensor) -> ClientStates:
            # The states are at the sites; the server keeps the version that it accepted.
            return states({VERSION: NUMBER}, x0)

        asynchronous = isinstance(pace, AsTheyArrive)
        kind = DeployedAsynchronous if asynchronous else DeployedSynchronous
        return kind(spec, engine, versions)


def serve(
    experiment: Experiment,
    folder: Path,
    transport: Transport,
    observer: Observer | None = None,
    waiting: Waiting = lambda sites: None,
    extend: bool = False,
) -> list[RunOutcome]:
    """Execute the runs of an experiment with its sites, or what is left of them, in a run folder.

    Parameters
    ----------
    observer
        is told of the progress of the runs
    waiting
        is told which sites the server waits for
    extend
        whether the experiment may have more rounds than the one in the folder
    """
    require_deployable(experiment)
    claim(experiment, folder, extend)
    descriptions = describe_sites(experiment, folder, transport, waiting)
    deploy = experiment.deploy
    timeout = DEFAULT_TIMEOUT_SECONDS if deploy is None else deploy.timeout
    deployment = Deployment(transport, descriptions, timeout, waiting)

    def federation(seed: int) -> RemoteFederation:
        model = build_model(experiment, None, seed)  # type: ignore[arg-type]
        return RemoteFederation(model, descriptions.samples, descriptions.moving)

    plan = plan_of(experiment, federation, deployment.loop)
    return execute(plan, storage_of(experiment, folder), observer)


def sites_of(experiment: Experiment) -> list[str]:
    """The names of an experiment's sites."""
    return [str(site) for site in experiment.data.parameters.get("sites", [])]


def require_deployable(experiment: Experiment) -> None:
    """Refuse an experiment that cannot be deployed, before the server waits for any site."""
    require(
        is_function(experiment.data.source),
        f"data.source is {experiment.data.source!r}, but must be file.py:function, a function of "
        f"the site's name, since every site reads its own data.",
    )
    require(
        is_function(experiment.model.name),
        f"model.name is {experiment.model.name!r}, but must be file.py:function, since server and "
        f"sites create the model on their own.",
    )
    evaluation = experiment.evaluation_settings()
    require(
        "own" not in evaluation.models,
        "A deployment cannot evaluate the models 'own': remove them from evaluation.models.",
    )
    require(
        evaluation.gradient_mapping is None,
        "A deployment cannot compute evaluation.gradient_mapping: remove it.",
    )
    require(
        evaluation.train_clients is None,
        "A deployment evaluates on all sites: remove evaluation.train_clients.",
    )
    for name in ("test", "validation"):
        held = getattr(experiment.data, name)
        require(
            held is None or held.by == "client",
            f"data.{name} is split off from all samples, but a site has only its own: set by = "
            f"'client'.",
        )
    require(
        experiment.devices is None,
        "A deployment runs on real devices: remove the table [devices].",
    )


def describe_sites(
    experiment: Experiment, folder: Path, transport: Transport, waiting: Waiting
) -> SiteDescriptions:
    """The descriptions of all sites: asked for in a new run, read from the folder in a resumed one.

    A new run waits for all sites without a limit: their numbers of samples define the objective.
    """
    path = folder / DEPLOYMENT
    with locked_folder(folder):
        if path.is_file():
            known = read_json(path)
            _wait_for_known(known["samples"], transport, waiting)
            return SiteDescriptions(known["run"], known["samples"], tuple(known["moving"]))
        sites = sites_of(experiment)
        found: dict[str, Mapping[str, Any]] = {}
        failures: dict[str, str] = {}
        request = encode({"kind": DESCRIBE, "experiment": facts(experiment)}, {})
        while missing := [site for site in sites if site not in found]:
            waiting([f"{s} ({failures[s]})" if s in failures else s for s in missing])
            connected = [site for site in missing if site in transport.sites()]
            open_requests = {
                transport.send(site, request, DESCRIBE_SECONDS, OVERHEAD_BYTES): site
                for site in connected
            }
            while open_requests:
                answer = transport.next(DESCRIBE_SECONDS)
                if answer is None:
                    break
                site = open_requests.pop(answer.ticket, None)
                if site is not None and answer.failure is None:
                    found[site] = _parse_description(site, answer.data)
                elif site is not None:
                    failures[site] = str(answer.failure)
            if not connected:
                time.sleep(POLL_SECONDS)
        waiting([])
        descriptions = _consistent(sites, found, experiment)
        write_json(
            path,
            {
                "run": descriptions.run,
                "samples": descriptions.samples,
                "moving": list(descriptions.moving),
            },
        )
        return descriptions


def _wait_for_known(sites: Collection[str], transport: Transport, waiting: Waiting) -> None:
    """Give the sites of a resumed run time to connect; the run continues without the others."""
    until = time.monotonic() + REJOIN_SECONDS
    while missing := [site for site in sites if site not in transport.sites()]:
        if time.monotonic() > until:
            break
        waiting(missing)
        time.sleep(POLL_SECONDS)
    waiting([])


def _parse_description(site: str, data: bytes) -> Mapping[str, Any]:
    try:
        values, _ = decode(data, OVERHEAD_BYTES)
    except InvalidMessage as error:
        raise UndriftError(f"The site {site!r} sent an invalid description: {error}") from None
    require("error" not in values, str(values.get("error"))[:1000])
    samples = values.get("samples")
    require(
        isinstance(samples, dict)
        and "train" in samples
        and all(isinstance(n, int) and 0 < n < 2**53 for n in samples.values())
        and values.get("site") == site,
        f"The site {site!r} did not send its numbers of samples.",
    )
    version = values.get("undrift")
    require(
        version == undrift.__version__,
        f"The site {site!r} has undrift {str(version)[:20]}, but the server has "
        f"{undrift.__version__}: install the same version everywhere.",
    )
    return values


def _consistent(
    sites: Sequence[str], found: Mapping[str, Mapping[str, Any]], experiment: Experiment
) -> SiteDescriptions:
    """The descriptions of all sites, checked to fit each other and the server's own model."""
    first = found[sites[0]]
    model = build_model(experiment, None, experiment.seeds[0])  # type: ignore[arg-type]
    own = sum(p.numel() for p in model.parameters() if p.requires_grad)
    require(
        first.get("parameters") == own,
        f"The model of site {sites[0]!r} has {first.get('parameters')} parameters, but the "
        f"server's has {own}: model() must be the same everywhere.",
    )
    unknown = {str(name) for name in first["moving"]} - {name for name, _ in model.named_buffers()}
    require(
        not unknown,
        f"The model of site {sites[0]!r} has buffers that the server's does not have: "
        f"{', '.join(sorted(unknown))[:100]}.",
    )
    for site in sites:
        for name, words in (("parameters", "number of parameters"), ("moving", "buffers")):
            require(
                found[site].get(name) == first.get(name),
                f"The models of sites {sites[0]!r} and {site!r} differ in their {words}: model() "
                f"must be the same everywhere.",
            )
        require(
            found[site]["samples"].keys() == first["samples"].keys(),
            f"The data of sites {sites[0]!r} and {site!r} have different parts: train, validation "
            f"and test must be the same everywhere.",
        )
    samples = {site: dict(found[site]["samples"]) for site in sites}
    return SiteDescriptions(secrets.token_hex(8), samples, tuple(map(str, first["moving"])))
