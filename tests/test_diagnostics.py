"""Drift, consistency and residuals of a round, against their definitions."""

import math

import pytest
import torch

import undrift as ud
from undrift.utils import norms

STEPS = {0: 3, 1: 9, 2: 1, 3: 5}


def federation():
    return ud.data.synthetic(1, 1, clients=4, seed=2, most=60)


def train(method, data, rounds=1, **options):
    setting = dict(
        model=ud.models.logistic(60, 10),
        local=ud.SGD(lr=0.05, batch_size=10, steps={id: STEPS[id] for id in data.ids}),
        rounds=rounds,
    )
    return ud.train(method, data=data, **{**setting, **options})


def ends():
    """The end points of clients that train alone; their batches are the same, being keyed by id."""
    data = federation()
    alone = [ud.data.FederatedData.from_clients({id: data.client(id)}) for id in data.ids]
    return torch.stack([train(ud.FedAvg("full"), each).x for each in alone])


@pytest.mark.parametrize("objective", ["samples", "clients"])
def test_drift_and_consistency_are_those_of_the_theory(objective):
    data = federation()
    found = train(ud.FedAvg("full"), data, objective=objective).records[1].diagnostics
    n = data.train.sizes.double()
    q = n / n.sum() if objective == "samples" else torch.full((4,), 0.25, dtype=torch.float64)
    start = torch.zeros(610)
    drift = ud.theory.heterogeneity.drift(ends(), start, q)
    tau = torch.tensor([float(STEPS[id]) for id in data.ids], dtype=torch.float64)
    assert found["drift"] == pytest.approx(math.sqrt(drift.apart), rel=1e-5)
    assert found["moved"] == pytest.approx(math.sqrt(drift.moved), rel=1e-5)
    assert found["step"] == pytest.approx(math.sqrt(drift.together), rel=1e-5)
    assert found["tau_eff"] == pytest.approx(ud.theory.consistency.tau_effective(q, tau))
    used = ud.theory.consistency.effective_weights(q, tau)
    assert found["chi_square"] == pytest.approx(ud.theory.consistency.chi_square(q, used))
    assert found["chi_square"] > 0.1


def test_normalised_averaging_uses_the_weights_that_are_wanted():
    data = federation()
    assert train(ud.FedNova(), data).records[1].diagnostics["chi_square"] < 1e-20
    for method in (ud.SCAFFOLD(), ud.FedDyn(0.5), ud.FedLGA("literal"), ud.FedDR()):
        result = train(method, data, cohort=ud.All(), objective="clients")
        assert "chi_square" not in result.records[1].diagnostics


def test_dual_residuals_are_the_norms_of_the_servers_estimates():
    data = federation()
    for method, name in (
        (ud.SCAFFOLD(), "c"),
        (ud.FedDyn(0.5), "h"),
        (ud.FedNova(variance_reduction=True), "d"),
    ):
        result = train(method, data, rounds=3)
        found = result.records[-1].diagnostics["dual_residual"]
        assert found == pytest.approx(float(getattr(result.run.server, name).norm()))
    assert "dual_residual" not in train(ud.FedAvg(), data).records[1].diagnostics


def test_diagnostics_are_no_traffic():
    record = train(ud.FedAvg(), federation()).records[1]
    assert set(record.bytes_up) == {"moved"}
    assert sum(record.bytes_up.values()) == 4 * 610 * 4


def test_records_survive_json():
    for record in train(ud.FedDyn(0.5), federation(), rounds=2).records:
        record.metrics["odd"] = math.inf
        record.rejected = [(3, "not finite"), ("b", "late")]
        line = record.to_json()
        assert "\n" not in line
        assert "Infinity" not in line
        again = type(record).from_json(line)
        assert again == record
        assert again.flat()["rejected"] == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_norms_of_vectors_in_several_pieces(dtype, monkeypatch):
    monkeypatch.setattr(norms, "PIECE_NUMBERS", 7)
    x, other = torch.randn(2, 30, dtype=dtype, generator=torch.Generator().manual_seed(0))
    before = x.clone()
    assert norms.squared_norm(x) == pytest.approx(float(x.double() @ x.double()), rel=1e-12)
    moved = (x - other).double()
    assert norms.squared_norm(x, other) == pytest.approx(float(moved @ moved), rel=1e-12)
    assert torch.equal(x, before)
