"""Laws of availability, as users and experiment files state them: when clients can take part."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from undrift.core.clients import Roster
from undrift.devices.windows import AlwaysWindows, DutyWindows, Windows
from undrift.utils.errors import require_range, require_type
from undrift.utils.keys import uniforms


class Availability(ABC):
    """A law of when clients are available. A subclass implements `of`."""

    @abstractmethod
    def of(self, roster: Roster, seed: int) -> Windows:
        """The availability windows of all clients in a roster; `seed` is the seed of the run."""


@dataclass(frozen=True)
class Always(Availability):
    """Every client is always available."""

    def of(self, roster: Roster, seed: int) -> Windows:
        return AlwaysWindows(len(roster))


@dataclass(frozen=True)
class Duty(Availability):
    """Each client is available for the same share of every period.

    Parameters
    ----------
    period
        time from the beginning of a window to that of the next, in seconds
    share
        length of a window as a share of the period, at most 1
    together
        whether all clients' windows begin at the same times, first at time 0; otherwise each
        client has a random phase
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
