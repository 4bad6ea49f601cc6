"""[model]: a model of the library, or the user's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from pydantic import BeforeValidator, Field, model_validator
from torch import nn

from undrift.experiments.catalogue import DERIVED, parameters
from undrift.experiments.components import (
    InvalidValue,
    arguments,
    completed,
    parameter_at_fault,
    require_types,
    shown,
)
from undrift.experiments.tables.fields import OpenTable, Plain, Text, or_none
from undrift.nets.models import MODELS, fitting
from undrift.utils.errors import UndriftError, first_line, require, require_choice, require_whole
from undrift.utils.user_code import user_object


class ModelTable(OpenTable):
    """The model; other keys are its parameters that do not follow from the data."""

    name: Text = Field(description="Name of a model of the library, or your own: file.py:function.")
    seed: Annotated[Any, BeforeValidator(or_none)] = Field(
        default=None,
        description="Seed of the initial weights; left out: the run's seed.",
        json_schema_extra={"type": "integer", "minimum": 0},
    )

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, table: Any) -> Any:
        if not isinstance(table, dict) or not isinstance(table.get("name"), str):
            return table
        fixed = {key: table[key] for key in cls.model_fields if key in table}
        given = {key: value for key, value in table.items() if key not in fixed}
        name = fixed["name"]
        seed = or_none(fixed.get("seed"))
        if seed is not None:
            try:
                require_whole("seed", seed, at_least=0)
            except UndriftError as error:
                raise InvalidValue(str(error), "seed") from None
        return fixed | completed_model(name, seed, given)


def completed_model(name: str, seed: int | None, given: Mapping[str, Any]) -> Plain:
    """The parameters of a model with those defaults that do not follow from the data.

    A model of the library is built on the meta device, without memory for its weights, so that its
    own checks report invalid parameters.
    """
    if ":" in name:
        build, what = user_model(name), name.rpartition(":")[2]
    else:
        try:
            require_choice("The model", name, MODELS)
        except UndriftError as error:
            raise InvalidValue(str(error), "name") from None
        build, what = MODELS[name], name
    if isinstance(build, nn.Module):
        if given:
            raise InvalidValue(
                f"{what} is a model, not a function that makes one, so it takes no parameters.",
                next(iter(given)),
            )
        return {}
    values = arguments(build, given, what)
    require_types(parameters(build), values, what)
    if name in MODELS:
        if seed is not None and "seed" not in parameters(build):
            raise InvalidValue(
                f"{what} has no random initial weights, so it takes no seed.", "seed"
            )
        try:
            with torch.device("meta"):
                fitting(name, (3, 32, 32), 10, **values)
        except UndriftError as error:
            raise InvalidValue(str(error), *parameter_at_fault(str(error), values)) from None
        except Exception as error:
            raise InvalidValue(f"{what} cannot be made: {first_line(error)}.") from None
    found = completed(build, values)
    return {key: value for key, value in found.items() if key in given or key not in DERIVED}


def user_model(where: str) -> Any:
    """The user's function that makes a model, or the user's model itself."""
    try:
        found = user_object(where, "a model: write file.py:function")
        require(
            isinstance(found, nn.Module) or callable(found),
            f"{where} is {shown(found)}, but must be a function that makes a model.",
        )
    except UndriftError as error:
        raise InvalidValue(str(error), "name") from None
    return found
