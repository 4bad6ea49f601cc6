"""[[method]]: a method with its parameters."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from undrift.experiments.components import method_of
from undrift.experiments.tables.fields import OpenTable, Paced, Plain, Text
from undrift.methods import Method


class MethodTable(OpenTable):
    """A method; other keys are its parameters."""

    name: Text = Field(description="Name of a method of the library, or your own: file.py:Class.")
    label: Text | None = Field(
        default=None,
        description="Name of its runs in records, folders and reports; left out: the method's "
        "name.",
    )
    local: Plain | None = Field(default=None, description="Changes to [local] for this method.")
    pace: Paced = Field(default=None, description="Replaces [pace] for this method.")

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, table: Any) -> Any:
        if not isinstance(table, dict) or not isinstance(table.get("name"), str):
            return table
        fixed = {key: table[key] for key in cls.model_fields if key in table}
        given = {key: value for key, value in table.items() if key not in fixed}
        _, values = method_of(fixed["name"], given)
        return fixed | values

    def build(self) -> Method:
        """The method."""
        return method_of(self.name, self.parameters)[0]
