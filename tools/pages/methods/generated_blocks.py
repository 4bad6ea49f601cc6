"""Pages whose words are written by hand and whose facts are made: parts between marks.

<!-- made: options -->
…
<!-- end -->
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from undrift.utils.errors import require

MADE = re.compile(r"(<!-- made: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)

Maker = Callable[[], Iterable[str]]
"""Gives the lines of a part."""


def refreshed(text: str, made: Mapping[str, Maker], where: str = "The page") -> str:
    """A page with its made parts made anew."""

    def anew(found: re.Match[str]) -> str:
        begin, part, end = found.groups()
        require(part in made, f"{where} asks for {part!r}, but there is {', '.join(made)}.")
        return "\n".join([begin.rstrip("\n"), "", *made[part](), "", end])

    return MADE.sub(anew, text)
