"""Checks that the server and a site have the same experiment, as far as a site computes with it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from undrift.experiments.experiment import Experiment

COMMON = ("data", "model", "local", "method", "loss", "metrics", "weights")
"""The tables that a site computes with; rounds and cohorts are decided by the server alone."""


def facts(experiment: Experiment) -> dict[str, Any]:
    """The settings that server and sites must agree on; paths of Python files without folders."""
    resolved = experiment.resolved()
    found = {key: resolved[key] for key in COMMON if key in resolved}
    if "weights" in found:
        found["weights"] = _checksum(Path(found["weights"]))
    return _plain({**found, "evaluation": {"models": resolved["evaluation"]["models"]}})


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
