"""The quantities of a device: their limits and their default values."""

from __future__ import annotations

import math

UNITS = ("steps", "samples")
"""What the speed of a device may count per second."""

LIMITS: dict[str, dict[str, float]] = {
    "speed": {"above": 0},
    "down": {"above": 0},
    "up": {"above": 0},
    "latency": {"at_least": 0},
    "jitter": {"at_least": 0, "at_most": 10},
    "dropout": {"at_least": 0, "at_most": 1},
    "damage": {"at_least": 0, "at_most": 1},
    "lifetime": {"above": 0},
}
"""The limits of each quantity, as keyword arguments of `require_range`."""

DEFAULTS: dict[str, float] = {
    "down": math.inf,
    "up": math.inf,
    "latency": 0.0,
    "jitter": 0.0,
    "dropout": 0.0,
    "damage": 0.0,
    "lifetime": math.inf,
}
"""The value of each quantity that is not given; speed must always be given."""
