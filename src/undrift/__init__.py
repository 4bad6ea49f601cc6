"""undrift: federated learning over heterogeneous clients, with the answer the papers promise.

All names are those of `undrift.public`. They are read when the first of them is asked for, so that
the command line can answer, and complete words, without waiting for torch.
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from undrift.public import *  # noqa: F403

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name.startswith("__") and name != "__all__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if find_spec(f"{__name__}.{name}") is not None:
        return import_module(f"{__name__}.{name}")
    public = import_module(f"{__name__}.public")
    globals().update({each: getattr(public, each) for each in public.__all__})
    globals()["__all__"] = public.__all__
    try:
        return globals()[name]
    except KeyError:
        near = get_close_matches(name, public.__all__, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}") from None


def __dir__() -> list[str]:
    return sorted({*globals(), *import_module(f"{__name__}.public").__all__})
