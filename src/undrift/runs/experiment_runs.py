"""Runs of experiment files: makes their plan and executes it in a run folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

from undrift.core.losses import Federation
from undrift.core.method import Method
from undrift.core.sampling import All, as_sampler
from undrift.data.federated import FederatedData
from undrift.experiments.building import build_data, build_losses
from undrift.experiments.experiment import Experiment
from undrift.robust.poisoning import poisoned_losses
from undrift.runs.driver import Observer, RunOutcome, check, execute
from undrift.runs.folder import (
    ABOUT,
    ARGUMENTS,
    EXPERIMENT,
    about,
    has_runs,
    locked_folder,
    read_json,
    refuse_other_rounds,
    require_as_written,
    write_description,
    write_json,
)
from undrift.runs.loggers import Logger, make_logger
from undrift.runs.plan import LoopFactory, Plan
from undrift.runs.storage import FolderStorage
from undrift.utils.errors import UndriftError, require, warn
from undrift.utils.shapes import require_shapes


def plan_of(
    experiment: Experiment,
    losses: Callable[[int], Federation],
    make_loop: LoopFactory | None = None,
) -> Plan:
    """The plan of an experiment; `losses` returns the clients' losses of a seed."""
    methods, attack = experiment.methods(), experiment.attack_settings()
    _require_open_cohorts(experiment, methods)
    return Plan(
        methods=methods,
        losses=poisoned_losses(losses, attack),
        local={label: experiment.local_of(label) for label in methods},
        rounds=experiment.rounds,
        seeds=experiment.seeds,
        cohort=experiment.cohort(),
        objective=experiment.objective,
        evaluation=experiment.evaluation_settings(),
        limit=experiment.limits(),
        devices=experiment.device_profiles() if make_loop is None else None,
        paces=experiment.paces(),
        target=experiment.targets(),
        compression=experiment.compression_settings(),
        robust=experiment.norm_bound(deployed=make_loop is not None),
        statistic=experiment.statistic(),
        attack=attack,
        privacy=experiment.privacy_settings(),
        engine=experiment.engine_options(),
        description=experiment.resolved(),
        make_loop=make_loop,
    )


def _require_open_cohorts(experiment: Experiment, methods: Mapping[str, Method]) -> None:
    """Refuse secret cohorts with secure aggregation, also where it is only simulated.

    The ε of a simulation would otherwise be smaller than that of the deployment it stands for.
    """
    if experiment.secure_aggregation() is None or experiment.privacy_settings() is None:
        return
    by_weight = all(method.draws_by_weight for method in methods.values())
    require(
        type(as_sampler(experiment.cohort(), by_weight)) is All,
        "With secure aggregation every site knows the cohort, so that drawing it hides nobody: let "
        "all sites take part in every round, without [sampling], or remove noise and clip.",
    )


def check_experiment(experiment: Experiment, data: FederatedData) -> None:
    """Raise what a run of the experiment would raise before it computes anything."""
    plan = plan_of(experiment, partial(build_losses, experiment, data))
    seed = plan.seeds[0]
    check(plan, list(plan.methods), seed, plan.losses(seed))


def storage_of(experiment: Experiment, folder: Path) -> FolderStorage:
    """The storage of an experiment's runs in a folder, with its loggers."""
    output = experiment.output

    def loggers() -> Sequence[Logger]:
        return [make_logger(name) for name in output.loggers]

    def accepted() -> None:
        """Keep the number of rounds of runs that are extended."""
        if load_description(folder).rounds < experiment.rounds:
            write_description(folder / EXPERIMENT, experiment.to_toml())

    return FolderStorage(
        folder,
        output.durability,
        output.memory,
        loggers,
        accepted,
        keep_rounds=output.keep_rounds,
        keep_megabytes=output.keep_megabytes,
    )


def run_experiment(
    experiment: Experiment,
    folder: Path,
    data: FederatedData | None = None,
    observer: Observer | None = None,
    reading: AbstractContextManager[object] = nullcontext(),
    extend: bool = False,
    read_ended: bool = False,
) -> list[RunOutcome]:
    """Execute the runs of an experiment that have not ended yet, in a folder.

    Parameters
    ----------
    experiment, folder
        the experiment, and the run folder; a folder of another experiment raises an error
    data
        the data, if they were read already
    observer
        is told what happens
    reading
        a context that is entered while the data are read, for a message
    extend
        whether the experiment may have more rounds than the one in the folder
    read_ended
        whether runs that had ended before are read back, so that their outcomes have a loop
    """
    experiment.engine_options().require_ready()  # an error must not leave a folder behind
    claim(experiment, folder, extend)
    if data is None:
        with reading:
            data = build_data(experiment)
    plan = plan_of(experiment, partial(build_losses, experiment, data))
    return execute(plan, storage_of(experiment, folder), observer, read_ended)


def claim(experiment: Experiment, folder: Path, extend: bool = False) -> None:
    """Write the experiment into a new folder, or compare it with the one that is there.

    With `extend`, it may have more rounds than the one in the folder.
    """
    path = folder / EXPERIMENT
    with locked_folder(folder):
        require(
            not (folder / ARGUMENTS).is_file(),
            f"{folder} has runs that were started from Python: choose another folder with --out.",
        )
        if path.is_file() and has_runs(folder):
            before = load_description(folder)
            require(
                _runs_of(before) == _runs_of(experiment),
                f"{folder} has the runs of another experiment: choose another folder with --out, "
                f"or continue that one with undrift resume {folder}.",
            )
            refuse_other_rounds(folder, before.rounds, experiment.rounds, extend)
            _warn_of_changed_code(experiment, folder)
            return
        if has_runs(folder):
            raise UndriftError(f"{folder} has runs but no {EXPERIMENT}: choose another folder.")
        write_json(folder / ABOUT, {**about(), "code": _code_hashes(experiment)})
        write_description(path, experiment.to_toml())


def load_description(folder: Path, settings: Mapping[str, Any] | None = None) -> Experiment:
    """The experiment of a run folder, whose file must be as it was written."""
    require_as_written(folder / EXPERIMENT)
    return Experiment.load(folder / EXPERIMENT, settings)


def _code_hashes(experiment: Experiment) -> dict[str, str]:
    """A hash of every file of the user's code that the experiment names, by path."""
    found: dict[str, str] = {}

    def visit(value: object) -> None:
        if isinstance(value, dict):
            for each in value.values():
                visit(each)
        elif isinstance(value, list):
            for each in value:
                visit(each)
        elif isinstance(value, str):
            source = value.rpartition(":")[0]
            if source.endswith(".py") and Path(source).is_file():
                content = Path(source).read_bytes()
                found[source] = blake2b(content, digest_size=16).hexdigest()

    visit(experiment.resolved())
    return found


def _warn_of_changed_code(experiment: Experiment, folder: Path) -> None:
    """Warn if code that the runs use was edited since they began."""
    path = folder / ABOUT
    try:
        before = read_json(path).get("code", {}) if path.is_file() else {}
        require_shapes(path, {"code": before}, {"code": {str: str}})
    except UndriftError as error:  # it only describes: the runs do not depend on it
        warn(f"{str(error).rstrip('.')}; changes of your own code will not be noticed.")
        before = {}
    for source, now in _code_hashes(experiment).items():
        if before.get(source, now) != now:
            warn(
                f"{source} was edited since the runs of {folder} began: rounds before and after "
                f"are computed by different code."
            )


def only(experiment: Experiment, label: str) -> Experiment:
    """The same experiment with one of its methods."""
    kept = experiment.of(label)
    tables = [table for table in experiment.resolved()["method"] if table["label"] == kept.label]
    return Experiment.from_dict({**experiment.resolved(), "method": tables, "sweep": {}})


def _runs_of(experiment: Experiment) -> dict[str, Any]:
    """The settings that decide the results: no names, places, loggers or workers."""
    left_out = ("name", "rounds", "output", "sweep", "deploy")
    found = {key: value for key, value in experiment.resolved().items() if key not in left_out}
    found["engine"] = {k: v for k, v in found["engine"].items() if k not in ("workers", "address")}
    return found


def resumed(folder: Path, settings: Mapping[str, Any] | None = None) -> Experiment:
    """The experiment of a run folder, with changed settings such as rounds or workers."""
    path = folder / EXPERIMENT
    require(
        not (folder / ARGUMENTS).is_file(),
        f"{folder} was written from Python, and code and data are not stored: continue it with "
        f"ud.resume({str(folder)!r}, method, …) and the arguments of the call that wrote it.",
    )
    require(
        path.is_file(),
        f"{folder} is not a run folder: it has no {EXPERIMENT}.",
    )
    return load_description(folder, settings)
