"""The command line and the package, as a user meets them."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import typer

import undrift
from commands import called, command
from undrift.cli.app import app, parse_settings
from undrift.cli.demo.demo_run import demo_entries

ROOT = Path(__file__).parent.parent


def test_help_names_the_commands(tmp_path):
    done = command("--help")
    assert done.returncode == 0
    for word in ("verify", "demo", "inspect"):
        assert word in done.stdout
    assert "--json" in called("verify", "--help", cwd=tmp_path).stdout
    assert called("--version", cwd=tmp_path).stdout == f"undrift {undrift.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("reprot",), "error: undrift has no command 'reprot'; did you mean 'report'?\n"),
        (("deploy", "sit"), "error: undrift deploy has no command 'sit'; did you mean 'site'?\n"),
        (("xyz",), "error: undrift has no command 'xyz'; see undrift --help.\n"),
    ],
)
def test_an_unknown_command_gets_one_sentence(arguments, sentence, tmp_path):
    done = called(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", sentence)


def test_arguments_keep_their_help_if_the_library_below_drops_it():
    group = typer.main.get_command(app)
    context = group.make_context("undrift", [], resilient_parsing=True)
    command = group.get_command(context, "show")
    expected = [each.help for each in command.params]
    assert all(expected)
    for each in command.params:
        each.help = None
    assert [each.help for each in group.get_command(context, "show").params] == expected


def test_flags_have_no_type_in_the_help():
    group = typer.main.get_command(app)
    context = group.make_context("undrift", [], resilient_parsing=True)
    parameters = group.get_command(context, "report").params
    flags = {each.name: each.metavar for each in parameters if getattr(each, "is_flag", False)}
    assert flags == {"open_": ""}


def test_demo_trains_the_methods_of_the_papers_and_writes_the_report(tmp_path):
    done = called("demo", "--rounds", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    names = {entry.method.name for entry in demo_entries().values()}
    assert len(names) == 15 and names < undrift.METHODS.keys()
    for name in names:
        assert name in done.stdout
    assert "training" not in done.stdout  # where the time went is said when it is asked for
    page = (tmp_path / "undrift-demo.html").read_text()
    assert all(name in page for name in names)
    assert 'id="data"' in page and 'id="time"' in page
    # Methods whose clients worked at the same times share a picture of it.
    assert page.count("Who worked when in the first rounds") < 6
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("3", 3),
        ("0.1", 0.1),
        ("true", True),
        ("True", True),
        ("None", None),
        ("none", "none"),
        ("[1, 2]", [1, 2]),
        ("(1, 2)", (1, 2)),
        (
            '{law = "ladder", slowest = 1, fastest = 2}',
            {"law": "ladder", "slowest": 1, "fastest": 2},
        ),
        ('{"a": 1}', {"a": 1}),
        ('"a word"', "a word"),
        ("dirichlet:0.3", "dirichlet:0.3"),
        ("2020-01-01", "2020-01-01"),
        ("1\nother = 2", "1\nother = 2"),
        ("a=b", "a=b"),
        ("", ""),
    ],
)
def test_a_setting_is_as_in_a_file_or_as_in_python(given, meant):
    found = parse_settings([f"key={given}"])["key"]
    assert found == meant
    assert type(found) is type(meant)


def test_demo_with_a_cohort_leaves_out_what_is_not_defined(tmp_path):
    done = called("demo", "--rounds", "1", "--cohort", "5", "--picture", "a.svg", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "left out: FedPD is defined only when every client takes part" in done.stdout.replace(
        "\n", " "
    )
    assert "SCAFFOLD" in done.stdout
    assert (tmp_path / "a.svg").exists()


def test_inspect_shows_a_table_numbers_and_a_picture(tmp_path):
    done = called("inspect", "synthetic", "--clients", "12", "--picture", "a.png", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "synthetic(1,1): 12 clients, 10 classes" in done.stdout
    assert "label distance (TV)" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    assert (tmp_path / "a.png").stat().st_size > 10_000
    options = [
        "--partition",
        "classes:2",
        "--sizes",
        "power-law:1",
        "--clients",
        "10",
        "--seed",
        "3",
        "--json",
    ]
    found = json.loads(called("inspect", "digits", *options, cwd=tmp_path).stdout)
    rule = undrift.data.Classes(2, sizes=undrift.data.PowerLaw(1.0))
    assert found == undrift.data.digits(rule, 10, 3).describe().as_dict()
    assert found["labels"]["per_client"]["max"] == 2
    named = called("inspect", cwd=tmp_path).stdout
    assert all(source in named for source in undrift.data.SOURCES)


def test_inspect_takes_none_for_a_setting(tmp_path):
    options = ("--clients", "10", "--model", "logistic", "--json")
    found = json.loads(
        called("inspect", "digits", *options, "--set", "normalise=none", cwd=tmp_path).stdout
    )
    model = undrift.nets.models.logistic(64, 10)
    plain = undrift.data.digits(clients=10, normalise=None).describe(model).as_dict()
    assert found["gradients"] == pytest.approx(plain["gradients"])
    usual = undrift.data.digits(clients=10).describe(model).as_dict()
    assert found["gradients"] != pytest.approx(usual["gradients"])


def test_inspect_measures_gradients_and_gamma(tmp_path):
    options = ("--set", "alpha=0", "--set", "beta=0", "--set", "most=60", "--clients", "4")
    model = ("--model", "logistic", "--gamma")
    found = json.loads(
        called("inspect", "synthetic", *options, *model, "--json", cwd=tmp_path).stdout
    )
    assert found["gamma"]["converged"]
    assert found["gamma"]["value"] > 0
    data = undrift.data.synthetic(0, 0, clients=4, most=60)
    described = data.describe(undrift.nets.models.logistic(60, 10), gamma=True).as_dict()
    assert found["gradients"] == pytest.approx(described["gradients"])
    assert found["gamma"]["value"] == pytest.approx(described["gamma"]["value"], abs=1e-6)


def test_inspect_reads_a_folder(tmp_path):
    for name in "ab":
        np.savez(tmp_path / f"{name}.npz", x=np.ones((4, 2), np.float32), y=[0, 1, 1, 1])
    done = called("inspect", str(tmp_path), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 clients, 2 classes, 8 training samples" in done.stdout.replace("\n", " ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("demo", "--picture", "nowhere/x.png"), "There is no folder nowhere"),
        (("demo", "--report", "nowhere/x.html"), "There is no folder nowhere"),
        (("demo", "--picture", "x.xyz"), "must end in .png, .svg or .pdf"),
        (("verify", "--set", "a=1"), "--set needs a method"),
        (("verify", "missing.py:Mine"), "There is no file missing.py"),
        (("verify", "missing.py:Mine", "--set", "alpha"), "--set takes NAME=VALUE"),
        (("inspect", "mnits"), "did you mean 'mnist'?"),
        (("inspect", "./nowhere"), "There is no folder and no data set named ./nowhere"),
        (("inspect", ".", "--set", "targt=x"), "did you mean 'target'?"),
        (("inspect", ".", "--partition", "iid"), "--partition does not apply to a folder"),
        (("inspect", "synthetic", "--model", "mpl:20"), "did you mean 'mlp'?"),
        (("inspect", "synthetic", "--set", "seed=3"), "Use --seed instead of --set seed=…"),
        (("inspect", "digits", "--sizes", "balanced"), "--sizes needs a --partition"),
        (("inspect", "synthetic", "--partition", "iid"), "so it takes neither --partition"),
        (("inspect", "synthetic", "--set", "alfa=1"), "did you mean 'alpha'?"),
        (("inspect", "synthetic", "--model", "mlp:a"), "must be whole numbers, as in mlp:200-100"),
        (("inspect", "synthetic", "--model", "cifar_cnn"), "takes images of shape"),
        (("inspect", "synthetic", "--model", "logstic"), "did you mean 'logistic'?"),
        (("inspect", "synthetic", "--gamma"), "gamma=True needs a model"),
        (("inspect", "synthetic", "--picture", "x.gif"), "must end in .png, .svg or .pdf"),
    ],
)
def test_mistakes_get_one_sentence_and_status_2(arguments, words, tmp_path):
    done = called(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_wheel_builds_and_installs(tmp_path):
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("undrift-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "undrift/py.typed" in names
    for resource in ("report/html/page.html", "report/html/page.js", "experiments/starter.toml"):
        assert f"undrift/{resource}" in names
    assert any(name.endswith("LICENSE") for name in names)
    assert not any("test" in name for name in names)
    target = tmp_path / "installed"
    install = ["-m", "pip", "install", "--no-deps", "--quiet", "--target", str(target), str(wheel)]
    subprocess.run([sys.executable, *install], check=True, capture_output=True)
    code = "import undrift; print(undrift.__file__, undrift.FedDyn(0.1))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(target)},
    )
    assert str(target) in done.stdout
    assert "FedDyn(alpha=0.1)" in done.stdout
