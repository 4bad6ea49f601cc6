"""New states of large models wait in files until their round is committed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import undrift as ud
from undrift.core.problem import Keep
from undrift.nets.module_losses import ModuleLosses
from undrift.runs import spilling
from undrift.runs.driver import SilentObserver, execute
from undrift.runs.plan import Plan
from undrift.runs.states import StoredStates
from undrift.runs.storage import FolderStorage
from undrift.runs.store import Store


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path / "store", {})
    yield store
    store.close()


def test_states_beyond_the_memory_are_in_files(store, monkeypatch):
    monkeypatch.setattr(spilling, "LEAST_BYTES", 100)
    states = StoredStates({"h": ud.ZERO}, torch.zeros(100), store, memory=1000)
    states.prefetch([])
    given = [Keep(h=torch.full((100,), float(k))) for k in range(4)]
    held = [states.hold(keep) for keep in given]
    # 400 bytes each: two fit into the memory.
    assert [a is b for a, b in zip(given, held, strict=True)] == [True, True, False, False]
    for a, b in zip(given, held, strict=True):
        assert torch.equal(a.h, b.h)
        assert b.h._base is None  # `put` would copy a view into memory
    assert sorted(path.name for path in store.folder.glob(".state-*")) == []
    states.prefetch([])  # the next round begins with an empty memory
    assert states.hold(given[0]) is given[0]


def test_small_values_stay_in_memory(store):
    states = StoredStates({"n": ud.NUMBER}, torch.zeros(100), store, memory=0)
    keep = Keep(n=torch.zeros(1))
    assert states.hold(keep).n is keep.n


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
@pytest.mark.parametrize("method", [ud.SCAFFOLD(), ud.FedDyn(alpha=0.1)])
def test_spilled_states_change_no_bit(tmp_path, monkeypatch, method, engine):
    monkeypatch.setattr(spilling, "LEAST_BYTES", 1)
    spilled = []
    original = spilling._in_file
    monkeypatch.setattr(spilling, "_in_file", lambda *a: spilled.append(1) or original(*a))
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 5, generator=g), torch.arange(60) % 3
    data = ud.data.FederatedData.from_arrays(x, y, clients=6)

    def model(folder, memory):
        torch.manual_seed(0)
        plan = Plan(
            losses=lambda seed: ModuleLosses(nn.Linear(5, 3), data),
            methods={"m": method},
            local={"m": ud.SGD(lr=0.1, batch_size=5, epochs=1)},
            rounds=3,
            cohort=4,
            engine=ud.EngineOptions(engine, chunk=None if engine == "serial" else 2),
        )
        storage = FolderStorage(tmp_path / folder, memory=memory)
        (outcome,) = execute(plan, storage, SilentObserver())
        return outcome.run.server.x

    in_memory = model("a", 64.0)
    assert not spilled
    assert torch.equal(in_memory, model("b", 0.0))
    assert spilled
