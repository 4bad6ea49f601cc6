"""A run goes back to an earlier round and computes the same bits again."""

import json
import shutil

import pytest
import torch
from typer.testing import CliRunner

import undrift as ud
from damaged_runs import KILLED_AFTER, killed_experiment, same
from deployments import InProcess, app
from kept_runs import plan
from undrift.cli.app import app as commands
from undrift.core.records import Record
from undrift.deploy.server import serve
from undrift.experiments.experiment import Experiment
from undrift.runs.driver import execute
from undrift.runs.going_back import DROPPED_MODEL, DROPPED_RECORDS, go_back
from undrift.runs.storage import FolderStorage
from undrift.runs.store import Store

CPU = torch.device("cpu")


def contents(run):
    """Everything in the store of a run except wall times."""
    store = Store(run / "store", {})
    records = [Record.from_json(line) for line in store.records()]
    for record in records:
        record.seconds = 0.0
    states = {id: store.client_state(id, CPU) for id in store.clients()}
    names = ["server", "buffers", "means", "ended", "clock"]
    parts = {name: store.part(name, CPU) for name in names}
    store.close()
    return records, states, parts


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Finished runs of methods with client states, synchronous and asynchronous, with devices."""
    folder = tmp_path_factory.mktemp("finished")
    execute(plan(8), FolderStorage(folder, "process", memory=0.05, keep_rounds=4))
    return folder


@pytest.mark.parametrize("back", [4, 6, 7])
def test_a_run_that_went_back_computes_the_same_bits(finished, back, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    labels = list(plan().methods)
    go_back(folder, labels, [0], back)
    for label in labels:
        run = folder / label / "seed-0"
        assert len((run / "records.jsonl").read_text().splitlines()) == back + 1
        dropped = (run / DROPPED_RECORDS).read_text().splitlines()
        assert [json.loads(line)["round"] for line in dropped] == list(range(back + 1, 9))
        assert (run / DROPPED_MODEL).is_file()
        assert json.loads((run / "run.json").read_text())["status"] == "interrupted"
    execute(plan(8), FolderStorage(folder, "process", memory=0.05, keep_rounds=4))
    for label in labels:
        ours, theirs = (contents(each / label / "seed-0") for each in (folder, finished))
        assert same(ours, theirs), label
        files = [each / label / "seed-0/model.safetensors" for each in (folder, finished)]
        assert files[0].read_bytes() == files[1].read_bytes()


def test_rounds_that_are_not_available_are_named(finished):
    with pytest.raises(ud.UndriftError, match=r"cannot go back to round 3: it has .* 4 to 8\.$"):
        go_back(finished, ["SCAFFOLD"], [0], 3)
    with pytest.raises(ud.UndriftError, match=r"cannot go back to round 9"):
        go_back(finished, ["SCAFFOLD"], [0], 9)
    with pytest.raises(ud.UndriftError, match="no runs with the seed 5"):
        go_back(finished, ["SCAFFOLD"], [0], 8, seed=5)
    assert not list(finished.rglob(DROPPED_RECORDS))


def test_a_run_that_diverged_goes_back_and_on(tmp_path):
    methods = {"FedAvg": ud.FedAvg()}
    local = {"FedAvg": ud.SGD(lr=0.05, batch_size=10, epochs=1)}

    def poison(run, record):  # a bad update after round 5
        if record.round == 5:
            run.server.x.fill_(float("nan"))

    setting = dict(methods=methods, local=local, cohort=None, devices=None)
    storage = FolderStorage(tmp_path, "process")
    (outcome,) = execute(plan(8, callbacks=[poison], **setting), storage)
    assert outcome.status == "diverged"
    assert execute(plan(8, **setting), storage)[0].status == "diverged"
    go_back(tmp_path, ["FedAvg"], [0], 4)
    (outcome,) = execute(plan(8, **setting), storage)
    assert outcome.status == "finished"
    (whole,) = execute(plan(8, **setting))
    assert torch.equal(outcome.run.server.x, whole.run.server.x)


def test_the_ring_is_bounded_in_rounds_and_bytes(tmp_path):
    big = {"x": torch.arange(25_000.0)}  # 100 kB
    for keep, most, oldest in ((2, 1e9, 7), (0, 1e9, 9), (5, 350e3, 6), (5, 10e3, 9)):
        folder = tmp_path / f"{keep}-{most}"
        store = Store(folder, {}, "process", keep, most)
        for round in range(10):
            store.commit(round, {"server": big}, {}, "{}", {f"read {round}": {"x": big["x"][:9]}})
        assert store.oldest == oldest
        store.close()
        store = Store(folder, {}, "process", keep, most)
        assert store.oldest == oldest
        assert sum(key.startswith(b"server\0") for key in store._keys(b"")) == 10 - oldest
        assert sum(key.startswith(b"lasting:") for key in store._keys(b"")) == 2 * (9 - oldest) + 1
        store.close()
    assert (folder / "data.mdb").stat().st_size < 1e6


def test_a_state_of_an_earlier_round_is_still_there(tmp_path):
    store = Store(tmp_path, {}, "process", 3)
    for round in range(6):
        store.commit(round, {}, {1: {"x": torch.tensor([float(round)])}}, "{}")
    for round in range(2, 6):
        found = store.client_states([1], CPU, round)
        assert found[1]["x"].item() == round
    store.close()


def test_the_command_and_python_go_back(tmp_path):
    folder = killed_experiment(tmp_path / "run")
    run = folder / "SCAFFOLD/seed-0"
    result = CliRunner().invoke(
        commands, ["resume", str(folder), "--from-round", str(KILLED_AFTER - 2), "-q"]
    )
    assert result.exit_code == 0, result.output
    lines = (run / "records.jsonl").read_text()
    found = ud.resume(folder, from_round=5, progress=False)
    assert found[0].records[-1].round == 7
    strip = [Record.from_json(line).metrics for line in lines.splitlines()]
    assert [record.metrics for record in found[0].records] == strip
    with pytest.raises(ud.UndriftError, match="cannot go back to round 1"):
        ud.resume(folder, from_round=1, progress=False)
    assert CliRunner().invoke(commands, ["resume", str(folder), "--only", "X"]).exception


def test_a_folder_written_from_python_goes_back(tmp_path):
    setting = dict(
        problem=ud.theory.distances(torch.eye(3, dtype=torch.float64)),
        local=ud.GD(lr=0.1, steps=2),
    )
    before = ud.train(ud.FedDyn(), rounds=5, out=tmp_path, progress=False, **setting)
    after = ud.resume(tmp_path, ud.FedDyn(), from_round=3, progress=False, **setting)
    assert torch.equal(before.x, after.x)
    assert len((tmp_path / "FedDyn/seed-0" / DROPPED_RECORDS).read_text().splitlines()) == 2


@pytest.mark.parametrize("label", ["SCAFFOLD", "FedDyn"])
def test_a_deployment_goes_back_with_the_states_at_its_sites(tmp_path, label):
    file = app(tmp_path / "app", (label,))
    transport = InProcess(file, tmp_path / "states")
    experiment = Experiment.load(file)
    folder = tmp_path / "run"
    (before,) = serve(experiment, folder, transport)
    go_back(folder, [label], [3], 2)
    (after,) = serve(experiment, folder, transport)
    assert after.status == "finished"
    assert torch.equal(before.run.server.x, after.run.server.x)
