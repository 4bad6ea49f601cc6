"""How each method of an experiment goes on, and whether it can, as far as that is known by then.

What is refused here is refused by the loops as well; here it is said before anything runs, with the
key at fault.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from undrift.core.method import Conditions, Method
from undrift.core.sampling import All, Sampler, Uniform
from undrift.devices import Devices, Duty, Law, Profiles
from undrift.experiments.parts import Wrong
from undrift.local.amounts import RandomAmount, Unfinished
from undrift.local.solvers import Solver
from undrift.loops import pace_of
from undrift.loops.paces import AsTheyArrive, Pace, RoundPace
from undrift.utils.errors import UndriftError


@dataclass(frozen=True)
class Circumstances:
    """What all methods of an experiment share, for the question how they go on."""

    sampler: Sampler
    clients: int | None
    """how many there are, where that is known"""
    devices: Profiles | None
    limit: Unfinished | None

    def require_possible(
        self, label: str, method: Method, solver: Solver, given: Pace | None, *where: str
    ) -> None:
        """Refuse a method with a pace under which it cannot go on; `where` is the pace's key."""
        pace = pace_of(method, given)
        if isinstance(pace, AsTheyArrive):
            setting = self._as_they_arrive(label, method, solver, pace, where)
        else:
            assert isinstance(pace, RoundPace)
            setting = self._in_rounds(method, solver, pace, where)
        try:
            with warnings.catch_warnings():  # the run itself warns
                warnings.simplefilter("ignore")
                method.check(setting)
        except UndriftError as error:
            raise Wrong(str(error), "method", label) from None

    def _as_they_arrive(
        self, label: str, method: Method, solver: Solver, pace: AsTheyArrive, where: tuple[str, ...]
    ) -> Conditions:
        if self.limit is not None:
            raise Wrong(
                f"A limit is for rounds, but {label} runs asynchronously, where a client works at "
                f"its own speed: give its local work or its device instead.",
                "limit",
            )
        if not isinstance(self.sampler, All | Uniform):
            raise Wrong(
                f"{label} runs asynchronously, where a number of clients is at work at once, drawn "
                f"uniformly: give that number as the cohort, with kind 'uniform' or 'all'.",
                "sampling",
                "kind",
            )
        # What is not known is taken to be no obstacle.
        cohort = self.sampler.K if isinstance(self.sampler, Uniform) else None
        at_once = pace.at_once(cohort, self.clients or cohort or pace.concurrency or 1)
        try:
            delay = pace.delay(at_once, method.buffer if pace.buffer is None else pace.buffer)
        except UndriftError as error:
            raise Wrong(str(error), *where, "max_delay") from None
        return Conditions(
            # A method that was made for a number of clients is not refused for an unknown one.
            clients=self.clients or getattr(method, "clients", None) or 1,
            participation="uniform",
            equal=True,
            takes_steps=solver.takes_steps,
            asynchronous=True,
            delay=delay,
            bounded=pace.max_delay is not None,
        )

    def _in_rounds(
        self, method: Method, solver: Solver, pace: RoundPace, where: tuple[str, ...]
    ) -> Conditions:
        if pace.needs_devices and self.devices is None:
            raise Wrong(
                f"{type(pace).__name__} needs a clock: say what the devices are like, in a table "
                f"[devices] such as speed = 100.",
                *where,
            )
        # Only a uniform cohort can turn out to be everyone.
        clients, sampler = self.clients, self.sampler
        everyone = isinstance(sampler, Uniform) and (clients is None or clients == sampler.K)
        kind = "all" if everyone else sampler.participation
        if kind == "all" and (pace.loses or fails(self.devices)):
            kind = "responding"
        # The weights q_k may turn out to be equal, which allows the most.
        return Conditions(clients or 1, kind, equal=True, takes_steps=solver.takes_steps)


def fails(devices: Profiles | None) -> bool:
    """Whether devices are known to be away or to fail at times."""
    if not isinstance(devices, Devices):
        return False  # it depends on who gets which
    certain = [each for each in (devices.dropout, devices.damage) if not isinstance(each, Law)]
    away = isinstance(devices.availability, Duty) and devices.availability.share < 1
    return away or devices.lifetime is not None or any(each > 0 for each in certain)


def require_longest(limit: Unfinished | None, solver: Solver) -> None:
    """Refuse a limit that would leave a client less than nothing to do."""
    longest = None if limit is None else limit.longest
    work = getattr(solver, "epochs", None) or getattr(solver, "steps", None)
    least = work.low if isinstance(work, RandomAmount) and hasattr(work, "low") else work
    if longest is not None and isinstance(least, int) and longest > least:
        raise Wrong(
            f"longest is {longest}, but a client may be asked for {least} only: it must be at most "
            f"that.",
            "limit",
            "longest",
        )
