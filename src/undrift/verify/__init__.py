"""`undrift verify`: methods × facts, on problems whose answer is known."""

from undrift.verify.facts import FACTS, Fact
from undrift.verify.runs import Finding
from undrift.verify.subjects import Subject, load, named, ours
from undrift.verify.table import Outcome, as_json, explanations, tables, verify

__all__ = [
    "FACTS",
    "Fact",
    "Finding",
    "Outcome",
    "Subject",
    "as_json",
    "explanations",
    "load",
    "named",
    "ours",
    "tables",
    "verify",
]
