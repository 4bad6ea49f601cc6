"""Commits of large client states: several transactions, of which the last makes the round."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load, save

import undrift as ud
from undrift.runs.store import Store, database
from undrift.utils.serialization import pack, unpack

CPU = torch.device("cpu")
VALUES = {
    "x": torch.arange(6.0).view(2, 3),
    "half": torch.ones(3, dtype=torch.bfloat16),
    "whole": torch.tensor(7),
    "none": torch.empty(0, dtype=torch.float64),
    "complex": torch.tensor([1 + 2j]),
    "flags": torch.tensor([True, False, True]),
    "name": "a",
    "number": 1.5,
    "nothing": None,
}


@pytest.fixture
def small_transactions(monkeypatch):
    """Three states of 100 numbers make a transaction."""
    monkeypatch.setattr(database, "TRANSACTION_BYTES", 1200)


def states(value, clients=10):
    return {k: {"h": torch.full((100,), value + k)} for k in range(clients)}


def commit(store, round, **options):
    x = torch.full((4,), float(round))
    store.commit(round, {"server": {"x": x}}, options.get("clients", {}), f'{{"round": {round}}}')


def read(store):
    found = store.client_states(range(10), CPU)
    return {k: float(state["h"][0]) for k, state in found.items()}


def count_transactions(monkeypatch, store):
    counted = []
    original = store._put
    monkeypatch.setattr(store, "_put", lambda *a: counted.append(len(a[0])) or original(*a))
    return counted


def test_large_states_are_written_in_several_transactions(
    tmp_path, monkeypatch, small_transactions
):
    store = Store(tmp_path, {})
    commit(store, 0)
    counted = count_transactions(monkeypatch, store)
    commit(store, 1, clients=states(100.0))
    assert counted == [3, 3, 3, 1, 2]  # the last one has the server's state and the record
    commit(store, 2, clients=states(200.0, clients=3))
    assert counted[5:] == [5]
    store.close()
    again = Store(tmp_path, {})  # examines the file and its digest
    assert again.round == 2
    assert read(again) == {k: (200.0 if k < 3 else 100.0) + k for k in range(10)}
    again.go_back(1)
    assert read(again) == {k: 100.0 + k for k in range(10)}
    again.close()


@pytest.mark.parametrize("transactions", [1, 2, 4])
def test_a_commit_that_was_cut_short_is_forgotten(
    tmp_path, monkeypatch, small_transactions, transactions
):
    store = Store(tmp_path, {})
    commit(store, 0)
    commit(store, 1, clients=states(100.0))
    original, left = store._put, [transactions]

    def killed(*arguments):
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return original(*arguments)

    monkeypatch.setattr(store, "_put", killed)
    with pytest.raises(KeyboardInterrupt):
        commit(store, 2, clients=states(200.0))
    store.close()

    again = Store(tmp_path, {})
    assert again.round == 1
    assert read(again) == {k: 100.0 + k for k in range(10)}
    assert float(again.part("server", CPU)["x"][0]) == 1.0
    commit(again, 2, clients=states(300.0))
    assert read(again) == {k: 300.0 + k for k in range(10)}
    again.close()
    third = Store(tmp_path, {})
    assert (third.round, third.oldest) == (2, 0)
    third.go_back(1)
    assert read(third) == {k: 100.0 + k for k in range(10)}
    third.close()


def test_parts_that_did_not_change_are_not_written_again(tmp_path, monkeypatch):
    store = Store(tmp_path, {})
    x, listed = torch.zeros(3), [1]
    written = []
    original = store._put
    monkeypatch.setattr(
        store,
        "_put",
        lambda values, *a: (
            written.append(sum(b"part" in key for key in values)) or original(values, *a)
        ),
    )
    for round, change in enumerate(
        [lambda: None, lambda: None, lambda: x.add_(1), lambda: listed.append(2), lambda: None]
    ):
        change()
        store.commit(round, {"part": {"x": x, "listed": listed}}, {}, f'{{"round": {round}}}')
    assert written == [1, 0, 1, 1, 0]
    store.commit(5, {"part": {"x": x.clone(), "listed": listed}}, {}, '{"round": 5}')
    assert written[5:] == [1]
    assert store.part("part", CPU)["listed"] == [1, 2]
    assert torch.equal(store.part("part", CPU)["x"], torch.ones(3))
    store.close()


def same(found, values):
    return [*found] == [*values] and all(
        torch.equal(found[name], value) and found[name].dtype == value.dtype
        if isinstance(value, torch.Tensor)
        else found[name] == value
        for name, value in values.items()
    )


def test_packed_values_are_those_of_safetensors():
    packed = pack(VALUES)
    assert same(unpack(packed, "it", CPU), VALUES)
    tensors = {name: value for name, value in VALUES.items() if isinstance(value, torch.Tensor)}
    found = load(bytes(packed))
    assert all(torch.equal(found[name], value) for name, value in tensors.items())
    theirs = save(tensors, metadata={"order": str([*tensors]).replace("'", '"'), "numbers": "{}"})
    assert same(unpack(theirs, "it", CPU), tensors)
    assert len(pack(VALUES, room=4)) == len(packed) + 4


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: whole[:-1],
        lambda whole: whole + b"\0",
        lambda whole: whole[:5],
        lambda whole: whole.replace(b"[2,3]", b"[2,9]"),
        lambda whole: whole.replace(b"[2,3]", b"[-2,-3]"),
        lambda whole: whole.replace(b"F32", b"F99"),
        lambda whole: b"\xff" * 8 + whole[8:],
        lambda whole: whole.replace(b"order", b"oxder"),
    ],
)
def test_damaged_bytes_are_refused(damage):
    whole = bytes(pack({"x": torch.arange(6.0).view(2, 3)}))
    with pytest.raises(ud.UndriftError, match="it is damaged"):
        unpack(damage(whole), "it", CPU)
