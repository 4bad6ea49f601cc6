"""The server of a deployment: it has its sites describe themselves, then runs the experiment.

It works with any `Transport`; `undrift.deploy.launch` starts it with Flower's.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import undrift
from undrift.core.clients import ClientStates
from undrift.core.losses import Federation, objective_weights
from undrift.core.method import NUMBER
from undrift.core.targets import PARTS
from undrift.deploy.agreement import facts
from undrift.deploy.federation import RemoteFederation
from undrift.deploy.guards.claims import claim_line, claim_rows, counted_samples
from undrift.deploy.guards.expulsions import Expulsions
from undrift.deploy.loops import DeployedAsynchronous, DeployedSynchronous
from undrift.deploy.protocol import DESCRIBE, OVERHEAD_BYTES, VERSION
from undrift.deploy.rehearsal import rehearse
from undrift.deploy.remote import RemoteEngine, Waiting
from undrift.deploy.secure.engine import SecureEngine
from undrift.deploy.secure.sums import require_summed
from undrift.deploy.site_data.agreed import NOTHING_AGREED, Agreed, agreed_from, wanted
from undrift.deploy.site_data.asking import (
    ANSWER_SECONDS,
    POLL_SECONDS,
    agree_with_sites,
    ask_all,
)
from undrift.deploy.transport import Transport
from undrift.deploy.wire_format import InvalidMessage, decode, encode
from undrift.engines.base import Job
from undrift.experiments.building import build_model, personal_of
from undrift.experiments.experiment import Experiment
from undrift.experiments.tables import DeployTable
from undrift.experiments.tables.data import is_folder, is_function
from undrift.loops import Loop, RunSpec, StatesFactory
from undrift.loops.base import require_lagging
from undrift.loops.paces import AsTheyArrive
from undrift.loops.spec import pace_of
from undrift.privacy.secure.rounding import single_weights
from undrift.privacy.secure.settings import SecureAggregation
from undrift.runs.driver import Observer, RunOutcome, execute
from undrift.runs.experiment_runs import claim, plan_of, storage_of
from undrift.runs.folder import DEPLOYMENT, locked_folder, read_json, write_json
from undrift.runs.store.releases import ledger_of
from undrift.utils.errors import UndriftError, require
from undrift.utils.plain_text import plain_text
from undrift.utils.shapes import require_shapes

DEPLOYMENT_SHAPES = {"run": str, "samples": {str: {str: int}}, "moving": [str]}
MAX_BUFFERS = 10_000
"""The most buffers of a model that a site may name."""
MAX_NAME_CHARACTERS = 1000
"""The longest name of a buffer."""
REJOIN_SECONDS = 90.0
"""How long a resumed run waits for the sites it knows to connect again."""


@dataclass(frozen=True)
class SiteDescriptions:
    """What the sites told the server about themselves when the run began."""

    run: str
    """a random name for this run folder, by which sites keep states"""
    samples: Mapping[str, Mapping[str, int]]
    """the number of samples of each site, by part, as the site claims"""
    counted: Mapping[str, Mapping[str, int]]
    """the numbers that count in weights and metrics, which the operator may have capped"""
    moving: tuple[str, ...]
    """the names of the model's buffers that training changes"""
    starts: int = 1
    """how often a server has been started with the run folder"""
    agreed: Agreed = NOTHING_AGREED
    """what the sites agreed on before the run"""


@dataclass(frozen=True)
class Deployment:
    """Builds the loops of runs whose clients are at sites."""

    transport: Transport
    descriptions: SiteDescriptions
    timeout: float
    """the seconds that a site may take to answer"""
    waiting: Waiting
    expelled: Callable[[], Collection[str]] = frozenset
    """returns the sites that the operator has expelled"""
    folder: Path | None = None
    """the run folder, which remembers what private runs released; None for no memory"""
    secure: SecureAggregation | None = None
    """how single uploads are hidden from this server; None if they are not"""

    def loop(self, label: str, spec: RunSpec, states: StatesFactory) -> Loop:
        """The loop of a run with sites; a `LoopFactory`."""
        pace = spec.effective_pace

        def engine(losses: Federation, job: Job) -> RemoteEngine:
            assert isinstance(losses, RemoteFederation)
            kind = RemoteEngine if self.secure is None else SecureEngine
            made = kind(
                losses,
                job,
                self.transport,
                self.descriptions.run,
                label,
                spec.rounds,
                self.descriptions.starts,
                self.timeout,
                pace,
                self.waiting,
                self.expelled,
            )
            if isinstance(made, SecureEngine) and self.secure is not None:
                made.secure = self.secure
            return made

        def versions(kinds: Mapping[str, str | Tensor], x0: Tensor) -> ClientStates:
            # The states are at the sites; the server keeps the version that it accepted.
            return states({VERSION: NUMBER}, x0)

        if isinstance(pace, AsTheyArrive):
            return DeployedAsynchronous(spec, engine, versions)
        releases = None
        if spec.privacy is not None and self.folder is not None:
            releases = ledger_of(self.folder, label, spec.seed)
        site_noise = self.secure is not None and self.secure.site_noise
        return DeployedSynchronous(spec, engine, versions, releases, site_noise)


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
    expelled = Expulsions(folder)
    descriptions = describe_sites(experiment, folder, transport, waiting, expelled)
    if observer is not None:
        _announce(descriptions, experiment.objective, expelled(), observer)
        revealed = wanted(experiment).revealed()
        for each in revealed:
            observer.note(f"Every site told this server {each}.", {"statistics": each})
    timeout = _settings(experiment).timeout
    secure = experiment.secure_aggregation()
    require(
        secure is None or not descriptions.moving,
        "Secure aggregation cannot hide buffers that training changes, such as those of BatchNorm: "
        "use GroupNorm or LayerNorm.",
    )
    if observer is not None and secure is not None and secure.rounds:
        error = secure.coding(len(descriptions.samples)).error
        observer.note(
            f"Masked uploads have words of {secure.word_bits} bits: each coordinate of a sum is "
            f"rounded by at most {error:.2g}.",
            {"word_bits": secure.word_bits, "largest_error": error},
        )
    deployment = Deployment(transport, descriptions, timeout, waiting, expelled, folder, secure)

    def federation(seed: int) -> RemoteFederation:
        model = build_model(experiment, None, seed, descriptions.agreed.encoding)
        told, personal = descriptions, personal_of(experiment)
        return RemoteFederation(model, told.samples, told.moving, told.counted, personal)

    plan = plan_of(experiment, federation, deployment.loop)
    return execute(plan, storage_of(experiment, folder), observer)


def _settings(experiment: Experiment) -> DeployTable:
    return DeployTable() if experiment.deploy is None else experiment.deploy


def _announce(
    descriptions: SiteDescriptions, objective: str, expelled: Collection[str], observer: Observer
) -> None:
    """Show what the sites claim, and what counts of it."""
    counted = descriptions.counted
    numbers = torch.tensor([own["train"] for own in counted.values()])
    shares = objective_weights(numbers, objective).tolist()
    weights = dict(zip(counted, shares, strict=True))
    for row in claim_rows(descriptions.samples, counted, weights):
        row["expelled"] = row["site"] in expelled
        text = claim_line(row) + (" It is expelled." if row["expelled"] else "")
        observer.note(text, row)


def sites_of(experiment: Experiment) -> list[str]:
    """The names of an experiment's sites."""
    return [str(site) for site in experiment.data.parameters.get("sites") or []]


def require_deployable(experiment: Experiment) -> None:
    """Refuse an experiment that cannot be deployed, before the server waits for any site."""
    source = experiment.data.source
    require(
        is_function(source) or is_folder(source),
        f"data.source is {source!r}, but must be file.py:function, a function of the site's name, "
        f"or a folder with the site's own file, since every site reads its own data.",
    )
    require(bool(sites_of(experiment)), "data.sites must list the names of the sites.")
    require(
        not (is_folder(source) and experiment.data.noise),
        "A deployment adds no noise to the inputs of tables: remove data.noise.",
    )
    require(
        is_function(experiment.model.name),
        f"model.name is {experiment.model.name!r}, but must be file.py:function, since server and "
        f"sites create the model on their own.",
    )
    evaluation = experiment.evaluation_settings()
    require(
        experiment.privacy is None or evaluation.models == ("server",),
        "A private deployment evaluates the server's model only: remove the others from "
        "evaluation.models, for which sites would send models that are not clipped.",
    )
    require(
        evaluation.gradient_mapping is None,
        "A deployment cannot compute evaluation.gradient_mapping: remove it.",
    )
    require(
        evaluation.train_clients is None and evaluation.train_samples is None,
        "A deployment evaluates on all sites and samples: remove evaluation.train_clients and "
        "evaluation.train_samples.",
    )
    for name in ("test", "validation"):
        held = getattr(experiment.data, name)
        require(
            held is None or held.by == "client",
            f"data.{name} is split off from all samples, but a site has only its own: set by = "
            f"'client'.",
        )
    _require_secure(experiment)
    require(
        experiment.attack is None,
        "An attack is an experiment of simulations: remove the table [attack].",
    )
    compression = experiment.compression_settings()
    if compression is not None and compression.down is not None:
        _require_lagging(experiment)
    secure = experiment.secure_aggregation() is not None
    require(
        not secure or experiment.statistic() is None,
        "Secure aggregation shows the server sums of masked vectors only, which a robust statistic "
        "cannot combine: remove robust.statistic.",
    )
    up = None if compression is None else compression.up
    require(
        not secure or up is None or up.lossless or up.additive,
        f"Secure aggregation adds up masked uploads coordinate by coordinate, which {up!r} does "
        f"not allow: use up = {{name = 'random-k', ratio = 0.1, shared = true}}, or shorter words "
        f"by privacy.word_bits = 16, 24 or 32.",
    )
    require(
        experiment.devices is None,
        "A deployment runs on real devices: remove the table [devices].",
    )
    rehearse(experiment, sites_of(experiment))


def _require_lagging(experiment: Experiment) -> None:
    """Refuse methods whose downloads cannot be compressed."""
    for label, method in experiment.methods().items():
        require(
            not isinstance(pace_of(method, experiment.pace_of(label)), AsTheyArrive),
            f"Compressed downloads need rounds, but {label} is asynchronous, where every site "
            f"reads another version of the model: remove down from [compression].",
        )
        require_lagging(method)


def _require_secure(experiment: Experiment) -> None:
    """Refuse what secure aggregation cannot do."""
    secure = experiment.secure_aggregation()
    if secure is None:
        return
    secure.check(len(sites_of(experiment)))
    require(
        not secure.site_noise or experiment.privacy_settings() is not None,
        'privacy.noise_at is "sites", but there is no noise: set clip, and noise or epsilon.',
    )
    require(
        experiment.norm_bound() is None,
        "Secure aggregation hides the uploads whose norms [robust] would bound: remove [robust].",
    )
    for label, method in experiment.methods().items():
        require_summed(method.sums(), label)
        if secure.rounds:
            single_weights(method)
        require(
            not isinstance(pace_of(method, experiment.pace_of(label)), AsTheyArrive),
            f"Secure aggregation needs rounds, but {label} is asynchronous: set privacy.secure = "
            f"false, or choose a synchronous method.",
        )


def describe_sites(
    experiment: Experiment,
    folder: Path,
    transport: Transport,
    waiting: Waiting,
    expelled: Callable[[], Collection[str]] = frozenset,
) -> SiteDescriptions:
    """The descriptions of all sites: asked for in a new run, read from the folder in a resumed one.

    A new run waits for all sites without a limit: their numbers of samples define the objective.
    """
    path = folder / DEPLOYMENT
    with locked_folder(folder):
        if path.is_file():
            known = read_json(path)
            require_shapes(path, known, DEPLOYMENT_SHAPES)
            # Before any site is asked: an order of this server is not one of the last server's.
            known["starts"] = known.get("starts", 1) + 1
            write_json(path, known)
            there = [site for site in known["samples"] if site not in expelled()]
            _wait_for_known(there, transport, waiting)
            agreed = NOTHING_AGREED if known.get("agreed") is None else agreed_from(known["agreed"])
            _require_agreement(experiment, there, transport, known["run"], known.get("agreed"))
            return SiteDescriptions(
                known["run"],
                known["samples"],
                known.get("counted", known["samples"]),
                tuple(known["moving"]),
                known["starts"],
                agreed,
            )
        sites, run, agreed = sites_of(experiment), secrets.token_hex(8), NOTHING_AGREED
        needed = wanted(experiment)
        if needed:
            agreed = agree_with_sites(experiment, run, sites, transport, waiting, expelled)
        plain = agreed.plain() if needed else None
        request = _description_request(experiment, run, plain)
        found = ask_all(sites, request, _parse_description, transport, waiting, expelled)
        descriptions = _consistent(sites, found, experiment, run, agreed)
        write_json(
            path,
            {
                "run": descriptions.run,
                "samples": descriptions.samples,
                "counted": descriptions.counted,
                "moving": list(descriptions.moving),
                "starts": descriptions.starts,
                "agreed": plain,
            },
        )
        return descriptions


def _description_request(experiment: Experiment, run: str, agreed: Any) -> bytes:
    values = {"kind": DESCRIBE, "experiment": facts(experiment)}
    return encode(values if agreed is None else {**values, "run": run, "agreed": agreed}, {})


def _require_agreement(
    experiment: Experiment, sites: Collection[str], transport: Transport, run: str, agreed: Any
) -> None:
    """Compare the experiment of a resumed run with those of the sites that are connected."""
    request = _description_request(experiment, run, agreed)
    asked = {
        transport.send(site, request, ANSWER_SECONDS, OVERHEAD_BYTES): site
        for site in sites
        if site in transport.sites()
    }
    until = time.monotonic() + ANSWER_SECONDS
    while asked and (answer := transport.next(max(0.0, until - time.monotonic()))) is not None:
        site = asked.pop(answer.ticket, None)
        if site is not None and answer.failure is None:
            _parse_description(site, answer.data)
    for ticket in asked:
        transport.forget(ticket)


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
        why = plain_text(error)
        raise UndriftError(f"The site {site!r} sent an invalid description: {why}") from None
    require("error" not in values, plain_text(values.get("error"), 1000))
    samples = values.get("samples")
    require(
        isinstance(samples, dict)
        and "train" in samples
        and samples.keys() <= {*PARTS}
        and all(type(n) is int and 0 < n < 2**53 for n in samples.values())
        and values.get("site") == site,
        f"The site {site!r} did not send its numbers of samples.",
    )
    moving = values.get("moving")
    require(
        type(values.get("parameters")) is int
        and isinstance(moving, list)
        and len(moving) <= MAX_BUFFERS
        and all(isinstance(n, str) and len(n) <= MAX_NAME_CHARACTERS for n in moving),
        f"The site {site!r} did not send the size and the buffers of its model.",
    )
    version = values.get("undrift")
    require(
        version == undrift.__version__,
        f"The site {site!r} has undrift {plain_text(version, 20)}, but the server has "
        f"{undrift.__version__}: install the same version everywhere.",
    )
    return values


def _consistent(
    sites: Sequence[str],
    found: Mapping[str, Mapping[str, Any]],
    experiment: Experiment,
    run: str,
    agreed: Agreed,
) -> SiteDescriptions:
    """The descriptions of all sites, checked to fit each other and the server's own model."""
    first = found[sites[0]]
    model = build_model(experiment, None, experiment.seeds[0], agreed.encoding)
    personal = personal_of(experiment)
    kept = set() if personal is None else personal.names_in(model)
    named = model.named_parameters()
    own = sum(p.numel() for name, p in named if p.requires_grad and name not in kept)
    require(
        first.get("parameters") == own,
        f"The model of site {sites[0]!r} has {first.get('parameters')} parameters, but the "
        f"server's has {own}: model() must be the same everywhere.",
    )
    unknown = {str(name) for name in first["moving"]} - {name for name, _ in model.named_buffers()}
    require(
        not unknown,
        f"The model of site {sites[0]!r} has buffers that the server's does not have: "
        f"{plain_text(', '.join(sorted(unknown)), 100)}.",
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
    counted = counted_samples(samples, _settings(experiment))
    moving = tuple(first["moving"])
    return SiteDescriptions(run, samples, counted, moving, agreed=agreed)
