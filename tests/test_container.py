"""The Dockerfile and the compose file: what they copy, run and mount exists and fits together."""

import re
import shlex
import subprocess
import sys
import time
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
import typer
import yaml
from packaging.specifiers import SpecifierSet

from commands import command
from undrift.cli import app
from undrift.deploy.flower.processes import free_port

ROOT = Path(__file__).parents[1]
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
SERVICES = COMPOSE["services"]
SITES = ["site-1", "site-2", "site-3"]


def instructions():
    """The instructions of the Dockerfile as (word, rest)."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [tuple(line.split(maxsplit=1)) for line in lines]


def ignored(path):
    """Whether .dockerignore leaves a path out; the last pattern that fits decides."""
    found = False
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").split():
        pattern = line.lstrip("!")
        if any(fnmatch(part, pattern) for part in (path, *map(str, Path(path).parents))):
            found = not line.startswith("!")
    return found


def test_what_the_image_copies_is_there_and_not_ignored():
    sources = [
        source
        for word, rest in instructions()
        if word == "COPY" and not rest.startswith("--from")
        for source in rest.split()[:-1]
    ]
    assert "src" in sources and "requirements-flower.txt" in sources
    for source in sources:
        assert (ROOT / source).exists() and not ignored(source), source
    for secret in (".git", "certs", "run", ".venv", "tests"):
        assert ignored(secret)


def test_the_wheel_of_the_image_has_all_its_files():
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    needed = [*build["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]]
    needed += [build["project"]["readme"], "pyproject.toml", "LICENSE"]
    copied = " ".join(rest for word, rest in instructions() if word == "COPY").split()
    for path in needed:
        assert any(path == each or path.startswith(f"{each}/") for each in copied), path


def test_the_image_is_not_root_has_a_health_check_and_names_no_place():
    found = instructions()
    last = max(at for at, (word, _) in enumerate(found) if word == "FROM")
    final = dict(found[last:])
    assert int(final["USER"].split(":")[0]) > 0
    assert "HEALTHCHECK" in final and final["ENTRYPOINT"] == '["undrift"]'
    arguments = dict(rest.split("=") for word, rest in found if word == "ARG" and "=" in rest)
    allowed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert SpecifierSet(allowed["requires-python"]).contains(f"{arguments['PYTHON']}.0")
    for name in ("Dockerfile", "compose.yaml"):
        assert "://" not in (ROOT / name).read_text(encoding="utf-8")


def test_the_health_check_tells_whether_the_server_listens():
    check = dict(instructions())["HEALTHCHECK"].partition("CMD ")[2]
    code = yaml.safe_load(check)[2]
    assert "8000" in code
    done = subprocess.run(
        [sys.executable, "-c", code.replace("8000", "1")], capture_output=True, check=False
    )
    assert done.returncode == 1


@pytest.mark.parametrize("name", SERVICES)
def test_services_run_commands_that_there_are_without_rights(name):
    service = SERVICES[name]
    group = typer.main.get_command(app)
    words = shlex.split(service["command"])
    command = group.commands[words[0]].commands[words[1]]
    options = command.make_context("undrift", words[2:]).params
    assert str(options["certs"]) == "certs"
    if name != "server":
        assert options["site"] == name and options["superlink"] == "server:8000"
    assert service["cap_drop"] == ["ALL"] and service["read_only"]
    mounted = {each.split(":")[1]: each.split(":") for each in service["volumes"]}
    own = "server" if name == "server" else f"sites/{name}"
    assert mounted["/work/certs"] == [f"./certs/{own}", "/work/certs", "ro"]


def test_there_are_three_sites():
    assert [name for name in SERVICES if name != "server"] == SITES


@pytest.mark.deploy
def test_the_commands_of_the_compose_file_train_together(tmp_path):
    """The same commands with every container as a folder, and 127.0.0.1 as the server's name."""
    steps = re.findall(r"^#   undrift (deploy .*)$", (ROOT / "compose.yaml").read_text(), re.M)
    assert len(steps) == 2
    for step in steps:
        words = step.replace("--host server", "--host 127.0.0.1").split()
        assert command(*words, cwd=tmp_path).returncode == 0
    experiment = tmp_path / "app" / "experiment.toml"
    experiment.write_text(
        re.sub(r"^rounds = \d+", "rounds = 2", experiment.read_text(), flags=re.M)
    )
    port = free_port()
    running = {}
    for name in ("server", *SITES):
        place = tmp_path / "containers" / name
        place.mkdir(parents=True)
        for volume in SERVICES[name]["volumes"]:
            source, target = volume.split(":")[:2]
            (tmp_path / source).mkdir(parents=True, exist_ok=True)
            (place / Path(target).name).symlink_to(tmp_path / source)
        words = SERVICES[name]["command"].replace("server:8000", f"127.0.0.1:{port}")
        words = words.replace("--port 8000", f"--port {port}").replace("0.0.0.0", "127.0.0.1")
        with open(tmp_path / f"{name}.log", "w") as log:
            running[name] = subprocess.Popen(
                [sys.executable, "-m", "undrift", *words.split()],
                cwd=place,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
    try:
        running["server"].wait(240)
    finally:
        for each in running.values():
            each.terminate()
        end = time.monotonic() + 30
        for each in running.values():
            each.wait(max(1, end - time.monotonic()))
    assert running["server"].returncode == 0, (tmp_path / "server.log").read_text()
    report = command("report", "run", cwd=tmp_path)
    assert report.returncode == 0, report.stderr
    assert "2 of 2" in (tmp_path / "report.html").read_text(encoding="utf-8")
