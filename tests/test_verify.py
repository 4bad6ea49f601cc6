"""`undrift verify`: our methods pass, and every seeded mistake is caught."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from commands import called
from undrift.utils.errors import UndriftError
from undrift.verify import FACTS, as_json, explanations, load, named, ours, verify

WRONG = str(Path(__file__).with_name("wrong_methods.py"))


def failing(name, among=None, **settings):
    """The names of the facts that a wrong method fails, out of all or of `among`."""
    facts = [fact for fact in FACTS if among is None or fact.name in among]
    return {v.fact.name for v in verify([load(f"{WRONG}:{name}", settings)], facts) if not v.holds}


@pytest.mark.parametrize("subject", ours(), ids=lambda subject: subject.label)
def test_every_fact_holds_for_our_methods(subject):
    verdicts = list(verify([subject]))
    assert explanations(verdicts) == []
    measured = {v.fact.name for v in verdicts if v.finding is not None}
    assert {"limit", "ragged", "weights", "order", "buffers", "stacked"} <= measured


@pytest.mark.parametrize(
    ("mistake", "caught_by"),
    [
        ("DetachedRegulariser", {"limit", "acts", "ragged"}),
        ("ReversedSign", {"limit", "partial", "momentum", "ragged"}),
        ("WeightsNotOne", {"weights", "equals"}),
        ("ConfusedNK", {"partial"}),
        ("ConfusedControl", {"partial"}),
        ("DividedByAll", {"weights"}),
        ("NormalisedBySteps", {"equals"}),
        ("StepsInsteadOfANorm", {"momentum"}),
        ("BatchesOfEqualSize", {"ragged"}),
        ("BuffersAsParameters", {"buffers"}),
    ],
)
def test_every_mistake_is_caught(mistake, caught_by):
    assert failing(mistake, among=caught_by) == caught_by


def test_a_whole_number_is_a_parameter_too():
    assert failing("DetachedRegulariser", among={"acts"}, mu=1) == {"acts"}


def test_a_wrong_method_is_wrong_in_nothing_else():
    assert failing("BuffersAsParameters") == {"buffers"}
    assert failing("ConfusedNK") <= {"partial", "momentum"}


def test_the_right_methods_pass_as_users_classes(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text("from undrift import SCAFFOLD\nclass Mine(SCAFFOLD):\n    pass\n")
    assert explanations(verify([load(f"{mine}:Mine")])) == []


def test_a_claim_that_does_not_hold_is_explained_in_one_line():
    verdicts = list(verify([load(f"{WRONG}:Biased")]))
    lines = explanations(verdicts)
    assert any(
        line.startswith("Biased, limit: ") and "'averaging', or None" in line for line in lines
    )
    assert all("\n" not in line for line in lines)


def test_a_crash_in_the_users_code_is_explained_in_one_line():
    lines = explanations(verify([load(f"{WRONG}:Crashing")]))
    assert len(lines) == 1
    assert lines[0].startswith("Crashing breaks down: RuntimeError: size mismatch (line ")
    assert lines[0].endswith("of wrong_methods.py).")


def test_an_unknown_claim_is_refused(tmp_path):
    mine = tmp_path / "mine.py"
    mine.write_text("import undrift as ud\nclass Mine(ud.FedAvg):\n    converges_to = 'average'\n")
    (line,) = explanations(verify([load(f"{mine}:Mine")]))
    assert "did you mean 'averaging'?" in line


def test_a_file_may_import_its_neighbours(tmp_path):
    (tmp_path / "beside.py").write_text("from undrift import FedAvg as Base\n")
    mine = tmp_path / "mine.py"
    mine.write_text("from beside import Base\nclass Mine(Base):\n    pass\n")
    assert load(f"{mine}:Mine").method.name == "Mine"


def test_our_own_methods_have_names():
    assert [subject.label for subject in named("FedNova")] == [
        "FedNova",
        "FedNova prox",
        "FedNova VR",
    ]
    assert named("Nothing") == []


def test_an_instance_and_settings_can_be_verified():
    assert load(f"{WRONG}:ready").method.gain == 1.0
    assert load(f"{WRONG}:NeedsArgument", {"gain": 0.5}).method.gain == 0.5


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("nothing", "file.py:Class"),
        ("no_such_file.py:Mine", "There is no file no_such_file.py"),
        ("no.such.module:Mine", "cannot be imported"),
        (f"{WRONG}:Missing", "has no 'Missing'"),
        (f"{WRONG}:NotAMethod", "not a subclass of undrift.Method"),
        (f"{WRONG}:Unfinished", "it has no fold"),
        (f"{WRONG}:NeedsArgument", "--set name=value"),
    ],
)
def test_what_cannot_be_verified_is_refused_with_a_sentence(where, words):
    with pytest.raises(UndriftError) as error:
        load(where)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_does_not_run_is_refused_with_a_sentence(tmp_path):
    mine = tmp_path / "broken.py"
    mine.write_text("1 / 0\n")
    with pytest.raises(UndriftError, match="ZeroDivisionError"):
        load(f"{mine}:Mine")


def test_json_has_the_six_keys():
    rows = json.loads(as_json(verify(ours()[:1])))
    assert rows
    for row in rows:
        assert set(row) == {"method", "fact", "expected", "measured", "error", "holds"}
        assert row["fact"] in {fact.name for fact in FACTS}


def test_the_command_says_what_failed_and_ends_with_status_1(tmp_path):
    done = called("verify", f"{WRONG}:BuffersAsParameters", cwd=tmp_path)
    assert done.returncode == 1
    assert "BuffersAsParameters, buffers:" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    assert done.stderr == ""


def test_the_command_gives_json_also_to_a_user_without_a_home():
    done = subprocess.run(
        [sys.executable, "-m", "undrift", "verify", f"{WRONG}:Honest", "--json"],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "COLUMNS": "80", "HOME": "/nonexistent"},
    )
    rows = json.loads(done.stdout)
    assert {row["fact"] for row in rows} >= {"weights", "order", "shift", "still", "stacked"}
    assert all(row["holds"] for row in rows)
    assert done.returncode == 0


def test_the_commands_errors_are_one_sentence(tmp_path):
    done = called("verify", "nothing", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: 'nothing' does not name a method")
    assert "Traceback" not in done.stderr
