"""Files of a run folder with values of wrong types give a result or one sentence, no traceback."""

import json
import shutil
import warnings

import pytest
import tomlkit

import undrift as ud
from damaged_runs import EXPERIMENT, killed_experiment, without_syncing
from undrift.experiments.building import build_data
from undrift.experiments.experiment import Experiment
from undrift.report import read_runs, write_csv, write_report
from undrift.report.html.sections import configuration_section, data_section, runs_section
from undrift.report.recorded_runs import record_rows
from undrift.runs.checking import check_runs
from undrift.runs.experiment_runs import resumed, run_experiment

WRONG = (None, True, -1, 10**30, 1.5, "", "x", [], [1], [[]], {}, {"x": 1}, {"x": []})
RUN = "SCAFFOLD/seed-0"


def mutants(value):
    """The value with each of its parts missing, of another type, or with something added."""
    for wrong in WRONG:
        if type(wrong) is not type(value) or wrong != value:
            yield wrong
    if isinstance(value, dict):
        yield {**value, "extra": [{}]}
        for name, inside in value.items():
            yield {key: each for key, each in value.items() if key != name}
            for mutant in mutants(inside):
                yield {**value, name: mutant}
    elif isinstance(value, list):
        for place, inside in enumerate(value[:2]):
            for mutant in mutants(inside):
                yield [*value[:place], mutant, *value[place + 1 :]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of an experiment on a virtual clock that finished, with spans and a target."""
    place = tmp_path_factory.mktemp("mutated") / "run"
    changes = {
        "rounds": 3,
        "target": {"test_accuracy": 2.0},
        "devices": {"speed": 10.0, "dropout": 0.3},
    }
    run_experiment(Experiment.from_dict(EXPERIMENT | changes), place)
    return place


def attempt(function, *arguments, **options):
    """Whether a call succeeds; an `UndriftError` must be a sentence, others are not caught."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function(*arguments, **options)
        return True
    except ud.UndriftError as error:
        text = str(error)
        assert text.rstrip().endswith((".", "?")) and "Traceback" not in text, text
        return False


def spread(found, most):
    """At most so many of the mutants, evenly over all of them."""
    found = list(found)
    return found[:: max(1, -(-len(found) // most))]


def sections(place):
    """Read the folder and make the parts of the report that show its files."""
    runs = read_runs(place)
    data_section(runs.folders)
    configuration_section(runs.folders)
    runs_section(runs, "")
    runs.targets()
    list(record_rows(runs))


def report(place):
    """Everything that `undrift report` writes, without the pictures."""
    write_report(place, place.parent / "page.html")
    write_csv(read_runs(place), place.parent / "tables")


@pytest.mark.parametrize("name", ["data.json", "about.json", f"{RUN}/run.json"])
def test_reports_of_folders_with_wrong_json(folder, name, tmp_path):
    place = shutil.copytree(folder, tmp_path / "run")
    file = place / name
    found = spread(mutants(json.loads(file.read_text())), 300)
    outcomes = []
    for count, mutant in enumerate(found):
        file.write_text(json.dumps(mutant))
        outcomes.append(attempt(sections, place))
        if outcomes[-1] and count % 30 == 0:
            assert attempt(report, place)
    assert any(outcomes) and not all(outcomes)


def test_reports_of_folders_with_wrong_records(folder, tmp_path):
    place = shutil.copytree(folder, tmp_path / "run")
    file = place / RUN / "records.jsonl"
    lines = file.read_text().splitlines()
    outcomes = []
    for mutant in mutants(json.loads(lines[2])):
        changed = [*lines[:2], json.dumps(mutant), *lines[3:]]
        file.write_text("".join(f"{line}\n" for line in changed))
        outcomes.append(attempt(sections, place))
        if outcomes[-1] and sum(outcomes) % 20 == 0:
            attempt(report, place)
    assert any(outcomes) and not all(outcomes)


def test_experiment_files_with_wrong_values(folder, tmp_path):
    place = shutil.copytree(folder, tmp_path / "run")
    file = place / "experiment.toml"
    value = tomlkit.parse(file.read_text()).unwrap()
    outcomes = []
    for mutant in spread(mutants(value), 150):
        try:
            file.write_text(tomlkit.dumps(mutant))
        except (TypeError, ValueError, AttributeError):  # TOML has no such value
            continue
        outcomes.append(attempt(resumed, place))
        attempt(sections, place)
    attempt(check_runs, place)
    assert any(outcomes) and not all(outcomes)


def test_resuming_and_checking_folders_with_wrong_json(tmp_path, monkeypatch):
    without_syncing(monkeypatch)
    killed = killed_experiment(tmp_path / "killed")
    data = build_data(Experiment.from_dict(EXPERIMENT))
    place = tmp_path / "run"
    for name in ("about.json", "data.json", f"{RUN}/run.json"):
        value = json.loads((killed / name).read_text())
        for mutant in spread(mutants(value), 12):
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(killed, place)
            (place / name).write_text(json.dumps(mutant))
            attempt(check_runs, place)
            attempt(run_experiment, resumed(place), place, data, extend=True)
