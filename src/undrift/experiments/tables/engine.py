"""[engine] and [deploy]: how the clients' work is computed."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator

from undrift.engines import ENGINES, EngineOptions
from undrift.experiments.tables.fields import (
    ClosedTable,
    Natural,
    NotNegative,
    Positive,
    Text,
    allowed_words,
    one_of,
    or_none,
)

Engine = Annotated[str, BeforeValidator(one_of(ENGINES)), allowed_words(ENGINES)]
_INNER = {name: what for name, what in ENGINES.items() if name != "ray"}
Inner = Annotated[str, BeforeValidator(one_of(_INNER)), allowed_words(_INNER)]


class EngineTable(ClosedTable):
    """The engine that computes the clients' work."""

    name: Engine = Field(
        default="auto",
        description="; ".join(f"{name}: {what}" for name, what in ENGINES.items()) + ".",
    )
    threads: Natural = Field(
        default=0,
        description="Number of threads; 0: as many as torch uses. With ray: threads of each "
        "worker; 0: this machine's cores divided by the workers, or one on a cluster.",
    )
    chunk: Natural = Field(
        default=0,
        description="Number of clients that are computed together; 0: chosen for the model.",
    )
    memory: Positive = Field(
        default=1000, description="Megabytes that the models of a chunk may take at most."
    )
    workers: Natural = Field(
        default=0,
        description="With ray: number of worker processes; 0: as many as there are cores for.",
    )
    address: Annotated[Text | None, BeforeValidator(or_none)] = Field(
        default=None,
        description='With ray: address of the cluster, "auto" or the head\'s "host:port"; left '
        "out: this "
        "machine alone.",
    )
    gpus: NotNegative = Field(
        default=0, description="With ray: share of a GPU of each worker; 0.25 is a quarter of one."
    )
    inner: Inner = Field(default="auto", description="With ray: engine of each worker.")

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


class DeployTable(ClosedTable):
    """Settings of a deployment across sites; a simulation ignores them."""

    timeout: Positive = Field(default=600, description="Seconds that a site may take to answer.")
