"""`undrift advise`: from a file to a file that `undrift run` accepts."""

import json
import re
import time
import tomllib
from pathlib import Path

import pytest

import undrift as ud
from commands import called
from undrift.advice.editing import edited, method_table
from undrift.advice.facts import DISSIMILAR, FEW, SEEN_AGAIN, SKEWED, UNEQUAL
from undrift.advice.rules import RULES
from undrift.experiments.experiment import Experiment

PAGE = Path(__file__).parents[1] / "docs" / "choosing.md"
EXPERIMENT = """\
# mine: undrift run mine.toml, not ../mine.toml or undrift run mine.toml.old
name = "trial"     # called so
rounds = 40
[data]
source = "synthetic"
clients = 6
most = 30          # few
[model]
name = "logistic"
[local]            # what a client does
batch_size = 10
epochs = 2
[sampling]
cohort = 5

# the one I know
[[method]]
name = "FedDyn"
alpha = 3.0
[method.local]
epochs = 1

# how often
[evaluation]
every = 20
[output]
folder = "runs/mine"
durability = "process"
[sweep]
"local.epochs" = [1, 2]
"method.FedDyn.alpha" = [1.0, 3.0]
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.toml").write_text(EXPERIMENT)
    return tmp_path


def test_the_file_keeps_what_was_there_and_runs(folder):
    done = called("advise", "mine.toml", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "Wrote advised.toml. Run it with:\n  undrift run advised.toml\n" in done.stderr
    assert "Recommended" in done.stdout and max(map(len, done.stdout.splitlines())) <= 80
    text = (folder / "advised.toml").read_text()
    found, before = tomllib.loads(text), tomllib.loads(EXPERIMENT)
    commands = "# mine: undrift run advised.toml, not ../mine.toml or undrift run mine.toml.old\n"
    assert commands in text
    for kept in ("# called so", "# few", "# what a client does", "# how often"):
        assert kept in text
    for table in ("rounds", "data", "model", "sampling", "evaluation"):
        assert found[table] == before[table]
    assert found["name"] == "trial-advised" and found["output"]["folder"] == "runs/mine-advised"
    assert found["sweep"] == {"local.epochs": [1, 2]}
    lr = found["local"].pop("lr")
    assert found["local"] == before["local"] and lr > 0 and "# 1/L for the estimated L" in text
    assert [table["name"] for table in found["method"]] == ["SCAFFOLD", "FedDyn"]
    assert found["method"][1]["alpha"] != 3 and "local" not in found["method"][1]
    assert "# Clients pull in different directions" in text
    ran = called("run", "advised.toml", "--set", "rounds=1", "--quiet", cwd=folder)
    assert ran.returncode == 0, ran.stderr
    assert (folder / "runs" / "mine-advised").is_dir()


def test_no_file_is_overwritten_unless_forced(folder):
    (folder / "advised.toml").write_text("mine")
    done = called("advise", "mine.toml", cwd=folder)
    assert done.returncode == 0 and "was not changed" in done.stderr
    assert (folder / "advised.toml").read_text() == "mine"
    done = called("advise", "mine.toml", "--out", "advised.toml", cwd=folder)
    assert done.returncode == 2 and "exists already" in done.stderr and not done.stdout
    done = called("advise", "mine.toml", "--out", "mine.toml", "--force", cwd=folder)
    assert done.returncode == 2 and "is the file that was asked about" in " ".join(
        done.stderr.split()
    )
    assert called("advise", "mine.toml", "--force", cwd=folder).returncode == 0
    Experiment.load(folder / "advised.toml")


def test_machines_get_json_and_settings_are_kept(folder):
    options = ("--set", "sampling.cohort=1", "--set", "local.lr=0.05", "--json")
    done = called("advise", "mine.toml", *options, cwd=folder)
    found = json.loads(done.stdout)
    assert found["file"] == "advised.toml"
    assert found["recommended"][0].startswith("FedDyn(alpha=")
    assert found["facts"]["participation"]["share"] == pytest.approx(1 / 6)
    written = Experiment.load(folder / "advised.toml")
    assert written.sampling.cohort == 1 and written.local.parameters["lr"] == 0.05
    assert [table.name for table in written.method] == ["FedDyn", "SCAFFOLD"]


def test_regulariser_stateless_clients_and_asynchrony_come_from_the_command_or_the_file(folder):
    done = called("advise", "mine.toml", "--regularizer", "L1:0.01", "--out", "l1.toml", cwd=folder)
    assert done.returncode == 0, done.stderr
    (method,) = Experiment.load(folder / "l1.toml").method
    assert method.name == "FedDR" and method.parameters["g"] == {"name": "L1", "strength": 0.01}
    options = ("--regularizer", "L1:0.01", "--stateless", "--out", "none.toml")
    done = called("advise", "mine.toml", *options, cwd=folder)
    assert done.returncode == 2 and "No experiment file was written" in done.stderr
    assert "Nothing: no method suits this federation (FedDR" in done.stdout
    done = called("advise", "mine.toml", *options, "--json", cwd=folder)
    assert done.returncode == 2 and json.loads(done.stdout)["recommended"] == []
    with (folder / "mine.toml").open("a") as file:
        file.write('\n[devices]\nspeed = {law = "ladder", slowest = 10, fastest = 40}\n')
        file.write('[pace]\nkind = "asynchronous"\n')
    text = (folder / "mine.toml").read_text()
    (folder / "mine.toml").write_text(
        text.replace('"FedDyn"', '"FedBuff"').replace("alpha = 3.0", "")
    )
    called("advise", "mine.toml", "--set", "sweep={}", "--out", "late.toml", cwd=folder)
    assert Experiment.load(folder / "late.toml").labels == ["AsyncFedDR", "FedBuff"]


def test_a_file_beside_another_folder_still_finds_what_it_names(folder):
    (folder / "net.py").write_text("import torch\ndef net():\n    return torch.nn.Linear(60, 10)\n")
    text = EXPERIMENT.replace('name = "logistic"', 'name = "net.py:net"')
    (folder / "mine.toml").write_text(text)
    (folder / "there").mkdir()
    advice = ud.advise(folder / "mine.toml")
    path = advice.write(folder / "there" / "advised.toml")
    assert Experiment.load(path).model.name == f"{folder / 'net.py'}:net"
    assert '"net.py:net"' in advice.write(folder / "beside.toml").read_text()


def test_tables_on_one_line_are_written_anew(folder):
    start, end = EXPERIMENT.index("# the one"), EXPERIMENT.index("# how often")
    text = 'method = [{name = "FedAvg"}]\n' + EXPERIMENT[:start] + EXPERIMENT[end:]
    text = text.replace('"method.FedDyn.alpha" = [1.0, 3.0]\n', "")
    (folder / "mine.toml").write_text(text)
    found = tomllib.loads(ud.advise(folder / "mine.toml").write(folder / "a.toml").read_text())
    assert found["data"] == tomllib.loads(text)["data"] and found["method"][0]["name"] == "SCAFFOLD"


def test_a_file_without_methods_gets_some_at_the_end():
    methods = [method_table({"name": "FedAvg"}, ["because"])]
    tables = {"a": "x", "local": {"c": 3}, "output": {"d": 4}}
    text = edited('a = "#1" # one\n[local]\nb = 2\n', tables, methods)
    assert 'a = "x" # one\n' in text and text.rstrip().endswith('# because\nname = "FedAvg"')
    assert tomllib.loads(text) == {
        "a": "x",
        "local": {"c": 3},
        "output": {"d": 4},
        "method": [{"name": "FedAvg"}],
    }


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("nowhere.toml",), "There is no file nowhere.toml"),
        (("mine.toml", "--regularizer", "L3:1"), "--regularizer is 'L3'"),
        (("mine.toml", "--set", "sampling.cohort=7"), "7"),
        (("mine.toml", "--set", "modle.name=x"), "did you mean 'model'"),
    ],
)
def test_errors_are_sentences(folder, arguments, sentence):
    done = called("advise", *arguments, cwd=folder)
    assert done.returncode == 2 and sentence in " ".join(done.stderr.split())
    assert not (folder / "advised.toml").exists()


def test_advice_about_objects_cannot_be_written_and_files_take_no_objects(folder):
    problem = ud.theory.random_quadratics(3, 2)
    advice = ud.advise(problem=problem, local=ud.GD(lr=0.1, steps=2))
    with pytest.raises(ud.UndriftError, match="give the recommended methods to"):
        advice.write(folder / "x.toml")
    with pytest.raises(ud.UndriftError, match="cohort cannot be given beside an experiment file"):
        ud.advise(folder / "mine.toml", cohort=3)


def test_the_guide_has_the_rules_and_the_thresholds_of_the_code():
    page = PAGE.read_text()
    row = re.compile(
        r"^\| ([^|]+) \| \[(\w+)\]\([^)]+\) \| (?:\[(\w+)\]\([^)]+\))? ?\|$", re.MULTILINE
    )
    told = [(name, *(each for each in methods if each)) for name, *methods in row.findall(page)]
    assert told == [(rule.name, *rule.methods) for rule in RULES]
    words = " ".join(page.split())
    assert f"strong from {SKEWED:g} on" in words and f"strong from {DISSIMILAR:g} on" in words
    assert f"it counts from {UNEQUAL:g} on" in words
    assert (FEW, SEEN_AGAIN) == (0.25, 2) and "a quarter" in words and "below two visits" in words


def test_the_guide_shows_what_the_command_prints(tmp_path):
    called("init", cwd=tmp_path)
    began = time.process_time()
    done = called("advise", "experiment.toml", cwd=tmp_path)
    assert time.process_time() - began < 30
    (shown,) = re.findall(r"```text\n(.*?)\n```", PAGE.read_text(), re.DOTALL)
    assert [line.rstrip() for line in done.stdout.rstrip().splitlines()] == shown.splitlines()


@pytest.mark.parametrize(
    "text",
    [
        'a = 1\n[[method]]\nname = "A"\n\n# of b\n[b]\nc = 2 # two\n',
        'method = [{name = "A"}]\na = 1\n[b]\nc = 2 # two\n\n# of b\n',
        'a = 1\n[[method]]\nname = "A"\n[method.local]\nlr = 1\n\n# of b\n[b]\nc = 2 # two\n',
        "a = 1\n# of b\n[b]\nc = 2 # two\n",
        "a = 1\n# of b\nb.c = 2 # two\n",
        "a = 1 # of b\nb = {c = 2} # two\n",
    ],
)
def test_an_edited_file_keeps_its_comments(text):
    tables = {"a": 1, "b": {"c": 3, "d": [1, 2]}}
    methods = [method_table({"name": name, "server": {"lr": 1.0}}, ["why"]) for name in "AB"]
    found = edited(text, tables, methods)
    servers = [{"name": name, "server": {"lr": 1.0}} for name in "AB"]
    assert tomllib.loads(found) == tables | {"method": servers}
    assert "# of b" in found and "# two" in found


def test_settings_of_the_command_leave_the_comments(folder):
    done = called("advise", "mine.toml", "--set", "data.most=20", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "most = 20          # few" in (folder / "advised.toml").read_text()
