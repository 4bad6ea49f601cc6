"""[[method]]: a method with its parameters."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from undrift.experiments.parts import method_of
from undrift.experiments.tables.fields import OpenTable, Paced, Plain, Text
from undrift.methods import Method


class MethodTable(OpenTable):
    """A method; other keys are its parameters."""

    name: Text = Field(description="One of the library, or file.py:Class of your own.")
    label: Text | None = Field(
        default=None,
        description="What it is called in records, folders and reports; its name if left out.",
    )
    local: Plain | None = Field(default=None, description="Changes to [local] for this method.")
    pace: Paced = Field(default=None, description="Takes the place of [pace] for this method.")

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
