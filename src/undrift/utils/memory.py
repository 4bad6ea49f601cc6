"""How freed memory is handled by the C library."""

from __future__ import annotations

import ctypes
import sys
from functools import cache

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""The parameters of glibc's mallopt."""


@cache
def keep_freed_memory(kept: int = 1 << 28) -> None:
    """Let this process keep up to so many freed bytes per thread for what it allocates next.

    Work on chunks of clients frees and allocates the same megabytes over and over. Unless told so,
    glibc gives them back to the system each time, and every page of them must then be made anew,
    which can take longer than the computation. Elsewhere this does nothing.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return
    mallopt(MMAP_THRESHOLD, 1 << 25)  # the most that glibc takes
    mallopt(TRIM_THRESHOLD, kept)
