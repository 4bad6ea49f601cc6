"""The tables of an experiment file: their keys, what is allowed, and their defaults.

Every table is validated into its complete form, with all defaults written out and paths absolute,
so that what is checked, what is run and what is written down are the same.
"""

from undrift.runs.tables.data import DataTable, HoldOut
from undrift.runs.tables.engine import DeployTable, EngineTable
from undrift.runs.tables.evaluation import EvaluationTable
from undrift.runs.tables.local import LocalTable
from undrift.runs.tables.method import MethodTable
from undrift.runs.tables.model import ModelTable
from undrift.runs.tables.output import OutputTable
from undrift.runs.tables.sampling import SamplingTable

__all__ = [
    "DataTable",
    "DeployTable",
    "EngineTable",
    "EvaluationTable",
    "HoldOut",
    "LocalTable",
    "MethodTable",
    "ModelTable",
    "OutputTable",
    "SamplingTable",
]
