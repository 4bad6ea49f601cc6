"""`undrift check` says which files of a folder are intact, and what can be saved."""

import json
import re
import shutil

import pytest
from typer.testing import CliRunner

import undrift as ud
from damaged_runs import copy_of, killed_experiment
from deployments import InProcess, app
from undrift.cli.app import app as commands
from undrift.deploy.server import serve
from undrift.experiments.experiment import Experiment
from undrift.runs.checking import check_runs
from undrift.runs.folder import locked_folder

RUN = "SCAFFOLD/seed-0"


def check(folder, *options):
    found = CliRunner().invoke(commands, ["check", str(folder), *options])
    assert found.exception is None or isinstance(found.exception, SystemExit), found.exception
    return found.exit_code, found.stdout


def damaged_files(folder):
    code, text = check(folder, "--json")
    found = json.loads(text)
    assert found["intact"] == (code == 0)
    return {
        each["path"].removeprefix(f"{folder}/"): each["text"]
        for each in found["files"]
        if not each["intact"]
    }


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    return killed_experiment(tmp_path_factory.mktemp("killed") / "run")


@pytest.fixture(scope="module")
def finished(killed, tmp_path_factory):
    folder = copy_of(killed, tmp_path_factory.mktemp("finished") / "run")
    ud.resume(folder, progress=False)
    return folder


def test_intact_folders(killed, finished):
    for folder in (killed, finished, finished / RUN):
        assert damaged_files(folder) == {}
    code, text = check(finished)
    assert code == 0
    assert "all values of rounds 0 to 7 are intact" in " ".join(text.split())


def test_each_damaged_file_is_named(finished, tmp_path):
    def flip(name, place, change=lambda old: bytes([old[0] ^ 1])):
        folder = copy_of(finished, tmp_path / "run")
        file = folder / name
        content = bytearray(file.read_bytes())
        content[place : place + 1] = change(content[place : place + 1])
        file.write_bytes(content)
        return damaged_files(folder)

    assert set(flip("experiment.toml", 200)) == {"experiment.toml"}
    assert set(flip(f"{RUN}/model.safetensors", -1, lambda old: b"\7")) == {
        f"{RUN}/model.safetensors"
    }
    found = flip(f"{RUN}/records.jsonl", 500)
    assert "differs from the store's record" in found[f"{RUN}/records.jsonl"]
    assert "--from-round 7" in found[f"{RUN}/records.jsonl"]
    assert f"{RUN}/run.json" in flip(f"{RUN}/run.json", 0)


def test_what_a_damaged_store_still_has(finished, tmp_path):
    folder = copy_of(finished, tmp_path / "run")
    file = folder / RUN / "store/data.mdb"
    content = bytearray(file.read_bytes())
    # The server's x, in every copy: which of the pages are in use depends on how the store grew.
    # safetensors writes the two entries of its metadata in random order.
    head = rb'__metadata__":\{(?:"numbers":"\{\}",)?"order":"\[\\"x\\"'
    states = [*re.finditer(head, bytes(content))]
    assert states
    for state in states:
        content[state.start() + 900 : state.start() + 903] = b"\7\7\7"
    file.write_bytes(content)
    found = damaged_files(folder)
    assert set(found) == {f"{RUN}/store"}
    assert "intact in it: the records of rounds 0 to 7" in found[f"{RUN}/store"]
    with pytest.raises(ud.UndriftError, match="undrift check"):
        ud.resume(folder, progress=False)


def test_a_file_of_records_is_written_again_from_the_store(finished, tmp_path):
    folder = copy_of(finished, tmp_path / "run")
    records = folder / RUN / "records.jsonl"
    whole = records.read_text()
    records.write_text(whole.replace('"round": 2', '"round": 9'))
    assert damaged_files(folder)
    ud.resume(folder, from_round=7, progress=False)
    assert records.read_text() == whole
    assert damaged_files(folder) == {}


def test_a_folder_in_use_or_of_something_else_is_refused(finished, tmp_path):
    with (
        locked_folder(finished),
        pytest.raises(ud.UndriftError, match="Another process is running in"),
    ):
        check_runs(finished / RUN)
    result = CliRunner().invoke(commands, ["check", str(tmp_path)])
    assert "neither a run folder nor" in str(result.exception)


def test_the_states_of_a_site(tmp_path):
    file = app(tmp_path / "app", ["SCAFFOLD"])
    transport = InProcess(file, tmp_path / "s")
    transport.configure(rounds=2)
    serve(Experiment.load(file, {"rounds": 2}), tmp_path / "run", transport)
    assert damaged_files(tmp_path / "run") == {}
    states = tmp_path / "s" / "a"
    assert damaged_files(states) == {}
    one = next(iter(states.rglob("*.safetensors")))
    other = one.with_name("77.safetensors")
    shutil.copy(one, other)
    content = bytearray(one.read_bytes())
    content[-1] ^= 1
    one.write_bytes(content)
    assert set(damaged_files(states)) == {str(each.relative_to(states)) for each in (one, other)}
