"""Robust statistics and attacks: what they compute, what they withstand, who may use them."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import undrift as ud
from looping import asynchronous, synchronous
from undrift.core.clients import Roster
from undrift.engines import EngineOptions
from undrift.nets.module_losses import ModuleLosses
from undrift.robust.attacks import ATTACKS
from undrift.robust.poisoning import with_flipped_labels

STATISTICS = [
    ud.robust.Median(),
    ud.robust.TrimmedMean(0.25),
    ud.robust.GeometricMedian(),
    ud.robust.Krum(2),
    ud.robust.MultiKrum(2),
    ud.robust.MultiKrum(1, m=2),
]
LOCAL = ud.SGD(lr=0.05, batch_size=5, steps=3)


def rows(n, size, seed, scale=1.0):
    g = torch.Generator().manual_seed(seed)
    return scale * torch.randn(n, size, generator=g, dtype=torch.float64)


@settings(deadline=None)
@given(
    n=st.integers(1, 15),
    seed=st.integers(0, 10**6),
    scale=st.sampled_from([0.0, 1.0, 1e6, 1e300]),
    data=st.data(),
)
def test_the_median_stays_within_the_honest_range(n, seed, scale, data):
    f = data.draw(st.integers(0, (n - 1) // 2))
    honest, wrong = rows(n - f, 4, seed), rows(f, 4, seed + 1, scale)
    assert f <= ud.robust.Median().tolerates(n)
    found = ud.robust.Median().of(torch.cat([honest, wrong]))
    assert bool((found >= honest.amin(0)).all())
    assert bool((found <= honest.amax(0)).all())


@settings(deadline=None)
@given(n=st.integers(1, 15), seed=st.integers(0, 10**6), data=st.data())
def test_the_trimmed_mean_stays_within_the_honest_range(n, seed, data):
    statistic = ud.robust.TrimmedMean(data.draw(st.sampled_from([0.0, 0.1, 0.25, 0.4, 0.49])))
    f = data.draw(st.integers(0, statistic.tolerates(n)))
    honest = rows(n - f, 4, seed)
    found = statistic.of(torch.cat([honest, rows(f, 4, seed + 1, 1e9)]))
    assert bool((found >= honest.amin(0) - 1e-12).all())
    assert bool((found <= honest.amax(0) + 1e-12).all())


@settings(deadline=None)
@given(n=st.integers(7, 15), seed=st.integers(0, 10**6), statistic=st.sampled_from(STATISTICS))
def test_on_identical_uploads_each_is_the_mean(n, seed, statistic):
    same = rows(1, 5, seed).expand(n, -1)
    torch.testing.assert_close(statistic.checked(same), same.mean(0), rtol=1e-12, atol=0)


@pytest.mark.parametrize("statistic", STATISTICS, ids=repr)
@pytest.mark.parametrize("n", [9, 12])
def test_the_breakdown_point_is_what_theory_says(statistic, n):
    """With `tolerates(n)` wrong replies the result stays near; with a majority it goes along.

    Krum and Multi-Krum promise no more than f, so nothing is claimed between f and a majority.
    """
    f, honest = statistic.tolerates(n), rows(n, 4, 1)
    for far in (1e3, 1e9):
        wrong = honest.clone()
        wrong[:f] = far
        assert float(statistic.of(wrong).abs().max()) < 20
        broken = honest.clone()
        number = f + 1 if isinstance(statistic, ud.robust.TrimmedMean) else n // 2 + 1
        broken[:number] = far
        assert float(statistic.of(broken).abs().max()) > far / 20


def krum_in_numpy(vectors, f):
    """Blanchard et al., NeurIPS 2017, Section 4, written out."""
    n = len(vectors)
    scores = []
    for i in range(n):
        others = sorted(float(((vectors[i] - vectors[j]) ** 2).sum()) for j in range(n) if j != i)
        scores.append(sum(others[: n - f - 2]))
    return np.argsort(scores, kind="stable"), np.array(scores)


@settings(deadline=None)
@given(n=st.integers(7, 14), seed=st.integers(0, 10**6), far=st.sampled_from([1.0, 30.0, 1e6]))
def test_krum_picks_what_a_transcription_picks(n, seed, far):
    f = (n - 3) // 2
    vectors = rows(n, 6, seed)
    vectors[:f] *= far
    order, scores = krum_in_numpy(vectors.numpy(), f)
    torch.testing.assert_close(
        ud.robust.Krum(f).scores(vectors), torch.from_numpy(scores), rtol=1e-9, atol=1e-9
    )
    assert torch.equal(ud.robust.Krum(f).of(vectors), vectors[order[0]])
    best = vectors[torch.from_numpy(order[: n - f - 2].copy())].mean(0)
    torch.testing.assert_close(ud.robust.MultiKrum(f).of(vectors), best)


def test_the_geometric_median_minimises_the_sum_of_distances():
    vectors = rows(9, 3, 4)
    found = ud.robust.GeometricMedian(iterations=1000, tolerance=1e-10).of(vectors)

    def total(point):
        return float((vectors - point).norm(dim=1).sum())

    best = total(found)
    for seed in range(50):
        assert total(found + 0.01 * rows(1, 3, seed)[0]) >= best - 1e-9
    # In one dimension it is the median.
    line = torch.tensor([[0.0], [1.0], [2.0], [50.0], [90.0]], dtype=torch.float64)
    assert float(ud.robust.GeometricMedian(1000).of(line)) == pytest.approx(2.0, abs=1e-3)


def test_wide_vectors_are_taken_in_pieces(monkeypatch):
    vectors = rows(8, 100, 2)
    whole = [statistic.of(vectors) for statistic in STATISTICS]
    for module in ("coordinates", "distances"):
        monkeypatch.setattr(f"undrift.robust.{module}.PIECE_NUMBERS", 56)
    for statistic, before in zip(STATISTICS, whole, strict=True):
        torch.testing.assert_close(statistic.of(vectors), before)


# Runs


def federation(clients=9):
    g = torch.Generator().manual_seed(5)
    return ud.data.FederatedData.from_clients(
        [
            (torch.randn(n, 6, generator=g), torch.randint(3, (n,), generator=g))
            for n in range(10, 10 + clients)
        ]
    )


def model():
    found = torch.nn.Linear(6, 3)
    torch.nn.init.constant_(found.weight, 0.1)
    torch.nn.init.zeros_(found.bias)
    return found


def run_of(method, engine="serial", rounds=3, sampler=None, **options):
    run = synchronous(
        method, ModuleLosses(model(), federation()), LOCAL, sampler or ud.All(), rounds,
        engine=EngineOptions(engine), **options,
    )  # fmt: skip
    list(run.rounds())
    return run


@pytest.mark.parametrize("statistic", STATISTICS, ids=repr)
@pytest.mark.parametrize("attack", [None, ud.attacks.SignFlip(0.2, scale=3.0)], ids=repr)
def test_engines_agree_on_robust_runs(statistic, attack):
    one, other = (
        run_of(ud.FedAvg(), engine, statistic=statistic, attack=attack)
        for engine in ("serial", "vectorised")
    )
    torch.testing.assert_close(one.server.x, other.server.x, rtol=1e-4, atol=1e-6)
    assert one.records[-1].cohort == other.records[-1].cohort


@pytest.mark.parametrize("engine", ["serial", "vectorised"])
@pytest.mark.parametrize("name", ATTACKS)
def test_attackers_move_the_mean_and_hardly_the_median(name, engine):
    attack = ATTACKS[name](
        share=0.34, **({"scale": 50.0} if name in ("sign-flip", "gaussian") else {})
    )
    honest = run_of(ud.FedAvg(), engine)
    attacked = run_of(ud.FedAvg(), engine, attack=attack)
    assert attacked.records[-1].bytes_up == honest.records[-1].bytes_up
    assert sorted(attacked.states.seen()) == sorted(honest.states.seen())
    if name == "label-flip":  # the loop changes nothing: the data are flipped beforehand
        assert torch.equal(attacked.server.x, honest.server.x)
        return
    assert len(attacked.job.attackers) == 3
    moved = float((attacked.server.x - honest.server.x).norm())
    assert moved > 1e-3
    if name != "a-little":
        robust = run_of(ud.FedAvg(), engine, attack=attack, statistic=ud.robust.Median())
        assert float((robust.server.x - honest.server.x).norm()) < moved / 10


def test_norm_bounds_see_what_attackers_send():
    attack = ud.attacks.SignFlip(clients=[2], scale=1e3)
    for engine in ("serial", "vectorised"):
        run = run_of(ud.FedAvg(), engine, attack=attack, robust=ud.NormBound())
        for record in run.records[1:]:
            assert [client for client, _ in record.rejected] == [2]


def test_a_little_is_what_the_paper_writes():
    vectors = rows(3, 4, 1)
    attack = ud.attacks.ALittle()
    # n = 10, m = 3: s = 6 − 3 = 3, z = Φ⁻¹(4/7)
    z = attack.deviations(10, 3)
    assert z == pytest.approx(0.18001, abs=1e-4)
    sent = attack.forge(vectors, 10, [0, 0, 0])
    wanted = vectors.numpy().mean(0) - z * vectors.numpy().std(0)
    np.testing.assert_allclose(sent.numpy(), np.tile(wanted, (3, 1)))
    assert float(ud.attacks.ALittle(z=1.5).deviations(10, 3)) == 1.5


def test_who_attacks_is_a_function_of_the_seed():
    roster = Roster(list(range(50)), torch.ones(50))
    attack = ud.attacks.SignFlip(share=0.3)
    assert len(attack.attackers(roster, 1)) == 15
    assert attack.attackers(roster, 1) == attack.attackers(roster, 1)
    assert attack.attackers(roster, 1) != attack.attackers(roster, 2)
    assert ud.attacks.SignFlip(clients=[3, 5]).attackers(roster, 1) == {3, 5}
    with pytest.raises(ud.UndriftError, match="names the client 99"):
        ud.attacks.SignFlip(clients=[99]).attackers(roster, 1)


def test_flipped_labels_are_those_of_the_attackers_only():
    honest = federation()
    flipped = with_flipped_labels(honest, {0, 4})
    for client in honest.ids:
        before, after = honest.client(client)[1], flipped.client(client)[1]
        assert torch.equal(after, 2 - before if client in (0, 4) else before)
    result = ud.train(
        ud.FedAvg(), model=model(), data=honest, local=LOCAL, rounds=2, engine="serial",
        attack=ud.attacks.LabelFlip(clients=[0, 4]), progress=False,
    )  # fmt: skip
    direct = ud.train(
        ud.FedAvg(), model=model(), data=flipped, local=LOCAL, rounds=2, engine="serial",
        progress=False,
    )  # fmt: skip
    assert torch.equal(result.x, direct.x)


def test_a_resumed_run_has_the_same_bits(tmp_path):
    options = {
        "model": model(), "data": federation(), "local": LOCAL, "cohort": 7, "engine": "serial",
        "robust": [ud.NormBound(), ud.robust.MultiKrum(1)],
        "attack": ud.attacks.Gaussian(0.2, scale=2.0), "progress": False,
    }  # fmt: skip
    whole = ud.train(ud.FedAvg(), rounds=6, **options)
    ud.train(ud.FedAvg(), rounds=2, out=tmp_path, **options)
    again = ud.resume(tmp_path, ud.FedAvg(), rounds=6, **options)
    assert torch.equal(whole.x, again.x)


def test_too_few_replies_for_krum_skip_the_round():
    run = run_of(ud.FedAvg(), statistic=ud.robust.Krum(2), sampler=ud.Bernoulli(0.7), rounds=8)
    counts = [len(record.cohort) for record in run.records[1:]]
    assert min(counts) < 7 <= max(counts)
    for record, count in zip(run.records[1:], counts, strict=True):
        assert (record.updates == 1) == (count >= 7)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (ud.SCAFFOLD(), "exact sum of what clients keep"),
        (ud.FedDyn(alpha=0.1), "does not only average moves"),
        (ud.FedNova(), "normalise their moves"),
        (ud.FedExP(), "numbers that clients report"),
    ],
    ids=lambda each: getattr(each, "name", ""),
)
def test_methods_that_do_not_average_moves_are_refused(method, said):
    with pytest.raises(ud.UndriftError, match=said):
        run_of(method, statistic=ud.robust.Median())


def test_undefined_combinations_are_refused():
    with pytest.raises(ud.UndriftError, match="needs at least 13 replies, but a round has at most"):
        run_of(ud.FedAvg(), statistic=ud.robust.Krum(5))
    with pytest.raises(ud.UndriftError, match="counts every client once"):
        run_of(ud.FedAvg("I"), statistic=ud.robust.Median(), sampler=ud.Weighted(3))
    with pytest.raises(ud.UndriftError, match="ALittle needs the uploads of all attackers"):
        asynchronous(
            ud.FedBuff(), ModuleLosses(model(), federation()), LOCAL, ud.All(), 1,
            attack=ud.attacks.ALittle(),
        )  # fmt: skip
    with pytest.raises(ud.UndriftError, match="robust is 3, but must be"):
        ud.train(ud.FedAvg(), model=model(), data=federation(), local=LOCAL, robust=3)
    with pytest.raises(ud.UndriftError, match="attack is 3, but must be an attack"):
        ud.train(ud.FedAvg(), model=model(), data=federation(), local=LOCAL, attack=3)


def test_asynchronous_runs_take_statistics_and_attacks():
    def moved(**options):
        run = asynchronous(
            ud.FedBuff(buffer=5), ModuleLosses(model(), federation()), LOCAL, ud.All(), 4, **options
        )
        list(run.rounds())
        return run.server.x

    honest, attack = moved(), ud.attacks.SignFlip(clients=[2], scale=1e3)
    mean, median = moved(attack=attack), moved(attack=attack, statistic=ud.robust.Median())
    assert float((mean - honest).norm()) > 10 * float((median - honest).norm())
