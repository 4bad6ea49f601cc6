"""Loops: how rounds follow one another."""

from undrift.loops.synchronous import Synchronous

__all__ = ["Synchronous"]
