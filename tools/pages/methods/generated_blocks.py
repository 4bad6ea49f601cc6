"""Replaces the generated blocks of pages whose other text is written by hand.

<!-- made: options -->
…
<!-- end -->
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping

from undrift.utils.errors import require

MADE = re.compile(r"(<!-- made: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

Maker = Callable[[], Iterable[str]]
"""Yields the lines of a block."""


def refreshed(
    text: str, made: Mapping[str, Maker], where: str = "The page", keep: Collection[str] = ()
) -> str:
    """Return a page with its generated blocks replaced, but those named in `keep` as they are."""

    def replace(found: re.Match[str]) -> str:
        begin, part, end = found.groups()
        if part in keep:
            return found[0]
        require(
            part in made, f"{where} has a block {part!r}, but must use one of: {', '.join(made)}."
        )
        return "\n".join([begin.rstrip("\n"), "", *made[part](), "", end])

    return MADE.sub(replace, text)
