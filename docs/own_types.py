"""What the guide's reference adds to docstrings: each parameter's own type and default.

Parameters that are explained together, as in `epochs, steps`, would all get those of the first.
Those of `train` are declared in a TypedDict, and would get none.
"""

from __future__ import annotations

from typing import Any

import griffe


class OwnTypes(griffe.Extension):
    """Takes types and defaults from the signature, name by name."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Go through everything that has a docstring."""
        self._visit(pkg)

    def _visit(self, found: griffe.Object) -> None:
        for member in found.members.values():
            if isinstance(member, griffe.Object):
                self._visit(member)
        if isinstance(found, griffe.Class | griffe.Function) and found.docstring is not None:
            for section in found.docstring.parsed:
                if section.kind is griffe.DocstringSectionKind.parameters:
                    for each in section.value:
                        self._correct(found, each)

    def _correct(self, found: griffe.Class | griffe.Function, each: Any) -> None:
        if each.name in found.parameters:
            own = found.parameters[each.name]
            each.annotation, each.value = own.annotation, own.default
        elif isinstance(found, griffe.Class) and each.name in found.attributes:  # a dataclass
            field = found.attributes[each.name]
            each.annotation, each.value = field.annotation, field.value
        elif "options" in found.parameters and "Options" in found.module.members:
            each.annotation = found.module["Options"].members[each.name].annotation
