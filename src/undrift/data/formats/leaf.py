"""Reader of LEAF's json files, which hold samples by user (Caldas et al., 2018)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from undrift.data.arrays import warn_of_rounding
from undrift.data.formats.reading import read_bytes
from undrift.utils.errors import UndriftError, first_line, require

Values = np.ndarray | list[Any]
"""Numbers as an array; strings, or lists of strings, as a list."""

LeafUsers = dict[str, tuple[Values, Values]]
"""The inputs and the targets of each user."""


def read_leaf(files: Sequence[Path]) -> LeafUsers:
    """The samples of the users in several LEAF files, ordered by file name and then as in the file.

    Numeric inputs become float32; numeric targets become int64 or float32.
    """
    require(len(files) > 0, "read_leaf needs at least one file.")
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
        # Text that is not UTF-8 raises a ValueError too.
        whole = json.loads(read_bytes(path))
    except UndriftError:
        raise
    except (ValueError, RecursionError) as error:
        raise UndriftError(f"{path} is truncated or not JSON: {first_line(error)}.") from error
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
        require(isinstance(user, str), f"The name of {where} must be a string.")
        require(user not in users, f"{path} lists the user {user!r} twice.")
        require(user in data, f"{path} has no user_data for the user {user!r}.")
        x, y = (_get(data[user], key, list, where) for key in ("x", "y"))
        require(len(x) == len(y), f"{path} has {len(x)} x but {len(y)} y of the user {user!r}.")
        require(
            len(x) == size,
            f"{path} has {len(x)} samples but num_samples {size} of the user {user!r}.",
        )
        inputs, targets = _values(x, f"The x of {where}"), _values(y, f"The y of {where}")
        if isinstance(inputs, np.ndarray):
            warn_of_rounding(inputs, f"The x of {where}")
            inputs = inputs.astype(np.float32)
        if isinstance(targets, np.ndarray):
            targets = targets.astype(np.float32 if targets.dtype.kind == "f" else np.int64)
        users[user] = inputs, targets
    for user in data:
        require(
            user in users,
            f"{path} has user_data of {user!r}, but does not list that user in 'users'.",
        )
    return users


def _get(mapping: Any, key: str, kind: type, where: str) -> Any:
    """The value of a key, after a check of its type."""
    value = mapping.get(key) if isinstance(mapping, dict) else None
    wanted = "a list" if kind is list else "an object"
    require(isinstance(value, kind), f"{key!r} of {where} must be {wanted}.")
    return value


def _values(values: list[Any], what: str) -> Values:
    """Strings unchanged, and numbers as an array."""
    if values and all(map(_is_text, values)):
        return values
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise UndriftError(f"{what} must all have the same shape.") from error
    require(array.dtype.kind in "biuf", f"{what} must be all numbers or all strings.")
    return array


def _is_text(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(map(_is_text, value))
    return isinstance(value, str)
