"""`undrift verify`: measures facts about methods on problems with known answers."""

from undrift.utils.renamed import old_names
from undrift.verify.facts import FACTS, Fact
from undrift.verify.runs import Finding
from undrift.verify.subjects import Subject, baselines, load, named, ours
from undrift.verify.table import Verdict, as_json, explanations, remarks, tables, verify

__all__ = [
    "FACTS",
    "Fact",
    "Finding",
    "Subject",
    "Verdict",
    "as_json",
    "baselines",
    "explanations",
    "load",
    "named",
    "ours",
    "remarks",
    "tables",
    "verify",
]

__getattr__ = old_names(__name__)
