"""Check that each method can run at its pace, as far as the file alone tells.

The loops make the same checks on the real clients; here they come before anything runs, and the
error names the key.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from undrift.core.method import Conditions, Method
from undrift.core.sampling import All, Sampler, Uniform
from undrift.devices import Devices, Duty, Law, Profiles
from undrift.experiments.components import InvalidValue
from undrift.local.amounts import RandomAmount, Unfinished
from undrift.local.solvers import Solver
from undrift.loops import pace_of
from undrift.loops.paces import AsTheyArrive, Pace, RoundPace
from undrift.utils.errors import UndriftError


@dataclass(frozen=True)
class PaceChecks:
    """Checks of methods and paces under the settings that all methods of an experiment share."""

    sampler: Sampler
    clients: int | None
    """the number of clients; None if only the data tell"""
    devices: Profiles | None
    limit: Unfinished | None

    def require_method(
        self, label: str, method: Method, solver: Solver, given: Pace | None, *where: str
    ) -> None:
        """Raise an error for a method that cannot run at its pace; `where` is the pace's key."""
        pace = pace_of(method, given)
        if isinstance(pace, AsTheyArrive):
            setting = self._as_they_arrive(label, method, solver, pace, where)
        else:
            assert isinstance(pace, RoundPace)
            setting = self._in_rounds(method, solver, pace, where)
        try:
            with warnings.catch_warnings():  # the real run warns
                warnings.simplefilter("ignore")
                method.check(setting)
        except UndriftError as error:
            raise InvalidValue(str(error), "method", label) from None

    def _as_they_arrive(
        self, label: str, method: Method, solver: Solver, pace: AsTheyArrive, where: tuple[str, ...]
    ) -> Conditions:
        if self.limit is not None:
            raise InvalidValue(
                f"[limit] applies to rounds, but {label} runs asynchronously, where clients work "
                f"at their own speed: set the local work or the devices instead.",
                "limit",
            )
        if not isinstance(self.sampler, All | Uniform):
            raise InvalidValue(
                f"{label} runs asynchronously: clients are drawn uniformly, and the cohort is how "
                f"many work at once, so kind must be 'uniform' or 'all'.",
                "sampling",
                "kind",
            )
        # An unknown number of clients must not cause an error here: the loop checks it later.
        cohort = self.sampler.K if isinstance(self.sampler, Uniform) else None
        at_once = pace.at_once(cohort, self.clients or cohort or pace.concurrency or 1)
        try:
            delay = pace.delay(at_once, method.buffer if pace.buffer is None else pace.buffer)
        except UndriftError as error:
            raise InvalidValue(str(error), *where, "max_delay") from None
        return Conditions(
            # A method with its own number of clients must accept an unknown number here.
            clients=self.clients or getattr(method, "clients", None) or 1,
            participation="uniform",
            equal=True,
            takes_steps=solver.takes_steps,
            can_ascend=solver.can_ascend,
            asynchronous=True,
            delay=delay,
            bounded=pace.max_delay is not None,
        )

    def _in_rounds(
        self, method: Method, solver: Solver, pace: RoundPace, where: tuple[str, ...]
    ) -> Conditions:
        if pace.needs_devices and self.devices is None:
            raise InvalidValue(
                f"{type(pace).__name__} needs a virtual clock: describe the devices in a table "
                f"[devices], for example speed = 100.",
                *where,
            )
        # Uniform cohorts of unknown federations may turn out to be all clients.
        clients, sampler = self.clients, self.sampler
        everyone = isinstance(sampler, Uniform) and (clients is None or clients == sampler.K)
        kind = "all" if everyone else sampler.participation
        if kind == "all" and (pace.loses or fails(self.devices)):
            kind = "responding"
        # The weights q_k may turn out to be equal, the case with the fewest restrictions.
        return Conditions(
            clients or 1,
            kind,
            equal=True,
            takes_steps=solver.takes_steps,
            can_ascend=solver.can_ascend,
        )


def fails(devices: Profiles | None) -> bool:
    """Whether devices are certain to be away or to fail at times."""
    if not isinstance(devices, Devices):
        return False  # it depends on which client gets which device
    certain = [each for each in (devices.dropout, devices.damage) if not isinstance(each, Law)]
    away = isinstance(devices.availability, Duty) and devices.availability.share < 1
    return away or devices.lifetime is not None or any(each > 0 for each in certain)


def require_longest(limit: Unfinished | None, solver: Solver) -> None:
    """Raise an error for a limit that takes more work away than a client has."""
    longest = None if limit is None else limit.longest
    work = getattr(solver, "epochs", None) or getattr(solver, "steps", None)
    least = work.low if isinstance(work, RandomAmount) and hasattr(work, "low") else work
    if longest is not None and isinstance(least, int) and longest > least:
        raise InvalidValue(
            f"longest is {longest}, but must be at most {least}: a client may be asked for no more "
            f"than that.",
            "limit",
            "longest",
        )
