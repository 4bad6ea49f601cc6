"""Loops: how a run goes on, in rounds or as replies arrive, with or without a clock."""

from typing import Any

from undrift.core.method import Method
from undrift.loops.asynchronous import Asynchronous
from undrift.loops.base import Callback, Loop
from undrift.loops.paces import AsTheyArrive, Pace, RoundPace, WaitForAll
from undrift.loops.synchronous import Synchronous

__all__ = ["Asynchronous", "Callback", "Loop", "Synchronous", "loop", "pace_of"]


def pace_of(method: Method, pace: Pace | None) -> Pace:
    """The pace of a method's run: the one that is given, or the one the method is meant for."""
    if pace is not None:
        return pace
    return AsTheyArrive() if method.meant_asynchronous else WaitForAll()


def loop(method: Method, *args: Any, pace: Pace | None = None, **options: Any) -> Loop:
    """A run of a method, in rounds or as replies arrive."""
    pace = pace_of(method, pace)
    if isinstance(pace, AsTheyArrive):
        return Asynchronous(method, *args, pace=pace, **options)
    assert isinstance(pace, RoundPace)
    return Synchronous(method, *args, pace=pace, **options)
