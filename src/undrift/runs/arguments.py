"""Describes the arguments of `ud.train` and `ud.compare` in run folders.

Code and data are not stored in a run folder, so `ud.resume` takes them again. The folder has a
description of the arguments in `arguments.toml`; other arguments raise an error.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import tomlkit
from torch import nn

from undrift.core.method import Method
from undrift.data.federated import FederatedData
from undrift.engines import engine_options
from undrift.nets.criteria import FP32
from undrift.runs.folder import (
    ABOUT,
    ARGUMENTS,
    EXPERIMENT,
    about,
    has_runs,
    locked_folder,
    refuse_other_rounds,
    require_as_written,
    write_description,
    write_json,
)
from undrift.runs.plan import Plan
from undrift.utils.errors import UndriftError, first_line, require
from undrift.utils.files import slug

NOT_COMPARED = ("rounds", "engine")
"""A resumed run may have more rounds and another engine."""
NOT_DESCRIBED = ("out", "loggers", "progress", "callbacks", "device", "seed", "rounds", "local")
"""Arguments that do not change the results, or that are described separately."""
DEFAULTS = {"objective": "samples", "target": {}, "metrics": {}, "limit": {}}
"""Values that mean the same as an argument that is left out."""


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
        if name not in NOT_DESCRIBED and value is not None and value != DEFAULTS.get(name):
            found[name] = _plain(value)
    precision = engine_options(options.get("engine", "auto")).precision
    if precision != FP32:  # an entry of its own: other settings of an engine may change
        found["precision"] = precision
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
        return f"{' '.join(repr(value).split())} {_hash_of_tensors(value)}"
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items() if each is not None}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, FunctionType):
        return _function(value)
    if type(value).__repr__ is object.__repr__:
        inside = {name: _plain(each) for name, each in sorted(vars(value).items())}
        return f"{type(value).__module__}.{type(value).__qualname__}({inside})"
    return _repr(value)


def _repr(value: object) -> str:
    """The repr without memory addresses, which differ between processes.

    Functions inside, such as a learning rate's, are told apart by their code.
    """
    inside = getattr(value, "__dict__", {}).values()
    known = "".join(f" {_function(each)}" for each in inside if isinstance(each, FunctionType))
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value)) + known


def _function(function: FunctionType) -> str:
    """A function by its name, with a hash of its code, its defaults and what it closes over."""
    closure = [cell.cell_contents for cell in function.__closure__ or ()]
    code = function.__code__
    constants = [each for each in code.co_consts if not isinstance(each, CodeType)]
    inside = repr([constants, code.co_names, function.__defaults__, list(map(_plain, closure))])
    text = code.co_code + re.sub(r" at 0x[0-9a-f]+", "", inside).encode()
    name = f"{function.__module__}.{function.__qualname__}"
    return f"{name} {blake2b(text, digest_size=6).hexdigest()}"


def _hash_of_tensors(module: nn.Module) -> str:
    """A hash of a module's parameters and buffers: the weights of classes in a loss, say."""
    found = blake2b(digest_size=6)
    for name, value in module.state_dict().items():
        found.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


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
        _require_folder_per_label(plan)
        if path.is_file() and has_runs(folder):
            before = read_arguments(folder)
            _require_same(folder, before, wanted)
            refuse_other_rounds(folder, stored_rounds(folder), plan.rounds, extend)
            return
        require(
            not has_runs(folder), f"{folder} has runs but no {ARGUMENTS}: choose another folder."
        )
        write_json(folder / ABOUT, about())
        write_arguments(folder, plan)


def write_arguments(folder: Path, plan: Plan) -> None:
    """Write the description, with the number of rounds of the plan."""
    write_description(folder / ARGUMENTS, tomlkit.dumps(_in_toml(folder, plan)))


def _require_folder_per_label(plan: Plan) -> None:
    """Labels name folders, so two of them must not give the same name."""
    taken: dict[str, str] = {}
    for label in plan.methods:
        require(isinstance(label, str), f"The label {label!r} must be a text: it names a folder.")
        name = slug(label).lower()
        require(
            name not in taken,
            f"The labels {taken.get(name)!r} and {label!r} name the same folder: change one.",
        )
        taken[name] = label


def read_arguments(folder: Path) -> dict[str, Any]:
    """The description of the arguments in a folder."""
    path = folder / ARGUMENTS
    require(path.is_file(), f"{folder} is not a run folder: it has no {EXPERIMENT} or {ARGUMENTS}.")
    require_as_written(path)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UndriftError(f"{path} cannot be read: {first_line(error)}.") from error


def stored_rounds(folder: Path) -> int:
    """The number of rounds of a folder's runs."""
    rounds = read_arguments(folder).get("rounds")
    if not isinstance(rounds, int):
        raise UndriftError(f"{folder / ARGUMENTS} is damaged: its rounds are {rounds!r}.")
    return rounds


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
