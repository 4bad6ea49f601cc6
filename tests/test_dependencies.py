"""What the core imports is what pyproject.toml declares, whatever the extras bring along."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "undrift"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = {"engines/ray": "ray", "deploy/flower": "flower", "deploy/signing": "flower"}
EXTRAS |= {"privacy/secure": "flower"}
"""Folders that are imported only where the extra is wanted."""
PARTS = {"pydantic-core": "pydantic"}
"""Distributions that come with another, which requires exactly one version of them."""


def plain(name):
    return name.lower().replace("_", "-")


def names(requirements):
    return {plain(re.match(r"[\w.-]+", each)[0]) for each in requirements}


def imported(file):
    """The third-party packages that a module imports as soon as it is imported itself."""
    waiting = list(ast.parse(file.read_text(encoding="utf-8")).body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (each.name.partition(".")[0] for each in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module.partition(".")[0]
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting += [each for each in ast.iter_child_nodes(node) if isinstance(each, ast.stmt)]


def undeclared(declared):
    """Where something is imported that no declared distribution brings."""
    found = []
    brought_by = packages_distributions()
    for file in SOURCE.rglob("*.py"):
        path = file.relative_to(SOURCE).as_posix()
        extra = next((name for folder, name in EXTRAS.items() if path.startswith(folder)), None)
        allowed = declared | names(PROJECT["optional-dependencies"][extra] if extra else ())
        for package in {*imported(file)} - {*sys.stdlib_module_names, "undrift"}:
            brings = {plain(each) for each in brought_by.get(package, [package])}
            if not {PARTS.get(each, each) for each in brings} & allowed:
                found.append(f"{path}: {package}")
    return sorted(found)


def test_what_the_core_imports_is_declared():
    assert undeclared(names(PROJECT["dependencies"])) == []


def test_what_only_an_extra_brings_would_be_found():
    missing = undeclared(names(PROJECT["dependencies"]) - {"lmdb"})
    assert missing == ["runs/store/entries.py: lmdb"]


OPTIONAL = (
    "cryptography",
    "Crypto",
    "flwr",
    "ray",
    "dp_accounting",
    "sklearn",
    "pyarrow",
    "pandas",
)
EXPERIMENT = """
rounds = 2
[data]
source = "synthetic"
clients = 4
most = 20
[model]
name = "logistic"
[local]
lr = 0.1
epochs = 1
[[method]]
name = "FedAvg"
"""


def test_simulations_need_no_optional_package(tmp_path):
    """Run, resume, extend, check and report in a process without the packages of extras."""
    (tmp_path / "e.toml").write_text(EXPERIMENT)
    blocked = f"import sys; sys.modules.update(dict.fromkeys({OPTIONAL}))"
    for words in (
        ["run", "e.toml", "--out", "runs", "-q"],
        ["resume", "runs", "-q"],
        ["resume", "runs", "--rounds", "3", "-q"],
        ["check", "runs"],
        ["report", "runs"],
    ):
        code = f"{blocked}; sys.argv[1:] = {words}; from undrift.cli import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, (words, done.stderr)
