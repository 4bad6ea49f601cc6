"""Short representations: what was given, without what is as it always is."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any


def short(self: Any) -> str:
    """A data class with the values that differ from their defaults; those without one always."""
    told = []
    for each in fields(self):
        value = getattr(self, each.name)
        default = each.default_factory() if each.default_factory is not MISSING else each.default
        if default is MISSING or type(value) is not type(default) or value != default:
            told.append(f"{each.name}={value!r}")
    return f"{type(self).__name__}({', '.join(told)})"
