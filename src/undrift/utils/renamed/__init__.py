"""Names that were renamed or moved: the old ones still work, with a `DeprecationWarning`.

They are removed in the version after next; the guide's page on stability lists them.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType
from typing import Any

REMOVAL = "0.4"
"""The version in which the old names no longer work."""
RENAMED = {
    "undrift.Server": "undrift.ServerState",
    "undrift.LocalResult.progress": "undrift.LocalResult.a_norm",
    "undrift.verify.Outcome": "undrift.verify.Verdict",
    "undrift.runs.loggers.Begun": "undrift.runs.loggers.StartedRun",
}
"""Old and new names of classes and attributes."""
MOVED = {
    "undrift.errors": "undrift.utils.errors",
    "undrift.records": "undrift.core.records",
    "undrift.runs.experiment": "undrift.experiments.experiment",
    "undrift.runs.planning": "undrift.runs.experiment_runs",
    "undrift.runs.sweep": "undrift.runs.sweeps.sweep",
}
"""Old and new names of modules."""


def warn_of_old_name(old: str) -> None:
    """Warn that `old` has a new name, at the line that used it: the caller of the caller."""
    new = (RENAMED | MOVED)[old]
    verb = "moved to" if old in MOVED else "is now called"
    warnings.warn(
        f"{old} {verb} {new}; the old name works until undrift {REMOVAL}.",
        DeprecationWarning,
        stacklevel=3,
    )


def old_names(module: str) -> Callable[[str], Any]:
    """The `__getattr__` of a module, which answers for the names that it had before."""

    def __getattr__(name: str) -> Any:
        old = f"{module}.{name}"
        if old not in RENAMED:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warn_of_old_name(old)
        return getattr(sys.modules[module], RENAMED[old].rpartition(".")[2])

    return __getattr__


class OldModules(MetaPathFinder, Loader):
    """Imports modules under other names: those they had before, and short names.

    Parameters
    ----------
    short
        modules by the short names under which they may be imported without a warning
    """

    def __init__(self, short: Mapping[str, str]):
        self._short = short
        self._specs: dict[str, ModuleSpec | None] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in MOVED or fullname in self._short:
            return spec_from_loader(fullname, self)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        if spec.name in MOVED:
            warn_of_old_name(spec.name)
        found = import_module((MOVED | dict(self._short))[spec.name])
        self._specs[spec.name] = found.__spec__
        return found

    def exec_module(self, module: ModuleType) -> None:
        # The import system has just replaced the module's own spec by that of the other name.
        spec = module.__spec__
        assert spec is not None
        module.__spec__ = self._specs.pop(spec.name)
