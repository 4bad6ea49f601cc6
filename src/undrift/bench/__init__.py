"""`undrift bench`: how fast a round is, measured against the same work in plain PyTorch."""

from undrift.bench.comparison import Row, compare
from undrift.bench.profile import Profile, take_profile
from undrift.bench.scaling import Size, scale
from undrift.bench.unequal import Pair, time_unequal
from undrift.bench.workloads import WORKLOADS, Workload

__all__ = [
    "WORKLOADS",
    "Pair",
    "Profile",
    "Row",
    "Size",
    "Workload",
    "compare",
    "scale",
    "take_profile",
    "time_unequal",
]
