"""The structure a newcomer meets: few modules at the root, small packages, one public list."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import undrift as ud

PACKAGE = Path(ud.__file__).parent
MOST_MODULES = 16


def test_the_root_holds_the_entry_points_only():
    assert sorted(path.name for path in PACKAGE.glob("*.py")) == [
        "__init__.py",
        "__main__.py",
        "api.py",
    ]


def packages():
    found = [path.parent for path in PACKAGE.rglob("__init__.py") if path.parent != PACKAGE]
    return [pytest.param(path, id=str(path.relative_to(PACKAGE))) for path in sorted(found)]


@pytest.mark.parametrize("package", packages())
def test_no_package_is_a_heap_and_each_says_what_it_is(package):
    modules = [path for path in package.glob("*.py") if path.name != "__init__.py"]
    assert len(modules) <= MOST_MODULES
    for path in [*modules, package / "__init__.py"]:
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), path


def test_every_public_name_is_there_and_nothing_else_is_shown():
    assert sorted(dir(ud)) == sorted([*ud.__all__, "__version__"])
    for name in ud.__all__:
        assert getattr(ud, name) is not None
    code = "import undrift; import undrift.report, undrift.deploy.site; print(*dir(undrift))"
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert sorted(shown) == sorted(dir(ud))


def test_type_checkers_see_the_same_names():
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    (block,) = (
        node for node in tree.body if isinstance(node, ast.If) and isinstance(node.test, ast.Name)
    )
    seen = [alias.asname for node in block.body for alias in node.names]  # type: ignore[attr-defined]
    assert sorted(seen) == sorted(ud.__all__)
    homes = {
        alias.asname: f"{node.module}.{alias.name}"
        for node in block.body
        for alias in node.names  # type: ignore[attr-defined]
    }
    for name, home in ud._MODULE_OF.items():
        assert homes[name] == f"{home}.{name}"


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, undrift; print([m for m in ('torch', 'numpy', 'rich') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_a_misspelled_name_is_corrected():
    with pytest.raises(AttributeError, match="did you mean 'FedDyn'"):
        _ = ud.FedDin


@pytest.mark.parametrize(
    "name",
    ["core", "nets", "local", "loops", "engines", "runs", "experiments", "utils", "cli", "deploy"],
)
def test_internal_packages_say_so(name):
    text = (PACKAGE / name / "__init__.py").read_text(encoding="utf-8")
    assert "Internal: names may change" in ast.get_docstring(ast.parse(text))


def test_the_architecture_page_names_what_exists():
    page = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    code = "\n".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    words = set(re.findall(r"`([^`\n]+)`", page))
    paths = {word for word in words if re.fullmatch(r"[a-z_]+(/[a-z_]+)*(\.py|/[a-z_]+)", word)}
    assert len(paths) > 20
    for path in paths - {"methods/name.py"}:
        roots = (PACKAGE, PACKAGE.parents[1])
        assert any((root / path).exists() for root in roots), path
    classes = {name for word in words for name in re.findall(r"\b[A-Z][a-z]+[A-Z]\w+\b", word)}
    for name in classes:
        assert re.search(rf"\b(class|def) {name}\b", code), name
