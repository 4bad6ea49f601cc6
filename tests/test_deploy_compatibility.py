"""The Flower that is installed has what undrift relies on; another version is named and refused."""

import ast
from pathlib import Path

import pytest

from undrift.deploy.flower.environment import configure_flower, require_flower
from undrift.utils.errors import UndriftError

flwr = pytest.importorskip("flwr", reason="the extra flower is not installed")
configure_flower()

from flwr.superlink.servicer.fleet import fleet_handlers  # noqa: E402

import undrift.deploy.flower  # noqa: E402
from undrift.deploy.flower import compatibility  # noqa: E402
from undrift.deploy.flower.compatibility import SUPPORTED, differences, version_difference  # noqa: E402

PACKAGE = Path(undrift.deploy.flower.__file__).parent


def test_flower_is_as_expected():
    """If this fails after an update of Flower: every line is one thing to adapt."""
    assert not differences(), "\n" + "\n".join(differences())


def imported():
    """Every name that the package imports from Flower."""
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("flwr"):
                for alias in node.names:
                    yield pytest.param(
                        f"{node.module}.{alias.name}", id=f"{file.stem}-{alias.name}"
                    )


@pytest.mark.parametrize("name", list(imported()))
def test_every_import_from_flower_is_there(name):
    assert compatibility._find(name) is not None, f"{name} is gone."


def test_only_one_package_touches_flower():
    root = PACKAGE.parents[1]
    others = [
        file
        for file in root.rglob("*.py")
        if PACKAGE not in file.parents
        and any(
            getattr(node, "module", None) and node.module.split(".")[0] == "flwr"
            for node in ast.walk(ast.parse(file.read_text("utf-8")))
            if isinstance(node, ast.ImportFrom)
        )
    ]
    assert not others


def test_what_changed_is_named(monkeypatch):
    monkeypatch.delattr(fleet_handlers, "push_object")
    monkeypatch.setattr(fleet_handlers, "push_messages", lambda message, store: None)
    monkeypatch.delattr("flwr.supernode.start_client_internal.time")
    monkeypatch.delattr("flwr.supercore.corestate.sql_corestate.now")
    monkeypatch.setattr(
        compatibility, "FIELDS", {"flwr.proto.message_pb2.Metadata": ("ttl", "recipient")}
    )
    monkeypatch.setattr(
        compatibility, "CODES", {"flwr.supercore.error.ApiErrorCode.FLEET_GET_RUN_FAILED": 1}
    )
    handlers = "flwr.superlink.servicer.fleet.fleet_handlers"
    assert differences() == [
        f"{handlers}.push_messages has no parameter 'request'; it has message, store.",
        f"{handlers}.push_object is gone.",
        "flwr.supercore.corestate.sql_corestate.now is gone.",
        "flwr.supernode.start_client_internal.time is gone.",
        "flwr.proto.message_pb2.Metadata has no field 'recipient'.",
        "flwr.supercore.error.ApiErrorCode.FLEET_GET_RUN_FAILED is 2008, not 1.",
    ]


@pytest.mark.parametrize("version", ["1.40.0", "1.42.0", "1.410.0", "2.0", "0+unknown"])
def test_another_version_is_refused_in_a_sentence(monkeypatch, version):
    monkeypatch.setattr(flwr, "__version__", version)
    with pytest.raises(UndriftError, match=rf"needs Flower {SUPPORTED}, but .* is installed: pip"):
        require_flower()
    monkeypatch.delattr(fleet_handlers, "push_object")
    with pytest.raises(UndriftError, match=r"What changed, among others: .*push_object is gone"):
        require_flower()


def test_a_supported_version_is_fine(monkeypatch):
    require_flower()
    assert version_difference(f"{SUPPORTED}.7") is None


def test_what_is_installed_by_the_extra_is_supported():
    project = PACKAGE.parents[3] / "pyproject.toml"
    if not project.is_file():
        pytest.skip("not in a clone")
    assert f'"flwr=={SUPPORTED}.' in project.read_text("utf-8")
