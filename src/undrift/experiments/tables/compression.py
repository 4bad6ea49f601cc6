"""[compression]: how what travels is made smaller; [attack]: clients that do harm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from undrift.compression import Compression
from undrift.experiments.catalogue import COMPRESSOR, Family
from undrift.experiments.components import InvalidValue, member, shown, table_of
from undrift.experiments.tables.fields import ClosedTable, Plain, or_none
from undrift.utils.errors import UndriftError


def component(family: Family, example: str) -> Callable[[Any], Any]:
    """A validator: the table of a family's member with all defaults, from a table or its name."""

    def check(value: Any) -> Any:
        value = or_none(value)
        if value is None:
            return None
        if not isinstance(value, dict | str):
            raise InvalidValue(f"It is {shown(value)}, but must be a table such as {example}.")
        return table_of(member(family, {family.word: value} if isinstance(value, str) else value))

    return check


Compressed = Annotated[
    Plain | None, BeforeValidator(component(COMPRESSOR, '{name = "top-k", ratio = 0.01}'))
]


class CompressionTable(ClosedTable):
    """How uploads and downloads are made smaller to send."""

    up: Compressed = Field(default=None, description="Compressor of uploads; left out, none.")
    down: Compressed = Field(
        default=None,
        description="Compressor of downloads, which are sent as differences; left out, none.",
    )
    feedback: bool = Field(
        default=True,
        description="Whether clients keep what compression left out of an upload, and add it to "
        "the next.",
    )

    @model_validator(mode="after")
    def _check(self) -> CompressionTable:
        try:
            self.build()
        except UndriftError as error:
            raise InvalidValue(str(error)) from None
        return self

    def build(self) -> Compression:
        """The compression, as `train` takes it."""
        up, down = (
            None if each is None else member(COMPRESSOR, each) for each in (self.up, self.down)
        )
        return Compression(up, down, self.feedback)
