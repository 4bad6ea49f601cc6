"""Makes text of unknown origin safe to show: no control characters, no escape sequences.

What a site says reaches records, logs, the terminal and the report only through `plain_text`.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any

ESCAPE_SEQUENCES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor movements
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC and other strings: titles, links
    r"|\x1b[ -/]*[0-~]?"  # other sequences, and a lone escape
    r"|\x9b[0-?]*[ -/]*[@-~]"
)
UNSAFE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Unicode categories that are removed: controls, marks of writing direction, unassigned, …"""
EXAMINED_FACTOR = 8
"""At most this many times as many characters as are shown are looked at."""


def plain_text(value: Any, most: int = 300) -> str:
    """The value as text on one line that is safe to show, cut to `most` characters."""
    text = ESCAPE_SEQUENCES.sub("", str(value)[: EXAMINED_FACTOR * most])
    spaced = " ".join(text.split())
    safe = "".join(each for each in spaced if unicodedata.category(each) not in UNSAFE)
    return safe if len(safe) <= most else f"{safe[: most - 1]}…"
