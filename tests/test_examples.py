"""The examples, in small form: they run, and show what they say."""

import ast
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from commands import called, command
from undrift.core.client_metrics import read_rows
from undrift.verify import load

EXAMPLES = Path(__file__).parent.parent / "examples"
FILES = sorted(EXAMPLES.glob("*.py"))


@pytest.fixture(autouse=True)
def where_examples_are(tmp_path, monkeypatch):
    """A folder in which the folder of examples is; what they write goes here."""
    (tmp_path / "examples").symlink_to(EXAMPLES)
    monkeypatch.chdir(tmp_path)


def main_of(name):
    return runpy.run_path(f"examples/{name}.py", run_name="example")["main"]


def code_lines(tree):
    """The lines of code, without docstrings, comments and empty lines."""
    texts = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            value = body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                texts.update(range(value.lineno, value.end_lineno + 1))
    lines = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt | ast.expr):
            lines.update((node.lineno, node.end_lineno))
    return lines - texts


def test_every_example_is_short_and_has_a_line_in_the_readme():
    readme = (EXAMPLES / "README.md").read_text()
    assert len(FILES) >= 7
    for file in FILES:
        assert len(file.read_text().splitlines()) < 80, file
        assert file.name in readme, file
    for folder in ("three_sites", "hospitals", "clinics"):
        assert folder in readme


def test_own_data_goes_from_nothing_to_a_report_in_15_lines(capsys):
    source = (EXAMPLES / "own_data.py").read_text()
    assert len(code_lines(ast.parse(source))) <= 15
    result = runpy.run_path("examples/own_data.py")["result"]
    assert set(result.run.roster.ids) == {"north", "east", "south"}
    assert result.metrics["test_accuracy"] > 0.65
    assert "FedDyn" in capsys.readouterr().out
    assert "hospitals" in Path("hospitals.html").read_text()


def test_the_hospitals_files_are_what_the_script_makes(tmp_path):
    runpy.run_path("examples/hospitals.py")["make"](tmp_path / "made")
    for file in (EXAMPLES / "hospitals").glob("*.csv"):
        assert (tmp_path / "made" / file.name).read_text() == file.read_text()


@pytest.mark.filterwarnings("ignore:The model has buffers")
def test_fine_tuning_sends_and_changes_the_head_alone():
    pytest.importorskip("sklearn")
    found = main_of("fine_tuning")(rounds=2, steps=20)
    head, everything = found["head"], found["everything"]
    assert head.x.numel() == 64 * 5 + 5
    assert head.bytes_up < everything.bytes_up / 25
    # SCAFFOLD sends two vectors up for each of ten clients and two rounds, and no buffers.
    assert head.bytes_up == 2 * 2 * 10 * 4 * head.x.numel()
    saved = load_file("fine-tuned.safetensors")
    known = runpy.run_path("examples/fine_tuning.py")["pretrained"](20).state_dict()
    moved = {name for name in known if not torch.equal(saved[name], known[name])}
    assert moved == {"head.weight", "head.bias"}


@pytest.mark.filterwarnings("ignore::FutureWarning")  # peft uses deprecated names
def test_lora_sends_the_adapters_alone():
    pytest.importorskip("peft")
    result = main_of("lora")(rounds=2, samples=20)
    assert result.x.numel() == 1090
    assert result.bytes_up == 2 * 8 * 4 * result.x.numel()
    assert 0 <= result.metrics["test_accuracy"] <= 1


def test_images_from_disk_are_the_same_with_any_number_of_workers():
    main = main_of("images_from_disk")
    found = [main(rounds=2, images=20, workers=workers) for workers in (0, 2)]
    assert torch.equal(found[0].x, found[1].x)
    assert "read when a batch needs them" in found[0].run.engine.strategy


def test_a_comparison_over_seeds_has_means_spreads_and_figures_of_a_papers_width():
    results = main_of("compare_over_seeds")(rounds=2, seeds=2)
    assert results.seeds == [0, 1]
    values = [each.metrics["test_accuracy"] for each in results["FedAvg"]]
    assert values[0] != values[1]
    shown = f"{np.mean(values):.4g} ± {np.std(values, ddof=1):.2g}"
    assert shown in results.summary()
    column, page = Path("accuracy.pdf").read_bytes(), Path("both.pdf").read_bytes()
    assert b"MediaBox [ 0 0 234 " in column  # 3.25 inches of 72 points
    assert b"MediaBox [ 0 0 486 " in page
    assert Path("bytes.png").stat().st_size > 5000


def test_an_own_method_is_30_lines_and_holds_every_fact(capsys):
    tree = ast.parse((EXAMPLES / "own_method.py").read_text())
    (own,) = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    assert len(code_lines(own)) <= 30
    results = main_of("own_method")(rounds=2)
    assert "Every fact holds." in capsys.readouterr().out
    assert results.labels == ["FedAvg", "SCAFFOLD", "Dane"]
    assert load("examples/own_method.py:Dane").method.converges_to == "optimum"


def test_stragglers_cost_time_only_where_they_are_waited_for():
    results = main_of("stragglers")(rounds=3)
    ends = {each.label: each.records[-1].virtual_seconds for each in results}
    assert ends["2 s, FedAvg"] <= 3 * 2.0 + 1e-9
    assert ends["wait for all"] > 2 * ends["2 s, FedAvg"]
    assert any(record.staleness for record in results["as they arrive"].records)
    for name in ("time.png", "waiting.png", "arriving.png"):
        assert Path(name).stat().st_size > 5000


def test_regression_speaks_of_errors_and_not_of_accuracy():
    results = main_of("regression")(rounds=4)
    found = results["FedAvg"].metrics
    assert not any("accuracy" in name for name in found)
    assert found["test_rmse"] == pytest.approx(found["test_loss"] ** 0.5, rel=1e-4)
    assert 0 < found["test_r2"] < 1
    text = results.summary()
    assert "test MAE" in text and "test rmse" in text and "acc" not in text
    page = Path("regression.html").read_text()
    assert "accuracy" not in page.partition("<script")[0]
    assert Path("regression.png").stat().st_size > 5000


def test_three_sites_run_in_one_process_as_well():
    done = called("run", "examples/three_sites/experiment.toml", "--out", "run", cwd=".")
    assert done.returncode == 0, done.stderr
    assert "SCAFFOLD" in done.stdout and "test acc" in done.stdout


def test_the_clinics_files_are_what_the_script_makes(tmp_path):
    runpy.run_path("examples/clinics/files.py")["make"](tmp_path / "made")
    for file in (EXAMPLES / "clinics" / "patients").glob("*.csv"):
        assert (tmp_path / "made" / file.name).read_text() == file.read_text()


def test_imbalanced_classes_are_found_with_weights():
    found = main_of("imbalanced")(rounds=6)
    assert found["weighted"] > found["plain"] + 0.1
    assert found["focal"] > found["plain"] + 0.1


def test_own_parts_are_used():
    pytest.importorskip("sklearn")
    result, patience = main_of("own_parts")(rounds=30, evaluations=1)
    sizes = dict(zip(result.run.roster.ids, result.run.roster.sizes.tolist(), strict=True))
    largest = sorted(sizes, key=lambda client: -sizes[client])[:6]
    assert sorted(result.records[1].cohort) == sorted(largest)
    assert result.records[-1].round < 30  # the callback ended it
    image = torch.eye(8).reshape(1, -1)
    assert patience.model(image).shape == (1, 10)


def test_the_clinics_need_30_lines_and_have_results_per_site():
    python = code_lines(ast.parse((EXAMPLES / "clinics" / "site.py").read_text()))
    lines = (EXAMPLES / "clinics" / "experiment.toml").read_text().splitlines()
    toml = [line for line in lines if line.strip() and not line.startswith("#")]
    assert len(python) + len(toml) <= 30
    done = called("run", "examples/clinics/experiment.toml", "--out", "run", cwd=".")
    assert done.returncode == 0, done.stderr
    rows = read_rows(Path("run/FedAvg/seed-0/clients.csv"))
    assert [row["client"] for row in rows] == ["east", "north", "south"]
    assert all(row["test_auc"] > 0.7 for row in rows)


@pytest.mark.deploy
def test_clinics_on_flower_end_where_the_simulation_does():
    pytest.importorskip("flwr", reason="Flower is not installed")
    done = called("run", "examples/clinics/experiment.toml", "--out", "here", cwd=".")
    assert done.returncode == 0, done.stderr
    done = command("deploy", "local", "examples/clinics", "--out", "there", cwd=".")
    assert done.returncode == 0, done.stderr
    assert "Every site told this server the sum of each number" in done.stdout + done.stderr
    here, there = (read_rows(Path(out, "FedAvg/seed-0/clients.csv")) for out in ("here", "there"))
    for mine, other in zip(here, there, strict=True):
        assert mine["test_auc"] == pytest.approx(other["test_auc"], abs=1e-3)
        assert mine["test_loss"] == pytest.approx(other["test_loss"], rel=1e-4)


@pytest.mark.deploy
def test_three_sites_on_flower_end_where_the_simulation_does():
    pytest.importorskip("flwr", reason="Flower is not installed")
    done = called("run", "examples/three_sites/experiment.toml", "--out", "here", cwd=".")
    assert done.returncode == 0, done.stderr
    done = command("deploy", "local", "examples/three_sites", "--out", "there", "-q", cwd=".")
    assert done.returncode == 0, done.stderr
    file = "SCAFFOLD/seed-0/model.safetensors"
    here, there = load_file(f"here/{file}"), load_file(f"there/{file}")
    for name, value in here.items():
        torch.testing.assert_close(there[name], value, rtol=1e-4, atol=1e-5)


def test_personalisation():
    found = main_of("personalisation")(rounds=3)
    assert set(found) == {"FedAvg", "FedRep", "Ditto", "alone"}
    assert found["FedRep"] > found["FedAvg"]  # the worst client gains from a head of its own
