"""Settings of the C library's memory allocator, for processes that compute clients' work."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3
"""Numbers of the parameters of glibc's mallopt."""
LARGEST_MMAP_THRESHOLD = 1 << 25
"""The largest threshold that glibc accepts, in bytes."""
HEAP_BYTES = 1 << 26
"""The size of the pieces of memory, called heaps, in which glibc serves threads."""
SWITCH = "UNDRIFT_KEEP_MEMORY"
"""The environment variable that leaves the allocator as it is if it is "0"."""


@cache
def keep_freed_memory(kept_bytes: int = 1 << 28) -> bool:
    """Let each thread of this process keep freed memory for reuse; returns whether it does.

    Work on clients frees and allocates the same megabytes again and again. By default glibc returns
    them to the system each time, and every page must then be mapped and zeroed anew, which can take
    a tenth of the time of a convolutional network. The main thread keeps up to `kept_bytes`. Other
    threads get memory in heaps. glibc releases a heap that became empty, whatever is to be kept,
    unless less than `TOP_PAD` would stay free: so this is as large as a heap.

    Without glibc, or with `UNDRIFT_KEEP_MEMORY=0` in the environment, this does nothing.
    """
    if not sys.platform.startswith("linux") or os.environ.get(SWITCH) == "0":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    settings = (
        (MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD),
        (TRIM_THRESHOLD, kept_bytes),
        (TOP_PAD, HEAP_BYTES),
    )
    return 0 not in [mallopt(which, value) for which, value in settings]
