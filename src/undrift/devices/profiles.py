"""Device profiles: devices drawn from laws, from classes of devices, or read from a file.

A profile makes the `Fleet` of a run from the roster and a seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

import numpy as np

from undrift.core.clients import Roster
from undrift.data.sizes import apportion
from undrift.devices.availability import Always, Availability
from undrift.devices.fleet import Fleet
from undrift.devices.laws import Law, as_law, correlated, ranks
from undrift.devices.quantities import DEFAULTS, LIMITS, UNITS
from undrift.devices.traces import read_devices, read_windows
from undrift.devices.windows import AlwaysWindows, ListedWindows, MixedWindows, Windows
from undrift.utils.errors import (
    UndriftError,
    first_line,
    require,
    require_choice,
    require_range,
    require_type,
    require_whole,
)
from undrift.utils.keys import uniforms
from undrift.utils.reprs import short_repr


@dataclass(frozen=True)
class Devices:
    """Devices drawn from laws for each client; a number means the same value for all clients.

    Parameters
    ----------
    speed
        work per second, in `unit`
    unit
        what speed counts: "steps" or "samples"
    down, up
        bytes per second from and to the server; None if transfers take no time
    latency
        seconds that a message takes each way, besides the transfer
    jitter
        σ of a lognormal factor with mean one on all durations of a round
    dropout
        probability to fail during a round
    damage
        probability that the reply is damaged (NaN)
    lifetime
        virtual seconds after which a device leaves for good; None for never
    availability
        when a device is available, e.g. `Duty(period=86400, share=0.3)`
    size_correlation
        correlation of speed with the size of the client's data, from −1 to 1
    seed
        seed of the devices; None for the run's seed
    """

    __repr__ = short_repr

    speed: float | Law = 1.0
    unit: str = "steps"
    down: float | Law | None = None
    up: float | Law | None = None
    latency: float | Law = 0.0
    jitter: float | Law = 0.0
    dropout: float | Law = 0.0
    damage: float | Law = 0.0
    lifetime: float | Law | None = None
    availability: Availability = field(default=Always())
    size_correlation: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, limits in LIMITS.items():
            value = getattr(self, name)
            optional = DEFAULTS.get(name) == math.inf
            if not isinstance(value, Law) and not (optional and value is None):
                require_range(f"Devices' {name}", value, **limits)
        require_choice("Devices' unit", self.unit, UNITS)
        require_type(
            "Devices' availability", self.availability, Availability, "Always() or Duty(…)"
        )
        _check_correlation_and_seed("Devices'", self.size_correlation, self.seed)

    def fleet(self, roster: Roster, seed: int) -> Fleet:
        """The fleet of a roster's clients; `seed` is the run's seed."""
        own = _seed(self.seed, seed)
        values = self.drawn(roster, own, np.arange(len(roster)))
        return _fleet(roster, values, self.unit, self.availability.of(roster, own), seed)

    def drawn(self, roster: Roster, seed: int, who: np.ndarray) -> dict[str, np.ndarray]:
        """Every quantity of some clients, given by their indices in the roster."""
        hashes, sizes = roster.hashes[who], roster.sizes.numpy()[who]
        values = {}
        for name in LIMITS:
            law = getattr(self, name)
            if law is None:
                values[name] = np.full(len(who), DEFAULTS[name])
                continue
            u = uniforms(seed, f"device {name}", 0, hashes)
            if name == "speed":
                u = correlated(u, sizes, self.size_correlation, hashes)
            values[name] = as_law(law).values(u)
            _check_drawn(name, values[name], roster, who)
        return values


@dataclass(frozen=True)
class DeviceClasses:
    """Classes of devices, each for a share of the clients.

    Parameters
    ----------
    classes
        the share of clients and the devices of each class, by name, e.g.
        `{"phone": (0.8, Devices(speed=2.0)), "laptop": (0.2, Devices(speed=20.0))}`
    size_correlation
        correlation of the class with the size of the client's data, from −1 to 1; list the classes
        from the slowest to the fastest
    seed
        seed of the devices; None for the run's seed
    """

    classes: Mapping[str, tuple[float, Devices]]
    size_correlation: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        wanted = "a share and Devices(…)"
        require_type(
            "DeviceClasses' classes", self.classes, Mapping, f"a mapping from names to {wanted}"
        )
        require(len(self.classes) > 0, "DeviceClasses needs at least one class.")
        for name, entry in self.classes.items():
            what = f"The class {name!r} of DeviceClasses"
            require_type(what, entry, (tuple, list), wanted)
            require(len(entry) == 2, f"{what} has {len(entry)} entries, but must be {wanted}.")
            require_range(f"The share of class {name!r}", entry[0], above=0, at_most=1)
            require_type(f"The devices of class {name!r}", entry[1], Devices, "Devices(…)")
        total = math.fsum(share for share, _ in self.classes.values())
        require(
            abs(total - 1) <= 1e-6,
            f"The shares of DeviceClasses add up to {total:g}, but must add up to 1.",
        )
        units = {name: devices.unit for name, (_, devices) in self.classes.items()}
        require(
            len(set(units.values())) == 1,
            "All classes of DeviceClasses must have the same unit of speed, but they differ: "
            + ", ".join(f"{name!r} in {unit}" for name, unit in units.items())
            + ".",
        )
        _check_correlation_and_seed("DeviceClasses'", self.size_correlation, self.seed)

    def fleet(self, roster: Roster, seed: int) -> Fleet:
        """The fleet of a roster's clients; `seed` is the run's seed."""
        own = _seed(self.seed, seed)
        shares, devices = zip(*self.classes.values(), strict=True)
        which = self._assigned(roster, own, np.array(shares))
        values = {name: np.empty(len(roster)) for name in LIMITS}
        for number, each in enumerate(devices):
            who = np.flatnonzero(which == number)
            for name, drawn in each.drawn(roster, _seed(each.seed, own), who).items():
                values[name][who] = drawn
        parts = [each.availability.of(roster, _seed(each.seed, own)) for each in devices]
        names = list(self.classes)
        return _fleet(
            roster,
            values,
            devices[0].unit,
            MixedWindows(parts, which),
            seed,
            classes=[names[number] for number in which.tolist()],
        )

    def _assigned(self, roster: Roster, seed: int, shares: np.ndarray) -> np.ndarray:
        """The index of each client's class."""
        u = uniforms(seed, "device class", 0, roster.hashes)
        u = correlated(u, roster.sizes.numpy(), self.size_correlation, roster.hashes)
        counts = apportion(shares, len(roster))
        return np.repeat(np.arange(len(shares)), counts)[ranks(u)]


@dataclass(frozen=True)
class DeviceFile:
    """Devices read from a CSV file, with their availability from another.

    Parameters
    ----------
    path
        a CSV file with a header: a column `client` (or `device`), a column `speed`, and any of
        `down`, `up`, `latency`, `jitter`, `dropout`, `damage` and `lifetime`; an empty cell means
        the default of `Devices`
    unit
        what speed counts: "steps" or "samples"
    windows
        a CSV file with the columns `client` (or `device`), `from` and `to`, in seconds: the times
        at which each is available. A client without a row is never available. None if all clients
        are always available
    repeat
        seconds after which the windows start again; None if they do not
    match
        "client" if rows are named by the clients' ids, "random" to give each client the device of a
        random row
    seed
        seed of the random rows; None for the run's seed
    """

    path: str | Path
    unit: str = "steps"
    windows: str | Path | None = None
    repeat: float | None = None
    match: str = "client"
    seed: int | None = None

    def __post_init__(self) -> None:
        require_type("DeviceFile's path", self.path, (str, Path), "the path of a CSV file")
        require_choice("DeviceFile's unit", self.unit, UNITS)
        if self.windows is not None:
            wanted = "the path of a CSV file"
            require_type("DeviceFile's windows", self.windows, (str, Path), wanted)
        if self.repeat is not None:
            require_range("DeviceFile's repeat", self.repeat, above=0)
            require(
                self.windows is not None,
                "DeviceFile's repeat needs windows, the file with the times to repeat.",
            )
        require_choice("DeviceFile's match", self.match, ("client", "random"))
        _check_correlation_and_seed("DeviceFile's", 0.0, self.seed)

    def fleet(self, roster: Roster, seed: int) -> Fleet:
        """The fleet of a roster's clients; `seed` is the run's seed."""
        path = Path(self.path)
        places, quantities = read_devices(path)
        device = self._matched(roster, _seed(self.seed, seed), places)
        values = {name: each[device] for name, each in quantities.items()}
        windows: Windows = AlwaysWindows(len(roster))
        if self.windows is not None:
            spans = read_windows(Path(self.windows), places, self.repeat, path)
            windows = ListedWindows(spans, device, self.repeat)
        return _fleet(roster, values, self.unit, windows, seed)

    def fingerprint(self) -> str:
        """A hash of the files' contents, by which a resumed run notices changes."""
        found = blake2b(digest_size=8)
        for path in (self.path, self.windows):
            if path is not None:
                try:
                    found.update(Path(path).read_bytes())
                except OSError as error:
                    raise UndriftError(f"{path} cannot be read: {first_line(error)}.") from None
        return found.hexdigest()

    def _matched(self, roster: Roster, seed: int, places: dict[str, int]) -> np.ndarray:
        """The row of each client's device, as an index."""
        if self.match == "random":
            u = uniforms(seed, "device row", 0, roster.hashes)
            return (u * len(places)).astype(np.int64)
        for id in roster.ids:
            require(
                str(id) in places,
                f"{self.path} has no row for client {id!r}; match='random' takes a random row.",
            )
        return np.array([places[str(id)] for id in roster.ids])


Profiles = Devices | DeviceClasses | DeviceFile
"""Any device profile."""

KINDS: dict[str, type[Profiles]] = {
    "drawn": Devices,
    "classes": DeviceClasses,
    "file": DeviceFile,
}


def _fleet(
    roster: Roster,
    values: dict[str, np.ndarray],
    unit: str,
    windows: Windows,
    seed: int,
    classes: list[str] | None = None,
) -> Fleet:
    """A fleet from the quantities of all clients; a lifetime is the time of leaving."""
    values = dict(values)
    gone_at = values.pop("lifetime")
    return Fleet(
        **values,
        gone_at=gone_at,
        unit=unit,
        windows=windows,
        hashes=roster.hashes,
        seed=seed,
        classes=classes,
    )


def _check_drawn(name: str, values: np.ndarray, roster: Roster, who: np.ndarray) -> None:
    """Raise if a law gave values outside their limits; it suffices to check the extremes."""
    if len(values) == 0:
        return
    for k in (values.argmin(), values.argmax()):
        what = f"The {name} of client {roster.ids[who[k]]!r}"
        require_range(what, float(values[k]), **LIMITS[name])


def _seed(own: int | None, default: int) -> int:
    return default if own is None else own


def _check_correlation_and_seed(whose: str, size_correlation: float, seed: int | None) -> None:
    require_range(f"{whose} size_correlation", size_correlation, at_least=-1, at_most=1)
    if seed is not None:
        require_whole(f"{whose} seed", seed, at_least=0)
