"""Runs in folders: killed at any moment, they resume to the same bits."""

import json
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import undrift as ud
from kept_runs import plan, run
from undrift.core.records import Record
from undrift.runs.driver import execute
from undrift.runs.folder import locked_folder
from undrift.runs.storage import FolderStorage
from undrift.runs.store import Store

LABELS = ("FedAvg", "SCAFFOLD", "FedDyn", "FedDR", "AsyncFedDR", "FedBuff")


@pytest.fixture(scope="module")
def processes():
    """Processes that start fast: they fork from a server that has imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["kept_runs"])
    return context


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The run folder of a plan that was executed without interruption."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert {outcome.status for outcome in run(folder)} == {"finished"}
    return folder


def contents(folder, label, seed=0):
    """Everything in the folder of a run except wall times, to be compared bit by bit."""
    own = folder / label / f"seed-{seed}"
    meta = json.loads((own / "run.json").read_text())
    store = Store(
        own / "store", {k: meta[k] for k in ("label", "seed", "parameters", "data")}, "process"
    )
    cpu = torch.device("cpu")
    names = ["server", "buffers", "means", "ended", "clock"]
    names += ["under way"] if label in ("AsyncFedDR", "FedBuff") else []
    parts = {name: store.part(name, cpu) for name in names}
    states = {id: store.client_state(id, cpu) for id in store.clients()}
    records = [Record.from_json(line) for line in store.records()]
    store.close()
    lines = [Record.from_json(line) for line in (own / "records.jsonl").read_text().splitlines()]
    assert lines == records
    for record in records:
        record.seconds = 0.0
    return parts, states, records, load_file(own / "model.safetensors")


def same(a, b):
    """Whether two nested values are equal to the bit."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    return a == b


def assert_same(folder, other):
    for label in LABELS:
        for ours, theirs in zip(contents(folder, label), contents(other, label), strict=True):
            assert same(ours, theirs), label


def test_the_folder_has_what_the_run_computed(undisturbed):
    for label, method in plan().methods.items():
        p = plan()
        losses = p.losses(0)
        result = ud.train(
            method,
            model=losses.flat.module,
            data=losses.data,
            engine=p.engine,
            local=p.local[label],
            rounds=8,
            cohort=4,
            evaluate=p.evaluation,
            devices=p.devices,
            pace=p.paces.get(label),
        )
        parts, states, records, model = contents(undisturbed, label)
        assert torch.equal(parts["server"]["x"], result.x)
        assert [r.metrics for r in records] == [r.metrics for r in result.records]
        assert [r.diagnostics for r in records] == [r.diagnostics for r in result.records]
        assert set(states) == set(result.run.states.seen())
        for id, state in states.items():
            assert same(state, dict(result.run.states.get(id).items()))
        for name, value in result.model().state_dict().items():
            assert torch.equal(model[name], value)


def test_an_experiment_gives_the_same_bits_twice_except_wall_times(undisturbed, tmp_path):
    run(tmp_path)
    assert_same(tmp_path, undisturbed)


def test_a_run_killed_at_twenty_random_moments_ends_with_the_same_bits(
    processes, undisturbed, tmp_path
):
    rng = random.Random(0)
    kills = 0
    while kills < 20:
        process = processes.Process(target=run, args=(tmp_path,))
        process.start()
        process.join(timeout=rng.uniform(0.02, 0.9))
        if process.exitcode is None:
            os.kill(process.pid, signal.SIGKILL)
            kills += 1
        process.join()
        if process.exitcode == 0:  # it finished before the kill: start again
            assert_same(tmp_path, undisturbed)
            for label in LABELS:
                os.replace(tmp_path / label, tmp_path / f"done-{label}-{kills}-{time.time()}")
    run(tmp_path)
    assert_same(tmp_path, undisturbed)


@pytest.mark.parametrize("moment", ["during", "after"])
def test_a_run_killed_during_a_commit_resumes(processes, undisturbed, tmp_path, moment):
    for number in (2, 5, 3, 7):
        process = processes.Process(target=run, args=(tmp_path, 8, (number, moment)))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    run(tmp_path)
    assert_same(tmp_path, undisturbed)


def test_a_half_written_line_of_records_is_repaired(processes, undisturbed, tmp_path):
    process = processes.Process(target=run, args=(tmp_path, 8, (6, "after")))
    process.start()
    process.join()
    records = tmp_path / "FedAvg" / "seed-0" / "records.jsonl"
    whole = records.read_bytes()
    records.write_bytes(whole[: len(whole) - 30])
    run(tmp_path)
    assert_same(tmp_path, undisturbed)


def test_ctrl_c_finishes_the_round_and_can_be_resumed(processes, undisturbed, tmp_path):
    process = processes.Process(target=run, args=(tmp_path,))
    process.start()
    records = tmp_path / "FedAvg" / "seed-0" / "records.jsonl"
    while not (records.exists() and records.read_text().count("\n") > 2):
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGINT)
    process.join()
    assert process.exitcode == 0
    found = json.loads((records.parent / "run.json").read_text())
    statuses = [json.loads(f.read_text())["status"] for f in tmp_path.rglob("run.json")]
    assert found["status"] in ("interrupted", "finished")
    assert len(statuses) < 4 or "interrupted" in statuses
    run(tmp_path)
    assert_same(tmp_path, undisturbed)


def test_a_second_process_in_the_folder_is_refused(tmp_path):
    with (
        locked_folder(tmp_path),
        pytest.raises(ud.UndriftError, match="Another process is running in"),
    ):
        run(tmp_path)
    assert not (tmp_path / "FedAvg").exists()


@pytest.fixture
def half(tmp_path):
    """The folder of a run that was interrupted halfway."""
    methods = {"FedDyn": ud.FedDyn(alpha=0.5)}
    run(tmp_path, rounds=3, methods=methods)
    own = tmp_path / "FedDyn" / "seed-0"
    (own / "run.json").unlink()
    return tmp_path, own, lambda **changed: run(tmp_path, rounds=5, methods=methods, **changed)


@pytest.mark.parametrize("size", [5000, 9000, 40_000])
def test_a_truncated_store_raises_a_clear_error(half, size):
    _, own, go_on = half
    os.truncate(own / "store" / "data.mdb", size)
    with pytest.raises(ud.UndriftError, match=r"damaged|does not have|has no"):
        go_on()


def test_a_damaged_store_raises_a_clear_error(half):
    _, own, go_on = half
    file = own / "store" / "data.mdb"
    content = bytearray(file.read_bytes())
    content[8192:] = random.Random(0).randbytes(len(content) - 8192)
    file.write_bytes(content)
    with pytest.raises(ud.UndriftError, match="is damaged"):
        go_on()


def test_a_run_whose_store_was_removed_does_not_start_again(half):
    _, own, go_on = half
    before = (own / "records.jsonl").read_bytes()
    (own / "store" / "data.mdb").unlink()
    with pytest.raises(ud.UndriftError, match="has rounds, but the store beside it is empty"):
        go_on()
    assert (own / "records.jsonl").read_bytes() == before


def test_a_run_does_not_resume_with_other_data(half):
    _, _, go_on = half
    with pytest.raises(ud.UndriftError, match="belongs to another run: its data was"):
        go_on(data=ud.data.synthetic(1, 1, clients=12, seed=1, most=60))
    assert go_on()[0].status == "finished"


def test_a_run_does_not_resume_with_another_device_file(tmp_path):
    table = tmp_path / "devices.csv"
    table.write_text("client,speed\n" + "\n".join(f"{k},{k + 1}" for k in range(12)))
    one = {"methods": {"FedAvg": ud.FedAvg()}, "devices": ud.DeviceFile(table)}
    folder = tmp_path / "run"
    run(folder, 2, **one)
    table.write_text(table.read_text().replace("0,1", "0,9"))
    (folder / "FedAvg" / "seed-0" / "run.json").unlink()  # as after a kill
    with pytest.raises(ud.UndriftError, match="its devices was"):
        run(folder, 2, **one)


def test_files_that_a_power_loss_left_empty_are_written_again(tmp_path):
    methods = {"FedDyn": ud.FedDyn(alpha=0.5)}
    run(tmp_path, rounds=3, methods=methods)
    own = tmp_path / "FedDyn" / "seed-0"
    model = (own / "model.safetensors").read_bytes()
    for name in ("run.json", "model.safetensors"):
        (own / name).write_bytes(b"")
        assert run(tmp_path, rounds=3, methods=methods)[0].status == "finished"
        assert json.loads((own / "run.json").read_text())["status"] == "finished"
        assert (own / "model.safetensors").read_bytes() == model


def test_the_fingerprint_of_data_depends_on_every_sample_and_owner():
    from undrift.data.fingerprint import fingerprint

    def made(x=0.0, owner=0, name="a"):
        values = torch.zeros(6, 2)
        values[5, 1] = x
        parts = {name: [0, 1, 2 + owner], "b": [3, 4, 5]}
        return ud.data.FederatedData.from_arrays(values, [0, 1] * 3, parts)

    same = fingerprint(made())
    assert fingerprint(made()) == same
    others = [made(x=1.0), made(owner=1), made(name="c"), made().with_test(0.4)]
    assert len({same, *map(fingerprint, others)}) == 5
    letters = torch.arange(50).int()
    windows = ud.data.FederatedData.from_arrays(letters.unfold(0, 8, 1), [0] * 43, [[0], [1, 2]])
    assert len(fingerprint(windows)) == 32


def test_ids_that_cannot_be_stored_are_refused_before_anything_runs(tmp_path):
    long = "x" * 600
    own = ud.data.FederatedData.from_clients({long: (torch.ones(4, 60), [0, 1, 2, 3])})
    with pytest.raises(ud.UndriftError, match="is too long for the store"):
        run(tmp_path, data=own, cohort=None)
    with pytest.raises(ud.UndriftError, match="cannot be encoded as UTF-8"):
        ud.data.FederatedData.from_clients({"\ud800": (torch.ones(4, 60), [0, 1, 2, 3])})


def test_several_seeds_start_from_several_models(tmp_path):
    methods = {"FedDyn": ud.FedDyn(alpha=0.5)}
    outcomes = run(tmp_path, rounds=2, seeds=(0, 3), methods=methods)
    assert [(o.label, o.seed, o.status) for o in outcomes] == [
        ("FedDyn", 0, "finished"),
        ("FedDyn", 3, "finished"),
    ]
    first, second = (contents(tmp_path, "FedDyn", seed) for seed in (0, 3))
    assert first[2][0].metrics != second[2][0].metrics
    assert first[2][1].cohort != second[2][1].cohort


def test_a_run_that_reached_its_target_has_ended(tmp_path):
    methods = {"FedAvg": ud.FedAvg()}
    (outcome,) = run(tmp_path, methods=methods, target={"train_loss": 100.0})
    assert (outcome.status, outcome.reason) == ("stopped", "train_loss reached 100")
    (again,) = run(tmp_path, methods=methods, target={"train_loss": 100.0})
    assert again == outcome
    assert (outcome.before, again.before) == (False, True)


def test_a_run_that_diverges_does_not_stop_the_others(tmp_path):
    methods = {"wild": ud.FedAvg(), "tame": ud.FedAvg("original")}
    local = {"wild": ud.SGD(lr=1e30, epochs=1), "tame": ud.SGD(lr=0.01, epochs=1)}
    outcomes = execute(plan(3, methods=methods, local=local, cohort=None), FolderStorage(tmp_path))
    assert [o.status for o in outcomes] == ["diverged", "finished"]
    assert "smaller learning rate" in outcomes[0].reason
    again = execute(plan(3, methods=methods, local=local, cohort=None), FolderStorage(tmp_path))
    assert again == outcomes


def test_a_store_of_another_run_is_refused(tmp_path):
    Store(tmp_path, {"label": "a", "seed": 0}).close()
    with pytest.raises(ud.UndriftError, match="belongs to another run"):
        Store(tmp_path, {"label": "b", "seed": 0})


def test_the_store_grows_when_its_map_is_full(tmp_path, monkeypatch):
    monkeypatch.setattr("undrift.runs.store.entries.INITIAL_MAP_BYTES", 1 << 16)
    store = Store(tmp_path, {})
    big = {"x": torch.arange(50_000.0)}
    for round in range(6):
        store.commit(round, {"server": big}, {round: big, f"{round}": big}, "{}")
    store.close()
    store = Store(tmp_path, {})
    assert set(store.clients()) == {*range(6), *map(str, range(6))}
    assert torch.equal(store.client_state("3", torch.device("cpu"))["x"], big["x"])
    assert store.client_state(99, torch.device("cpu")) is None
    store.close()


def test_a_full_disk_loses_only_the_current_round(tmp_path):
    store = Store(tmp_path / "store", {})
    small = {"x": torch.zeros(10)}
    store.commit(0, {"server": small}, {}, "{}")
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (tmp_path / "store" / "data.mdb").stat().st_size
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 8192, hard))
    try:
        with pytest.raises(ud.UndriftError, match="only this round is lost"):
            store.commit(1, {"server": {"x": torch.zeros(1_000_000)}}, {}, "{}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert store.round == 0
    assert torch.equal(store.part("server", torch.device("cpu"))["x"], small["x"])
    store.commit(1, {"server": small}, {}, "{}")
    assert store.round == 1
    store.close()


def test_states_in_memory_are_bounded(tmp_path):
    from undrift.runs.states import StoredStates

    store = Store(tmp_path, {})
    states = StoredStates({"h": ud.ZERO}, torch.zeros(100), store, memory=1000)
    for round in range(20):
        for client in range(5 * round, 5 * round + 5):
            states.put(client, ud.Keep(h=torch.full((100,), float(client))))
        store.commit(round, {}, states.changed(), "{}")
        states.committed()
        assert len(states._cached) <= 2  # 400 bytes each
    assert sorted(states.seen()) == list(range(100))
    for client in (0, 50, 99):
        assert torch.equal(states.get(client).h, torch.full((100,), float(client)))
    assert torch.equal(states.get(100).h, torch.zeros(100))
    store.close()


def test_damaged_states_are_refused():
    from undrift.utils.serialization import pack, unpack

    whole = pack({"x": torch.arange(5.0), "n": 2, "none": None})
    cpu = torch.device("cpu")
    found = unpack(whole, "it", cpu)
    assert list(found) == ["x", "n", "none"]
    assert torch.equal(found["x"], torch.arange(5.0))
    for damaged in (whole[:-1], whole[:10], b"", b"x" * 40):
        with pytest.raises(ud.UndriftError, match="it is damaged"):
            unpack(damaged, "it", cpu)


def test_a_storage_with_wrong_options_raises_a_clear_error():
    with pytest.raises(ud.UndriftError, match="memory is -1"):
        FolderStorage(Path(), memory=-1)
