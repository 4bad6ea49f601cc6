"""Settings of the C library's memory allocator, for processes that compute clients' work."""

from __future__ import annotations

import ctypes
import sys
from functools import cache

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Numbers of the parameters of glibc's mallopt."""


@cache
def keep_freed_memory(kept_bytes: int = 1 << 28) -> None:
    """Let each thread of this process keep up to `kept_bytes` of freed memory for reuse.

    Work on chunks of clients frees and allocates the same megabytes again and again. By default
    glibc returns them to the system each time, and every page must then be mapped and zeroed anew,
    which can take longer than the computation. Without glibc this does nothing.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return
    mallopt(MMAP_THRESHOLD, 1 << 25)  # the largest threshold that glibc accepts, in bytes
    mallopt(TRIM_THRESHOLD, kept_bytes)
