"""[model]: one of the library, or the user's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from pydantic import BeforeValidator, Field, model_validator
from torch import nn

from undrift.experiments.catalogue import DERIVED, parameters
from undrift.experiments.parts import (
    Wrong,
    arguments,
    completed,
    guilty,
    require_types,
    shown,
)
from undrift.experiments.tables.fields import OpenTable, Plain, Text, or_none
from undrift.nets.models import MODELS, fitting
from undrift.utils.errors import UndriftError, first_line, require, require_choice, require_whole
from undrift.utils.user_code import user_object


class ModelTable(OpenTable):
    """The model; other keys are its parameters, where the data do not say them."""

    name: Text = Field(description="One of the library, or file.py:function of your own.")
    seed: Annotated[Any, BeforeValidator(or_none)] = Field(
        default=None,
        description="The initial weights are a function of it; left out, of the run's seed.",
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
                raise Wrong(str(error), "seed") from None
        return fixed | completed_model(name, seed, given)


def completed_model(name: str, seed: int | None, given: Mapping[str, Any]) -> Plain:
    """The parameters of a model with those defaults that do not follow from the data.

    A model of ours is made without memory for its weights, to hear its own sentences.
    """
    if ":" in name:
        build, what = user_model(name), name.rpartition(":")[2]
    else:
        try:
            require_choice("The model", name, MODELS)
        except UndriftError as error:
            raise Wrong(str(error), "name") from None
        build, what = MODELS[name], name
    if isinstance(build, nn.Module):
        if given:
            raise Wrong(f"{what} is a model already: it takes no parameters.", next(iter(given)))
        return {}
    values = arguments(build, given, what)
    require_types(parameters(build), values, what)
    if name in MODELS:
        if seed is not None and "seed" not in parameters(build):
            raise Wrong(f"{what} draws no initial weights, so it takes no seed.", "seed")
        try:
            with torch.device("meta"):
                fitting(name, (3, 32, 32), 10, **values)
        except UndriftError as error:
            raise Wrong(str(error), *guilty(str(error), values)) from None
        except Exception as error:
            raise Wrong(f"{what} cannot be made: {first_line(error)}.") from None
    found = completed(build, values)
    return {key: value for key, value in found.items() if key in given or key not in DERIVED}


def user_model(where: str) -> Any:
    """The user's function that makes a model, or a model."""
    try:
        found = user_object(where, "a model: write file.py:function")
        require(
            isinstance(found, nn.Module) or callable(found),
            f"{where} is {shown(found)}, but must be a function that makes a model.",
        )
    except UndriftError as error:
        raise Wrong(str(error), "name") from None
    return found
