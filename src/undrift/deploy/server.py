"""What a server does: it meets its sites, and runs the experiment with them."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

import undrift
from undrift.core.clients import ClientStates
from undrift.core.losses import Federation
from undrift.core.method import NUMBER
from undrift.deploy.agreement import facts
from undrift.deploy.loops import Arrivals, Rounds
from undrift.deploy.payloads import Refused, decode, encode
from undrift.deploy.post import Post
from undrift.deploy.protocol import HELLO, SLACK, VERSION
from undrift.deploy.remote import RemoteEngine, RemoteFederation
from undrift.engines.base import Job
from undrift.experiments.building import build_model
from undrift.experiments.experiment import Experiment
from undrift.experiments.tables.data import is_function
from undrift.loops import Loop, RunSpec, StatesFactory
from undrift.loops.paces import AsTheyArrive
from undrift.runs.driver import Observer, RunOutcome, execute
from undrift.runs.folder import locked_folder, read_json, write_json
from undrift.runs.planning import claim, plan_of, storage_of
from undrift.utils.errors import UndriftError, require

DEPLOYMENT = "deployment.json"
"""What a run folder knows of its sites."""
ANSWER = 60.0
"""Seconds in which a site says who it is."""
LOOK = 0.2
REJOIN = 90.0
"""Seconds for which a run that goes on waits for the sites it knows."""

Waiting = Callable[[Collection[str]], None]
"""Told who is still waited for."""


@dataclass(frozen=True)
class Met:
    """What the sites said of themselves."""

    run: str
    """what this run folder is called at the sites"""
    samples: Mapping[str, Mapping[str, int]]
    moving: tuple[str, ...]


@dataclass(frozen=True)
class Deployment:
    """Builds the loops of runs whose clients are at sites."""

    post: Post
    met: Met
    timeout: float
    """seconds that a site may take to answer"""
    waiting: Waiting

    def loop(self, label: str, spec: RunSpec, states: StatesFactory) -> Loop:
        """The loop of a run across sites."""
        pace = spec.effective_pace

        def engine(losses: Federation, job: Job) -> RemoteEngine:
            assert isinstance(losses, RemoteFederation)
            run = f"{self.met.run} {label} {spec.seed}"
            return RemoteEngine(
                losses, job, self.post, run, label, self.timeout, pace, self.waiting
            )

        def versions(kinds: Mapping[str, str], x0: Tensor) -> ClientStates:
            """The states are at the sites: the server remembers which version it accepted."""
            return states({VERSION: NUMBER}, x0)

        kind = Arrivals if isinstance(pace, AsTheyArrive) else Rounds
        return kind(spec, engine, versions)


def serve(
    experiment: Experiment,
    folder: Path,
    post: Post,
    watcher: Observer | None = None,
    waiting: Waiting = lambda sites: None,
) -> list[RunOutcome]:
    """Run an experiment with its sites, or what is left of it, in a run folder."""
    require_deployable(experiment)
    claim(experiment, folder)
    met = meet(experiment, folder, post, waiting)
    timeout = 600.0 if experiment.deploy is None else experiment.deploy.timeout
    deployment = Deployment(post, met, timeout, waiting)

    def federation(seed: int) -> RemoteFederation:
        model = build_model(experiment, None, seed)  # type: ignore[arg-type]
        return RemoteFederation(model, met.samples, met.moving)

    plan = plan_of(experiment, federation, deployment.loop)
    return execute(plan, storage_of(experiment, folder), watcher)


def sites_of(experiment: Experiment) -> list[str]:
    """The sites of an experiment."""
    return [str(site) for site in experiment.data.parameters.get("sites", [])]


def require_deployable(experiment: Experiment) -> None:
    """Refuse what cannot run across sites, before anybody is waited for."""
    require(
        is_function(experiment.data.source),
        f"data.source is {experiment.data.source!r}, but sites read their own data: it must be "
        f"file.py:function, a function of the site's name.",
    )
    require(
        is_function(experiment.model.name),
        f"model.name is {experiment.model.name!r}, but server and sites make the same model: it "
        f"must be file.py:function.",
    )
    evaluation = experiment.evaluation_settings()
    require("own" not in evaluation.models, "A deployment cannot evaluate the models 'own'.")
    require(evaluation.gradient_mapping is None, "A deployment has no gradient_mapping.")
    require(evaluation.train_clients is None, "A deployment evaluates all sites: no train_clients.")
    for name in ("test", "validation"):
        held = getattr(experiment.data, name)
        require(
            held is None or held.by == "client",
            f"data.{name} is set aside overall, but sites only have their own samples: say by = "
            f"'client'.",
        )
    require(
        experiment.devices is None,
        "A deployment has real devices: leave [devices] out.",
    )


def meet(experiment: Experiment, folder: Path, post: Post, waiting: Waiting) -> Met:
    """Have all sites say how many samples they have; a run that goes on knows it already."""
    path = folder / DEPLOYMENT
    with locked_folder(folder):
        if path.is_file():
            known = read_json(path)
            met = Met(known["run"], known["samples"], tuple(known["moving"]))
            _await_again(met.samples, post, waiting)
            return met
        sites = sites_of(experiment)
        said: dict[str, Mapping[str, Any]] = {}
        trouble: dict[str, str] = {}
        hello = encode({"kind": HELLO, "experiment": facts(experiment)}, {})
        while missing := [site for site in sites if site not in said]:
            waiting([f"{s} ({trouble[s]})" if s in trouble else s for s in missing])
            there = [site for site in missing if site in post.sites()]
            tickets = {post.send(site, hello, ANSWER, SLACK): site for site in there}
            while tickets:
                arrival = post.next(ANSWER)
                if arrival is None:
                    break
                site = tickets.pop(arrival.ticket, "")
                if site and arrival.trouble is None:
                    said[site] = _introduction(site, arrival.data)
                elif site:
                    trouble[site] = str(arrival.trouble)
            if not there:
                time.sleep(LOOK)
        waiting([])
        met = _agreed(sites, said, experiment)
        write_json(path, {"run": met.run, "samples": met.samples, "moving": list(met.moving)})
        return met


def _await_again(sites: Collection[str], post: Post, waiting: Waiting) -> None:
    """Give sites time to come back to a run that goes on; one that does not is away."""
    until = time.monotonic() + REJOIN
    while (missing := [s for s in sites if s not in post.sites()]) and time.monotonic() < until:
        waiting(missing)
        time.sleep(LOOK)
    waiting([])


def _introduction(site: str, data: bytes) -> Mapping[str, Any]:
    try:
        values, _ = decode(data, SLACK)
    except Refused as error:
        raise UndriftError(f"The site {site!r} gives no proper answer: {error}") from None
    require("error" not in values, str(values.get("error"))[:1000])
    samples = values.get("samples")
    require(
        isinstance(samples, dict)
        and "train" in samples
        and all(isinstance(n, int) and 0 < n < 2**53 for n in samples.values())
        and values.get("site") == site,
        f"The site {site!r} does not say how many samples it has.",
    )
    version = values.get("undrift")
    require(
        version == undrift.__version__,
        f"The site {site!r} has undrift {str(version)[:20]}, but the server {undrift.__version__}.",
    )
    return values


def _agreed(
    sites: Sequence[str], said: Mapping[str, Mapping[str, Any]], experiment: Experiment
) -> Met:
    """What all sites said, if it fits together, and to the server's own model."""
    first = said[sites[0]]
    model = build_model(experiment, None, experiment.seeds[0])  # type: ignore[arg-type]
    own = sum(p.numel() for p in model.parameters() if p.requires_grad)
    require(
        first.get("parameters") == own,
        f"The model of site {sites[0]!r} has {first.get('parameters')} parameters, but the "
        f"server's {own}: model() must be the same everywhere.",
    )
    unknown = {str(name) for name in first["moving"]} - {name for name, _ in model.named_buffers()}
    require(
        not unknown,
        f"The model of site {sites[0]!r} has buffers that the server's has not: "
        f"{', '.join(sorted(unknown))[:100]}.",
    )
    for site in sites:
        for name in ("parameters", "moving"):
            require(
                said[site].get(name) == first.get(name),
                f"The models of sites {sites[0]!r} and {site!r} differ in their {name}.",
            )
        require(
            said[site]["samples"].keys() == first["samples"].keys(),
            f"The sites {sites[0]!r} and {site!r} do not have the same parts of data.",
        )
    samples = {site: dict(said[site]["samples"]) for site in sites}
    return Met(secrets.token_hex(8), samples, tuple(map(str, first["moving"])))
