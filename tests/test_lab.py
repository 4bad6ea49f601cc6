"""`Lab` executes the runs of reproductions: none is repeated, and different settings never mix."""

import json
import math
import os
from dataclasses import replace

import pytest
from tools.pages import reproductions

from commands import called
from undrift.core.records import Record
from undrift.report.recorded_runs import Folder, RunFiles, Runs
from undrift.reproduce import lab as labs
from undrift.reproduce import reproducing
from undrift.reproduce.curves import best, cost, final, line, smoothed
from undrift.reproduce.figure import Line, Panel
from undrift.reproduce.findings import Claim, Findings, Number, over_seeds
from undrift.reproduce.lab import Lab
from undrift.reproduce.reproduction import Reproduction
from undrift.runs.folder import read_json
from undrift.utils.errors import UndriftError

EXPERIMENT = """
rounds = 3
[data]
source = "synthetic"
clients = 4
most = 20
[model]
name = "logistic"
[local]
lr = 0.1
batch_size = 10
[[method]]
name = "FedAvg"
[[method]]
name = "FedProx"
[engine]
name = "serial"
"""


def made_up(reproduce=lambda lab: Findings(), **own):
    required = {"shows": "Figure 0", "about": "Made up.", "cost": "nothing", "quick_is": "nothing."}
    return Reproduction("fedavg-made-up", "FedAvg", reproduce=reproduce, **required, **own)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "experiment.toml"
    path.write_text(EXPERIMENT)
    return str(path)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "out"


def written(folder):
    return {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/*/*/records.jsonl")}


def test_finished_runs_are_read_and_not_repeated(folder, file):
    first = Lab(made_up(), folder).run("a cell", {"local.lr": 0.2}, file=file)
    before = written(folder)
    again = Lab(made_up(), folder).run("a cell", {"local.lr": 0.2}, file=file)
    assert len(before) == 2 and written(folder) == before
    assert final(again, "FedAvg", "train_loss") == final(first, "FedAvg", "train_loss")
    assert set(read_json(folder / "times.json")) == {"runs/a-cell"}


def test_seeds_may_be_added_and_settings_may_not_change(folder, file):
    Lab(made_up(), folder, seeds=1).run("cell", file=file)
    before = written(folder)
    runs = Lab(made_up(), folder, seeds=2).run("cell", file=file)
    assert len(final(runs, "FedProx", "train_loss").values) == 2
    assert before.items() <= written(folder).items() and len(written(folder)) == 4
    fewer = Lab(made_up(), folder, seeds=1).run("cell", file=file)  # the seeds already there remain
    assert len(final(fewer, "FedProx", "train_loss").values) == 2
    with pytest.raises(UndriftError, match="another experiment"):
        Lab(made_up(), folder, seeds=2).run("cell", {"local.lr": 0.3}, file=file)


def test_the_quick_version_changes_the_file_and_a_cell_has_the_last_word(folder, file):
    reproduction = made_up(quick={"rounds": 1, "local.lr": 0.2})
    runs = Lab(reproduction, folder, quick=True).run(
        "cell", {"local.lr": 0.3}, only=["FedProx"], file=file
    )
    assert [run.label for run in runs] == ["FedProx"] and runs[0].done == 1
    assert "lr = 0.3" in runs.folders[0].experiment
    assert Lab(reproduction, folder, quick=True).either(1, 2) == 2


def test_a_kept_value_is_computed_once(folder):
    asked = []

    def compute():
        asked.append(1)
        return {"x": (1.5, 2)}

    assert Lab(made_up(), folder).keep("a curve", compute) == {"x": [1.5, 2]}
    assert Lab(made_up(), folder).keep("a curve", compute) == {"x": [1.5, 2]}
    assert asked == [1]
    assert Lab(made_up(), folder).seconds >= 0


@pytest.mark.parametrize("file", ["kept/a-curve.json", "done.json"])
def test_damaged_files_are_named_in_one_sentence(folder, file):
    Lab(made_up(), folder).keep("a curve", lambda: 1)
    for text, message in (("{}", "remove the file"), ('{"va', "cannot be read")):
        (folder / file).write_text(text)
        with pytest.raises(UndriftError, match=message):
            Lab(made_up(), folder).keep("a curve", lambda: 1)


def test_parts_that_are_done_are_reported_again(folder):
    reproduction = made_up(parts=("a", "b", "c"))
    assert Lab(reproduction, folder).parts == ["a", "b", "c"]  # asked for, but not completed
    first = Lab(reproduction, folder, parts=["c"])
    assert first.parts == ["c"]
    first.done()
    assert Lab(reproduction, folder, parts=["a"]).parts == ["a", "c"]
    assert Lab(reproduction, folder, parts=["b"]).parts == ["b", "c"]
    with pytest.raises(UndriftError, match="must be one of 'a', 'b', 'c'"):
        Lab(reproduction, folder, parts=["d"])
    with pytest.raises(UndriftError, match="has no parts"):
        Lab(made_up(), folder, parts=["d"])


def test_quick_and_full_versions_have_folders_of_their_own(folder):
    Lab(made_up(), folder, quick=True).keep("a curve", lambda: 1)
    with pytest.raises(UndriftError, match="holds the quick version: choose another folder"):
        Lab(made_up(), folder)
    with pytest.raises(UndriftError, match="The quick version has no parts"):
        reproducing.reproduce("feddyn-mnist", folder, quick=True, parts=["10 %, IID"])


def test_the_findings_name_all_seeds_of_the_folder(folder, file, monkeypatch):
    reproduction = made_up(lambda lab: lab.run("cell", {"rounds": 1}, file=file) and findings())
    monkeypatch.setattr(reproducing, "find", lambda name: reproduction)
    reproducing.reproduce("fedavg-made-up", folder, seeds=2)
    reproducing.reproduce("fedavg-made-up", folder, seeds=1)
    assert read_json(folder / "findings.json")["seeds"] == 2


def findings(holds=True):
    panel = Panel("title", "x", "y", [Line("a", [0, 1], [1, 2], [0, 1], [2, 3])], log_y=True)
    number = Number("10 %", "<FedDyn>", 31, over_seeds(30, 34))
    return Findings([number], [Claim("a < b & c", holds, "1 < 2")], [panel], ["Mind this."])


def test_findings_are_in_the_page_the_json_and_the_guide(folder, file, monkeypatch, tmp_path):
    def do(lab):
        lab.run("cell", {"rounds": 1}, file=file)
        return findings(None)

    reproduction = made_up(do, left_open=("The rate is not published: 0.1.",))
    monkeypatch.setattr(reproducing, "find", lambda name: reproduction)
    reproducing.reproduce("fedavg-made-up", folder)
    page = (folder / "report.html").read_text()
    for words in (
        "a &lt; b &amp; c",
        "undecided",
        "Mind this.",
        "32 ± 2.8",
        "not published",
    ):
        assert words in page
    assert "data:image/png" in page and "<FedDyn>" not in page and 'href="runs.html"' in page
    assert Findings.from_dict(read_json(folder / "findings.json")) == Findings(
        **{**vars(findings(None)), "panels": ()}
    )
    monkeypatch.setattr(reproductions, "papers", lambda: {"FedAvg": [reproduction]})
    reproductions.take_in(folder, tmp_path)
    text = reproductions.results_page(tmp_path)
    for words in (
        "31 | 32 ± 2.8",
        "undrift reproduce fedavg-made-up --seeds 1",
        "| 0 | 0 | 1 | 2 | 8.8 % |",  # nothing holds or fails, one is undecided, of two seeds
        "Mind this",
    ):
        assert words in text
    assert text.index("not published") < text.index("a < b & c")  # what differs comes first
    table = reproductions.numbers_csv(read_json(folder / "findings.json"))
    assert table.splitlines()[1].endswith(",0,30.0,34.0")
    assert "reproductions/fedavg-made-up.png" in text
    assert (tmp_path / "reproductions" / "fedavg-made-up.png").is_file()


def test_quick_versions_are_not_shown_as_results(folder, monkeypatch):
    monkeypatch.setattr(reproducing, "find", lambda name: made_up())
    reproducing.reproduce("fedavg-made-up", folder, quick=True)
    with pytest.raises(UndriftError, match="only full runs"):
        reproductions.take_in(folder, folder)


def test_an_interrupted_reproduction_says_how_to_go_on(folder, file, monkeypatch):
    reproduction = made_up(lambda lab: lab.run("cell", file=file))
    monkeypatch.setattr(reproducing, "find", lambda name: reproduction)
    monkeypatch.setattr(labs, "run_experiment", lambda *_, **__: [])
    ended = called("reproduce", "fedavg-tridiagonal", "--out", str(folder), cwd=os.getcwd())
    assert ended.returncode == 130 and "run the same command to resume" in ended.stderr


def of(*histories, status="finished"):
    """Runs of one method: one seed per history of a metric, evaluated every other round."""
    runs = [
        RunFiles(
            "A",
            seed,
            [
                Record(2 * at, {"test_accuracy": value}, bytes_down={"x": 4}, bytes_up={"x": 4})
                for at, value in enumerate(history)
            ],
            status,
            rounds=2 * len(history),
            parameters=1,
        )
        for seed, history in enumerate(histories)
    ]
    return Runs([(Folder(), runs)])


def test_numbers_and_lines_of_runs():
    runs = of([0.1, 0.5, 0.9, 0.7], [0.1, 0.3, 0.5, 0.9])
    assert final(runs, "A", "test_accuracy").values == (0.7, 0.9)
    assert final(runs, "A", "test_accuracy", last=2).values == pytest.approx((0.8, 0.7))
    assert best(runs, "A", "test_accuracy").values == (0.9, 0.9)
    assert cost(runs, "A", "test_accuracy", 0.9).values == (4, 6)
    assert cost(runs, "A", "test_accuracy", 0.65, smooth=2).values == (4, 6)
    never = cost(runs, "A", "test_accuracy", 0.85, smooth=2)
    assert never.values == (6, 6) and never.missed == 2
    drawn = line(runs, "A", "test_accuracy", minus=0.1)
    assert drawn.x == [0, 2, 4, 6] and drawn.y[1] == pytest.approx(0.3)
    # The standard deviation of 0.3 and 0.5 is 0.1 √2.
    assert drawn.low[1] == pytest.approx(0.3 - 0.1 * math.sqrt(2))
    assert drawn.high[1] == pytest.approx(0.3 + 0.1 * math.sqrt(2)) and drawn.seeds == 2
    assert final(of([0.1], status="diverged"), "A", "test_accuracy").values == (math.inf,)
    assert smoothed([1, 2, 6], 2) == [1, 1.5, 4]


@pytest.mark.parametrize(
    ("measured", "shown"),
    [
        (over_seeds(38), "38"),
        (over_seeds(36, 40), "38 ± 2.8"),
        (over_seeds(1000, missed=1), "> 1000"),
        (over_seeds(math.inf), "diverged"),
        (over_seeds(), "–"),
    ],
)
def test_a_number_as_it_is_shown(measured, shown):
    number = Number("", "", None, measured)
    assert number.shown() == shown
    saved = json.loads(json.dumps(Findings([number]).as_dict(), allow_nan=False))
    assert Findings.from_dict(saved).numbers == [number]
    assert Number("", "", "1000+", measured).printed() == "1000+"


def test_long_tables_are_folded_and_parts_not_run_are_listed_with_their_cost(tmp_path, monkeypatch):
    reproduction = made_up(parts=("a", "b"))
    numbers = [Number(f"row {n}", "x", None, over_seeds(n)) for n in range(20)]
    stored = tmp_path / "reproductions"
    stored.mkdir()
    saved = {
        **{"name": "fedavg-made-up", "quick": False, "seeds": 1, "parts": ["a"], "seconds": 1.0},
        **{"undrift": "1", "threads": 1, "machine": "m", "made": "2026-01-01"},
        **Findings(numbers).as_dict(),
    }
    (stored / "fedavg-made-up.json").write_text(json.dumps(saved))
    costs = {"fedavg-made-up": {"b": {"FedAvg": 12.3}}}
    (stored / reproductions.COSTS).write_text(json.dumps(costs))
    monkeypatch.setattr(reproductions, "papers", lambda: {"FedAvg": [reproduction]})
    text = reproductions.results_page(tmp_path)
    assert "<summary>Published and measured numbers, 20 rows</summary>" in text
    assert "1 of 2 parts" in text and 'undrift reproduce fedavg-made-up --part "b"' in text
    assert "measured: b: FedAvg 12" in text and "earlier settings" not in text
    changed = replace(reproduction, revision=2)
    monkeypatch.setattr(reproductions, "papers", lambda: {"FedAvg": [changed]})
    assert "measured with earlier settings" in reproductions.results_page(tmp_path)


def test_runs_are_extended_by_rounds_and_seeds_of_the_part_that_is_asked_for(folder, file):
    reproduction = made_up(parts=("a", "b"))

    def runs(part, rounds=2, **own):
        lab = Lab(reproduction, folder, **own)
        lab.begin(part)
        return lab.run(part, {"rounds": rounds}, ["FedAvg"], file=file).groups[0].runs

    before = runs("a")
    assert [(run.seed, run.done) for run in before] == [(0, 2)]
    after = runs("a", rounds=4, seeds=2)
    assert [(run.seed, run.done) for run in after] == [(0, 4), (1, 4)]
    assert [r.metrics for r in after[0].records[:3]] == [r.metrics for r in before[0].records]
    with pytest.raises(UndriftError, match="can be extended, not shortened"):
        runs("a", rounds=3)
    assert len(runs("a", rounds=4, seeds=3, parts=["b"])) == 2, "a was not asked for"
    assert len(runs("b", rounds=4, seeds=3, parts=["b"])) == 3


def test_a_run_that_tunes_has_one_seed(folder, file):
    lab = Lab(made_up(), folder, seeds=3)
    assert len(lab.run("tuning", file=file, most_seeds=1).groups[0].runs) == 1
