"""Advice about an experiment file: read the file, and write one with the recommended methods."""

from __future__ import annotations

import inspect
import re
import textwrap
import tomllib
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomlkit
from tomlkit.items import Table

from undrift.advice.editing import edited, method_table
from undrift.advice.federation import FederationSetup
from undrift.core.regularizers import Regularizer
from undrift.experiments.building import build_data, build_losses
from undrift.experiments.components import anchored, table_of
from undrift.experiments.experiment import Experiment, tables_in
from undrift.experiments.settings import applied
from undrift.local.solvers import Local
from undrift.loops import pace_of
from undrift.loops.paces import AsTheyArrive, Pace
from undrift.utils.errors import UndriftError, require
from undrift.utils.files import written_whole

if TYPE_CHECKING:
    from undrift.advice.advising import Advice
    from undrift.advice.candidates import Candidate

ADVISED = "advised"
"""Suffix of names and folders, so that the runs do not go to the folder of the original file."""
COMMENT_WIDTH = 94
"""Characters of a comment line without its "# "."""
ANY_RATE = 1.0
"""A placeholder for the learning rate until one is proposed."""


@dataclass(frozen=True)
class Asked:
    """An experiment file that advice is asked about."""

    path: Path
    raw: dict[str, Any]
    """the tables of the file after the settings of the command"""
    text: str
    """the file's text"""
    experiment: Experiment
    federation: FederationSetup

    @property
    def momentum(self) -> float:
        """ρ of the local solver."""
        return float(self.experiment.local.parameters.get("momentum", 0.0))

    @property
    def local(self) -> Local:
        """The local work."""
        return self.experiment.local.build()

    def with_rate(self, lr: float) -> Asked:
        """A copy with a learning rate, for a file that has none."""
        raw = deepcopy(self.raw)
        raw.setdefault("local", {})["lr"] = lr
        return replace(self, raw=raw, experiment=self.experiment.with_settings({"local.lr": lr}))


def read(
    path: Path,
    settings: Mapping[str, Any],
    regularizer: Regularizer | None = None,
    stateless: bool = False,
) -> Asked:
    """Read an experiment file, in which methods and the learning rate may be missing.

    Parameters
    ----------
    path
        the file
    settings
        values by dotted keys that replace those of the file
    regularizer, stateless
        as for `advise`
    """
    raw = tables_in(path)
    text = path.read_text(encoding="utf-8")
    raw = applied(raw, settings)
    asked = deepcopy(raw)
    methods_given = bool(asked.get("method"))
    asked.setdefault("method", [{"name": "FedAvg"}])
    without_rate = _without_rate(asked)
    if without_rate:
        asked.setdefault("local", {})["lr"] = ANY_RATE
    experiment = Experiment.from_dict(
        {"name": path.stem, **asked}, folder=path.parent, where=str(path)
    )
    data = build_data(experiment)
    seed = experiment.seeds[0]
    methods = experiment.methods()
    own = next(iter(methods.values())).g
    federation = FederationSetup(
        losses=build_losses(experiment, data, seed),
        local=None if without_rate else experiment.local.build(),
        rounds=experiment.rounds,
        cohort=experiment.sampling.build(),
        objective=experiment.objective,
        seed=seed,
        limit=experiment.limits(),
        devices=experiment.device_profiles(),
        pace=_pace(experiment, methods_given),
        regularizer=own if regularizer is None else regularizer,
        stateless=stateless,
        privacy=experiment.privacy_settings(),
    )
    try:
        federation.sampler.check(federation.roster)
    except UndriftError as error:
        raise UndriftError(f"{path}: sampling.cohort: {error}") from None
    return Asked(path, raw, text, experiment, federation)


def _without_rate(raw: Mapping[str, Any]) -> bool:
    """Whether a file has gradient steps but no learning rate."""
    local = raw.get("local", {})
    steps = isinstance(local, dict) and local.get("solver", "SGD") in ("SGD", "GD")
    return steps and "lr" not in local


def _pace(experiment: Experiment, methods_given: bool) -> Pace | None:
    """The pace of a file: [pace], or the one that all its methods have."""
    paces, methods = experiment.paces(), experiment.methods()
    if not methods_given:
        return next(iter(paces.values()), None)
    found = [pace_of(method, paces.get(label)) for label, method in methods.items()]
    alike = all(pace == found[0] for pace in found)
    if alike and (paces or isinstance(found[0], AsTheyArrive)):
        return found[0]
    if experiment.pace is None:
        return None
    return next(
        (paces[table.label] for table in experiment.method if table.label and table.pace is None),
        None,
    )


def write(advice: Advice, asked: Asked, path: Path, force: bool = False) -> Path:
    """Write the experiment with the recommended methods, after a check that it is valid."""
    require(
        path.resolve() != asked.path.resolve(),
        f"{path} is the file that was asked about: name another file.",
    )
    require(
        force or not path.exists(), f"{path} exists already: name another file, or use --force."
    )
    tables = {**_kept(asked, path), "method": [_table(each) for each in advice.chosen]}
    text = _text(advice, asked, tables, path)
    try:
        Experiment.from_dict({"name": path.stem, **tables}, folder=path.parent, where=str(path))
    except UndriftError as error:
        raise UndriftError(f"The advised experiment is not valid: {error}") from None
    with written_whole(path) as partial:
        partial.write_text(text, encoding="utf-8")
    Experiment.load(path)
    return path


def _kept(asked: Asked, path: Path) -> dict[str, Any]:
    """The tables without methods; names, folders, sweeps and paths are adapted to the new file."""
    found = deepcopy(asked.raw)
    found.pop("method", None)
    if "name" in found:
        found["name"] = f"{found['name']}-{ADVISED}"
    if isinstance(found.get("output"), dict) and "folder" in found["output"]:
        found["output"]["folder"] = f"{found['output']['folder']}-{ADVISED}"
    if "sweep" in found:
        for key in [key for key in found["sweep"] if key == "method" or key.startswith("method.")]:
            del found["sweep"][key]
    if path.resolve().parent != asked.path.resolve().parent:
        resolved = asked.experiment.resolved()
        found = anchored(found, asked.path.resolve().parent)
        for table, key in (("data", "source"), ("devices", "path"), ("devices", "windows")):
            if isinstance(found.get(table), dict) and key in found[table]:
                found[table][key] = resolved[table][key]
    return found


def _table(candidate: Candidate) -> dict[str, Any]:
    """The table of a method with the parameters that differ from their defaults."""
    method = candidate.method
    defaults = inspect.signature(type(method)).parameters
    found: dict[str, Any] = {"name": candidate.name}
    for name, value in method.hyperparameters().items():
        if value != defaults[name].default:
            part = table_of(value)
            found[name] = value if part is None else part
    return found


def _text(advice: Advice, asked: Asked, tables: Mapping[str, Any], path: Path) -> str:
    """The text of the new file: the original with its comments, and the recommended methods."""
    kept = {key: value for key, value in tables.items() if key != "method"}
    text = edited(asked.text, kept, _methods(advice))
    if tomllib.loads(text) != dict(
        tables
    ):  # the layout does not allow to replace tables: write them anew
        text = edited(tomlkit.dumps(kept), kept, _methods(advice))
    document = tomlkit.parse(text)
    if advice.facts.rate_proposed:
        L = f"{advice.facts.curvature.L:.3g}"
        document["local"]["lr"].comment(f"1/L for the estimated L = {L}: cautious")  # type: ignore
    head = _comment_lines(
        f"Written by undrift advise from {asked.path.name}: {advice.facts.clients} clients, "
        f"rule “{advice.rule.name}”. The reasons are below the headers of the methods."
    )
    lines = _renamed(tomlkit.dumps(document), asked.path.name, path.name).splitlines()
    schema = [lines.pop(0)] if lines[:1] and "#:schema" in lines[0] else []
    return "\n".join([*schema, *(f"# {line}" for line in head), *lines]).rstrip("\n") + "\n"


def _renamed(text: str, before: str, now: str) -> str:
    """The text with the file's new name in comments that say how to run it."""
    command = re.compile(rf"(\bundrift \w+ ){re.escape(before)}(?!\.?[\w/-])")
    return "\n".join(
        command.sub(lambda found: found[1] + now, line) if line.startswith("#") else line
        for line in text.split("\n")
    )


def _methods(advice: Advice) -> list[Table]:
    """The tables of the recommended methods, each with its reasons as comments."""
    found = []
    for number, each in enumerate(advice.chosen):
        said = each.reason[:1].upper() + each.reason[1:]
        reasons = [said if number == 0 else f"To compare with: {each.reason}", *each.because]
        comments = [line for reason in reasons for line in _comment_lines(f"{reason}.")]
        found.append(method_table(_table(each), comments))
    return found


def _comment_lines(text: str) -> list[str]:
    return textwrap.wrap(text, COMMENT_WIDTH)
