"""The json files of LEAF: samples by user (Caldas et al., 2018)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from undrift.data.formats.contents import contents
from undrift.utils.errors import UndriftError, first_line, require

Values = np.ndarray | list[Any]
"""Numbers as an array; texts, or lists of texts, as a list."""

LeafUsers = dict[str, tuple[Values, Values]]
"""The inputs and the targets of each user."""


def read_leaf(files: Sequence[Path]) -> LeafUsers:
    """The users of several LEAF files, in the order of the file names and then of the users.

    Inputs that are numbers become float32; targets become int64 or float32.
    """
    require(len(files) > 0, "There are no LEAF files to read.")
    users: LeafUsers = {}
    origin: dict[str, Path] = {}
    for path in sorted(files):
        for user, samples in _read(path).items():
            require(
                user not in users,
                f"The user {user!r} is in {path} and in {origin.get(user)}, but must be in one "
                "file only.",
            )
            users[user], origin[user] = samples, path
    return users


def _read(path: Path) -> LeafUsers:
    try:
        # Text that is no UTF-8 is a ValueError too.
        whole = json.loads(contents(path))
    except UndriftError:
        raise
    except (ValueError, RecursionError) as error:
        raise UndriftError(f"{path} is truncated or no JSON: {first_line(error)}.") from error
    names, sizes, data = (
        _get(whole, key, kind, str(path))
        for key, kind in (("users", list), ("num_samples", list), ("user_data", dict))
    )
    require(
        len(names) == len(sizes),
        f"{path} has {len(names)} users but {len(sizes)} num_samples.",
    )
    users: LeafUsers = {}
    for user, size in zip(names, sizes, strict=True):
        where = f"the user {user!r} in {path}"
        require(isinstance(user, str), f"The name of {where} must be a text.")
        require(user not in users, f"There is {where} twice.")
        require(user in data, f"There are no user_data of {where}.")
        x, y = (_get(data[user], key, list, where) for key in ("x", "y"))
        require(len(x) == len(y), f"There are {len(x)} x but {len(y)} y of {where}.")
        require(len(x) == size, f"There are {len(x)} samples but num_samples {size} of {where}.")
        inputs, targets = _values(x, f"The x of {where}"), _values(y, f"The y of {where}")
        if isinstance(inputs, np.ndarray):
            inputs = inputs.astype(np.float32)
        if isinstance(targets, np.ndarray):
            targets = targets.astype(np.float32 if targets.dtype.kind == "f" else np.int64)
        users[user] = inputs, targets
    for user in data:
        require(user in users, f"{path} has user_data of {user!r}, who is not among its users.")
    return users


def _get(mapping: Any, key: str, kind: type, where: str) -> Any:
    """An entry of the right kind."""
    value = mapping.get(key) if isinstance(mapping, dict) else None
    wanted = "a list" if kind is list else "an object"
    require(isinstance(value, kind), f"There must be {wanted} {key!r} in {where}.")
    return value


def _values(values: list[Any], what: str) -> Values:
    """Texts as they are, and numbers as an array."""
    if values and all(map(_is_text, values)):
        return values
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise UndriftError(f"{what} are not all of the same shape.") from error
    require(array.dtype.kind in "biuf", f"{what} must be all numbers or all texts.")
    return array


def _is_text(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(map(_is_text, value))
    return isinstance(value, str)
