"""[engine] and [deploy]: where the clients' work is done."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator

from undrift.engines import ENGINES, EngineOptions
from undrift.experiments.tables.fields import (
    Natural,
    NotNegative,
    Positive,
    Table,
    Text,
    allowed_words,
    one_of,
    or_none,
)

Engine = Annotated[str, BeforeValidator(one_of(ENGINES)), allowed_words(ENGINES)]
_INNER = {name: what for name, what in ENGINES.items() if name != "ray"}
Inner = Annotated[str, BeforeValidator(one_of(_INNER)), allowed_words(_INNER)]


class EngineTable(Table):
    """How local problems are solved."""

    name: Engine = Field(
        default="auto",
        description="; ".join(f"{name}: {what}" for name, what in ENGINES.items()) + ".",
    )
    threads: Natural = Field(
        default=0,
        description="How many threads it may use; 0: as many as torch does. With ray, each worker; "
        "0: this machine's cores divided by the workers, or one on a cluster.",
    )
    chunk: Natural = Field(
        default=0, description="How many clients work at once; 0: what suits the model."
    )
    memory: Positive = Field(
        default=1000, description="The most megabytes for models at work, which bounds the chunk."
    )
    workers: Natural = Field(
        default=0, description="With ray: how many processes; 0: as many as there are cores for."
    )
    address: Annotated[Text | None, BeforeValidator(or_none)] = Field(
        default=None,
        description='With ray: the cluster, "auto" for that of this machine or the head\'s '
        '"host:port"; left out: this machine alone.',
    )
    gpus: NotNegative = Field(
        default=0, description="With ray: which share of a GPU each worker has (0.25: a quarter)."
    )
    inner: Inner = Field(default="auto", description="With ray: the engine of each worker.")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        self.build()
        return self

    def build(self) -> EngineOptions:
        return EngineOptions(
            self.name,
            self.threads or None,
            self.chunk or None,
            self.memory,
            self.workers or None,
            self.address,
            self.gpus,
            self.inner,
        )


class DeployTable(Table):
    """How an experiment runs across sites; a simulation takes no notice of it."""

    timeout: Positive = Field(
        default=600, description="How many seconds a site may take to answer, at the most."
    )
