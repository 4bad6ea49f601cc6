"""Sweeps: what is tried, what is chosen, and what is never done twice."""

import csv
import io
import json
import math
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from undrift.experiments.experiment import Experiment
from undrift.runs.folder import run_folder
from undrift.runs.sweeps.grids import Range, digest, spaces
from undrift.runs.sweeps.judging import Judge, PointResult, SweepPoint
from undrift.runs.sweeps.sweep import UNDRIFT, run_sweep
from undrift.utils.errors import UndriftError

HERE = Path(__file__).parent
FILE = """
rounds = 4
seeds = [0]
[data]
source = "synthetic"
clients = 5
validation = 0.2
[model]
name = "logistic"
[local]
lr = 0.01
batch_size = 10
epochs = 1
"""
FEDAVG = '[[method]]\nname = "FedAvg"\n'
FEDDYN = '[[method]]\nname = "FedDyn"\nalpha = 0.1\n'


def methods(*labels):
    return [{"name": label, "label": label} for label in labels]


# What is tried


def test_a_grid_is_the_product_of_its_lists():
    sweep = {"local.lr": [0.1, 0.01], "local.epochs": [1, 5]}
    assert spaces(sweep, methods("FedAvg"))["FedAvg"].grid() == [
        {"local.lr": 0.1, "local.epochs": 1},
        {"local.lr": 0.1, "local.epochs": 5},
        {"local.lr": 0.01, "local.epochs": 1},
        {"local.lr": 0.01, "local.epochs": 5},
    ]


def test_every_method_has_its_own_grid():
    sweep = {
        "local.lr": [0.1, 0.01],
        "method.FedDyn.alpha": [1, 2],
        "method.1.local.epochs": [3],
        "method.FedProx.mu": {"low": 0.1, "high": 1.0, "log": True},
    }
    found = spaces(sweep, methods("FedAvg", "FedDyn", "FedProx"))
    assert found["FedAvg"].grid() == [{"local.lr": 0.1}, {"local.lr": 0.01}]
    assert found["FedDyn"].grid() == [
        {"local.lr": lr, "method.FedDyn.alpha": alpha, "method.1.local.epochs": 3}
        for lr in (0.1, 0.01)
        for alpha in (1, 2)
    ]
    assert found["FedProx"].ranges == {"method.FedProx.mu": Range(0.1, 1.0, log=True)}
    assert found["FedProx"].lists == {"local.lr": [0.1, 0.01]}
    assert not found["FedDyn"].ranges


def test_a_method_without_keys_is_one_point():
    found = spaces({"method.FedDyn.alpha": [1, 2]}, methods("FedAvg", "FedDyn"))
    assert found["FedAvg"].grid() == [{}]


def test_labels_with_dots_that_begin_alike():
    tables = [{"name": "FedDyn", "label": "Dyn"}, {"name": "FedDyn", "label": "Dyn .01"}]
    found = spaces({"method.Dyn .01.alpha": [1, 2]}, tables)
    assert found["Dyn"].grid() == [{}] and len(found["Dyn .01"].grid()) == 2


@pytest.mark.parametrize(
    ("sweep", "said"),
    [
        ({}, r"\[sweep\] is empty"),
        ({"local.lr": [0.1, 0.1]}, "sweep.local.lr has 0.1 twice"),
        ({"data.partition": ["iid"]}, "would change how points are compared"),
        ({"seeds": [[0], [1]]}, "would change how points are compared"),
        ({"evaluation.every": [1]}, "would change how points are compared"),
    ],
)
def test_sweeps_that_are_refused(sweep, said):
    with pytest.raises(UndriftError, match=said):
        spaces(sweep, methods("FedAvg"))


def test_a_point_is_named_by_what_it_computes():
    assert digest({"a": 1, "b": [1, 2]}) == digest({"b": [1, 2], "a": 1})
    assert digest({"a": 1}) != digest({"a": 2})


# What is chosen


def verdict(id, *values, status="finished", rounds=()):
    return PointResult(SweepPoint("a", {}, id), status, values, rounds)


def test_the_best_is_the_highest_mean_and_of_equals_the_first():
    judge = Judge("validation_accuracy", (0, 1))
    found = [verdict("low", 0.9, 0.1), verdict("first", 0.6, 0.7), verdict("second", 0.7, 0.6)]
    assert judge.best(found).point.id == "first"


def test_the_best_loss_is_the_lowest():
    found = [verdict("high", 0.9), verdict("low", 0.1)]
    assert Judge("validation_loss").best(found).point.id == "low"


def test_what_diverged_or_failed_is_never_chosen():
    judge = Judge("validation_loss")
    bad = [verdict("diverged", 0.0, status="diverged"), verdict("failed", status="failed")]
    assert judge.best(bad) is None
    assert judge.best([*bad, verdict("poor", 99.0)]).point.id == "poor"
    assert judge.cost(bad[0]) == (math.inf, math.inf)


def test_with_a_target_the_fewest_rounds_are_best():
    judge = Judge("validation_accuracy", (0,), ("validation_accuracy", 0.5))
    found = [
        verdict("never", 0.49, rounds=[math.inf]),
        verdict("slow", 0.9, rounds=[9]),
        verdict("fast", 0.5, rounds=[3]),
        verdict("fast and better", 0.6, rounds=[3]),
    ]
    assert judge.best(found).point.id == "fast and better"
    assert judge.best(found[:2]).point.id == "slow"


def run_files(folder, seed, status, *metrics):
    own = folder / "a" / f"seed-{seed}"
    own.mkdir(parents=True)
    (own / "run.json").write_text(json.dumps({"status": status, "reason": None}))
    lines = [json.dumps({"round": n, "metrics": each}) for n, each in enumerate(metrics)]
    (own / "records.jsonl").write_text("\n".join(lines) + "\n")


def test_the_verdict_is_read_from_the_last_evaluated_round(tmp_path):
    judge = Judge("validation_accuracy", (0, 1), ("validation_accuracy", 0.4))
    point = SweepPoint("a", {}, "x")
    assert judge.verdict(point, tmp_path).status == "unfinished"
    values = [{"validation_accuracy": value} for value in (0.1, 0.7, 0.5)]
    run_files(tmp_path, 0, "finished", *values, {})  # the last round was not evaluated
    assert judge.verdict(point, tmp_path).status == "unfinished"  # a seed is missing
    run_files(tmp_path, 1, "stopped", {"validation_accuracy": 0.3})
    found = judge.verdict(point, tmp_path)
    assert (found.status, list(found.values)) == ("finished", [0.5, 0.3])
    assert list(found.rounds) == [1, math.inf]


@pytest.mark.parametrize("bad", ["diverged", "nan"])
def test_a_point_that_diverged_with_one_seed_diverged(tmp_path, bad):
    run_files(tmp_path, 0, "finished", {"validation_accuracy": 0.9})
    value = "nan" if bad == "nan" else 0.9
    run_files(tmp_path, 1, "finished" if bad == "nan" else bad, {"validation_accuracy": value})
    found = Judge("validation_accuracy", (0, 1)).verdict(SweepPoint("a", {}, "x"), tmp_path)
    assert found.status == "diverged" and found.reason


@pytest.mark.parametrize("metric", ["test_accuracy", "test_loss", "cohort/test_accuracy"])
def test_the_test_part_never_chooses(metric):
    with pytest.raises(UndriftError, match="of the test part, which must not choose settings"):
        Judge.of(metric, [0], {})
    with pytest.raises(UndriftError, match="would stop the points of a sweep by the test part"):
        Judge.of("validation_accuracy", [0], {metric: 0.9})


def test_other_metrics_are_refused_with_a_suggestion():
    with pytest.raises(UndriftError, match="did you mean 'validation_accuracy'"):
        Judge.of("validation_acuracy", [0], {})
    with pytest.raises(UndriftError, match="must be one of"):
        Judge.of("train_loss", [0], {})


# Sweeps of a stand-in for `undrift run`


class Setup:
    def __init__(self, folder):
        self.folder, self.counts = folder, folder / "counts"
        self.out = folder / "out"
        self.command = [sys.executable, str(HERE / "stand_in.py"), str(self.counts)]

    def write(self, *parts):
        self.path = self.folder / "exp.toml"
        self.path.write_text("\n".join((FILE, *parts)))
        return self

    def run(self, **options):
        return run_sweep(self.path, self.out, progress=False, command=self.command, **options)

    def delay(self, seconds):
        (self.folder / "counts.delay").write_text(str(seconds))

    def executed(self):
        return self.counts.read_text().splitlines() if self.counts.exists() else []

    def json(self):
        return json.loads((self.out / "sweep.json").read_text())


@pytest.fixture
def setup(tmp_path):
    return Setup(tmp_path)


GRID = '[sweep]\n"local.lr" = [1.0, 0.1, 2.0]\nmethod.FedDyn.alpha = [0.1, 0.01]\n'


def test_a_sweep_chooses_for_every_method_and_writes_it_down(setup):
    outcome = setup.write(FEDAVG, FEDDYN, GRID).run(jobs=2)
    assert len(setup.executed()) == 3 + 6
    best = {label: each.point.settings for label, each in outcome.best().items()}
    assert best == {
        "FedAvg": {"local.lr": 0.1},
        "FedDyn": {"local.lr": 0.1, "method.FedDyn.alpha": 0.01},
    }
    rows = setup.json()["points"]
    assert [row["method"] for row in rows] == ["FedAvg"] * 3 + ["FedDyn"] * 6
    assert [row["settings"]["local.lr"] for row in rows[:3]] == [1.0, 0.1, 2.0]  # as written
    assert [row["status"] for row in rows[:3]] == ["finished", "finished", "diverged"]
    assert rows[1]["mean"] == pytest.approx(0.9) and rows[2]["mean"] is None
    with (setup.out / "sweep.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["chosen"] for line in lines] == ["0", "1", "0", *"000100"]
    assert lines[3]["method.FedDyn.alpha"] == "0.1" and lines[0]["method.FedDyn.alpha"] == ""
    assert outcome.files == [setup.out / "best.toml"]
    found = Experiment.load(setup.out / "best.toml").resolved()
    assert [(m["label"], m.get("alpha"), m["local"]["lr"]) for m in found["method"]] == [
        ("FedAvg", None, 0.1),
        ("FedDyn", 0.01, 0.1),
    ]
    assert found["output"]["folder"] == str(setup.out / "best") and not found.get("sweep")
    assert all(folder.is_dir() for folder in outcome.folders().values())


def test_the_table_says_what_was_chosen_and_how(setup):
    from rich.console import Console

    outcome = setup.write(FEDAVG, FEDDYN, GRID).run(jobs=2)
    console = Console(width=120, file=io.StringIO())
    console.print(outcome.table())
    text = console.file.getvalue()
    assert "highest last evaluated validation_accuracy (one seed)" in text
    assert "alpha = 0.01" in text and "0.9000" in text and "6, 2 diverged" in text


def test_best_points_on_the_edge_of_the_grid_are_named(setup):
    wide = '[sweep]\n"local.lr" = [1.0, 0.1, 0.01]\nmethod.FedDyn.alpha = [0.1, 0.01]\n'
    said = setup.write(FEDAVG, FEDDYN, wide).run(jobs=2).at_the_edge()
    assert said == [
        "FedDyn: the best method.FedDyn.alpha, 0.01, is the smallest of its list; try smaller "
        "values too."
    ]
    narrow = setup.write(FEDAVG, '[sweep]\n"local.lr" = [0.01, 0.1]\n').run().at_the_edge()
    assert [("larger" in each, "0.1" in each) for each in narrow] == [(True, True)]
    words = setup.write(FEDAVG, '[sweep]\n"local.nesterov" = [false]\n"local.lr" = [0.1]\n').run()
    assert words.at_the_edge() == []


def test_a_sweep_into_a_file_prints_a_line_per_point(setup, capfd):
    setup.write(FEDAVG, '[sweep]\n"local.lr" = [1.0, 0.1, 2.0]\n')
    run_sweep(setup.path, setup.out, command=setup.command)
    lines = capfd.readouterr().err.splitlines()
    assert lines == [
        "1/3  FedAvg  local.lr = 1.0: 0.8000",
        "2/3  FedAvg  local.lr = 0.1: 0.9000",
        "3/3  FedAvg  local.lr = 2.0: diverged",
    ]


def test_finished_points_are_never_run_twice(setup):
    setup.write(FEDAVG, FEDDYN, GRID).run(jobs=2)
    first = setup.executed()
    setup.run(jobs=1)
    assert setup.executed() == first
    # A grid that has grown runs what is new, and a method that was left out nothing.
    setup.write(FEDAVG, '[sweep]\n"local.lr" = [0.2, 0.1, 1.0]').run()
    assert [line.split()[-1] for line in setup.executed()[len(first) :]] == ["lr=0.2"]
    # Other rounds are other points.
    setup.path.write_text(setup.path.read_text().replace("rounds = 4", "rounds = 5"))
    setup.run()
    assert len(setup.executed()) == len(first) + 1 + 3


def test_the_choice_can_be_by_rounds_to_a_target(setup):
    parts = (FEDAVG, "[target]\nvalidation_accuracy = 0.4", '[sweep]\n"local.lr" = [0.001, 0.1]')
    outcome = setup.write(*parts).run()
    assert outcome.best()["FedAvg"].rounds == [2]
    assert outcome.judge.rule.startswith("fewest rounds to validation_accuracy 0.4, then highest")
    assert [row["rounds_mean"] for row in setup.json()["points"]] == [3, 2]


def test_shared_keys_of_local_overrule_a_method_that_changes_local(setup):
    own = FEDAVG + "local = { lr = 7.0, epochs = 2 }\n"
    outcome = setup.write(own, '[sweep]\n"local.lr" = [0.01, 0.1]').run()
    assert outcome.best()["FedAvg"].point.settings == {"local.lr": 0.1}
    (table,) = tomllib.loads((setup.out / "best.toml").read_text())["method"]
    assert table["local"] == {"lr": 0.1, "epochs": 2}


def test_methods_that_disagree_on_what_they_share_get_a_file_each(setup):
    sampling = '[sampling]\nkind = "uniform"\ncohort = 2\n'
    sweep = '[sweep]\n"sampling.cohort" = [2, 3]\n"local.lr" = [0.1]\n'
    outcome = setup.write(sampling, FEDAVG, FEDDYN, sweep).run()
    assert outcome.files == [setup.out / "best.toml"]  # equals: the first, for both
    verdicts = outcome.verdicts["FedDyn"]
    # The other one is made better for FedDyn.
    own = setup.out / "points" / verdicts[1].point.id / "FedDyn" / "seed-0"
    with (own / "records.jsonl").open("a") as file:
        file.write(json.dumps({"round": 5, "metrics": {"validation_accuracy": 0.99}}) + "\n")
    outcome = setup.run()
    assert outcome.files == [setup.out / "best-FedAvg.toml", setup.out / "best-FedDyn.toml"]
    assert not (setup.out / "best.toml").exists()
    cohorts = [Experiment.load(file).resolved()["sampling"]["cohort"] for file in outcome.files]
    assert cohorts == [2, 3]


def test_a_point_that_fails_is_said_and_tried_again(setup):
    setup.write(FEDAVG, '[sweep]\n"local.lr" = [0.5, 0.1]')
    for times in (1, 2):
        outcome = setup.run()
        (failed,) = outcome.failed()
        assert failed.reason == "error: lr = 0.5 is not liked."
        assert outcome.best()["FedAvg"].point.settings == {"local.lr": 0.1}
        counts = Counter(line.split()[-1] for line in setup.executed())
        assert counts == {"lr=0.5": times, "lr=0.1": 1}


def test_where_every_point_diverged_nothing_is_chosen(setup):
    outcome = setup.write(FEDAVG, '[sweep]\n"local.lr" = [2.0, 3.0]').run()
    assert outcome.best() == {} and outcome.files == []
    assert not (setup.out / "best.toml").exists()


def test_without_a_validation_part_a_sweep_is_refused(setup):
    setup.write(FEDAVG, '[sweep]\n"local.lr" = [0.1]')
    setup.path.write_text(setup.path.read_text().replace("validation = 0.2", ""))
    with pytest.raises(UndriftError, match=r"add validation = 0\.1 to its \[data\]"):
        setup.run()
    assert not setup.out.exists()


def test_a_mistake_at_any_point_is_said_before_the_first_runs(setup):
    setup.write(FEDAVG, '[sweep]\n"local.lr" = [0.1, -1.0]')
    with pytest.raises(UndriftError, match="lr"):
        setup.run()
    assert not setup.executed()


SCRIPT = """
import sys
from pathlib import Path
from undrift.runs.sweeps.sweep import run_sweep

path, out, trials, *command = sys.argv[1:]
trials = int(trials) or None
run_sweep(Path(path), Path(out), jobs=2, trials=trials, progress=False, command=command)
"""


def in_process(setup, trials=0, command=None):
    """The sweep in a process of its own, that can be killed."""
    words = [str(setup.path), str(setup.out), str(trials), *(command or setup.command)]
    return subprocess.Popen([sys.executable, "-c", SCRIPT, *words], start_new_session=True)


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.02)


MANY = '[sweep]\n"local.lr" = [1.0, 0.9, 0.8, 0.1, 0.05, 0.01]\n'


@pytest.mark.parametrize("orphans", ["killed", "alive"])
def test_a_killed_sweep_goes_on(setup, orphans):
    setup.write(FEDAVG, MANY).delay(0.2)
    process = in_process(setup)
    # Two are done, and two are being run: their processes hold the locks of their folders.
    wait_for(lambda: len(begun(setup)) >= 4)
    process.kill()
    process.wait()
    before = begun(setup)
    executed = setup.executed()
    finished = {
        path.parts[-4]
        for path in setup.out.glob("points/*/*/*/run.json")
        if json.loads(path.read_text())["status"] == "finished"
    }
    assert len(finished) >= 2
    if orphans == "killed":
        kill_points(setup)
    setup.delay(0)
    outcome = setup.run(jobs=2)
    assert outcome.best()["FedAvg"].point.settings == {"local.lr": 0.1}
    assert len(outcome.verdicts["FedAvg"]) == 6
    assert_started_once(setup, before, points=6)
    resumed = {line.split()[1] for line in setup.executed() if line.startswith("resume")}
    assert resumed <= {line.split()[1] for line in executed} - finished
    if orphans == "alive":  # their own processes brought them to the end
        assert not resumed
    else:
        assert resumed


def begun(setup):
    """The points whose processes hold their folders, or did."""
    return {path.parts[-4] for path in setup.out.glob("points/*/*/*/run.json")}


def assert_started_once(setup, before, points):
    """A point that had begun when the sweep was killed was not started again.

    A process that had not yet locked its folder then counts as not begun.
    """
    started = Counter(line.split()[1] for line in setup.executed() if line.startswith("run"))
    assert len(started) == points
    assert all(times == 1 for name, times in started.items() if name in before)


def kill_points(setup):
    """End the processes that a killed sweep left behind: those of this test's folder."""
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                words = (place / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(word.startswith(str(setup.folder).encode()) for word in words):
                os.kill(int(place.name), signal.SIGKILL)
    time.sleep(0.1)


def test_ctrl_c_stops_the_points_and_a_second_sweep_is_refused(setup):
    setup.write(FEDAVG, MANY).delay(0.3)
    process = in_process(setup)
    try:
        wait_for(lambda: len(setup.executed()) >= 2)
        with pytest.raises(UndriftError, match="Another process is running in"):
            setup.run()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) != 0
    finally:
        process.kill()
    count = len(setup.executed())
    time.sleep(0.5)
    assert len(setup.executed()) == count < 6  # nothing is started any more


def test_a_real_sweep_that_is_killed_ends_as_its_best_runs_undisturbed(setup, monkeypatch):
    # Jobs share the processors: with other threads than a point's, the last bits may differ.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    mine = setup.folder / "mine.py"
    mine.write_text("from undrift import FedAvg\n\n\nclass Mine(FedAvg):\n    pass\n")
    own = '[[method]]\nname = "mine.py:Mine"\nlabel = "my .1"\n'
    sweep = '[sweep]\n"local.lr" = [0.1]\nmethod.FedDyn.alpha = [0.01]\n'
    setup.write("[sampling]\ncohort = 3\n", FEDDYN, own, sweep)
    setup.path.write_text(setup.path.read_text().replace("rounds = 4", "rounds = 12"))
    process = in_process(setup, command=UNDRIFT)
    files = lambda: list(setup.out.glob("points/*/*/*/records.jsonl"))  # noqa: E731
    wait_for(lambda: any(len(file.read_text().splitlines()) > 3 for file in files()))
    process.kill()
    process.wait()
    kill_points(setup)
    outcome = run_sweep(setup.path, setup.out, jobs=2, progress=False)
    assert not outcome.failed() and set(outcome.best()) == {"FedDyn", "my .1"}
    subprocess.run([*UNDRIFT, "run", str(setup.out / "best.toml"), "--quiet"], check=True)
    for label, folder in outcome.folders().items():
        for place in (folder, setup.out / "best"):
            about = json.loads((run_folder(place, label, 0) / "run.json").read_text())
            assert about["status"] == "finished"
        assert untimed(run_folder(folder, label, 0)) == untimed(
            run_folder(setup.out / "best", label, 0)
        )


def untimed(folder):
    """The records of a run, without what differs from run to run."""
    lines = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == list(range(13))
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


# The search


SEARCH = '[sweep]\n"local.lr" = { low = 1e-3, high = 1.0, log = true }\n'


def tried(setup):
    return [row["settings"]["local.lr"] for row in setup.json()["points"]]


def test_a_search_is_deterministic_and_goes_on(setup, tmp_path):
    pytest.importorskip("optuna", reason="Optuna is not installed")
    (tmp_path / "other").mkdir()
    other = Setup(tmp_path / "other").write(FEDAVG, SEARCH)
    other.run(trials=13)  # the first ten are random, and the others learn from them
    setup.write(FEDAVG, SEARCH)
    setup.run(trials=5)
    assert len(setup.executed()) == 5
    outcome = setup.run(trials=13)
    assert len(setup.executed()) == 13  # those of before were not run again
    assert tried(setup) == tried(other) and len(set(tried(setup))) == 13
    assert all(1e-3 <= lr <= 1 for lr in tried(setup))
    best = outcome.best()["FedAvg"].point.settings["local.lr"]
    assert best == min(tried(setup), key=lambda lr: abs(math.log10(lr) + 1))


def test_every_method_is_searched_on_its_own(setup):
    pytest.importorskip("optuna", reason="Optuna is not installed")
    sweep = "[sweep]\nmethod.FedDyn.alpha = { low = 1e-3, high = 1.0, log = true }\n"
    outcome = setup.write(FEDAVG, FEDDYN, sweep).run(trials=3)
    assert [len(each) for each in outcome.verdicts.values()] == [1, 3]


def test_a_search_in_parallel_that_is_killed_ends_as_if_it_had_not_been(setup, tmp_path):
    pytest.importorskip("optuna", reason="Optuna is not installed")
    (tmp_path / "other").mkdir()
    other = Setup(tmp_path / "other").write(FEDAVG, SEARCH)
    other.run(trials=13, jobs=2)
    setup.write(FEDAVG, SEARCH).delay(0.05)
    process = in_process(setup, 13)
    wait_for(lambda: len(begun(setup)) >= 5)
    process.kill()
    process.wait()
    before = begun(setup)
    setup.delay(0)
    setup.run(trials=13, jobs=2)
    assert tried(setup) == tried(other)
    assert_started_once(setup, before, points=13)


def test_a_search_over_whole_numbers_and_choices(setup):
    pytest.importorskip("optuna", reason="Optuna is not installed")
    sweep = '[sweep]\n"local.epochs" = { low = 1, high = 3 }\n"local.lr" = [0.1, 2.0]\n'
    outcome = setup.write(FEDAVG, sweep).run(trials=8)
    rows = setup.json()["points"]
    assert {type(row["settings"]["local.epochs"]) for row in rows} == {int}
    assert {row["settings"]["local.lr"] for row in rows} == {0.1, 2.0}
    assert outcome.best()["FedAvg"].point.settings["local.lr"] == 0.1


def test_trials_are_refused_without_a_range(setup):
    with pytest.raises(UndriftError, match="trials is for a search"):
        setup.write(FEDAVG, '[sweep]\n"local.lr" = [0.1]').run(trials=5)


def test_a_missing_optuna_is_named(setup, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UndriftError, match=r"pip install 'undrift\[search\]'"):
        setup.write(FEDAVG, SEARCH).run(trials=2)
