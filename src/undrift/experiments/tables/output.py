"""[output]: where a run goes, and how it is kept."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from undrift.experiments.tables.fields import (
    NotNegative,
    Table,
    Text,
    allowed_lists,
    allowed_words,
    one_of,
    some_of,
)
from undrift.utils.files import DURABILITIES

LOGGERS = ("tensorboard", "mlflow", "wandb")

Durability = Annotated[str, BeforeValidator(one_of(DURABILITIES)), allowed_words(DURABILITIES)]
Loggers = Annotated[list[str], BeforeValidator(some_of(LOGGERS, 0)), allowed_lists(LOGGERS)]


class OutputTable(Table):
    """Where the run goes and how it is kept."""

    folder: Text = Field(default="", description="The folder of the run; runs/<name> if left out.")
    durability: Durability = Field(
        default="power",
        description="What a committed round survives: a power loss, or a killed process.",
    )
    memory: NotNegative = Field(
        default=64, description="Megabytes of client states held in memory."
    )
    loggers: Loggers = Field(default=[], description="Where records go besides the folder.")
