"""Uploads far beyond the usual norm are rejected on every engine; honest runs do not change."""

import pytest
import torch
from torch import nn

import undrift as ud
from undrift.core.problem import Upload
from undrift.core.uploads.norm_bounds import NormBound, NormHistory, NormLimits

ENGINES = ("serial", "vectorised", ud.EngineOptions("vectorised", threads=2, chunk=2), "auto")
METHODS = (ud.FedAvg(), ud.SCAFFOLD(), ud.FedNova(), ud.FedDyn(0.1), ud.FedDR(0.5), ud.FedLGA())


def data(wild=None, clients=7, factor=3e4):
    """Clients with about equal data; that of client `wild` is `factor` times as large."""
    g = torch.Generator().manual_seed(5)
    parts = []
    for k in range(clients):
        x = torch.randn(20, 4, generator=g) * (factor if k == wild else 1)
        y = x[:, 0] * 2 if k == wild else x.sum(1)
        parts.append((x, y[:, None]))
    return ud.data.FederatedData.from_clients(dict(enumerate(parts)))


def trained(method, federation, **options):
    torch.manual_seed(1)
    model = nn.Linear(4, 1)
    options = {"rounds": 6, "engine": "serial", "objective": "clients", **options}
    local = ud.SGD(lr=0.02, batch_size=5, steps=3)
    return ud.train(method, model=model, data=federation, local=local, progress=False, **options)


def rejected(result):
    return [(record.round, client) for record in result.records for client, _ in record.rejected]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_a_bound_that_does_not_act_changes_no_bit(method):
    for engine in ("serial", "vectorised"):
        plain = trained(method, data(), engine=engine)
        bounded = trained(method, data(), engine=engine, robust=ud.NormBound())
        assert not rejected(bounded)
        assert torch.equal(plain.x, bounded.x)


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_every_engine_rejects_the_same_uploads_and_names_them(engine):
    result = trained(ud.FedAvg(), data(wild=3, factor=30), engine=engine, robust=ud.NormBound())
    assert rejected(result) == [(round, 3) for round in range(1, 7)]
    ((client, why),) = result.records[1].rejected
    assert client == 3 and why.startswith("norm bound: moved has norm ") and "the bound is" in why
    reference = trained(ud.FedAvg(), data(wild=3, factor=30), robust=ud.NormBound())
    assert torch.allclose(result.x, reference.x, rtol=1e-4, atol=1e-6)
    # Without the bound that client alone decides where the model goes.
    assert (trained(ud.FedAvg(), data(wild=3, factor=30)).x - reference.x).norm() > 1


def test_a_cohort_of_one_is_bounded_by_the_models_own_size():
    for wild in range(7):  # whoever comes first
        result = trained(ud.FedAvg(), data(wild, factor=1e5), cohort=1, robust=ud.NormBound())
        assert all(client == wild for _, client in rejected(result))
        assert result.stopped is None and float(result.x.norm()) < 100


@pytest.mark.parametrize("method", [ud.FedBuff(2), ud.FedAsync()], ids=lambda m: m.name)
def test_asynchronous_replies_are_bounded(method):
    result = trained(method, data(wild=3, factor=1e9), rounds=8, robust=ud.NormBound())
    assert {client for _, client in rejected(result)} == {3}
    assert float(result.x.norm()) < 100


@pytest.mark.parametrize("method", [ud.FedAvg(), ud.FedBuff(2)], ids=lambda m: m.name)
def test_a_resumed_run_has_the_same_bound(tmp_path, method):
    federation = data(wild=3, factor=12)  # near the bound: the median decides
    whole = trained(method, federation, rounds=12, robust=NormBound(2, window=3))
    first = trained(method, federation, rounds=5, robust=NormBound(2, window=3), out=tmp_path)
    assert rejected(first) and len(rejected(first)) < len(rejected(whole))
    torch.manual_seed(1)
    rest = ud.resume(
        tmp_path, method, model=nn.Linear(4, 1), data=federation, rounds=12, engine="serial",
        local=ud.SGD(lr=0.02, batch_size=5, steps=3), objective="clients", progress=False,
        robust=NormBound(2, window=3),
    )  # fmt: skip
    assert torch.equal(whole.x, rest.x)
    assert rejected(whole) == rejected(rest)
    assert whole.run.norms.saved() == rest.run.norms.saved()


def limits(history, rate=1.0, x=None):
    empty = NormLimits(
        ratio=history.bound.ratio,
        rate=rate,
        usual={},
        x=torch.zeros(4) if x is None else x,
        vectors=frozenset({"moved"}),
    )
    return history.limits(empty)


def after(*medians, ratio=10.0, window=4, steps=1):
    history = NormHistory(NormBound(ratio, window))
    for norm in medians:
        history.add({k: {"moved": norm} for k in range(3)}, dict.fromkeys(range(3), steps), 1.0)
    return history


def test_the_bound_follows_growing_norms_and_keeps_the_first_as_a_floor():
    assert limits(after(1, 1, 1, 1)).bound("moved", 1) == 10
    assert limits(after(1, 1, 1, 1, 5, 5, 5, 5)).bound("moved", 1) == 50
    assert limits(after(*[1] * 4, *[1e-6] * 9)).bound("moved", 1) == 10


def test_fewer_than_half_of_the_uploads_cannot_raise_the_bound():
    history = after(1, 1)
    for _ in range(9):
        history.add(
            {0: {"moved": 1.0}, 1: {"moved": 1e30}, 2: {"moved": 1.0}}, {0: 1, 1: 1, 2: 1}, 1
        )
    assert limits(history).bound("moved", 1) == 10


def test_longer_work_and_a_larger_rate_may_move_further():
    history = after(1, 1, 1, steps=10)
    assert limits(history).bound("moved", 10) == 10
    assert limits(history).bound("moved", 50) == 50
    assert limits(history, rate=3.0).bound("moved", 10) == 30
    assert limits(history).bound("moved", 1) == 10  # shorter work does not lower it
    assert limits(history).bound("moved", 10**9) == 1000


def test_norms_of_stacked_uploads_are_those_of_their_rows():
    found = limits(after(1, 1, 1))
    rows = torch.randn(3, 4) * 1e20
    stacked = found.row_norms(Upload(moved=rows, steps=torch.ones(3, 1), more=2.0), 3)
    for row, norms in zip(rows, stacked, strict=True):
        assert norms == pytest.approx(found.norms(Upload(moved=row, steps=1.0, more=2.0), {}))


def test_invalid_bounds_are_refused():
    with pytest.raises(ud.UndriftError, match="ratio"):
        ud.NormBound(0.5)
    with pytest.raises(ud.UndriftError, match=r"robust is 10, but must be ud.NormBound"):
        trained(ud.FedAvg(), data(), robust=10)
