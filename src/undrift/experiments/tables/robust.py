"""[robust]: which uploads the server rejects for their size."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationInfo

from undrift.core.uploads.norm_bounds import NormBound
from undrift.experiments.tables.fields import ClosedTable, Counting
from undrift.utils.errors import require_range


def _ratio(value: Any, info: ValidationInfo) -> Any:
    if value != 0:
        require_range("norm_ratio", value, at_least=1)
    return value


NormRatio = Annotated[float, Field(ge=0), BeforeValidator(_ratio)]


class RobustTable(ClosedTable):
    """Which uploads the server rejects for their size."""

    norm_ratio: NormRatio = Field(
        default=10,
        description="Reject an upload whose norm is more than this many times the median of recent "
        "rounds; 0: no bound. Without the table, deployments have 10 and simulations no bound.",
    )
    norm_window: Counting = Field(
        default=10, description="Number of recent rounds that the median is taken over."
    )

    def build(self) -> NormBound | None:
        return NormBound(self.norm_ratio, self.norm_window) if self.norm_ratio else None
