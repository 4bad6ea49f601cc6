"""What an experiment describes, built: data, model, methods, local work, devices, evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from undrift.core.evaluation import Evaluation
from undrift.core.method import Method
from undrift.core.sampling import Sampler
from undrift.core.targets import Target
from undrift.data.federated import FederatedData
from undrift.devices import Profiles
from undrift.engines import EngineOptions
from undrift.experiments.catalogue import parameters, source_of, takes_anything
from undrift.experiments.parts import Wrong, arguments, guilty
from undrift.experiments.tables.data import is_function, source_function, user_data
from undrift.experiments.tables.model import user_model
from undrift.local.amounts import Unfinished
from undrift.local.solvers import Local
from undrift.loops.paces import Pace
from undrift.nets.models import MODELS, fitting
from undrift.utils.errors import UndriftError, first_line, require
from undrift.utils.keys import key, torch_generator_set_to

if TYPE_CHECKING:
    from undrift.experiments.experiment import Experiment


def build_data(experiment: Experiment) -> FederatedData:
    """The clients' data, with what is set aside and the random changes of inputs."""
    table = experiment.data
    build, what = source_function(table.source)
    values = arguments(build, table.parameters, what)
    normalise = None
    if is_function(table.source):
        values["function"] = user_data(table.source)
    elif source_of(table.source) is None:
        values["folder"] = table.source
        normalise = values.pop("normalise", None)  # once the other parts are set aside
    elif "seed" in parameters(build):
        values["seed"] = table.seed
    try:
        data = build(**values)
    except UndriftError as error:
        raise _at("data", *guilty(str(error), values), said=error) from None
    except Exception as error:
        raise UndriftError(f"data: {what} cannot be made: {first_line(error)}.") from error
    try:
        if table.test is not None:
            data = data.with_test(table.test.share, table.test.seed, table.test.by)
    except UndriftError as error:
        raise _at("data", "test", said=error) from None
    try:
        if table.validation is not None:
            held = table.validation
            data = data.with_validation(held.share, held.seed, held.by)
    except UndriftError as error:
        raise _at("data", "validation", said=error) from None
    try:
        data = data if normalise is None else data.normalised(normalise)
    except UndriftError as error:
        raise _at("data", "normalise", said=error) from None
    try:
        return data.augmented(*table.augmentations()) if table.augment else data
    except UndriftError as error:
        raise _at("data", "augment", said=error) from None


def build_model(experiment: Experiment, data: FederatedData, seed: int) -> nn.Module:
    """The model with its initial weights, which are a function of its own seed or the run's."""
    table = experiment.model
    own = seed if table.seed is None else table.seed
    try:
        if table.name in MODELS:
            return _ours(table.name, table.parameters, data, own)
        return _users(table.name, table.parameters, own)
    except Wrong as error:
        raise _at("model", *error.keys, said=error) from None
    except UndriftError as error:
        raise _at("model", said=error) from None
    except Exception as error:
        what = table.name.rpartition(":")[2]
        raise UndriftError(f"model: {what} cannot be made: {first_line(error)}.") from error


def build_methods(experiment: Experiment) -> dict[str, Method]:
    """The methods by label."""
    return {str(table.label): table.build() for table in experiment.method}


def build_local(experiment: Experiment, label: str) -> Local:
    """The local work of a method: [local] with the method's own changes."""
    return experiment.local.build(experiment.of(label).local)


def build_sampler(
    experiment: Experiment, methods: Mapping[str, Method] | None = None
) -> Sampler | int | None:
    """Who takes part, as `train` takes it: a number is drawn as the methods are defined."""
    return experiment.sampling.build()


def build_devices(experiment: Experiment) -> Profiles | None:
    """What the clients' devices are like; None without a clock."""
    return None if experiment.devices is None else experiment.devices.build()


def build_paces(experiment: Experiment) -> dict[str, Pace]:
    """When the server goes on, by label, where it is given."""
    found = {label: experiment.pace_of(label) for label in experiment.labels}
    return {label: pace for label, pace in found.items() if pace is not None}


def build_limit(experiment: Experiment) -> Unfinished | None:
    """Who leaves work undone."""
    return None if experiment.limit is None else experiment.limit.build()


def build_engine(experiment: Experiment) -> EngineOptions:
    """How the clients' work is computed."""
    return experiment.engine.build()


def build_evaluation(experiment: Experiment) -> Evaluation:
    """What is measured."""
    return experiment.evaluation.build()


def build_target(experiment: Experiment) -> dict[str, Target]:
    """What ends a run early."""
    return {
        metric: (str(value[0]), value[1]) if isinstance(value, list) else value
        for metric, value in experiment.target.items()
    }


def _ours(name: str, options: dict[str, Any], data: FederatedData, seed: int) -> nn.Module:
    y = data.train.y
    require(
        not y.is_floating_point(),
        f"{name} classifies, but the targets of {data.name} are no classes: use a model of your "
        f"own, file.py:function.",
    )
    classes = len(data.classes) if data.classes is not None else int(y.max()) + 1
    if "seed" in parameters(MODELS[name]):
        options = {**options, "seed": seed}
    return fitting(name, data.train.x.shape[1:], classes, **options)


def _users(where: str, options: dict[str, Any], seed: int) -> nn.Module:
    found = user_model(where)
    if isinstance(found, nn.Module):
        return deepcopy(found)
    what = where.rpartition(":")[2]
    values = arguments(found, options, what)
    if "seed" in parameters(found) and not takes_anything(found):
        values["seed"] = seed
    # What torch draws in the user's function is a function of the seed, too.
    with torch_generator_set_to(key(seed, "model"), torch.device("cpu")):
        model = found(**values)
    require(
        isinstance(model, nn.Module),
        f"{what} gives a {type(model).__name__}, but must give a torch nn.Module.",
    )
    return model


def _at(*keys: str, said: UndriftError) -> UndriftError:
    return UndriftError(f"{'.'.join(keys)}: {said}")
