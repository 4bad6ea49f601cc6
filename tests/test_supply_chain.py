"""The pinned packages of deployment and development, and the words about what is executed."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from tools.audit import main as audit
from tools.hashed_requirements import _version_of, normalised, requirements

from commands import called

ROOT = Path(__file__).parents[1]
PINNED = {extra: ROOT / f"requirements-{extra}.txt" for extra in ("flower", "dev")}


def pinned(extra):
    """The version and the hashes of every package in the list of an extra."""
    text = PINNED[extra].read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line.split() for line in text.splitlines() if not line.startswith("#")]
    return {words[0].split("==")[0]: (words[0].split("==")[1], words[1:]) for words in lines}


@pytest.mark.parametrize("extra", PINNED)
def test_every_package_of_an_extra_is_pinned_as_the_project_allows(extra):
    found = pinned(extra)
    for each in map(Requirement, requirements(extra)):
        version, hashes = found[normalised(each.name)]
        assert each.specifier.contains(version), f"{each}: run make hashes"
        assert hashes


def test_the_packages_of_development_are_those_of_all_extras():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    every = {normalised(Requirement(each).name) for each in project["dependencies"]}
    for extra in project["optional-dependencies"].values():
        every |= {normalised(Requirement(each).name) for each in extra}
    assert every - pinned("dev").keys() == {"torch", "undrift"}
    fixed = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    for each in map(Requirement, (line for line in fixed if line[:1] not in ("", "#"))):
        if each.name != "torch":
            assert each.specifier.contains(pinned("dev")[each.name][0])


@pytest.mark.parametrize("extra", PINNED)
def test_pins_have_hashes_and_name_no_place(extra):
    for version, hashes in pinned(extra).values():
        assert version
        assert hashes
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", each) for each in hashes)
    assert "://" not in PINNED[extra].read_text(encoding="utf-8")
    assert "torch" not in pinned(extra)  # its builds differ by device


@pytest.mark.parametrize(
    ("file", "name", "version"),
    [
        ("numpy-2.4.6-cp311-cp311-win_amd64.whl", "numpy", "2.4.6"),
        ("typing_extensions-4.16.0.tar.gz", "typing-extensions", "4.16.0"),
        ("grpcio-health-checking-1.81.1.tar.gz", "grpcio-health-checking", "1.81.1"),
        ("numpy-extras-1.0.zip", "numpy", None),
        ("numpy-2.4.6.win32.exe", "numpy", None),
    ],
)
def test_versions_are_read_from_the_names_of_files(file, name, version):
    assert _version_of(file, name) == version


def test_an_audit_that_could_not_be_made_is_a_failure(monkeypatch, capfd, tmp_path):
    # Stands in for the installed pip-audit: what it prints without access to its service.
    (tmp_path / "pip_audit.py").write_text(
        "import sys\n"
        "assert '--strict' in sys.argv\n"
        "print('No known vulnerabilities found')\n"
        "sys.exit('ERROR: flwr: Dependency not found and could not be audited: flwr (1.41.0)')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert audit("requirements-flower.txt") == 2
    assert (
        "No audit was made: the vulnerability service cannot be reached" in capfd.readouterr().err
    )
    (tmp_path / "pip_audit.py").write_text("print('flwr 1.41.0 PYSEC-1'); raise SystemExit(1)")
    assert audit("requirements-flower.txt") == 1
    assert "PYSEC-1" in capfd.readouterr().err


@pytest.mark.parametrize(
    "command", ["run", "compare", "resume", "sweep", "deploy local", "deploy server", "deploy site"]
)
def test_help_says_that_experiment_files_are_code(command, tmp_path):
    shown = re.sub(r"[\s│]+", " ", called(*command.split(), "--help", cwd=tmp_path).stdout)
    assert "can name Python files, which are executed: trust it like code." in shown
