"""Build the data, the model and the losses that an experiment describes.

They depend on the seed or on files, so they are not built when the experiment is read; what it
describes besides is built by methods of `Experiment`.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from undrift.data.federated import FederatedData
from undrift.data.folders import from_folder
from undrift.data.labels import balanced_weights, class_count
from undrift.data.tabular.columns import declared_columns
from undrift.data.tabular.encoding import Encoding
from undrift.experiments.catalogue import STEP, parameters, source_of, takes_anything
from undrift.experiments.components import InvalidValue, arguments, parameter_at_fault
from undrift.experiments.tables.criterion import criterion_function, personal_from
from undrift.experiments.tables.data import is_folder, is_function, source_function, user_data
from undrift.experiments.tables.model import user_model
from undrift.nets.models import MODELS, fitting
from undrift.nets.module_losses import ModuleLosses
from undrift.nets.personal import Personal
from undrift.nets.weights import load_weights
from undrift.utils.errors import UndriftError, first_line, require
from undrift.utils.keys import key, torch_generator_set_to

if TYPE_CHECKING:
    from undrift.experiments.experiment import Experiment

CLASS_WEIGHTS = "class_weights"
"""The parameter of a loss that gets the weights of the classes."""


def build_data(experiment: Experiment, encode: bool = True) -> FederatedData:
    """The clients' data, with the parts that are held out and the augmentations.

    Without `encode`, tables have no inputs yet: the sites of a deployment agree on an encoding.
    """
    table = experiment.data
    build, what = source_function(table.source)
    values = arguments(build, table.parameters, what)
    normalise = None
    if is_function(table.source):
        values["function"] = user_data(table.source)
    elif source_of(table.source) is None:
        values["folder"] = table.source
        # Normalised by the training samples that are left once other parts are held out.
        normalise = values.get("normalise") if not encode else values.pop("normalise", None)
    elif "seed" in parameters(build):
        values["seed"] = table.seed
    try:
        data = build(**values) if encode or not is_folder(table.source) else _unencoded(values)
    except UndriftError as error:
        raise _at("data", *parameter_at_fault(str(error), values), said=error) from None
    except Exception as error:
        raise UndriftError(f"data: {what} cannot be made: {first_line(error)}.") from error
    try:
        if table.test is not None:
            data = data.with_test(**vars(table.test))
    except UndriftError as error:
        raise _at("data", "test", said=error) from None
    try:
        if table.validation is not None:
            data = data.with_validation(**vars(table.validation))
    except UndriftError as error:
        raise _at("data", "validation", said=error) from None
    try:
        if normalise is not None and (encode or data.tabular is None):
            require(encode, "The arrays of a site cannot be normalised by those of other sites.")
            data = data.normalised(normalise)
    except UndriftError as error:
        raise _at("data", "normalise", said=error) from None
    try:
        data = data.with_noise(table.noise, table.seed) if table.noise else data
    except UndriftError as error:
        raise _at("data", "noise", said=error) from None
    try:
        return data.augmented(*table.augmentations()) if table.augment else data
    except UndriftError as error:
        raise _at("data", "augment", said=error) from None


def _unencoded(values: dict[str, Any]) -> FederatedData:
    """The data of a folder whose tables have no inputs yet."""
    name, sites = values.get("name"), values.get("sites")
    return from_folder(Path(values["folder"]), declared_columns(values), name, sites, encode=False)


def build_model(
    experiment: Experiment,
    data: FederatedData | None,
    seed: int,
    encoding: Encoding | None = None,
) -> nn.Module:
    """The model with its initial weights: from the file `weights`, or drawn by a seed.

    The seed is the model's own, or else the run's. Only models of the library need the data: their
    sizes follow from them. A user's function with a parameter `encoding` gets that of tables, by
    default the data's.
    """
    if encoding is None and data is not None:
        encoding = data.encoding
    model = _build_model(experiment, data, seed, encoding)
    if experiment.weights is not None:
        try:
            load_weights(model, Path(experiment.weights))
        except UndriftError as error:
            raise _at("weights", said=error) from None
    return model


def _build_model(
    experiment: Experiment, data: FederatedData | None, seed: int, encoding: Encoding | None
) -> nn.Module:
    table = experiment.model
    own = seed if table.seed is None else table.seed
    try:
        if table.name in MODELS:
            require(data is not None, f"{table.name} needs data, from which its sizes follow.")
            assert data is not None
            return _library_model(table.name, table.parameters, data, own)
        return _user_model(table.name, table.parameters, own, encoding)
    except InvalidValue as error:
        raise _at("model", *error.keys, said=error) from None
    except UndriftError as error:
        raise _at("model", said=error) from None
    except Exception as error:
        what = table.name.rpartition(":")[2]
        raise UndriftError(f"model: {what} cannot be made: {first_line(error)}.") from error


def build_losses(
    experiment: Experiment,
    data: FederatedData,
    seed: int,
    class_counts: Sequence[int] | None = None,
) -> ModuleLosses:
    """The clients' losses: the model with its initial weights on the data, with loss and metrics.

    Simulations, sites of a deployment and advice all get an experiment's losses here. A loss with a
    parameter `class_weights` gets the weights of `class_counts`, by default the data's.
    """
    loss = None
    if experiment.loss is not None:
        loss, _ = criterion_function(experiment.loss, "a loss")
        if wants_class_weights(experiment):
            counts = data.class_counts() if class_counts is None else class_counts
            loss = partial(loss, class_weights=balanced_weights(counts).float())
    step = None
    if experiment.step is not None:
        step, _ = criterion_function(experiment.step, "a step", STEP)
    metrics = {
        name: criterion_function(each, "a metric")[0]
        for name, each in (experiment.metrics or {}).items()
    }
    personal = personal_of(experiment)
    model = build_model(experiment, data, seed)
    return ModuleLosses(model, data, loss, metrics or None, personal=personal, step=step)


def wants_class_weights(experiment: Experiment) -> bool:
    """Whether the loss has a parameter `class_weights` that the file leaves open."""
    if experiment.loss is None:
        return False
    loss, _ = criterion_function(experiment.loss, "a loss")
    try:
        found = inspect.signature(loss).parameters.get(CLASS_WEIGHTS)
    except ValueError:  # written in C, without a signature
        return False
    return found is not None and found.default is None


def personal_of(experiment: Experiment) -> Personal | None:
    """The parameters that rest with the clients; None if there are none."""
    return None if experiment.personal is None else personal_from(experiment.personal)


def _library_model(name: str, options: dict[str, Any], data: FederatedData, seed: int) -> nn.Module:
    x, y = data.train.x, data.train.y
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        raise UndriftError(
            f"{name} takes one tensor in memory, but {data.name} holds other samples: use your own "
            f"model, file.py:function."
        )
    require(
        not data.train.y.is_floating_point(),
        f"{name} is a classifier, but the targets of {data.name} are not classes: use your own "
        f"model, file.py:function.",
    )
    if "seed" in parameters(MODELS[name]):
        options = {**options, "seed": seed}
    return fitting(name, x.shape[1:], class_count(data), **options)


def _user_model(
    where: str, options: dict[str, Any], seed: int, encoding: Encoding | None
) -> nn.Module:
    found = user_model(where)
    if isinstance(found, nn.Module):
        return deepcopy(found)
    what = where.rpartition(":")[2]
    values = arguments(found, options, what)
    if "seed" in parameters(found) and not takes_anything(found):
        values["seed"] = seed
    if "encoding" in parameters(found) and "encoding" not in values:
        require(
            encoding is not None,
            f"{what} has a parameter 'encoding', which only the tables of a folder give.",
        )
        values["encoding"] = encoding
    # Initial weights come from torch's global generator, which must depend on the seed only.
    with torch_generator_set_to(key(seed, "model"), torch.device("cpu")):
        model = found(**values)
    require(
        isinstance(model, nn.Module),
        f"{what} returns a {type(model).__name__}, but must return a torch nn.Module.",
    )
    return model


def _at(*keys: str, said: UndriftError) -> UndriftError:
    return UndriftError(f"{'.'.join(keys)}: {said}")
