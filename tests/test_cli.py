"""The command line, the package and the README, as a user meets them."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import undrift

ROOT = Path(__file__).parent.parent


def command(*arguments, cwd=None):
    environment = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1"}
    return subprocess.run(
        [sys.executable, "-m", "undrift", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=environment,
    )


def test_help_names_the_commands():
    done = command("--help")
    assert done.returncode == 0
    for word in ("verify", "demo"):
        assert word in done.stdout
    assert "--json" in command("verify", "--help").stdout
    assert command("--version").stdout == f"undrift {undrift.__version__}\n"


def test_demo_trains_every_method_and_draws_a_picture(tmp_path):
    done = command("demo", "--rounds", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for name in undrift.METHODS:
        assert name in done.stdout
    assert (tmp_path / "undrift-demo.png").stat().st_size > 10_000
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


def test_demo_with_a_cohort_leaves_out_what_is_not_defined(tmp_path):
    done = command("demo", "--rounds", "1", "--cohort", "5", "--picture", "a.svg", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "left out: FedPD is defined only when every client takes part" in done.stdout.replace(
        "\n", " "
    )
    assert "SCAFFOLD" in done.stdout
    assert (tmp_path / "a.svg").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("demo", "--picture", "nowhere/x.png"), "There is no folder nowhere"),
        (("demo", "--picture", "x.xyz"), "must end in .png, .svg or .pdf"),
        (("verify", "--set", "a=1"), "name it first"),
        (("verify", "missing.py:Mine"), "There is no file missing.py"),
        (("verify", "missing.py:Mine", "--set", "alpha"), "--set takes NAME=VALUE"),
    ],
)
def test_mistakes_get_one_sentence_and_status_2(arguments, words, tmp_path):
    done = command(*arguments, cwd=tmp_path)
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


def blocks(language):
    text = (ROOT / "README.md").read_text()
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


@pytest.mark.parametrize("block", blocks("python"), ids=lambda block: block.splitlines()[0])
def test_the_readmes_code_runs(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {"__name__": "readme"})


def test_the_readmes_own_method_can_be_verified(tmp_path):
    (own,) = [block for block in blocks("python") if "(ud.Method)" in block]
    (tmp_path / "mine.py").write_text(own)
    name = re.search(r"class (\w+)\(ud.Method\)", own).group(1)
    done = command("verify", f"mine.py:{name}", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
