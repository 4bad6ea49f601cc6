"""The tables of an experiment file: their keys, the allowed values and the defaults.

Validation completes every table with all defaults and makes paths absolute, so that the checked,
the executed and the written experiment are the same.
"""

from undrift.experiments.tables.compression import CompressionTable
from undrift.experiments.tables.data import DataTable, HoldOut
from undrift.experiments.tables.engine import DeployTable, EngineTable
from undrift.experiments.tables.evaluation import EvaluationTable
from undrift.experiments.tables.local import LocalTable
from undrift.experiments.tables.method import MethodTable
from undrift.experiments.tables.model import ModelTable
from undrift.experiments.tables.output import OutputTable
from undrift.experiments.tables.privacy import PrivacyTable
from undrift.experiments.tables.robust import RobustTable
from undrift.experiments.tables.sampling import SamplingTable

__all__ = [
    "CompressionTable",
    "DataTable",
    "DeployTable",
    "EngineTable",
    "EvaluationTable",
    "HoldOut",
    "LocalTable",
    "MethodTable",
    "ModelTable",
    "OutputTable",
    "PrivacyTable",
    "RobustTable",
    "SamplingTable",
]
