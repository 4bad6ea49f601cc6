"""Advice before training: what a federation is like, and which methods suit it."""

from undrift.advice.advising import Advice, advise

__all__ = ["Advice", "advise"]
