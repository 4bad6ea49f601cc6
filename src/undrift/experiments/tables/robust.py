"""[robust]: which uploads the server rejects for their size, and how it combines the others."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationInfo

from undrift.core.uploads.norm_bounds import NormBound
from undrift.core.uploads.statistic import Statistic
from undrift.experiments.catalogue import STATISTIC
from undrift.experiments.components import member
from undrift.experiments.tables.compression import component
from undrift.experiments.tables.fields import ClosedTable, Counting, Plain
from undrift.utils.errors import require_range


def _ratio(value: Any, info: ValidationInfo) -> Any:
    if value is not None and value != 0:
        require_range("norm_ratio", value, at_least=1)
    return value


NormRatio = Annotated[float, Field(ge=0), BeforeValidator(_ratio)]


class RobustTable(ClosedTable):
    """Which uploads the server rejects for their size, and what takes the place of their mean."""

    statistic: Annotated[
        Plain | None, BeforeValidator(component(STATISTIC, '{name = "krum", f = 2}'))
    ] = Field(
        default=None,
        description="Robust statistic that takes the place of the mean of uploads; left out, none.",
    )
    norm_ratio: NormRatio | None = Field(
        default=None,
        description="Reject an upload whose norm is more than this many times the median of recent "
        "rounds; 0: no bound. Left out: 10, but no bound in a simulation with a statistic. Without "
        "the table, deployments have 10 and simulations no bound.",
    )
    norm_window: Counting = Field(
        default=10, description="Number of recent rounds that the median is taken over."
    )

    def build(self, deployed: bool) -> NormBound | None:
        """The norm bound, as `train` takes it."""
        ratio = self.norm_ratio
        if ratio is None:
            ratio = 10.0 if deployed or self.statistic is None else 0.0
        return NormBound(ratio, self.norm_window) if ratio else None

    def build_statistic(self) -> Statistic | None:
        """The robust statistic, as `train` takes it."""
        return None if self.statistic is None else member(STATISTIC, self.statistic)
