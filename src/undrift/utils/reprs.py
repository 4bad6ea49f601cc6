"""Short representations of data classes, for logs and error messages."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any


def short_repr(self: Any) -> str:
    """A repr of a data class that omits arguments left at their defaults."""
    shown = []
    for each in fields(self):
        value = getattr(self, each.name)
        default = each.default_factory() if each.default_factory is not MISSING else each.default
        if default is MISSING or type(value) is not type(default) or value != default:
            shown.append(f"{each.name}={value!r}")
    return f"{type(self).__name__}({', '.join(shown)})"
