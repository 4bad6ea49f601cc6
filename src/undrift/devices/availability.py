"""When clients are available over virtual time, as an experiment says it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from undrift.core.clients import Roster
from undrift.devices.windows import AlwaysWindows, DutyWindows, Windows
from undrift.utils.errors import require_range, require_type
from undrift.utils.keys import uniforms


class Availability(ABC):
    """A law of when clients are available."""

    @abstractmethod
    def of(self, roster: Roster, seed: int) -> Windows:
        """The windows of a roster's clients."""


@dataclass(frozen=True)
class Always(Availability):
    """Everyone, at all times."""

    def of(self, roster: Roster, seed: int) -> Windows:
        return AlwaysWindows(len(roster))


@dataclass(frozen=True)
class Duty(Availability):
    """Each client is available for a share of every period, from a moment of its own on.

    Parameters
    ----------
    period
        how often a window begins, in seconds
    share
        how much of the period the window lasts, up to 1
    together
        whether all windows begin at the same moment, first at time 0; if not, each client's
        moment is drawn
    """

    period: float
    share: float
    together: bool = False

    def __post_init__(self) -> None:
        require_range("Duty's period", self.period, above=0)
        require_range("Duty's share", self.share, above=0, at_most=1)
        require_type("Duty's together", self.together, bool, "true or false")

    def of(self, roster: Roster, seed: int) -> Windows:
        if self.share == 1:
            return AlwaysWindows(len(roster))
        if self.together:
            phases = np.zeros(len(roster))
        else:
            phases = self.period * uniforms(seed, "device phase", 0, roster.hashes)
        return DutyWindows(phases, self.period, self.share * self.period)


AVAILABILITIES: dict[str, type[Availability]] = {"always": Always, "duty": Duty}
