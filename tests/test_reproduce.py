"""`undrift reproduce`: the quick version of every reproduction, and the claims that hold in it."""

import os
from importlib.resources import files
from pathlib import Path

import pytest
from rich.cells import cell_len
from tools.pages import reproductions

from commands import called
from undrift.experiments.experiment import Experiment
from undrift.reproduce import NAMES, find, reproduce
from undrift.reproduce.registry import papers
from undrift.reproduce.reproduction import PAPERS
from undrift.runs.folder import read_json, write_json

QUICK_NEEDS = {"feddyn-mnist": "mnist", "feddyn-shakespeare": "shakespeare"}
"""Reproductions whose quick version needs these data."""
ALL_CLAIMS_HOLD = (
    "fedavg-tridiagonal",
    "fedavg-bounds",
    "fednova-quadratics",
    "fednova-prox-tradeoff",
    "feddyn-mnist",
    "feddr-async",
)
"""Reproductions whose claims all hold in the quick version, too."""


def files_of(data):
    root = os.environ.get("UNDRIFT_DATA")
    return root is not None and (Path(root) / data).is_dir()


@pytest.mark.parametrize("name", NAMES)
def test_every_quick_version(name, tmp_path):
    needed = QUICK_NEEDS.get(name)
    if needed is not None and not files_of(needed):
        pytest.skip(f"UNDRIFT_DATA has no {needed}")
    found = reproduce(name, tmp_path, quick=True)
    assert found.panels and found.numbers
    decided = [claim for claim in found.claims if claim.holds is not None]
    assert decided and all(claim.evidence for claim in decided)
    if name in ALL_CLAIMS_HOLD:
        assert [claim.text for claim in found.claims if claim.holds is False] == []
    assert (tmp_path / "report.html").is_file() and (tmp_path / "figure.png").is_file()


def test_every_reproduction_says_what_it_is():
    for name in NAMES:
        found = find(name)
        assert found.name == name and name.startswith(found.paper.lower()) and found.cost
        assert found.quick_is.endswith(".") and found.about.endswith(".")
        assert all(each.endswith(".") for each in found.left_open)


def test_every_experiment_file_runs_by_itself():
    seen = 0
    for paper in PAPERS:
        for path in files(f"undrift.reproduce.{paper.lower()}").iterdir():
            if path.name.endswith(".toml"):
                Experiment.load(Path(str(path)))
                seen += 1
    assert seen >= 12


def test_all_are_listed_within_80_columns(tmp_path):
    listed = called("reproduce", "--list", cwd=tmp_path)
    assert listed.returncode == 0 and all(name in listed.stdout for name in NAMES)
    assert max(map(cell_len, listed.stdout.splitlines())) <= 80
    assert called("list", "papers", cwd=tmp_path).stdout == listed.stdout
    assert [each.name for own in papers().values() for each in own] == list(NAMES)


def test_errors_are_one_sentence(tmp_path):
    assert "--list shows the names" in called("reproduce", cwd=tmp_path).stderr
    wrong = called("reproduce", "feddyn-minst", cwd=tmp_path)
    assert wrong.returncode == 2 and "did you mean 'feddyn-mnist'?" in wrong.stderr
    wrong = called("reproduce", "feddyn-mnist", "--part", "none", cwd=tmp_path)
    assert wrong.returncode == 2 and "must be one of" in wrong.stderr


def test_the_command_prints_published_and_measured(tmp_path):
    done = called("reproduce", "fednova-prox-tradeoff", "--quick", "-q", cwd=tmp_path)
    assert done.returncode == 0 and "published" in done.stdout and "holds" in done.stdout
    assert max(map(cell_len, done.stdout.splitlines())) <= 80
    assert (tmp_path / "reproductions" / "fednova-prox-tradeoff-quick" / "report.html").is_file()


def test_the_page_of_results_is_that_of_the_stored_findings():
    docs = Path(__file__).parent.parent / "docs"
    assert (docs / "reproductions.md").read_text("utf-8") == reproductions.results_page(docs)


def test_the_tables_of_numbers_are_those_of_the_stored_findings():
    stored = Path(__file__).parent.parent / "docs" / "reproductions"
    names = {path.stem for path in stored.glob("*.json")} & set(NAMES)
    assert names and {path.stem for path in stored.glob("*.csv")} == names
    for name in names:
        table = (stored / f"{name}.csv").read_text("utf-8")
        assert table == reproductions.numbers_csv(read_json(stored / f"{name}.json"))


def test_stored_results_are_shown_without_running(tmp_path):
    done = called("reproduce", "fedavg-tridiagonal", "--show", cwd=tmp_path)
    assert done.returncode == 0 and "20 of 20 are" in done.stdout
    assert max(map(cell_len, done.stdout.splitlines()[3:])) <= 80
    assert not list(tmp_path.iterdir()), "nothing is written"
    own = tmp_path / "own"
    own.mkdir()
    saved = read_json(Path(__file__).parent.parent / "docs/reproductions/fedavg-tridiagonal.json")
    saved["claims"][0]["evidence"] = "my own run"
    write_json(own / "findings.json", saved)
    done = called("reproduce", "fedavg-tridiagonal", "--show", "--out", str(own), cwd=tmp_path)
    assert "my own run" in done.stdout
    done = called("reproduce", "feddyn-cifar100", "--show", cwd=tmp_path)
    assert done.returncode == 2 and "no stored result of feddyn-cifar100" in done.stderr
