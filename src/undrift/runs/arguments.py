"""Describes the arguments of `ud.train` and `ud.compare` in run folders.

Code and data are not stored in a run folder, so `ud.resume` takes them again. The folder has a
description of the arguments in `arguments.toml`; other arguments raise an error.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomlkit
from torch import nn

from undrift.core.method import Method
from undrift.data.federated import FederatedData
from undrift.runs.folder import (
    ABOUT,
    ARGUMENTS,
    EXPERIMENT,
    about,
    locked_folder,
    refuse_other_rounds,
    write_json,
)
from undrift.runs.plan import Plan
from undrift.utils.errors import UndriftError, first_line, require
from undrift.utils.files import written_whole

NOT_COMPARED = ("rounds", "engine")
"""A resumed run may have more rounds and another engine."""
NOT_DESCRIBED = ("out", "loggers", "progress", "callbacks", "device", "seed", "rounds", "local")
"""Arguments that do not change the results, or that are described separately."""


def described(methods: Mapping[str, Method], options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call as plain values, for loggers and for the run folder."""
    local = options.get("local")
    found: dict[str, Any] = {
        "method": [
            {
                "label": label,
                "method": _repr(method),
                "local": _repr(local.get(label) if isinstance(local, Mapping) else local),
            }
            for label, method in methods.items()
        ]
    }
    for name, value in options.items():
        if name not in NOT_DESCRIBED and value is not None:
            found[name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    """A value that TOML can represent: other objects as their repr, functions as their names."""
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, FederatedData):
        return f"{value.name}: {len(value)} clients, {len(value.train)} training samples"
    if isinstance(value, nn.Module):
        return " ".join(repr(value).split())
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items() if each is not None}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    if type(value).__repr__ is object.__repr__:
        return f"{type(value).__module__}.{type(value).__qualname__}"
    return _repr(value)


def _repr(value: object) -> str:
    """The repr without memory addresses, which differ between processes."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def claim_arguments(folder: Path, plan: Plan, extend: bool) -> None:
    """Write the description into a new folder, or compare it with the one that is there."""
    path = folder / ARGUMENTS
    wanted = _in_toml(folder, plan)
    with locked_folder(folder):
        require(
            not (folder / EXPERIMENT).is_file(),
            f"{folder} has the runs of an experiment file: choose another folder, or continue them "
            f"with undrift resume {folder}.",
        )
        if path.is_file():
            before = read_arguments(folder)
            _require_same(folder, before, wanted)
            refuse_other_rounds(folder, int(before.get("rounds", 0)), plan.rounds, extend)
        elif any(folder.glob("*/seed-*")):
            raise UndriftError(f"{folder} has runs but no {ARGUMENTS}: choose another folder.")
        else:
            write_json(folder / ABOUT, about())
        with written_whole(path) as partial:
            partial.write_text(tomlkit.dumps(wanted), encoding="utf-8")


def read_arguments(folder: Path) -> dict[str, Any]:
    """The description of the arguments in a folder."""
    path = folder / ARGUMENTS
    require(path.is_file(), f"{folder} is not a run folder: it has no {EXPERIMENT} or {ARGUMENTS}.")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UndriftError(f"{path} cannot be read: {first_line(error)}.") from error


def stored_rounds(folder: Path) -> int:
    """The number of rounds of a folder's runs."""
    return int(read_arguments(folder).get("rounds", 0))


def _in_toml(folder: Path, plan: Plan) -> dict[str, Any]:
    description = dict(plan.description)
    methods = description.pop("method")
    simple = {k: v for k, v in description.items() if not isinstance(v, dict)}
    tables = {k: v for k, v in description.items() if isinstance(v, dict)}
    return {
        "name": folder.resolve().name,
        "rounds": plan.rounds,
        "seeds": list(plan.seeds),
        **simple,
        **tables,
        "method": methods,
    }


def _require_same(folder: Path, before: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Raise if the arguments describe other runs than those of the folder."""
    # Written to TOML and read again, so that tuples equal lists.
    wanted = tomllib.loads(tomlkit.dumps(dict(wanted)))
    for key in dict.fromkeys([*before, *wanted]):
        if key in (*NOT_COMPARED, "name"):
            continue
        a, b = before.get(key), wanted.get(key)
        require(
            a == b,
            f"{folder} has other runs: its {key} was {_shown(a)}, not {_shown(b)}; choose another "
            f"folder, or give the same arguments.",
        )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
