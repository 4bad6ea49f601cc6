"""[evaluation]: what is measured, and how often."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from undrift.core.evaluation import MODELS as REPORTED
from undrift.core.evaluation import Evaluation
from undrift.core.targets import PARTS
from undrift.experiments.tables.fields import (
    Counting,
    Positive,
    Table,
    allowed_lists,
    or_none,
    some_of,
)

Reported = Annotated[list[str], BeforeValidator(some_of(REPORTED, 1)), allowed_lists(REPORTED)]
Parts = Annotated[list[str], BeforeValidator(some_of(PARTS, 1)), allowed_lists(PARTS)]


class EvaluationTable(Table):
    """What is measured, and how often."""

    every: Counting = Field(default=1, description="The number of rounds between evaluations.")
    models: Reported = Field(
        default=["server"],
        description="Which models to report: the server's, the means of the cohort's or of all "
        "clients' last models, the clients' own.",
    )
    gradient_mapping: Annotated[Positive | None, BeforeValidator(or_none)] = Field(
        default=None,
        description="η of the gradient mapping |x − prox(x − η∇f(x))|/η; left out, none.",
    )
    parts: Parts = Field(
        default=[*PARTS],
        description="On which parts of the data, as far as there are such: without train, there "
        "is no train_loss and no objective.",
    )
    train_clients: Annotated[Counting | None, BeforeValidator(or_none)] = Field(
        default=None,
        description="From how many clients, the same in every round, all that is about the "
        "training data is estimated; left out, from all.",
    )

    @model_validator(mode="after")
    def _check(self) -> EvaluationTable:
        self.build()
        return self

    def build(self) -> Evaluation:
        """What `train` takes as evaluation."""
        return Evaluation(
            self.every,
            tuple(self.models),
            self.gradient_mapping,
            tuple(self.parts),
            self.train_clients,
        )
