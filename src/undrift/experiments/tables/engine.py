"""[engine] and [deploy]: how the clients' work is computed."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from undrift.engines import ENGINES, EngineOptions
from undrift.experiments.tables.fields import (
    ClosedTable,
    Counting,
    Natural,
    NotNegative,
    Positive,
    Text,
    allowed_words,
    one_of,
    or_none,
)
from undrift.nets.criteria import FP32, PRECISIONS
from undrift.utils.errors import require_range, require_type, require_whole


def _share(value: Any, info: ValidationInfo) -> Any:
    require_range("max_weight", value, above=0, at_most=1)
    return value


def _numbers_of_sites(value: Any, info: ValidationInfo) -> Any:
    require_type("samples", value, dict, "a table such as {site-1 = 500}")
    for site, number in value.items():
        require_whole(f"samples of {site!r}", number, at_least=1)
    return value


WeightShare = Annotated[float, Field(gt=0, le=1), BeforeValidator(_share)]
Engine = Annotated[str, BeforeValidator(one_of(ENGINES)), allowed_words(ENGINES)]
Precision = Annotated[str, BeforeValidator(one_of(PRECISIONS)), allowed_words(PRECISIONS)]
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
    precision: Precision = Field(
        default=FP32,
        description="; ".join(f"{name}: {what}" for name, what in PRECISIONS.items())
        + ". It changes results, so resumed runs keep it.",
    )

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
            self.precision,
        )


class DeployTable(ClosedTable):
    """Settings of a deployment across sites; a simulation ignores them."""

    timeout: Positive = Field(default=600, description="Seconds that a site may take to answer.")
    max_samples: Annotated[Counting | None, BeforeValidator(or_none)] = Field(
        default=None,
        description="Samples of one site that count at most in averages and metrics, whatever it "
        "claims; left out: all, but a claim of more than 1000 times the median of the other sites "
        "is refused.",
    )
    max_weight: Annotated[WeightShare | None, BeforeValidator(or_none)] = Field(
        default=None,
        description="Largest share of one site in all samples that count; sites above it count "
        "equally, with the most samples for which it holds. 1 allows every claim.",
    )
    samples: Annotated[dict[str, int], BeforeValidator(_numbers_of_sites)] = Field(
        default={},
        description="Numbers of training samples by site that count in place of what the site "
        "claims, as in {site-1 = 500}.",
    )
