"""Apply a system preset: `system = "fedlga"` sets a paper's tables where the file does not."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from undrift.experiments.catalogue import NONE, SOLVERS, parameters
from undrift.experiments.components import InvalidValue
from undrift.experiments.systems import SYSTEMS
from undrift.utils.errors import UndriftError, require_choice


def filled(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of a file completed by those of its system, without the key `system`."""
    found = dict(raw)
    name = found.pop("system", None)
    if name is None or (isinstance(name, str) and name == NONE):
        return found
    try:
        require_choice("The system", name, SYSTEMS)
    except UndriftError as error:
        raise InvalidValue(str(error), "system") from None
    for key, preset in SYSTEMS[name].tables.items():
        found[key] = _merged(key, found.get(key, {}), deepcopy(dict(preset)))
    return found


def _merged(key: str, own: Any, preset: dict[str, Any]) -> Any:
    """A table completed by the preset; unchanged if it has another kind or its own work."""
    if not isinstance(own, dict):  # "none", or a mistake that validation reports
        return own
    if "kind" in own and own["kind"] != preset.get("kind"):
        return own
    if key == "sampling" and "cohort" in own and preset.get("kind") == "all":
        return own
    if key == "local" and ({"epochs", "steps"} & own.keys() or not _takes_steps(own)):
        return own
    return {**preset, **own}


def _takes_steps(local: Mapping[str, Any]) -> bool:
    """Whether the solver takes epochs or steps."""
    solver = local.get("solver", "SGD")
    return not isinstance(solver, str) or (
        solver not in SOLVERS or "epochs" in parameters(SOLVERS[solver])
    )
