"""[output]: where runs are stored, and how."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from undrift.experiments.tables.fields import (
    ClosedTable,
    Natural,
    NotNegative,
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


class OutputTable(ClosedTable):
    """Where runs are stored, and how."""

    folder: Text = Field(default="", description="Run folder; left out: runs/<name>.")
    durability: Durability = Field(
        default="power",
        description="What a committed round survives: power: a power loss; process: only a killed "
        "process, which is faster.",
    )
    memory: NotNegative = Field(
        default=64,
        description="Megabytes of client states that are held in memory; the others are on disk.",
    )
    keep_rounds: Natural = Field(
        default=3,
        description="How many rounds before the last one undrift resume --from-round can go back.",
    )
    keep_megabytes: NotNegative = Field(
        default=1000,
        description="Megabytes on disk for the states of these rounds, per run; if they need more, "
        "fewer rounds are kept.",
    )
    loggers: Loggers = Field(
        default=[], description="Loggers that get the records besides the run folder."
    )
