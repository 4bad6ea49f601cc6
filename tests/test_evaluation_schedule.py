"""The default schedule of evaluation: counted work decides; the last round is measured whole."""

import pytest
import torch
from torch import nn

import undrift as ud
from undrift.loops.evaluation_schedule import (
    GRADIENT_PASSES,
    LARGEST_SHARE,
    LEAST_TRAIN_SAMPLES,
    spacing,
)
from undrift.nets.module_losses import ModuleLosses
from undrift.nets.passes import products

WIDE = 2000
"""Inputs of the model: with that many, evaluating some thousand samples is not negligible."""


def federation(clients=10, samples=300, tested=1000):
    g = torch.Generator().manual_seed(0)

    def drawn(n):
        return torch.randn(n, WIDE, generator=g), torch.randint(0, 3, (n,), generator=g)

    return ud.data.FederatedData.from_clients(
        [drawn(samples) for _ in range(clients)], drawn(tested)
    )


DATA = federation()


def options_of(rounds, options):
    torch.manual_seed(0)
    setting = {
        "model": nn.Linear(WIDE, 3),
        "data": DATA,
        "local": ud.SGD(lr=0.01, batch_size=50, epochs=1),
        "cohort": 2,
        "rounds": rounds,
        "engine": "vectorised",
    }
    return {**setting, **options}


def trained(rounds=7, **options):
    return ud.train(ud.FedAvg(), **options_of(rounds, options))


def rounds_of(result):
    return [record.round for record in result.records if record.metrics]


def test_spacings_are_round_numbers():
    assert [spacing(r) for r in (0.2, 1, 1.1, 2.5, 5, 6, 11, 21, 60, 101)] == [
        *(1, 1, 2, 5, 5, 10, 20, 50, 100, 200)
    ]


def test_evaluation_costs_at_most_its_share_and_the_last_round_is_whole():
    result = trained(rounds=22)
    # 600 gradients a round allow 180 samples: 2000 of 3000 and 1000 for testing every 20 rounds.
    assert rounds_of(result) == [0, 20, 22]
    spaced = [r for r in result.records if r.metrics and r.round < 22]
    for record in spaced:
        assert record.measured == {"train": (LEAST_TRAIN_SAMPLES, 3000), "test": (1000, 1000)}
    assert result.records[-1].measured == {"train": (3000, 3000), "test": (1000, 1000)}
    work = GRADIENT_PASSES * sum(r.gradients for r in result.records[:21])
    done = sum(some for r in spaced[1:] for some, _ in r.measured.values())
    assert done <= LARGEST_SHARE * work
    assert "estimates from 2000 of 3000 train samples; the last round" in result.summary()
    rows = [record.flat() for record in result.records]
    assert rows[20]["measured_train"] == 2000 and "measured_train" not in rows[21]


def test_what_is_set_is_done_as_asked():
    every = trained(evaluate=ud.Evaluation(every=1))
    assert rounds_of(every) == list(range(8))
    assert {r.measured["train"] for r in every.records} == {(3000, 3000)}
    some = trained(evaluate=ud.Evaluation(every=3, train_samples=500))
    assert rounds_of(some) == [0, 3, 6, 7]
    assert {r.measured["train"] for r in some.records if r.metrics} == {(500, 3000)}
    default = trained()
    assert torch.equal(every.x, default.x)
    assert default.metrics == every.metrics


def test_much_work_or_a_small_problem_is_evaluated_whole_after_every_round():
    busy = trained(rounds=2, local=ud.SGD(lr=0.001, batch_size=50, epochs=5), cohort=10)
    assert [r.measured["train"] for r in busy.records] == [(3000, 3000)] * 3
    torch.manual_seed(0)
    small = ud.data.synthetic(1, 1, clients=5, most=50)
    few = trained(3, data=small, model=ud.models.logistic(60, 10))
    assert rounds_of(few) == [0, 1, 2, 3]


def test_the_schedule_depends_on_neither_seed_nor_rounds_nor_method():
    one, other = trained(rounds=22), trained(rounds=41, seed=5)
    assert one.run.schedule == other.run.schedule
    samples = [(r.round, r.measured["train"]) for r in other.records if r.metrics]
    assert samples[:3] == [(0, (2000, 3000)), (20, (2000, 3000)), (40, (2000, 3000))]
    assert one.records[20].metrics.keys() == other.records[20].metrics.keys()


def test_an_extended_run_has_the_same_evaluations_and_its_former_last_one(tmp_path):
    whole = trained(rounds=12)
    trained(rounds=5, out=tmp_path)
    parts = ud.resume(tmp_path, ud.FedAvg(), **options_of(12, {}))
    assert rounds_of(parts) == sorted({*rounds_of(whole), 5})
    for mine, other in zip(whole.records, parts.records, strict=True):
        if other.round != 5:
            assert (mine.metrics, mine.measured) == (other.metrics, other.measured)
    assert parts.records[5].measured["train"] == (3000, 3000)


def test_a_run_that_stops_early_is_measured_whole_at_its_end():
    asked = trained(callbacks=[lambda run, record: record.round == 3])
    assert [r.round for r in asked.records if r.metrics] == [0, 3]
    assert asked.records[-1].measured["train"] == (3000, 3000)
    reached = trained(target={"train_loss": ("below", 1e9)})
    assert len(reached.records) == 1
    assert reached.records[0].measured["train"] == (3000, 3000)


def test_own_models_and_results_per_client_use_all_samples():
    for evaluation in (ud.Evaluation(clients=True), ud.Evaluation(models=("server", "own"))):
        result = trained(evaluate=evaluation)
        assert {r.measured["train"] for r in result.records if r.metrics} == {(3000, 3000)}
        assert result.run.schedule.every > 1
    with pytest.raises(ud.UndriftError, match="use train_clients"):
        ud.Evaluation(train_samples=5, clients=True)


def test_every_client_has_its_share_of_the_random_part():
    sizes = torch.tensor([10, 400, 90, 3])
    g = torch.Generator().manual_seed(1)
    clients = [
        (torch.randn(int(n), 4, generator=g), torch.randint(0, 3, (int(n),), generator=g))
        for n in sizes
    ]
    losses = ModuleLosses(nn.Linear(4, 3), ud.data.FederatedData.from_clients(clients))
    part = losses.train_part.random_part(100)
    assert len(part) == 100 and len(part.rows.unique()) == 100
    assert ((part.sizes - sizes * 100 / sizes.sum()).abs() <= 2).all()
    for objective in ("samples", "clients"):
        q = losses.weights(objective)
        found = losses.evaluate(losses.initial(), q, {}, ("train",), train_samples=100)
        outputs = losses.flat.module(part.x)
        each = nn.functional.cross_entropy(outputs, part.y, reduction="none").detach().double()
        w = (q / sizes)[part.owners()]
        assert found["train_loss"] == pytest.approx(float(each @ w / w.sum()), rel=1e-6)
    whole = losses.evaluate(losses.initial(), q, {}, ("train",), train_samples=10**6)
    assert whole == losses.evaluate(losses.initial(), q, {}, ("train",))


def test_products_count_shared_weights_once_per_position():
    assert products(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), 4) == 15 + 8
    assert products(nn.Conv2d(1, 2, 3, bias=False), 100) == 18 * 100
