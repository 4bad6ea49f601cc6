"""[evaluation]: which metrics are measured, and how often."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from undrift.core.evaluation import MODELS as REPORTED
from undrift.core.evaluation import Evaluation
from undrift.core.targets import PARTS
from undrift.experiments.tables.fields import (
    ClosedTable,
    Counting,
    Positive,
    allowed_lists,
    or_none,
    some_of,
)

Reported = Annotated[list[str], BeforeValidator(some_of(REPORTED, 1)), allowed_lists(REPORTED)]
Parts = Annotated[list[str], BeforeValidator(some_of(PARTS, 1)), allowed_lists(PARTS)]


class EvaluationTable(ClosedTable):
    """Which metrics are measured, and how often."""

    every: Counting = Field(default=1, description="Number of rounds between evaluations.")
    models: Reported = Field(
        default=["server"],
        description="Models to evaluate: server: the server's; cohort: the mean of the cohort's "
        "models; all: the mean of all clients' last models; own: every client's last model on its "
        "own data.",
    )
    gradient_mapping: Annotated[Positive | None, BeforeValidator(or_none)] = Field(
        default=None,
        description="η of the gradient mapping |x − prox(x − η∇f(x))|/η; left out, it is not "
        "measured.",
    )
    parts: Parts = Field(
        default=[*PARTS],
        description="Parts of the data to evaluate on, if the data have them; without train there "
        "is no train_loss and no objective.",
    )
    train_clients: Annotated[Counting | None, BeforeValidator(or_none)] = Field(
        default=None,
        description="Number of clients, the same in every round, from which metrics of the "
        "training data are estimated; left out: all clients.",
    )

    @model_validator(mode="after")
    def _check(self) -> EvaluationTable:
        self.build()
        return self

    def build(self) -> Evaluation:
        """The evaluation as `train` takes it."""
        return Evaluation(
            self.every,
            tuple(self.models),
            self.gradient_mapping,
            tuple(self.parts),
            self.train_clients,
        )
