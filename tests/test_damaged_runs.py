"""Damage to a run folder is found: a resumed run gives the same bits or is refused."""

import random
from itertools import pairwise

import lmdb
import pytest
import torch

import undrift as ud
from damaged_runs import (
    EXPERIMENT,
    copy_of,
    damaged,
    killed_experiment,
    killed_plan,
    outcome_of,
    resume_experiment,
    resume_plan,
    same,
    without_syncing,
)
from undrift.experiments.building import build_data
from undrift.experiments.experiment import Experiment
from undrift.runs.states import StoredStates
from undrift.runs.store import Store
from undrift.runs.store.checksums import sealed, unsealed
from undrift.runs.store.pages import StoreFile

RUN = "SCAFFOLD/seed-0"
STORE = f"{RUN}/store/data.mdb"


def is_sentence(text):
    return text.endswith(".") and "\n" not in text and len(text) < 700


def outcomes(folder, place, files, rng, resume, *arguments):
    """Damage one file after another, and count what resuming gives."""
    whole = resume(copy_of(folder, place), *arguments)
    found = {"same": 0, "refused": 0}
    for name in files:
        file = copy_of(folder, place) / name
        before = file.read_bytes()
        file.write_bytes(damaged(before, rng))
        outcome = outcome_of(resume, place, *arguments)
        if isinstance(outcome, str):
            assert is_sentence(outcome), outcome
            found["refused"] += 1
        else:
            assert same(outcome, whole), f"{name} is damaged, and the run ended differently"
            found["same"] += 1
    return found


def test_no_damage_to_the_files_of_a_run_changes_its_result(tmp_path, monkeypatch):
    without_syncing(monkeypatch)
    folder = killed_plan(tmp_path / "killed")
    names = ("run.json", "records.jsonl", "store/lock.mdb", "arguments.toml")
    others = [f"{RUN}/{name}" for name in names if (folder / RUN / name).is_file()]
    files = [STORE] * 400 + others * 10
    found = outcomes(folder, tmp_path / "damaged", files, random.Random(0), resume_plan)
    assert sum(found.values()) == 430
    assert found["refused"] > 200
    assert found["same"] > 50


@pytest.mark.filterwarnings("ignore:.*about.json is damaged")
def test_no_damage_to_an_experiment_changes_its_result(tmp_path, monkeypatch):
    without_syncing(monkeypatch)
    folder = killed_experiment(tmp_path / "killed")
    data = build_data(Experiment.from_dict(EXPERIMENT))
    files = ["experiment.toml"] * 60 + ["about.json"] * 5 + ["data.json"] * 5
    found = outcomes(folder, tmp_path / "damaged", files, random.Random(1), resume_experiment, data)
    assert sum(found.values()) == 70
    assert found["refused"] > 50


def test_a_setting_that_was_changed_is_refused(tmp_path):
    folder = killed_experiment(tmp_path)
    file = folder / "experiment.toml"
    text = file.read_text()
    file.write_text(text.replace("lr = 0.05", "lr = 0.07"))
    with pytest.raises(ud.UndriftError, match="is not as undrift wrote it"):
        ud.resume(folder, progress=False)
    rest = text.partition("\n")[2]
    file.write_text(rest)
    ud.resume(folder, progress=False)


def changed_by_lmdb(folder, change):
    """Change the store of a run by LMDB itself, so that its pages are in order."""
    place = str(folder / RUN / "store")
    with lmdb.open(place, map_size=1 << 24) as env, env.begin(write=True) as txn:
        change(txn)


def newest_state(txn):
    """The key of a client's newest state that has an older version."""
    keys = [key for key, _ in txn.cursor() if key.startswith(b"client:")]
    return next(b for a, b in pairwise(keys) if a.partition(b"\0")[0] == b.partition(b"\0")[0])


def lose(txn):
    txn.delete(newest_state(txn))


def swap(txn):
    a, b = [key for key, _ in txn.cursor() if key.startswith(b"client:")][:2]
    first, second = txn.get(a), txn.get(b)
    txn.put(a, second)
    txn.put(b, first)


def replace_by_a_valid_value(txn):
    key = newest_state(txn)
    txn.put(key, sealed(key, unsealed(key, txn.get(key)).tobytes()[::-1]))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lose, r"it has \d+ of \d+ values"),
        (swap, r"the checksum of the state of client 0 of round \d+ does not fit its content"),
        (replace_by_a_valid_value, "some of its values belong to another round"),
    ],
)
def test_values_that_are_lost_swapped_or_stale_are_found(change, words, tmp_path):
    folder = killed_plan(tmp_path)
    changed_by_lmdb(folder, change)
    with pytest.raises(ud.UndriftError, match=words) as refused:
        resume_plan(folder)
    assert is_sentence(str(refused.value))


def test_values_are_checked_again_when_they_are_read(tmp_path):
    store = Store(tmp_path / "store", {})
    states = {k: {"x": torch.full((50,), float(k))} for k in (1, 2)}
    store.commit(0, {"server": states[1]}, states, "{}")
    with store._env.begin(write=True) as txn:
        for key in (b"client:1", b"server"):
            key += b"\0" * 7
            txn.put(key, txn.get(key)[:-5] + b"\1" + txn.get(key)[-4:])
    cpu = torch.device("cpu")
    assert torch.equal(store.client_state(2, cpu)["x"], states[2]["x"])
    for read in (lambda: store.client_state(1, cpu), lambda: store.part("server", cpu)):
        with pytest.raises(ud.UndriftError, match=r"the checksum of .* does not fit its content"):
            read()
    store.close()


def test_a_state_that_vanished_is_not_replaced_by_the_initial_one(tmp_path):
    store = Store(tmp_path / "store", {})
    store.commit(0, {}, {1: {"x": torch.ones(3)}}, "{}")
    states = StoredStates({"x": "zero"}, torch.zeros(3), store, 0)
    with store._env.begin(write=True) as txn:
        txn.delete(b"client:1" + b"\0" * 7)
    for read in (lambda: states.get(1), lambda: states.gather([1])):
        with pytest.raises(ud.UndriftError, match="lost the state of client 1"):
            read()
    store.close()


@pytest.mark.parametrize("seed", range(4))
def test_an_undamaged_store_is_never_refused(seed, tmp_path):
    rng = random.Random(seed)
    with lmdb.open(str(tmp_path), map_size=1 << 28, sync=False) as env:
        expected = {}
        largest = rng.choice((10, 300, 3000, 20_000))
        for _ in range(40):
            with env.begin(write=True) as txn:
                for _ in range(rng.randrange(1, rng.choice((5, 60, 300)))):
                    key = b"%d" % rng.randrange(rng.choice((20, 300, 5000))) + b"x" * rng.choice(
                        (0, 3, 300)
                    )
                    if rng.random() < 0.35:
                        txn.delete(key)
                        expected.pop(key, None)
                    else:
                        expected[key] = rng.randbytes(rng.randrange(largest))
                        txn.put(key, expected[key])
            found = []
            assert dict(StoreFile(tmp_path / "data.mdb", found.append).entries()) == expected
            assert found == []
