"""Functions that a lower layer calls and a higher layer supplies.

Imports point from higher layers to lower ones. Where a lower layer needs a function of a higher
one, it asks for it by a name, and the package root (`undrift/__init__.py`) connects the name to the
module that supplies it. The module is imported on the first call.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

_SUPPLIERS: dict[str, tuple[str, str]] = {}
"""The module and the function behind each name."""


def connect(name: str, module: str, function: str) -> None:
    """Let `supplied(name)` return a function of a module."""
    _SUPPLIERS[name] = module, function


def supplied(name: str) -> Callable[..., Any]:
    """The function that the package root connected to a name."""
    module, function = _SUPPLIERS[name]
    return getattr(import_module(module), function)
