"""Samplers and keys: a cohort depends on the seed, the round and client ids, not on their order."""

import collections

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import undrift as ud
from undrift.core.clients import Roster
from undrift.utils.keys import generator, hashes, key, uniforms


def roster(sizes, ids=None):
    return Roster(ids or list(range(len(sizes))), torch.tensor(sizes))


SAMPLERS = [ud.All(), ud.Uniform(3), ud.Weighted(4), ud.Bernoulli(0.4), ud.Fixed([0, 2, 2])]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
@given(seed=st.integers(0, 100), round=st.integers(0, 1000), order=st.permutations(range(6)))
@settings(max_examples=30)
def test_a_cohort_depends_on_seed_and_round_and_not_on_the_order(sampler, seed, round, order):
    sizes = [3, 1, 4, 1, 5, 9]
    one, other = roster(sizes), roster([sizes[k] for k in order], list(order))
    drawn = sampler.draw(one, seed, round)
    assert drawn == sampler.draw(one, seed, round) == sampler.draw(other, seed, round)
    assert list(drawn) == sorted(drawn)
    assert set(drawn) <= set(range(6))
    wanted = {"all": 6, "uniform": 3, "weighted": 4, "fixed": 3}.get(sampler.participation)
    assert wanted is None or sum(drawn.values()) == wanted


def frequencies(sampler, sizes, rounds=4000):
    counts = collections.Counter()
    for t in range(rounds):
        counts.update(sampler.draw(roster(sizes), 1, t))
    return np.array([counts[k] / rounds for k in range(len(sizes))])


def test_frequencies_are_those_of_the_scheme():
    sizes = [1, 2, 3, 4]
    assert frequencies(ud.Uniform(2), sizes) == pytest.approx([0.5] * 4, abs=0.04)
    assert frequencies(ud.Weighted(2), sizes) == pytest.approx([0.2, 0.4, 0.6, 0.8], abs=0.05)
    assert frequencies(ud.Bernoulli(0.3), sizes) == pytest.approx([0.3] * 4, abs=0.04)


def test_fixed_cohorts_take_turns():
    sampler = ud.Fixed([[0, 1], [2]])
    who = roster([1, 1, 1])
    assert [list(sampler.draw(who, 0, t)) for t in range(3)] == [[0, 1], [2], [0, 1]]


def test_keys_differ_in_every_part():
    numbers = {
        key(*parts)
        for parts in [
            (0, "a", 0, "x"),
            (1, "a", 0, "x"),
            (0, "b", 0, "x"),
            (0, "a", 1, "x"),
            (0, "a", 0, "y"),
            (0, "a", 0, 1),
            (0, "a", 0, "1"),
        ]
    }
    assert len(numbers) == 7


def test_keyed_numbers_are_uniform_and_their_own():
    ids = list(range(20_000))
    drawn = uniforms(3, "cohort", 5, hashes(ids))
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert np.histogram(drawn, 20, (0, 1))[0] == pytest.approx([1000] * 20, abs=150)
    assert uniforms(3, "cohort", 5, hashes([77]))[0] == drawn[77]
    assert abs(np.corrcoef(drawn, uniforms(3, "cohort", 6, hashes(ids)))[0, 1]) < 0.03


def test_a_bernoulli_round_without_anyone_is_counted_and_changes_nothing():
    losses = ud.theory.random_quadratics(3, 2)
    result = ud.train(
        ud.FedAvg(),
        problem=losses,
        local=ud.GD(lr=0.1, steps=1),
        rounds=30,
        cohort=ud.Bernoulli(0.2),
    )
    empty = [r for r in result.records[1:] if not r.cohort]
    assert 5 < len(empty) < 30
    assert len(result.records) == 31
    for before, after in zip(result.records, result.records[1:], strict=False):
        assert bool(after.cohort) == (before.metrics != after.metrics)


@pytest.mark.parametrize(
    ("cohort", "words"),
    [
        (7, "only 6"),
        (0, "at least 1"),
        (2.5, "whole number"),
        (ud.Fixed([0, 99]), "client 99"),
        (ud.Fixed([[0], [42]]), "client 42"),
    ],
    ids=str,
)
def test_bad_cohorts_are_refused_with_a_sentence(cohort, words):
    losses = ud.theory.random_quadratics(6, 2)
    with pytest.raises(ud.UndriftError) as error:
        ud.train(ud.FedAvg(), problem=losses, local=ud.GD(lr=0.1, steps=1), rounds=1, cohort=cohort)
    assert words in str(error.value)


def test_generators_do_not_repeat_each_other():
    a = generator(0, "batches", 1, 2).random(5)
    assert not np.allclose(a, generator(0, "batches", 2, 1).random(5))
    assert np.allclose(a, generator(0, "batches", 1, 2).random(5))


class LargestFirst(ud.Sampler):
    """A user's own sampler: the K available clients with the most samples."""

    participation = "fixed"

    def __init__(self, K):
        self.K = K

    def draw(self, roster, seed, round, among=None):
        sizes = roster.sizes.numpy().copy()
        if among is not None:
            sizes[~among] = 0
        largest = [k for k in (-sizes).argsort()[: self.K] if sizes[k] > 0]
        return {roster.ids[k]: 1 for k in sorted(largest)}


def test_a_users_own_sampler_chooses_the_cohorts():
    losses = ud.theory.random_quadratics(4, 2, sizes=[5, 30, 10, 20])
    setting = {"problem": losses, "local": ud.GD(lr=0.1, steps=2), "rounds": 3}
    own = ud.train(ud.FedAvg(), cohort=LargestFirst(2), **setting)
    assert [record.cohort for record in own.records[1:]] == [[1, 3]] * 3
    same = ud.train(ud.FedAvg(), cohort=ud.Fixed([1, 3]), **setting)
    assert torch.equal(own.x, same.x)


def test_a_users_own_sampler_draws_among_available_clients():
    among = np.array([True, False, True, True])
    assert LargestFirst(2).draw(roster([5, 30, 10, 20]), 0, 0, among) == {2: 1, 3: 1}
    away = ud.Devices(availability=ud.devices.Duty(7.0, 0.5), speed=50.0)
    losses = ud.theory.random_quadratics(6, 2)
    result = ud.train(
        ud.FedAvg(),
        problem=losses,
        local=ud.GD(lr=0.1, steps=2),
        rounds=8,
        cohort=LargestFirst(2),
        devices=away,
    )
    assert len({tuple(record.cohort) for record in result.records[1:]}) > 1


@pytest.mark.parametrize("kind", ["sometimes", None], ids=str)
def test_a_sampler_must_say_which_kind_it_is(kind):
    class Unknown(LargestFirst):
        participation = kind

    losses = ud.theory.random_quadratics(3, 2)
    with pytest.raises(ud.UndriftError, match=r"Unknown\.participation is .*'bernoulli'"):
        ud.train(
            ud.FedAvg(),
            problem=losses,
            local=ud.GD(lr=0.1, steps=1),
            rounds=1,
            cohort=Unknown(2),
        )


def test_methods_refuse_a_users_sampler_of_the_wrong_kind():
    losses = ud.theory.random_quadratics(3, 2)
    setting = {"problem": losses, "local": ud.GD(lr=0.1, steps=1), "rounds": 1}
    with pytest.raises(ud.UndriftError, match="every client takes part"):
        ud.train(ud.VRLSGD(), cohort=LargestFirst(3), **setting)
