"""From an experiment file to its runs in a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from undrift.core.losses import Losses
from undrift.data.federated import FederatedData
from undrift.experiments.building import (
    build_data,
    build_losses,
    build_model,
)
from undrift.experiments.experiment import Experiment
from undrift.runs.execution import Keeping, Outcome, Plan, Watcher, execute
from undrift.runs.folder import ABOUT, EXPERIMENT, about, alone_in, write_json
from undrift.runs.loggers import Logger, make_logger
from undrift.utils.errors import UndriftError, require


@dataclass
class ExperimentPlan(Plan):
    """The runs of an experiment file."""

    experiment: Experiment = field(kw_only=True)

    def losses(self, seed: int) -> Losses:
        return build_losses(self.experiment, self.data, seed)


def plan_of(experiment: Experiment, data: FederatedData) -> Plan:
    """The runs of an experiment."""
    return ExperimentPlan(
        experiment=experiment,
        data=data,
        model=lambda seed: build_model(experiment, data, seed),
        devices=experiment.device_profiles(),
        engine=experiment.engine_options(),
        **asked_of(experiment),
    )


def asked_of(experiment: Experiment) -> dict[str, Any]:
    """What the runs of an experiment do, wherever the data are and whoever computes."""
    methods = experiment.methods()
    return {
        "methods": methods,
        "local": {label: experiment.local_of(label) for label in methods},
        "rounds": experiment.rounds,
        "seeds": experiment.seeds,
        "cohort": experiment.cohort(),
        "objective": experiment.objective,
        "evaluation": experiment.evaluation_settings(),
        "limit": experiment.limits(),
        "paces": experiment.paces(),
        "target": experiment.targets(),
        "settings": experiment.resolved(),
    }


def keeping_of(experiment: Experiment) -> Keeping:
    """How the runs of an experiment are kept."""
    output = experiment.output

    def loggers() -> Sequence[Logger]:
        return [make_logger(name) for name in output.loggers]

    return Keeping(output.durability, output.memory, loggers)


def run_experiment(
    experiment: Experiment,
    folder: Path,
    data: FederatedData | None = None,
    watcher: Watcher | None = None,
) -> list[Outcome]:
    """Do the runs of an experiment in a folder, or what is left of them.

    The folder of another experiment is refused.
    """
    experiment.engine_options().require_ready()
    claim(experiment, folder)
    plan = plan_of(experiment, build_data(experiment) if data is None else data)
    return execute(plan, folder, keeping_of(experiment), watcher)


def claim(experiment: Experiment, folder: Path) -> None:
    """Write the resolved experiment into a new folder, or see that it is the one there."""
    path = folder / EXPERIMENT
    with alone_in(folder):
        if path.is_file():
            require(
                _runs_of(Experiment.load(path)) == _runs_of(experiment),
                f"{folder} has the runs of another experiment: choose another folder with --out, "
                f"or go on with that one by undrift resume {folder}.",
            )
            return
        if any(folder.glob("*/seed-*")):
            raise UndriftError(f"{folder} has runs but no {EXPERIMENT}: choose another folder.")
        write_json(folder / ABOUT, about())
        experiment.write(path)


def only(experiment: Experiment, label: str) -> Experiment:
    """The same experiment with one of its methods."""
    kept = experiment.of(label)
    tables = [table for table in experiment.resolved()["method"] if table["label"] == kept.label]
    return Experiment.from_dict({**experiment.resolved(), "method": tables, "sweep": {}})


def _runs_of(experiment: Experiment) -> dict[str, Any]:
    """What decides how the runs go: not their names, nor where they are computed and kept."""
    kept = ("name", "output", "sweep", "deploy")
    found = {key: value for key, value in experiment.resolved().items() if key not in kept}
    found["engine"] = {k: v for k, v in found["engine"].items() if k not in ("workers", "address")}
    return found


def resumed(folder: Path, settings: Mapping[str, Any] | None = None) -> Experiment:
    """The experiment of a run folder; the settings may say by whom it is computed from now on."""
    path = folder / EXPERIMENT
    require(
        path.is_file(),
        f"{folder} is not the folder of a run: it has no {EXPERIMENT}.",
    )
    return Experiment.load(path, settings)
