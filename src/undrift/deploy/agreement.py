"""Checks that the server and a site have the same experiment, as far as a site derives from it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from undrift.experiments.experiment import Experiment
from undrift.experiments.tables.data import is_folder
from undrift.nets.criteria import FP32

OWN = ("name", "output", "engine", "deploy", "target", "sweep", "system")
"""The settings that may differ: they change nothing that a site computes or sends."""


def facts(experiment: Experiment) -> dict[str, Any]:
    """The settings that server and sites must agree on; paths of Python files without folders.

    A site derives its work from them, so they are all settings that could change it.
    """
    found = {key: value for key, value in experiment.resolved().items() if key not in OWN}
    if experiment.engine.precision != FP32:  # the one setting of an engine that changes results
        found["precision"] = experiment.engine.precision
    if "weights" in found:
        found["weights"] = _checksum(Path(found["weights"]))
    if is_folder(experiment.data.source):  # every site has its own folder
        found["data"] = {**found["data"], "source": "a folder"}
    return _plain(found)


def first_difference(mine: Mapping[str, Any], theirs: Any, where: str = "") -> str | None:
    """The first setting in which the experiment here and the server's differ, in words, or None."""
    if not isinstance(theirs, Mapping):
        return "the server did not send its experiment"
    for key in dict.fromkeys([*mine, *theirs]):
        name = f"{where}{key}"
        here, there = mine.get(key), theirs.get(key)
        if isinstance(here, Mapping) and isinstance(there, Mapping):
            found = first_difference(here, there, f"{name}.")
            if found is not None:
                return found
        elif here != there:
            return f"{name} is {_shown(here)} here and {_shown(there)} at the server"
    return None


def _checksum(file: Path) -> str:
    """The contents of a file in a few characters: server and site may name it differently."""
    with file.open("rb") as contents:
        return hashlib.file_digest(contents, "sha256").hexdigest()[:16]


def _shown(value: Any) -> str:
    return "not set" if value is None else repr(value)[:60]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, str) and ".py:" in value:
        return PurePath(value).name
    return value
