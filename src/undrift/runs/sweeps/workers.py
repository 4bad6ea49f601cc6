"""Points of a sweep in processes of their own, several at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from filelock import FileLock, Timeout

from undrift.runs.folder import EXPERIMENT
from undrift.runs.stopping import count_stop_requests
from undrift.runs.sweeps.judging import UNFINISHED, Judge, Point, Verdict


class Workers:
    """Runs points in processes of their own, several at a time.

    Parameters
    ----------
    folder
        where the points' folders are
    jobs
        how many processes at a time
    start, resume
        the commands that run a point in a folder, and that continue one
    """

    def __init__(
        self,
        folder: Path,
        jobs: int,
        start: Callable[[Point, Path], list[str]],
        resume: Callable[[Path], list[str]],
    ):
        self.folder, self.jobs = folder, jobs
        self._start, self._resume = start, resume

    def place(self, point: Point) -> Path:
        """The folder of a point."""
        return self.folder / point.id

    def run(
        self,
        points: Sequence[Point],
        judge: Judge,
        done: Callable[[Verdict], None] = lambda verdict: None,
    ) -> dict[str, Verdict]:
        """Bring every point to its end; those that are there already are not run."""
        found: dict[str, Verdict] = {}

        def note(verdict: Verdict) -> None:
            found[verdict.point.id] = verdict
            done(verdict)

        waiting = deque(points)
        running: dict[str, tuple[Point, subprocess.Popen[bytes]]] = {}
        with count_stop_requests() as stop:
            while (waiting or running) and not stop():
                for _ in range(len(waiting)):
                    point = waiting.popleft()
                    # A process that a killed sweep left behind may still be at it.
                    if _busy(self.place(point)):
                        waiting.append(point)
                    elif (before := judge.verdict(point, self.place(point))).status != UNFINISHED:
                        note(before)
                    elif len(running) < self.jobs:
                        running[point.id] = point, self._process(point)
                    else:
                        waiting.appendleft(point)
                        break
                for id, (point, process) in list(running.items()):
                    if process.poll() is not None:
                        del running[id]
                        verdict = self._verdict(point, judge, process.returncode)
                        if verdict.status == "failed" and _busy(self.place(point)):
                            waiting.append(point)  # somebody else was first
                        else:
                            note(verdict)
                time.sleep(0.02)
            if running:
                self._interrupt([process for _, process in running.values()], stop)
        if stop():
            raise KeyboardInterrupt
        return found

    def _process(self, point: Point) -> subprocess.Popen[bytes]:
        place = self.place(point)
        if (place / EXPERIMENT).is_file():
            command = self._resume(place)
        else:
            command = self._start(point, place)
        threads = str(max(1, (os.cpu_count() or 1) // self.jobs))
        with self._log(point).open("wb") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={"OMP_NUM_THREADS": threads, **os.environ},
                start_new_session=True,  # Ctrl-C is for us to pass on, once
            )

    def _verdict(self, point: Point, judge: Judge, code: int) -> Verdict:
        verdict = judge.verdict(point, self.place(point))
        if verdict.status != UNFINISHED:
            self._log(point).unlink(missing_ok=True)
            return verdict
        lines = self._log(point).read_text(errors="replace").strip().splitlines()
        said = lines[-1].strip() if lines else f"its process ended with {code}"
        return Verdict(point, "failed", reason=said)

    def _log(self, point: Point) -> Path:
        return self.folder / f"{point.id}.log"

    @staticmethod
    def _interrupt(processes: Sequence[subprocess.Popen[bytes]], stop: Callable[[], int]) -> None:
        """Let the rounds in flight finish; asked twice, end at once."""
        for process in processes:
            process.send_signal(signal.SIGINT)
        while any(process.poll() is None for process in processes):
            if stop() > 1:
                for process in processes:
                    process.kill()
            time.sleep(0.05)


def _busy(folder: Path) -> bool:
    """Whether a process holds the folder of a run."""
    if not folder.is_dir():
        return False
    try:
        with FileLock(folder / ".lock", timeout=0):
            return False
    except Timeout:
        return True
