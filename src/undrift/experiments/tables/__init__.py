"""The tables of an experiment file: their keys, what is allowed, and their defaults.

Every table is validated into its complete form, with all defaults written out and paths absolute,
so that what is checked, what is run and what is written down are the same.
"""

from undrift.experiments.tables.data import DataTable, HoldOut
from undrift.experiments.tables.engine import DeployTable, EngineTable
from undrift.experiments.tables.evaluation import EvaluationTable
from undrift.experiments.tables.local import LocalTable
from undrift.experiments.tables.method import MethodTable
from undrift.experiments.tables.model import ModelTable
from undrift.experiments.tables.output import OutputTable
from undrift.experiments.tables.sampling import SamplingTable

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
