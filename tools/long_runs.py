"""Run a list of reproductions, some at a time, in the background; start it again to continue.

    python -m tools.long_runs plan.txt OUT [--at-once 2] [--pause-while FILE]

Every line of the plan is the arguments of one `undrift reproduce`, such as

    feddyn-mnist --part "10 %, IID" --seeds 3

Jobs start in the order of the plan, with the lowest priority and one thread each. Two jobs of the
same reproduction never run together, because they share the folder OUT/NAME. A job that has ended
well is skipped next time, unless its line in the plan has changed. While FILE exists, all jobs are
stopped with SIGSTOP.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

POLL_SECONDS = 2.0
"""How often the driver looks for ended jobs and for the file that pauses them."""
ENDED, LOG = "ended.json", "log.txt"


class Job:
    """One running `undrift reproduce`, in a process group of its own."""

    def __init__(self, line: str, out: Path, log: IO[str]):
        self.line, self.name, self.log = line, name_of(line), log
        self.began, self.paused = time.monotonic(), False
        words = [*shlex.split(line), "--out", str(out / self.name), "--quiet"]
        command = ["nice", "-n", "19", sys.executable, "-m", "undrift", "reproduce", *words]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            command, stdout=log, stderr=log, env=env, start_new_session=True
        )

    def signal(self, number: int) -> None:
        """Send a signal to the job and everything it started."""
        os.killpg(self.process.pid, number)

    def pause(self, wanted: bool) -> None:
        """Stop the job, or let it go on."""
        if wanted != self.paused:
            self.signal(signal.SIGSTOP if wanted else signal.SIGCONT)
            self.paused = wanted


def name_of(line: str) -> str:
    """Return the reproduction of a line of the plan."""
    return shlex.split(line)[0]


def waiting(plan: Path, out: Path) -> list[str]:
    """Return the lines of the plan that have not ended well yet."""
    lines = (line.strip() for line in plan.read_text("utf-8").splitlines())
    return [line for line in lines if line and not line.startswith("#") and line not in ended(out)]


def ended(out: Path) -> dict[str, float]:
    """Return the seconds of each line that has ended well."""
    path = out / ENDED
    found: dict[str, float] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return found


def run(plan: Path, out: Path, at_once: int, pause_file: Path | None) -> None:
    """Run the plan to its end. Lines may be added to it meanwhile."""
    out.mkdir(parents=True, exist_ok=True)
    running: list[Job] = []
    failed: set[str] = set()
    with (out / LOG).open("a", encoding="utf-8", buffering=1) as log:
        try:
            while True:
                paused = pause_file is not None and pause_file.exists()
                for job in running:
                    job.pause(paused)
                running = [job for job in running if not _has_ended(job, out, failed)]
                for line in () if paused else waiting(plan, out):
                    busy = {job.name for job in running}
                    if line not in failed and name_of(line) not in busy and len(running) < at_once:
                        print(f"{time.strftime('%H:%M:%S')} starts: {line}", file=log)
                        running.append(Job(line, out, log))
                if not running and not paused:
                    return
                time.sleep(POLL_SECONDS)
        finally:  # SIGTERM lets a job commit its round
            for job in running:
                job.signal(signal.SIGTERM)
                job.signal(signal.SIGCONT)


def _has_ended(job: Job, out: Path, failed: set[str]) -> bool:
    """Whether a job has ended; what becomes of it is noted."""
    code = job.process.poll()
    if code is None:
        return False
    took = round(time.monotonic() - job.began, 1)
    print(f"{time.strftime('%H:%M:%S')} ends with {code} after {took} s: {job.line}", file=job.log)
    if code == 0:
        text = json.dumps({**ended(out), job.line: took}, indent=1, ensure_ascii=False)
        (out / ENDED).write_text(text + "\n", encoding="utf-8")
    else:
        failed.add(job.line)
    return True


def main() -> None:
    """Read the command line and run the plan."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("plan", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--pause-while", type=Path)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    run(given.plan, given.out, given.at_once, given.pause_while)


if __name__ == "__main__":
    main()
