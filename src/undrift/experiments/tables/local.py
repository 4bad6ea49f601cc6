"""[local]: the clients' local work, and the changes that a method makes to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, model_validator

from undrift.experiments.catalogue import SOLVERS, parameters
from undrift.experiments.components import InvalidValue, arguments, completed, make
from undrift.experiments.tables.fields import OpenTable, Plain, Text
from undrift.local.solvers import Solver
from undrift.utils.errors import UndriftError, require_choice


class LocalTable(OpenTable):
    """The clients' local work; other keys are parameters of the solver."""

    solver: Text = Field(
        default="SGD",
        description="Solver of the local problems: SGD, GD, Adam, AdamW, TorchOptimizer or Exact.",
    )

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, table: Any) -> Any:
        if not isinstance(table, dict) or not isinstance(table.get("solver", "SGD"), str):
            return table
        _, complete = solver_from(table)
        return complete

    def build(self, changes: Mapping[str, Any] | None = None) -> Solver:
        """The solver, after a method's changes."""
        return solver_from(changed(self.model_dump(), changes or {}))[0]


def solver_from(table: Mapping[str, Any]) -> tuple[Solver, Plain]:
    """The solver of a table, and the table with all defaults."""
    name = table.get("solver", "SGD")
    try:
        require_choice("The solver", name, SOLVERS)
    except UndriftError as error:
        raise InvalidValue(str(error), "solver") from None
    kind = SOLVERS[name]
    given = {key: value for key, value in table.items() if key != "solver"}
    solver = make(kind, given, name)
    values = arguments(kind, given, name)
    if "epochs" in parameters(kind) and not {"epochs", "steps"} & {
        key for key, value in values.items() if value is not None
    }:
        values["epochs"] = 1
    return solver, {"solver": name, **completed(kind, values)}


def changed(base: Mapping[str, Any], changes: Mapping[str, Any]) -> Plain:
    """[local] after a method's changes.

    Another solver keeps only those values that are parameters of both solvers; steps replace
    epochs, and epochs replace steps.
    """
    name = changes.get("solver", base.get("solver", "SGD"))
    kept = dict(base)
    if name in SOLVERS and name != base.get("solver", "SGD"):
        takes = parameters(SOLVERS[name])
        kept = {key: value for key, value in base.items() if key in takes}
    for one, other in (("epochs", "steps"), ("steps", "epochs")):
        if one in changes and other not in changes:
            kept.pop(other, None)
    return {**kept, **changes}
