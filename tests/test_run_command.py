"""`undrift run`, `resume`, `report`, `init`, `list` and `show`, as a user calls them."""

import json
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import undrift
from commands import called, command
from undrift.core.records import Record

EXPERIMENT = """
engine = "vectorised"  # by a fixed rule: bits are compared
rounds = 6
seeds = [0, 1]

[data]
source = "synthetic"
clients = 8
most = 60
validation = 0.2

[model]
name = "logistic"

[local]
lr = 0.05
batch_size = 10
epochs = 1

[sampling]
cohort = 4

[[method]]
name = "FedAvg"

[[method]]
name = "FedDyn"
alpha = 0.5
local = { epochs = 2 }
"""


@pytest.fixture
def place(tmp_path):
    (tmp_path / "exp.toml").write_text(EXPERIMENT)
    return tmp_path


def records(folder, label, seed):
    lines = (folder / label / f"seed-{seed}" / "records.jsonl").read_text().splitlines()
    found = [Record.from_json(line) for line in lines]
    for record in found:
        record.seconds = 0.0
    return found


def test_an_experiment_runs_and_reports(place):
    done = command("run", "exp.toml", "--out", "out", cwd=place)
    assert done.returncode == 0, done.stderr
    assert "FedDyn, seed 1: finished" in done.stderr
    assert "undrift report out" in done.stderr
    assert "nothing was run" not in done.stderr
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    assert "test acc" in done.stdout  # there is room for it with two seeds and a validation part
    idle = called("run", "exp.toml", "--out", "out", cwd=place)
    assert (idle.returncode, idle.stdout) == (0, done.stdout)
    assert "was run before, so nothing was run now" in idle.stderr and "--out" in idle.stderr
    assert max(len(line) for line in idle.stderr.splitlines()) <= 80
    out = place / "out"
    for label in ("FedAvg", "FedDyn"):
        for seed in (0, 1):
            found = records(out, label, seed)
            assert [record.round for record in found] == list(range(7))
            assert found[-1].metrics["validation_accuracy"] > 0.1
            assert len(found[-1].cohort) == 4
            assert (out / label / f"seed-{seed}" / "model.safetensors").exists()
    # A method's own local work: twice as many epochs, twice as many gradients.
    assert records(out, "FedDyn", 0)[1].gradients == 2 * records(out, "FedAvg", 0)[1].gradients
    assert records(out, "FedDyn", 0)[1].cohort == records(out, "FedAvg", 0)[1].cohort
    resolved = tomllib.loads((out / "experiment.toml").read_text())
    assert resolved["data"]["beta"] == 1.0  # a default, written out
    assert json.loads((out / "about.json").read_text())["undrift"] == undrift.__version__
    again = called("run", "out/experiment.toml", "--out", "again", "--quiet", cwd=place)
    # Quiet means the final table alone.
    assert (again.returncode, again.stdout, again.stderr) == (0, done.stdout, "")
    for label in ("FedAvg", "FedDyn"):
        assert records(place / "again", label, 1) == records(out, label, 1)
    page = called("report", "out", "again", "--out", "page.html", "--csv", "tables", cwd=place)
    assert page.returncode == 0, page.stderr
    assert "FedDyn" in (place / "page.html").read_text()
    assert page.stdout.startswith("The report is in page.html\n")
    assert any((place / "tables").iterdir())
    page = called("report", "out", "--out", "page.html", cwd=place)
    assert page.stdout == "The report is in page.html, in place of the file that was there\n"


def test_settings_a_single_method_and_json(place):
    options = ("--set", "rounds=2", "--set", "method.FedDyn.alpha=0.25", "--set", "seeds=[3]")
    done = called(
        "run", "exp.toml", *options, "--only", "FedDyn", "--out", "one", "--json", cwd=place
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line.get("round") for line in lines] == [0, 1, 2, None]
    assert {line["label"] for line in lines} == {"FedDyn"}
    assert lines[-1] == {"label": "FedDyn", "seed": 3, "status": "finished", "reason": None}
    assert "FedDyn(alpha=0.25)" in (place / "one" / "FedDyn" / "seed-3" / "run.json").read_text()
    assert not (place / "one" / "FedAvg").exists()


def test_inspect_compares_gradients_at_the_model_of_the_file(place):
    done = called("inspect", "exp.toml", cwd=place)
    assert done.returncode == 0, done.stderr
    assert "label distance" in done.stdout and "Gradients: B² = " in done.stdout
    wide = called("inspect", "exp.toml", "--set", "objective=clients", cwd=place)
    assert "(q by clients)" in wide.stdout.replace("\n", " ")
    (place / "narrow.py").write_text(
        "from torch import nn\n\ndef made():\n    return nn.Linear(5, 3)\n"
    )
    other = called("inspect", "exp.toml", "--set", "model={name='narrow.py:made'}", cwd=place)
    assert other.returncode == 0, other.stderr
    assert "label distance" in other.stdout and "Gradients" not in other.stdout
    assert "B² and σ_g² were not computed: The model cannot take inputs" in other.stderr
    slow = called(
        "inspect", "exp.toml", "--set", "model={name='mlp',hidden=[9000,9000]}", cwd=place
    )
    assert slow.returncode == 0, slow.stderr
    assert "undrift advise exp.toml" in slow.stderr and "Gradients" not in slow.stdout


def test_a_dry_run_runs_nothing(place):
    done = called("run", "exp.toml", "--dry-run", cwd=place)
    assert done.returncode == 0, done.stderr
    assert 'name = "FedDyn"' in done.stdout
    assert "610 parameters" in done.stdout
    assert not (place / "runs").exists()


def test_killed_and_interrupted_runs_are_resumed(place):
    whole = called("run", "exp.toml", "--out", "whole", "--quiet", cwd=place)
    assert whole.returncode == 0
    start = [sys.executable, "-m", "undrift", "run", "exp.toml", "--out", "out", "--json"]
    for end in (signal.SIGKILL, signal.SIGINT):
        process = subprocess.Popen(
            start, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(3):
            process.stdout.readline()
        if end == signal.SIGKILL:
            process.send_signal(signal.SIGSTOP)
            second = called("resume", "out", cwd=place)
            assert second.returncode == 2
            assert "Another process is running in" in second.stderr.replace("\n", " ")
        process.send_signal(end)
        process.communicate()
        assert process.returncode == (-signal.SIGKILL if end == signal.SIGKILL else 130)
    done = called("resume", "out", cwd=place)
    assert done.returncode == 0, done.stderr
    for label in ("FedAvg", "FedDyn"):
        for seed in (0, 1):
            ours, theirs = (records(place / out, label, seed) for out in ("out", "whole"))
            assert ours == theirs
            model = f"{label}/seed-{seed}/model.safetensors"
            assert (place / "out" / model).read_bytes() == (place / "whole" / model).read_bytes()


def test_the_folder_of_another_experiment_is_refused(place):
    short = ("--set", "rounds=1", "--set", "seeds=[0]")
    assert called("run", "exp.toml", *short, "--out", "out", "-q", cwd=place).returncode == 0
    done = called("run", "exp.toml", "--set", "rounds=2", "--out", "out", cwd=place)
    assert done.returncode == 2
    assert "has the runs of another experiment" in done.stderr.replace("\n", " ")


def test_brackets_in_labels_and_folders_are_not_markup(place):
    text = EXPERIMENT.replace('name = "FedAvg"', 'name = "FedAvg"\nlabel = "a[/b] a longer label"')
    (place / "odd.toml").write_text(text)
    short = ("--set", "rounds=1", "--set", "seeds=[0]")
    done = called("run", "odd.toml", *short, "--out", "o[/x]", cwd=place)
    assert done.returncode == 0, done.stderr
    assert "a[/b]" in done.stdout
    assert "undrift report o[/x]" in done.stderr
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    (place / "o[/x]" / "FedDyn" / "seed-0" / "run.json").unlink()  # as if killed at the start
    page = called("report", "o[/x]", "--out", "p.html", cwd=place)
    assert page.returncode == 0, page.stderr


def test_list_and_show_describe_what_is_available(tmp_path):
    assert called("init", cwd=tmp_path).returncode == 0
    assert "exists already" in called("init", cwd=tmp_path).stderr
    done = called("init", "first.toml", cwd=tmp_path)
    assert done.stdout == "Wrote first.toml. Run it with:\n  undrift run first.toml\n"
    typed = called("run", "first.toml", "--set", "local.epohcs=1", cwd=tmp_path).stderr
    assert "SGD has no parameter 'epohcs' (it has 'lr'," in " ".join(typed.split())
    assert "did you mean 'epochs'?" in " ".join(typed.split())
    text = (tmp_path / "first.toml").read_text()
    assert text.count("undrift run first.toml") == 3 and "experiment.toml" not in text
    done = called("run", "experiment.toml", "--set", "rounds=3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    named = called("list", "methods", cwd=tmp_path).stdout
    assert all(method in named for method in undrift.METHODS)
    shown = called("show", "method", "FedDyn", cwd=tmp_path).stdout
    own = Path(__file__).parents[1] / "examples" / "own_method.py"
    mine = called("show", "method", f"{own}:Dane", cwd=tmp_path).stdout
    assert "FedDANE" in mine and "mu = 0.5" in mine and "Sent up: moved, change." in mine
    for words in ("Acar", "alpha", "0.01"):
        assert words in shown
    assert "method" in json.loads(called("schema", cwd=tmp_path).stdout)["properties"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "missing.toml"), "There is no file missing.toml"),
        (("run", "exp.toml", "--set", "round=3"), "did you mean"),
        (("run", "exp.toml", "--set", "method.FedDyn.alpha=-1"), "method.FedDyn.alpha"),
        (("run", "exp.toml", "--only", "FedProx"), "must be one of 'FedAvg', 'FedDyn'"),
        (("resume", "nowhere"), "nowhere is not a run folder"),
        (("report", "nowhere"), "There is no run folder nowhere"),
        (("list", "metods"), "did you mean"),
        (("show", "method", "FedDin"), "did you mean"),
    ],
)
def test_mistakes_give_one_clear_sentence(arguments, words, place):
    done = called(*arguments, cwd=place)
    assert done.returncode == 2, done.stdout
    assert words in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in place.iterdir()) == ["exp.toml"]
