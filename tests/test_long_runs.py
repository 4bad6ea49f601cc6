"""The driver of long runs: it does what is left of a plan, and names what failed."""

import json
import os
import shlex
from pathlib import Path

import pytest
from tools import long_runs
from tools.round_costs import measure

from undrift.reproduce import find

PLAN = Path(long_runs.__file__).with_name("long_runs.txt")


@pytest.fixture
def plan(tmp_path):
    return tmp_path / "plan.txt"


def test_lines_that_have_ended_are_not_run_again(plan, tmp_path):
    plan.write_text("# a comment\n\nfeddyn-mnist --seeds 1\nfeddyn-mnist --seeds 3\n")
    assert long_runs.waiting(plan, tmp_path) == ["feddyn-mnist --seeds 1", "feddyn-mnist --seeds 3"]
    (tmp_path / long_runs.ENDED).write_text(json.dumps({"feddyn-mnist --seeds 1": 2.0}))
    assert long_runs.waiting(plan, tmp_path) == ["feddyn-mnist --seeds 3"]


def test_a_plan_is_run_to_its_end_and_failures_are_logged(plan, tmp_path):
    good, bad = "fednova-prox-tradeoff --quick", "fednova-prox-tradeoff --part nope"
    plan.write_text(f"{bad}\n{good}\n")
    out = tmp_path / "out"
    long_runs.run(plan, out, at_once=2, pause_file=tmp_path / "pause")
    assert list(long_runs.ended(out)) == [good]
    assert (out / "fednova-prox-tradeoff" / "findings.json").is_file()
    log = (out / long_runs.LOG).read_text()
    assert "ends with 0 after" in log and "ends with 2 after" in log
    assert "has no parts" in log


def test_a_paused_job_is_stopped_and_goes_on(tmp_path):
    with (tmp_path / "log").open("w") as log:
        job = long_runs.Job("fednova-prox-tradeoff --quick", tmp_path, log)
        job.pause(True)
        _, status = os.waitpid(job.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        job.pause(False)
        assert job.process.wait(timeout=300) == 0


def test_the_plan_of_full_runs_has_only_parts_that_exist():
    lines = long_runs.waiting(PLAN, Path("nowhere"))
    assert len(lines) > 20
    for line in lines:
        name, *words = shlex.split(line)
        for option, value in zip(words[::2], words[1::2], strict=True):
            assert option in ("--part", "--seeds")
            assert option == "--seeds" or value in find(name).parts, line


def test_the_cost_of_a_round_is_measured_and_stored(tmp_path):
    (tmp_path / "reproductions").mkdir()
    found = measure(tmp_path, "fedavg-local-steps", "synthetic(0,0)", ["FedAvg"])
    stored = json.loads((tmp_path / "reproductions" / "round-costs.json").read_text())
    assert stored == {"fedavg-local-steps": {"synthetic(0,0)": found}} and found["FedAvg"] > 0
