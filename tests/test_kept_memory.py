"""A thread reuses the memory that it freed, unless a variable of the environment forbids that."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import ctypes, resource, threading
from undrift.utils.memory import keep_freed_memory

keeps = keep_freed_memory()
c = ctypes.CDLL(None)
c.malloc.restype, c.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
c.free.argtypes = [ctypes.c_void_p]
c.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
BYTES = 28_000_000

def work():
    kept = [c.malloc(BYTES) for _ in range(2)]  # these fill a heap, so that more needs another one
    for turn in range(5):
        if turn == 1:
            before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        address = c.malloc(BYTES)
        c.memset(address, 1, BYTES)
        c.free(address)
    print(keeps, resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)

thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


def faults(**environment):
    """Whether memory is kept, and the pages mapped in the second to the fifth turn."""
    found = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    keeps, number = found.stdout.split()
    return keeps == "True", int(number)


pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a setting of glibc")


def test_a_thread_reuses_what_it_freed():
    pages = 4 * 28_000_000 // os.sysconf("SC_PAGE_SIZE")
    keeps, number = faults(UNDRIFT_KEEP_MEMORY="1")
    if not keeps:
        pytest.skip("another C library than glibc")
    assert number < pages / 10


def test_the_environment_leaves_the_allocator_alone():
    keeps, _ = faults(UNDRIFT_KEEP_MEMORY="0")
    assert not keeps
