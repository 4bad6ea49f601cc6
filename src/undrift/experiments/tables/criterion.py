"""`loss`, `step`, `[metrics]`, `weights`: what a model trains on, is judged by and starts from.

A loss and a metric are the user's own functions of (outputs, targets), named "file.py:function" or
"module:name", alone or in a table with parameters. A metric may also be a streaming object, or a
name of `undrift.nets.metrics`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationInfo
from safetensors import SafetensorError, safe_open

from undrift.core.targets import PARTS
from undrift.experiments.catalogue import CRITERION, STEP, UserCode
from undrift.experiments.components import (
    InvalidValue,
    absolute,
    arguments,
    completed,
    is_user_code,
    make,
    shown,
    user_object_of,
)
from undrift.experiments.tables.fields import Plain, base_folder, named, or_none
from undrift.nets.metrics import METRICS, Streaming
from undrift.nets.personal import Personal
from undrift.nets.weights import weights_file
from undrift.utils.errors import UndriftError, first_line, require, require_type

SPREADS = ("client_accuracy_mean", "client_accuracy_std", "client_accuracy_worst_tenth")
MEASURES = ("loss", "accuracy", "absolute_error", *SPREADS)
"""The metrics that undrift itself measures on each part of the data."""

Function = Callable[..., Any]
Named = str | Plain
"""A user's function: "file.py:function", or a table with that name and parameters."""


def criterion_function(value: Any, what: str, user: UserCode = CRITERION) -> tuple[Function, Named]:
    """A loss, a step or a metric, and its form in a file with all its parameters.

    `what` is "a loss", "a step" or "a metric", for error sentences.
    """
    table = named(value)
    example = f'"file.py:function", or a table {{name = "file.py:Class", …}} for {what}'
    if what == "a metric" and isinstance(table, dict) and table.get("name") in METRICS:
        return _library_metric(table)
    example = f"{_words(METRICS)}, {example}" if what == "a metric" else example
    if not isinstance(table, dict):
        raise InvalidValue(f"It is {shown(value)}, but must be {example}.")
    where = table.get("name")
    below = ("name",) if isinstance(value, dict) else ()
    if not isinstance(where, str) or not is_user_code(where):
        raise InvalidValue(f"It is {shown(where)}, but must be {example}.", *below)
    given = {key: each for key, each in table.items() if key != "name"}
    try:
        function, complete = user_object_of(where, given, user, what)
        streaming = ", or have update, compute and reset" if what == "a metric" else ""
        require(
            callable(function) or (what == "a metric" and isinstance(function, Streaming)),
            f"{where.rpartition(':')[2]} gives {shown(function)}, but {what} must be callable as "
            f"({', '.join(user.arguments)}){streaming}.",
        )
    except InvalidValue as error:
        raise error if error.keys else InvalidValue(str(error), *below) from None
    except UndriftError as error:
        raise InvalidValue(str(error), *below) from None
    return function, {"name": where, **complete} if complete else where


def _library_metric(table: Plain) -> tuple[Function, Named]:
    """A metric of the library, and its form in a file with all its parameters."""
    name = table["name"]
    given = {key: each for key, each in table.items() if key != "name"}
    found = make(METRICS[name], given, name)
    complete = completed(METRICS[name], arguments(METRICS[name], given, name))
    return found, {"name": name, **complete} if complete else name


def _words(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def checked_loss(value: Any) -> Named | None:
    """The form of a loss in a file, after a check; None if there is none."""
    return None if or_none(value) is None else criterion_function(value, "a loss")[1]


def checked_step(value: Any) -> Named | None:
    """The form of a step in a file, after a check; None if there is none."""
    return None if or_none(value) is None else criterion_function(value, "a step", STEP)[1]


def checked_metrics(value: Any) -> dict[str, Named] | None:
    """The forms of the metrics in a file by name, after a check; None if there are none."""
    if or_none(value) is None:
        return None
    require_type("metrics", value, dict, 'a table such as auc = "auc"')
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


def checked_personal(value: Any) -> Any:
    """The form of the personal parameters in a file, after a check; None if there are none."""
    if or_none(value) is None:
        return None
    found = personal_from(value)
    names = list(found.parameters)
    return (
        {"parameters": names, "first_epochs": found.first_epochs} if found.first_epochs else names
    )


def personal_from(value: Any) -> Personal:
    """The personal parameters of a list of names, a word, or a table."""
    if not isinstance(value, dict):
        return Personal(value)
    if "parameters" not in value:
        raise InvalidValue('It needs its parameters, a list such as ["head.*"].', "parameters")
    return make(Personal, value, "personal")  # type: ignore[no-any-return]


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
