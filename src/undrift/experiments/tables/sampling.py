"""[sampling]: which clients take part in a round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from undrift.core.sampling import Sampler
from undrift.experiments.catalogue import NONE, SAMPLER, SAMPLERS, parameters
from undrift.experiments.components import InvalidValue, is_user_code, member, shown, table_of
from undrift.experiments.tables.fields import OpenTable, or_none
from undrift.utils.errors import UndriftError, require, require_choice, require_type, require_whole

KEYS = ("kind", "cohort")


class SamplingTable(OpenTable):
    """Which clients take part in a round: everyone by default.

    Other keys are parameters of the user's own sampler.
    """

    kind: Annotated[str | None, BeforeValidator(or_none)] = Field(
        default=None,
        description="all; uniform (without replacement); weighted (with replacement, by q_k); "
        "bernoulli; fixed; or your own, file.py:Class. Left out: as the methods are defined.",
    )
    cohort: Any = Field(
        default=None,
        description="Number of clients; for bernoulli: the probability of each client; for fixed: "
        "client ids, or lists of ids that take turns from round to round.",
    )

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, table: Any) -> Any:
        kind = table.get("kind") if isinstance(table, dict) else None
        if isinstance(kind, str) and is_user_code(kind):
            return table_of(member(SAMPLER, table))
        return table

    @model_validator(mode="after")
    def _check(self) -> SamplingTable:
        try:
            self.build()
        except InvalidValue:
            raise
        except UndriftError as error:
            raise InvalidValue(str(error), "cohort") from None
        if self.kind is None and self.cohort is None:
            self.kind = "all"
        return self

    def build(self) -> Sampler | int | None:
        """The cohort, as `train` takes it."""
        kind, cohort = self.kind, self.cohort
        cohort = None if isinstance(cohort, str) and cohort == NONE else cohort
        if kind is not None and is_user_code(kind):
            own: Sampler = member(SAMPLER, self.model_dump(exclude_none=True))
            return own
        for key in self.parameters:
            try:
                require_choice("A key of sampling", key, KEYS)
            except UndriftError as error:
                raise InvalidValue(str(error), key) from None
        if kind is None:
            return None if cohort is None else require_whole("The cohort", cohort, 1)
        try:
            require_choice("The kind of sampling", kind, SAMPLERS)
        except UndriftError as error:
            raise InvalidValue(str(error), "kind") from None
        takes = list(parameters(SAMPLERS[kind]))
        if not takes:
            require(cohort is None, "With kind = 'all' everyone takes part: leave cohort out.")
            return SAMPLERS[kind]()
        require(cohort is not None, f"The sampling {kind!r} needs a cohort, which is missing.")
        if kind == "fixed":
            _require_cohorts(cohort)
        build: Callable[..., Sampler] = SAMPLERS[kind]
        return build(cohort)


def _require_cohorts(cohort: Any) -> None:
    """Check that a fixed cohort is a list of ids, or a list of such lists."""
    wanted = "a list of client ids, or a list of such lists"
    require_type("The fixed cohort", cohort, list, wanted)
    nested = any(isinstance(each, list) for each in cohort)
    lists = cohort if nested else [cohort]
    for each in lists:
        require_type("One of the fixed cohorts", each, list, "a list of client ids like the others")
        for id in each:
            require(
                isinstance(id, int | str) and not isinstance(id, bool),
                f"The fixed cohort has {shown(id)}, but a client's id is a whole number or a word.",
            )
