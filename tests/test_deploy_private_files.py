"""What a deployment writes is for its owner alone, and what is not is said."""

import os
import stat
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from commands import called
from deployments import InProcess, app
from undrift.deploy import launch, private_files
from undrift.deploy.private_files import (
    close_secrets,
    open_files,
    warning_of_open_files,
    write_private,
    write_secret,
    written_privately,
)
from undrift.deploy.server import serve


@pytest.fixture(autouse=True)
def usual_umask():
    """What most users have: others may read."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def current_umask():
    found = os.umask(0)
    os.umask(found)
    return found


def test_files_are_private_inside_and_as_before_outside(tmp_path):
    with written_privately():
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "file").write_text("")
    assert mode(tmp_path / "folder") == 0o700
    assert mode(tmp_path / "folder" / "file") == 0o600
    assert current_umask() == 0o022


def test_secrets_are_private_whatever_the_umask_is(tmp_path):
    write_private(tmp_path / "one", "words")
    write_secret(tmp_path / "two")
    first = (tmp_path / "two").read_bytes()
    write_secret(tmp_path / "two")
    assert mode(tmp_path / "one") == mode(tmp_path / "two") == 0o600
    assert (tmp_path / "two").read_bytes() == first and len(first) == 32


def test_open_files_are_found_but_not_what_a_closed_folder_has(tmp_path):
    root = tmp_path / "run"
    (root / "closed").mkdir(parents=True)
    (root / "closed" / "inside").write_text("")
    (root / "closed").chmod(0o700)
    (root / "private").write_text("")
    (root / "private").chmod(0o600)
    (root / "open").write_text("")
    (root / "group").write_text("")
    (root / "group").chmod(0o640)
    (root / "link").symlink_to(root / "private")
    assert open_files(root) == [root, root / "group", root / "open"]
    root.chmod(0o700)
    assert open_files(root) == []
    assert open_files(tmp_path / "none") == []


def test_the_warning_is_one_sentence_that_says_what_to_do(tmp_path):
    root = tmp_path / "run"
    root.mkdir()
    for number in range(5):
        (root / f"{number}").write_text("")
    found = warning_of_open_files([tmp_path / "none", root])
    assert found == (
        f"Other users of this machine can read {root}, {root / '0'}, {root / '1'} and 3 more: "
        f"call chmod -R go= {root}."
    )
    os.system(f"chmod -R go= {root}")
    assert warning_of_open_files([root]) is None


def test_private_keys_that_others_can_read_are_closed(tmp_path):
    assert called("deploy", "certs", "certs", "--site", "a", cwd=tmp_path).returncode == 0
    certs = tmp_path / "certs"
    assert not close_secrets(certs)
    for path in certs.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    closed = {str(path.relative_to(certs)) for path in close_secrets(certs)}
    assert closed == {
        "ca.key", "server/server.key", "server/secret", "sites/a/key", "sites/a/secret",
    }  # fmt: skip
    assert all(mode(certs / name) == 0o600 for name in closed)
    assert mode(certs / "server" / "ca.crt") == 0o644  # no secret


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An app whose server works with sites in this process; lists the umasks under which it did."""
    file = app(tmp_path / "app")
    file.write_text(file.read_text().replace("rounds = 5", "rounds = 1"))
    seen = []

    def serve_here(experiment, folder, *_):
        seen.append(current_umask())
        return serve(experiment, folder, InProcess(file, tmp_path / "states"))

    monkeypatch.setattr(launch, "_serve", serve_here)
    monkeypatch.setattr(launch, "run_site", lambda *_: seen.append(current_umask()))
    monkeypatch.setattr("signal.signal", lambda *_: None)
    return file, seen


def test_every_deploy_command_writes_privately(tmp_path, here):
    """Server and sites inherit this from the command that starts them."""
    file, seen = here
    commands = [
        ("deploy", "server", str(file), "--out", "out"),
        ("resume", "out"),
        ("deploy", "site", str(file), "--site", "a", "--state", "state"),
    ]
    for each in commands:
        done = called(*each, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "Other users" not in done.stderr
    assert seen == [private_files.PRIVATE_UMASK] * 3
    assert current_umask() == 0o022
    folders = tmp_path / "out", tmp_path / "states"
    found = [path for folder in folders for path in (folder, *folder.rglob("*"))]
    assert len(found) > 10
    assert not [path for path in found if mode(path) & private_files.OTHERS]


class Reached(Exception):
    """The code under test got as far as it should."""


def reached(*_, **__):
    raise Reached


def test_processes_that_flower_starts_write_privately_too(tmp_path, monkeypatch):
    """SuperLink, SuperNode and the apps may be started by other means than these commands."""
    pytest.importorskip("flwr", reason="Flower is not installed")
    from undrift.deploy.flower import apps, superlink_process, supernode_process

    monkeypatch.setattr(superlink_process, "Path", reached)
    monkeypatch.setenv(superlink_process.ALIVE, "")
    monkeypatch.setattr(supernode_process, "die_with_parent", lambda: None)
    monkeypatch.setattr(supernode_process, "poll_objects_often", reached)
    for main in (superlink_process.main, supernode_process.main):
        os.umask(0o022)
        with pytest.raises(Reached):
            main()
        assert current_umask() == private_files.PRIVATE_UMASK
    os.umask(0o022)
    seen = []

    def note(*_):
        seen.append(current_umask())
        raise Reached

    monkeypatch.setattr(apps, "_site", note)
    monkeypatch.setattr(apps, "FlowerTransport", nullcontext)
    monkeypatch.setattr(apps.Experiment, "load", note)
    names = dict.fromkeys(("experiment", "site", "state", "out"), "x")
    context = SimpleNamespace(node_config=names, run_config=names)
    for function in (apps.answer, apps.main):
        with pytest.raises(Reached):
            function(None, context)
    assert seen == [private_files.PRIVATE_UMASK] * 2
    assert current_umask() == 0o022


def test_files_of_an_earlier_run_that_others_can_read_are_named(tmp_path, here):
    file, _ = here
    assert called("deploy", "server", str(file), "--out", "out", cwd=tmp_path).returncode == 0
    for path in [tmp_path / "out", *(tmp_path / "out").rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    for each in (("deploy", "server", str(file), "--out", "out"), ("resume", "out")):
        done = called(*each, cwd=tmp_path)
        assert done.returncode == 0
        said = " ".join(done.stderr.split())
        assert "Other users of this machine can read out, " in said
        assert "call chmod -R go= out." in said
