"""Run the points of a sweep in separate processes, several at a time."""

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
from undrift.runs.sweeps.judging import UNFINISHED, Judge, PointResult, SweepPoint

POLL_SECONDS = 0.02
"""How often the sweep checks whether a process has ended."""


class Workers:
    """Runs points in separate processes, several at a time.

    Parameters
    ----------
    folder
        the folder that contains the run folders of the points
    jobs
        number of processes at a time
    start, resume
        the commands that start a point in a run folder, and that continue one
    """

    def __init__(
        self,
        folder: Path,
        jobs: int,
        start: Callable[[SweepPoint, Path], list[str]],
        resume: Callable[[Path], list[str]],
    ):
        self.folder, self.jobs = folder, jobs
        self._start, self._resume = start, resume

    def place(self, point: SweepPoint) -> Path:
        """The folder of a point."""
        return self.folder / point.id

    def run(
        self,
        points: Sequence[SweepPoint],
        judge: Judge,
        done: Callable[[PointResult], None] = lambda verdict: None,
    ) -> dict[str, PointResult]:
        """Run every point to its end; points that ended before are not run again.

        `done` is called with each result as soon as it is known.
        """
        found: dict[str, PointResult] = {}

        def note(verdict: PointResult) -> None:
            found[verdict.point.id] = verdict
            done(verdict)

        waiting = deque(points)
        running: dict[str, tuple[SweepPoint, subprocess.Popen[bytes]]] = {}
        with count_stop_requests() as stop:
            while (waiting or running) and not stop():
                for _ in range(len(waiting)):
                    point = waiting.popleft()
                    # A process that a killed sweep left behind may still run this point.
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
                            waiting.append(point)  # another process holds its folder: wait for it
                        else:
                            note(verdict)
                time.sleep(POLL_SECONDS)
            if running:
                self._interrupt([process for _, process in running.values()], stop)
        if stop():
            raise KeyboardInterrupt
        return found

    def _process(self, point: SweepPoint) -> subprocess.Popen[bytes]:
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
                start_new_session=True,  # Ctrl-C reaches only this process, which passes it on once
            )

    def _verdict(self, point: SweepPoint, judge: Judge, code: int) -> PointResult:
        verdict = judge.verdict(point, self.place(point))
        if verdict.status != UNFINISHED:
            self._log(point).unlink(missing_ok=True)
            return verdict
        lines = self._log(point).read_text(errors="replace").strip().splitlines()
        said = lines[-1].strip() if lines else f"its process ended with exit code {code}"
        return PointResult(point, "failed", reason=said)

    def _log(self, point: SweepPoint) -> Path:
        return self.folder / f"{point.id}.log"

    @staticmethod
    def _interrupt(processes: Sequence[subprocess.Popen[bytes]], stop: Callable[[], int]) -> None:
        """Let processes finish their current round; on a second Ctrl-C, kill them."""
        for process in processes:
            process.send_signal(signal.SIGINT)
        while any(process.poll() is None for process in processes):
            if stop() > 1:
                for process in processes:
                    process.kill()
            time.sleep(POLL_SECONDS)


def _busy(folder: Path) -> bool:
    """Whether a process holds the folder of a run."""
    if not folder.is_dir():
        return False
    try:
        with FileLock(folder / ".lock", timeout=0):
            return False
    except Timeout:
        return True
