"""Engines: how the cohort's local problems are solved. All give the same answer."""

from undrift.engines.base import Engine, RoundResult, Watch
from undrift.engines.serial import SerialEngine

__all__ = ["Engine", "RoundResult", "SerialEngine", "Watch"]
