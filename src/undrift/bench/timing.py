"""Taking times on a noisy machine: one after another in turn, and the best of each."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import get_native_id

import torch

LEAST, MOST = 5, 200
"""How often each is timed, at least and at most."""
ENOUGH = 4.0
"""After so many seconds for all of them, the least is enough."""
ROW = 0.06
"""Each is timed for at least so many seconds at a turn."""
PAUSE, PATIENCE = 0.002, 0.2
"""Seconds between two looks at the other threads, and in which they fall asleep."""

Timed = Callable[[], float]
"""Does something once and says what it took."""
Tick = Callable[[float], None]
"""Told which share of the work is done."""


def seconds_of(do: Callable[[], object]) -> float:
    """What doing something takes."""
    began = time.perf_counter()
    do()
    return time.perf_counter() - began


def interleaved(
    timed: Sequence[Timed],
    repeats: int | None,
    tick: Tick = lambda share: None,
    least: int = LEAST,
    enough: float = ENOUGH,
) -> list[float]:
    """The best of each, timed in turn: `repeats` times, or `least` and more while time is left."""
    best = [float("inf")] * len(timed)
    began = time.perf_counter()
    for turn in range(MOST if repeats is None else repeats):
        spent = (time.perf_counter() - began) / enough
        if repeats is None and turn >= least and spent >= 1:
            break
        for place, do in enumerate(timed):
            let_threads_sleep()
            best[place] = min(best[place], in_a_row(do))
            done = turn + (place + 1) / len(timed)
            tick(done / repeats if repeats else min(1.0, spent, done / least))
    tick(1.0)
    return best


def in_a_row(do: Timed) -> float:
    """What one takes on average, done again and again for `ROW` seconds, as rounds are.

    The first after something else has been timed finds nothing where it is near.
    """
    until = time.perf_counter() + ROW
    found = [do()]
    while time.perf_counter() < until:
        found.append(do())
    return sum(found) / len(found)


def let_threads_sleep() -> None:
    """Wait until the other threads of this process have nothing more to do.

    Those inside torch's operators go on spinning for some ten milliseconds after the last one, to
    be ready for the next. What is timed meanwhile would have a core less.
    """
    until = time.perf_counter() + PATIENCE
    while _others_awake() and time.perf_counter() < until:
        time.sleep(PAUSE)


def _others_awake() -> bool:
    """Whether another thread of this process runs or could; no, where nobody says."""
    tasks = Path("/proc/self/task")
    own = str(get_native_id())
    try:
        told = [(task / "stat").read_text() for task in tasks.iterdir() if task.name != own]
    except OSError:  # not on Linux, or a thread has ended
        return False
    return any(line.rpartition(")")[2].split()[0] == "R" for line in told)


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """Let torch use so many threads inside an operator for the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def peak_mb() -> float | None:
    """The most memory this process has had so far, in megabytes; None where nobody says."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
