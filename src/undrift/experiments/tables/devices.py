"""[devices] and [limit]: the clients' devices, and clients that do only some of their work."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from undrift.devices import KINDS, DeviceClasses, Devices, Profiles
from undrift.experiments.catalogue import NONE
from undrift.experiments.components import (
    InvalidValue,
    absolute,
    arguments,
    completed,
    make,
    parameter_at_fault,
    shown,
)
from undrift.experiments.tables.fields import (
    ClosedTable,
    Counting,
    OpenTable,
    Plain,
    Share,
    Text,
    base_folder,
    or_none,
)
from undrift.local.amounts import Unfinished
from undrift.utils.errors import UndriftError, require_choice, require_range

WHAT = {"drawn": "drawn devices", "classes": "classes of devices", "file": "a file of devices"}
FILES = ("path", "windows")


class DevicesTable(OpenTable):
    """The clients' devices; other keys are parameters of the kind."""

    kind: Text = Field(
        default="drawn",
        description="drawn: from distributions; classes: several kinds of devices; file: from a "
        "CSV file.",
    )

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, table: Any, info: ValidationInfo) -> Any:
        if not isinstance(table, dict) or not isinstance(table.get("kind", "drawn"), str):
            return table
        return devices_of(table, base_folder(info))[1]

    def build(self) -> Profiles:
        """The device profiles."""
        return devices_of(self.model_dump(), Path("."))[0]


def devices_of(table: Mapping[str, Any], folder: Path) -> tuple[Profiles, Plain]:
    """The device profiles of a table, and the table with all defaults."""
    name = table.get("kind", "drawn")
    try:
        require_choice("The kind of devices", name, KINDS)
    except UndriftError as error:
        raise InvalidValue(str(error), "kind") from None
    given = {key: value for key, value in table.items() if key != "kind"}
    if name == "classes":
        found, complete = _classes(given)
    else:
        if name == "file":
            given |= {key: _file(given[key], key, folder) for key in FILES if key in given}
        found = make(KINDS[name], given, WHAT[name])
        complete = completed(KINDS[name], arguments(KINDS[name], given, WHAT[name]))
    return found, {"kind": name, **complete}


def _file(value: Any, key: str, folder: Path) -> Any:
    """The absolute path of an existing file."""
    if not isinstance(value, str) or value == NONE or "\0" in value:
        return value
    path = absolute(value, folder)
    if not Path(path).is_file():
        raise InvalidValue(f"There is no file {path}.", key)
    return path


def _classes(given: Mapping[str, Any]) -> tuple[DeviceClasses, Plain]:
    """Classes of devices: each is a table with its share and the parameters of drawn devices."""
    what, kind = WHAT["classes"], DeviceClasses
    tables = given.get("classes", {})
    if not isinstance(tables, dict) or not tables:
        raise InvalidValue(
            f"It is {shown(tables)}, but must be tables such as [devices.classes.phone] with "
            f"share = 0.7 and speed = 10.",
            "classes",
        )
    classes, complete = {}, {}
    for name, table in tables.items():
        try:
            share, devices, complete[name] = _class(table)
        except InvalidValue as error:
            raise error.under("classes", name) from None
        classes[name] = (share, devices)
    values = arguments(kind, {**given, "classes": classes}, what)
    try:
        found = make(kind, values, what)
    except InvalidValue as error:
        raise InvalidValue(
            str(error), *(parameter_at_fault(str(error), values) or ("classes",))
        ) from None
    return found, {**completed(kind, values), "classes": complete}


def _class(table: Any) -> tuple[float, Devices, Plain]:
    """The share of a class, its devices, and its table with all defaults."""
    if not isinstance(table, dict):
        raise InvalidValue(f"It is {shown(table)}, but must be a table with a share and a speed.")
    if "share" not in table:
        raise InvalidValue(
            "A class of devices needs its share of the clients, which is missing.", "share"
        )
    share = table["share"]
    try:
        require_range("share", share, above=0, at_most=1)
    except UndriftError as error:
        raise InvalidValue(str(error), "share") from None
    own = {key: value for key, value in table.items() if key != "share"}
    devices = make(Devices, own, WHAT["drawn"])
    return share, devices, {"share": share, **completed(Devices, arguments(Devices, own, "it"))}


class LimitTable(ClosedTable):
    """A share of every cohort does only some of its local work."""

    share: Share = Field(default=0.5, description="ρ: share of every cohort that is slow.")
    longest: Annotated[Counting | None, BeforeValidator(or_none)] = Field(
        default=None,
        description="τ_max: a slow client that is asked for E epochs (or steps) does E − τ + 1, "
        "with τ drawn uniformly from 1 … τ_max; left out, τ_max = E − 1.",
    )
    drop: bool = Field(
        default=False,
        description="Whether the server drops clients that would not finish: a slow client with "
        "τ > 1 does no work.",
    )

    def build(self) -> Unfinished:
        """The limit as `train` takes it."""
        return Unfinished(self.share, self.longest, self.drop)
