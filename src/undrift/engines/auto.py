"""The "auto" engine: chooses its strategy by a rule that reads no clock and no file.

So the same experiment computes the same bits on a busy and on a quiet machine. The rule itself is
the order of `strategies.candidates`.
"""

from __future__ import annotations

from undrift.core.clients import ClientStates
from undrift.core.messages import Assignment
from undrift.core.method import Method
from undrift.engines.choosing import ChoosingEngine
from undrift.engines.strategies import Strategy, candidates
from undrift.nets.module_losses import ModuleLosses


class AutoEngine(ChoosingEngine):
    """Chooses the strategy that the rule puts first for the first round's work."""

    def _choose(
        self,
        losses: ModuleLosses,
        method: Method,
        assignments: list[Assignment],
        states: ClientStates,
    ) -> tuple[Strategy, str]:
        clients = len(assignments)
        found = candidates(losses, self.job.local, clients, *self._limits, first_only=True)
        return found.strategies[0], found.reason
