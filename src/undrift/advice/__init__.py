"""Advice before training: measure a federation and recommend methods for it."""

from undrift.advice.advising import Advice, advise

__all__ = ["Advice", "advise"]
