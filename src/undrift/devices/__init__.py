"""The clients' devices: speeds, transfers, availability and failures, on a virtual clock."""

from undrift.devices.availability import AVAILABILITIES, Always, Availability, Duty
from undrift.devices.fleet import ARRIVES, FAILED, FOR_EVER, LEFT, Fleet, Trips, journey, share_done
from undrift.devices.laws import (
    LAWS,
    Between,
    Ladder,
    Law,
    LogNormal,
    Normal,
    Same,
    as_law,
    correlated,
    normal_scores,
)
from undrift.devices.profiles import KINDS, DeviceClasses, DeviceFile, Devices, Profiles
from undrift.devices.quantities import UNITS
from undrift.devices.windows import Windows

__all__ = [
    "ARRIVES",
    "AVAILABILITIES",
    "FAILED",
    "FOR_EVER",
    "KINDS",
    "LAWS",
    "LEFT",
    "UNITS",
    "Always",
    "Availability",
    "Between",
    "DeviceClasses",
    "DeviceFile",
    "Devices",
    "Duty",
    "Fleet",
    "Ladder",
    "Law",
    "LogNormal",
    "Normal",
    "Profiles",
    "Same",
    "Trips",
    "Windows",
    "as_law",
    "correlated",
    "journey",
    "normal_scores",
    "share_done",
]
