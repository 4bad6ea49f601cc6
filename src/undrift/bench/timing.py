"""Time rounds on a noisy machine: several candidates in turn, and the fastest time of each.

Every benchmark goes through `interleaved`, so that a busy moment of the machine slows all
candidates and not only one of them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import get_native_id

import torch

MIN_TURNS, MAX_TURNS = 5, 200
"""How often each candidate is timed."""
ENOUGH_SECONDS = 4.0
"""After this time for all candidates together, `MIN_TURNS` turns are enough."""
TURN_SECONDS = 0.06
"""How long each candidate is repeated in one turn, at least."""
POLL_SECONDS, MAX_WAIT_SECONDS = 0.002, 0.2
"""How often, and for how long, `let_threads_sleep` checks the other threads of the process."""

Timed = Callable[[], float]
"""Does something once and returns the seconds it took."""
Tick = Callable[[float], None]
"""Is told which share of the work is done, from 0 to 1."""


def seconds_of(do: Callable[[], object]) -> float:
    """Call a function and return the wall seconds it took."""
    began = time.perf_counter()
    do()
    return time.perf_counter() - began


def interleaved(
    timed: Sequence[Timed],
    repeats: int | None,
    tick: Tick = lambda share: None,
    min_turns: int = MIN_TURNS,
    enough_seconds: float = ENOUGH_SECONDS,
) -> list[float]:
    """Return the fastest time of each candidate in seconds, timing them in turn.

    There are `repeats` turns; if that is None, `min_turns` and more while time is left.
    """
    best = [float("inf")] * len(timed)
    began = time.perf_counter()
    for turn in range(MAX_TURNS if repeats is None else repeats):
        spent = (time.perf_counter() - began) / enough_seconds
        if repeats is None and turn >= min_turns and spent >= 1:
            break
        for place, do in enumerate(timed):
            let_threads_sleep()
            best[place] = min(best[place], mean_of_turn(do))
            done = turn + (place + 1) / len(timed)
            tick(done / repeats if repeats else min(1.0, spent, done / min_turns))
    tick(1.0)
    return best


def mean_of_turn(do: Timed) -> float:
    """Repeat a candidate for `TURN_SECONDS` and return the mean seconds of one repetition.

    Rounds of a run follow each other, too. Timed alone, a repetition would find the caches full
    of the data of the candidate before it.
    """
    until = time.perf_counter() + TURN_SECONDS
    found = [do()]
    while time.perf_counter() < until:
        found.append(do())
    return sum(found) / len(found)


def let_threads_sleep() -> None:
    """Wait until the other threads of this process are idle.

    The threads inside torch's operators keep spinning for some ten milliseconds after the last
    operator, to be ready for the next. A candidate timed meanwhile would have a core less.
    """
    until = time.perf_counter() + MAX_WAIT_SECONDS
    while _other_threads_run() and time.perf_counter() < until:
        time.sleep(POLL_SECONDS)


def _other_threads_run() -> bool:
    """Whether another thread of this process is running; False where /proc does not tell."""
    tasks = Path("/proc/self/task")
    own = str(get_native_id())
    try:
        stats = [(task / "stat").read_text() for task in tasks.iterdir() if task.name != own]
    except OSError:  # not on Linux, or a thread has ended
        return False
    return any(line.rpartition(")")[2].split()[0] == "R" for line in stats)


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """Set the number of threads inside torch's operators for the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def peak_mb() -> float | None:
    """Return the peak memory of this process in MB; None where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
