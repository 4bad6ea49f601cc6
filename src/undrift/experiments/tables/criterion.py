"""`loss`, `[metrics]` and `weights`: what the model trains on, is judged by and starts from.

A loss and a metric are the user's own functions of (outputs, targets), named "file.py:function" or
"module:name", alone or in a table with parameters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationInfo
from safetensors import SafetensorError, safe_open

from undrift.core.targets import PARTS
from undrift.experiments.catalogue import CRITERION
from undrift.experiments.components import (
    InvalidValue,
    absolute,
    is_user_code,
    shown,
    user_object_of,
)
from undrift.experiments.tables.fields import Plain, base_folder, named, or_none
from undrift.nets.weights import weights_file
from undrift.utils.errors import UndriftError, first_line, require, require_type

SPREADS = ("client_accuracy_mean", "client_accuracy_std", "client_accuracy_worst_tenth")
MEASURES = ("loss", "accuracy", "absolute_error", *SPREADS)
"""The metrics that undrift itself measures on each part of the data."""

Function = Callable[..., Any]
Named = str | Plain
"""A user's function: "file.py:function", or a table with that name and parameters."""


def criterion_function(value: Any, what: str) -> tuple[Function, Named]:
    """A loss or a metric, and its form in a file with all its parameters.

    `what` is "a loss" or "a metric", for error sentences.
    """
    table = named(value)
    example = f'"file.py:function", or a table {{name = "file.py:Class", …}} for {what}'
    if not isinstance(table, dict):
        raise InvalidValue(f"It is {shown(value)}, but must be {example}.")
    where = table.get("name")
    below = ("name",) if isinstance(value, dict) else ()
    if not isinstance(where, str) or not is_user_code(where):
        raise InvalidValue(f"It is {shown(where)}, but must be {example}.", *below)
    given = {key: each for key, each in table.items() if key != "name"}
    try:
        function, complete = user_object_of(where, given, CRITERION, what)
        require(
            callable(function),
            f"{where.rpartition(':')[2]} gives {shown(function)}, but {what} must be callable as "
            f"(outputs, targets).",
        )
    except InvalidValue as error:
        raise error if error.keys else InvalidValue(str(error), *below) from None
    except UndriftError as error:
        raise InvalidValue(str(error), *below) from None
    return function, {"name": where, **complete} if complete else where


def checked_loss(value: Any) -> Named | None:
    """The form of a loss in a file, after a check; None if there is none."""
    return None if or_none(value) is None else criterion_function(value, "a loss")[1]


def checked_metrics(value: Any) -> dict[str, Named] | None:
    """The forms of the metrics in a file by name, after a check; None if there are none."""
    if or_none(value) is None:
        return None
    require_type("metrics", value, dict, 'a table such as auc = "file.py:auc"')
    found = {}
    for name, each in value.items():
        if not re.fullmatch(r"\w+", name):
            raise InvalidValue("The name of a metric may have letters, digits and _ only.", name)
        if name in MEASURES:
            raise InvalidValue(f"undrift measures {name!r} itself: choose another name.", name)
        try:
            found[name] = criterion_function(each, "a metric")[1]
        except InvalidValue as error:
            raise error.under(name) from None
    return found or None


def own_metrics(metrics: Mapping[str, Any]) -> list[str]:
    """The names of the user's metrics in records: one for each part of the data."""
    return [f"{part}_{name}" for name in metrics for part in PARTS]


def checked_weights(value: Any, info: ValidationInfo) -> str | None:
    """The absolute path of the file with the initial weights, if there is one."""
    if or_none(value) is None:
        return None
    require_type("weights", value, str, "a safetensors file or the folder of a run")
    file = weights_file(Path(absolute(value, base_folder(info))))
    try:
        with safe_open(file, "pt"):
            return str(file)
    except (SafetensorError, OSError) as error:
        raise UndriftError(f"{file} is not a safetensors file: {first_line(error)}.") from None
