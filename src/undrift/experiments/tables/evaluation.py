"""[evaluation]: which metrics are measured, and how often."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from undrift.core.evaluation import MODELS as REPORTED
from undrift.core.evaluation import Evaluation
from undrift.core.targets import PARTS
from undrift.experiments.tables.fields import (
    ClosedTable,
    Counting,
    Plain,
    Positive,
    allowed_lists,
    or_none,
    some_of,
)
from undrift.experiments.tables.local import solver_from
from undrift.utils.errors import require_type

Reported = Annotated[list[str], BeforeValidator(some_of(REPORTED, 1)), allowed_lists(REPORTED)]
Parts = Annotated[list[str], BeforeValidator(some_of(PARTS, 1)), allowed_lists(PARTS)]


def _tuning(value: Any) -> Any:
    """The table of the solver with all defaults."""
    if or_none(value) is None:
        return None
    require_type("tune", value, dict, "a table such as {lr = 0.01, epochs = 1}")
    return solver_from(value)[1]


class EvaluationTable(ClosedTable):
    """Which metrics are measured, and how often."""

    every: Annotated[Counting | None, BeforeValidator(or_none)] = Field(
        default=None,
        description="Number of rounds between evaluations; left out: spaced so that evaluation "
        "costs at most a tenth of the training, by counted work. The last round is always "
        "evaluated.",
    )
    models: Reported = Field(
        default=["server"],
        description="Models to evaluate: server: the server's; cohort: the mean of the cohort's "
        "models; all: the mean of all clients' last models; own: every client's own model on its "
        "own data; tuned: the server's model after every client trained it, on its own data.",
    )
    gradient_mapping: Annotated[Positive | None, BeforeValidator(or_none)] = Field(
        default=None,
        description="η of the gradient mapping |x − prox(x − η∇f(x))|/η; left out, it is not "
        "measured.",
    )
    parts: Parts = Field(
        default=[*PARTS],
        description="Parts of the data to evaluate on. Parts that the data do not have are "
        "skipped, but the data must have at least one of them. Without train there is no "
        "train_loss and no objective.",
    )
    train_clients: Annotated[Counting | None, BeforeValidator(or_none)] = Field(
        default=None,
        description="Number of clients, the same in every round, from which metrics of the "
        "training data are estimated; left out: all clients.",
    )
    train_samples: Annotated[Counting | None, BeforeValidator(or_none)] = Field(
        default=None,
        description="Number of samples, a fixed random part in which every client has its share, "
        "from which metrics of the training data are estimated; left out: all samples, or if every "
        "is left out too, as many as keep evaluation cheap, and all in the last round.",
    )

    clients: bool = Field(
        default=False,
        description="Whether to measure every metric for each client too: records get mean, "
        "deviation, worst tenth and Jain's index over clients, and the run folder clients.csv.",
    )

    tune: Annotated[Plain | None, BeforeValidator(_tuning)] = Field(
        default=None,
        description="Solver with which every client trains the server's model for the model "
        "tuned, as in [local]: {lr = 0.01, epochs = 1}.",
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
            self.clients,
            None if self.tune is None else solver_from(self.tune)[0],
            self.train_samples,
        )
