"""What a report says first, what it says of several folders, and of personal models."""

import re

import numpy as np
import pytest

import undrift as ud
from made_up_runs import SVG, make, records, write_folder, write_run
from undrift.report import read_runs, write_report
from undrift.report.html.personal_section import personal_section
from undrift.report.html.result_sentence import result_sentence
from undrift.report.html.side_by_side import side_by_side_section


def ending(folder, finals, metric="test_accuracy", name="an experiment", **state):
    """A run folder whose methods end with the given values, one per seed."""
    write_folder(folder, finals, name=name)
    for label, values in finals.items():
        for seed, value in enumerate(values):
            lines = records(np.random.default_rng(seed), 2, 5)
            for record in lines:
                record.metrics = {metric: value}
            write_run(folder, label, seed, lines, **state)
    return folder


@pytest.mark.parametrize(
    ("finals", "metric", "sentence"),
    [
        (
            {"FedAvg": [0.5], "FedDyn": [0.75], "FedPD": [0.625]},
            "test_accuracy",
            "FedDyn has the highest test accuracy, 0.75; FedAvg has 0.5.",
        ),
        (
            {"FedAvg": [0.5], "FedDyn": [0.75], "FedPD": [0.625]},
            "test_loss",
            "FedAvg has the lowest test loss, 0.5; FedPD has 0.625.",
        ),
        (
            {"FedDyn": [0.25, 0.75], "FedAvg": [0.1, 0.1]},
            "test_accuracy",
            "FedDyn has the highest test accuracy, 0.5 ± 0.35; FedAvg has 0.1 ± 0.",
        ),
        (
            {"FedAvg": [0.5], "FedDyn": [0.75], "FedPD": [0.75001]},
            "test_accuracy",
            "FedPD and FedDyn have the highest test accuracy, 0.75; FedAvg has 0.5.",
        ),
        ({"FedAvg": [0.5]}, "test_accuracy", "FedAvg has test accuracy 0.5 after 2 rounds."),
        (
            {"FedAvg": [0.5], "FedDyn": [float("nan")]},
            "test_accuracy",
            "FedAvg has the highest test accuracy, 0.5.",
        ),
        ({"FedAvg": [float("inf")]}, "test_loss", "No run ended with a finite test loss."),
    ],
)
def test_the_result_is_one_sentence(tmp_path, finals, metric, sentence):
    folder = ending(tmp_path / "run", finals, metric)
    assert result_sentence(read_runs(folder)) == sentence
    page = write_report(folder, tmp_path / "page.html").read_text()
    assert page.index("<h1>an experiment</h1>") < page.index(f'<p class="result">{sentence}</p>')


def test_a_result_of_runs_under_way_says_so(tmp_path):
    folder = ending(tmp_path / "run", {"FedAvg": [0.5]}, status="interrupted")
    assert result_sentence(read_runs(folder)).startswith("So far: FedAvg has")
    diverged = ending(tmp_path / "other", {"FedAvg": [0.5]}, status="diverged", reason="why")
    assert result_sentence(read_runs(diverged)) == "No run ended with a finite test accuracy."


def test_the_baseline_that_was_asked_for_is_named(tmp_path):
    finals = {"FedAvg": [0.5], "FedDyn": [0.75], "FedPD": [0.625]}
    runs = read_runs(ending(tmp_path / "run", finals))
    assert result_sentence(runs, "FedPD").endswith("; FedPD has 0.625.")


def test_two_folders_are_compared_side_by_side(tmp_path):
    first = ending(tmp_path / "a", {"FedAvg": [0.5], "FedDyn": [0.75]}, name="first")
    second = ending(tmp_path / "b", {"FedDyn": [0.5], "FedPD": [0.1]}, name="second")
    for folder, steps in ((first, 5), (second, 10)):
        path = folder / "experiment.toml"
        path.write_text(f"{path.read_text()}alpha = {steps}\n[local]\nsteps = {steps}\nlr = 1\n")
    section = side_by_side_section(read_runs([first, second]))
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in section.split("<tr>")[1:]]
    assert rows == [
        ["method", "metric", "first", "second", "difference"],
        ["FedDyn", "test accuracy", "0.75", "0.5", "-0.25"],
        ["", "first", "second"],
        ["<code>method.FedAvg</code>", "FedAvg", "–"],
        ["<code>method.FedDyn.alpha</code>", "5", "–"],
        ["<code>local.steps</code>", "5", "10"],
        ["<code>method.FedPD</code>", "–", "FedPD"],
        ["<code>method.FedPD.alpha</code>", "–", "10"],
    ]
    assert side_by_side_section(read_runs(first)) == ""
    page = write_report([first, second], tmp_path / "page.html").read_text()
    assert '<section id="side-by-side">' in page


def test_two_folders_count_a_method_once_and_show_the_same_data_once(tmp_path):
    first = ending(tmp_path / "a", {"FedAvg": [0.5], "FedDyn": [0.75]}, name="first")
    second = ending(tmp_path / "b", {"FedDyn": [0.5], "FedPD": [0.1]}, name="second")
    (second / "data.svg").write_text(SVG.replace("<circle", "<desc>later</desc><circle"))

    def page():
        return write_report([first, second], tmp_path / "page.html").read_text()

    assert "3 methods, 2 run folders, 1 seed, up to 2 rounds" in page()
    made_up = "Samples of each class and client of made up"
    assert page().count(made_up) == 1
    path = second / "data.json"
    path.write_text(path.read_text().replace('"made up"', '"others"'))
    assert page().count(made_up) == page().count(made_up.replace("made up", "others")) == 1


def test_folders_of_the_same_name_are_told_apart_by_their_paths(tmp_path):
    folders = [ending(tmp_path / name, {"FedAvg": [0.5]}) for name in "ab"]
    section = side_by_side_section(read_runs(folders))
    assert all(str(folder) in section for folder in folders)
    assert "The experiment files have the same settings." in section


def test_personal_models_have_a_section(tmp_path):
    folder = write_folder(tmp_path / "run", ["FedAvg", "Ditto"])
    for label, more in (("FedAvg", {}), ("Ditto", {"own/test_accuracy": 0.875})):
        lines = records(np.random.default_rng(0), 2, 5)
        lines[-1].metrics = {"test_accuracy": 0.5, "train_loss": 0.1, **more}
        write_run(folder, label, 0, lines)
    section = personal_section(read_runs(folder))
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in section.split("<tr>")[2:]]
    assert rows == [["the server's", "0.5"], ["each client's own", "0.875"]]
    assert "Ditto" in section and "FedAvg" not in section


def test_sections_without_anything_to_show_are_left_out(tmp_path):
    page = write_report(make(tmp_path / "run"), tmp_path / "page.html").read_text()
    for name in ("clients", "privacy", "personalisation", "side-by-side", "sites"):
        assert f'id="{name}"' not in page
    assert 'id="final-metrics"' in page


def test_a_report_of_results_in_memory_is_named_after_its_data(tmp_path):
    data = ud.data.synthetic(1, 1, clients=3, most=60)
    model = ud.models.logistic(60, 10)
    local = ud.SGD(lr=0.1, steps=1)
    result = ud.train(ud.FedAvg(), model=model, data=data, local=local, rounds=1)
    page = result.report(tmp_path / "page.html").read_text()
    assert "<h1>synthetic(1,1)</h1>" in page
