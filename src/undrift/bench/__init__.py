"""`undrift bench`: the speed of a round, relative to the same work in plain PyTorch.

Internal: names may change; the public ones are in `undrift.__all__` and the API reference.
"""

from undrift.bench.bare_comparison import RoundTiming, compare
from undrift.bench.default_run import DefaultTiming, time_default
from undrift.bench.memory import MemoryPeak, measure_memory
from undrift.bench.precision import PrecisionTiming, draw_curves, time_precision
from undrift.bench.profiling.profile import Profile, take_profile
from undrift.bench.scaling import ScalingPoint, scale
from undrift.bench.strategy_table import StrategyTiming, time_strategies
from undrift.bench.unequal_steps import UnequalTiming, time_unequal
from undrift.bench.workloads import FURTHER, WORKLOADS, Workload

__all__ = [
    "FURTHER",
    "WORKLOADS",
    "DefaultTiming",
    "MemoryPeak",
    "PrecisionTiming",
    "Profile",
    "RoundTiming",
    "ScalingPoint",
    "StrategyTiming",
    "UnequalTiming",
    "Workload",
    "compare",
    "draw_curves",
    "measure_memory",
    "scale",
    "take_profile",
    "time_default",
    "time_precision",
    "time_strategies",
    "time_unequal",
]
