"""Random amounts of local work, and clients that do not finish."""

import numpy as np
import pytest

import undrift as ud
from undrift.utils.keys import borrowed_generator, generator


def drawn(amount, clients=range(200), rounds=range(10), seed=0):
    return np.array([[amount.of(k, t, seed) for k in clients] for t in rounds])


def test_uniform_work_has_every_number_equally_often():
    found = drawn(ud.UniformAmount(2, 5))
    numbers, counts = np.unique(found, return_counts=True)
    assert numbers.tolist() == [2, 3, 4, 5]
    assert counts / found.size == pytest.approx(0.25, abs=0.03)


def test_normal_work_is_rounded_and_clipped():
    found = drawn(ud.NormalAmount(30, 20, 1, 96), rounds=range(40))
    assert found.min() == 1
    assert found.max() <= 96
    # P(N(30, 20²) < 1.5) = Φ(−1.425) = 0.0771
    assert (found == 1).mean() == pytest.approx(0.0771, abs=0.01)
    assert np.median(found) == pytest.approx(30, abs=1)
    assert drawn(ud.NormalAmount(5, 0)).tolist() == np.full((10, 200), 5).tolist()


@pytest.mark.parametrize("amount", [ud.UniformAmount, ud.NormalAmount])
def test_work_is_drawn_per_round_or_once_per_client(amount):
    parameters = (1, 50) if amount is ud.UniformAmount else (30, 20)
    anew, once = drawn(amount(*parameters)), drawn(amount(*parameters, per="client"))
    assert (anew != anew[0]).any(axis=0).all()
    assert (once == once[0]).all()
    assert len(np.unique(once)) > 10
    other = drawn(amount(*parameters), seed=1)
    assert (other != anew).mean() > 0.5


def test_a_run_does_what_was_drawn():
    amount = ud.UniformAmount(1, 4)
    problem = ud.theory.random_quadratics(6, 2, 0.5, 2.0, spread=1.0, seed=0)
    result = ud.train(
        ud.FedNova(),
        problem=problem,
        local=ud.GD(lr=0.1, steps=amount),
        rounds=5,
        seed=7,
        progress=False,
    )
    for record in result.records[1:]:
        wanted = [amount.of(k, record.round - 1, 7) for k in range(6)]
        assert record.steps == sum(wanted)


def test_a_share_of_the_cohort_does_not_finish():
    limit = ud.Unfinished(share=0.5)
    asked = dict.fromkeys(range(10), 5)
    late = []
    for t in range(400):
        managed = limit.managed(asked, t, seed=0)
        slow = [amount for amount in managed.values() if amount is not None]
        assert len(slow) == 5
        late += [5 - amount + 1 for amount in slow]
    numbers, counts = np.unique(late, return_counts=True)
    assert numbers.tolist() == [1, 2, 3, 4]  # τ uniform on {1 … E − 1}
    assert counts / len(late) == pytest.approx(0.25, abs=0.04)


def test_who_is_slow_is_a_function_of_round_seed_and_client_not_of_order():
    limit = ud.Unfinished(share=0.3, longest=3)
    asked = dict.fromkeys("abcdefghij", 5)
    turned = dict(reversed(asked.items()))
    assert limit.managed(asked, 3, 1) == limit.managed(turned, 3, 1)
    assert limit.managed(asked, 3, 1) != limit.managed(asked, 4, 1)
    assert limit.managed(asked, 3, 1) != limit.managed(asked, 3, 2)
    assert all(x is None for x in ud.Unfinished(share=0).managed(asked, 0, 0).values())


def test_clients_that_do_not_finish_may_be_dropped():
    asked = dict.fromkeys(range(10), 5)
    for t in range(20):
        partial = ud.Unfinished(share=0.5).managed(asked, t, seed=0)
        dropped = ud.Unfinished(share=0.5, drop=True).managed(asked, t, seed=0)
        late = {id for id, amount in partial.items() if amount is not None and amount < 5}
        assert {id for id, amount in dropped.items() if amount == 0} == late
        assert all(amount in (None, 5) for id, amount in dropped.items() if id not in late)


def test_fedlga_is_told_who_finished():
    data = ud.data.synthetic(1, 1, clients=10, seed=0, most=60)
    result = ud.train(
        ud.FedLGA(cap=True),
        model=ud.models.logistic(60, 10),
        data=data,
        local=ud.SGD(lr=0.01, batch_size=10, epochs=5),
        objective="clients",
        limit=ud.Unfinished(share=0.5, longest=5),
        rounds=6,
        progress=False,
    )
    assert 0 < sum(record.partial for record in result.records) <= 30
    assert all(record.partial <= 5 for record in result.records)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: ud.UniformAmount(0, 5), "low is 0"),
        (lambda: ud.UniformAmount(5, 4), "at least 5"),
        (lambda: ud.UniformAmount(1, 5, per="day"), "'round', 'client'"),
        (lambda: ud.NormalAmount(30, -1), "at least 0"),
        (lambda: ud.NormalAmount(30, 1, low=0), "at least 1"),
        (lambda: ud.NormalAmount(30, 1, low=5, high=4), "at least 5"),
        (lambda: ud.Unfinished(share=2), "at most 1"),
        (lambda: ud.Unfinished(longest=0), "at least 1"),
        (lambda: ud.Unfinished(1.0, 9).managed({0: 5}, 0, 0), "at most 5, the work that client 0"),
    ],
)
def test_amounts_out_of_range_are_refused(make, sentence):
    with pytest.raises(ud.UndriftError, match=sentence):
        make()


def test_a_borrowed_generator_draws_the_same_numbers_as_a_new_one():
    for client in range(5):
        for when in range(3):
            own, lent = (
                make(3, "purpose", when, client) for make in (generator, borrowed_generator)
            )
            # An odd number of 32-bit draws leaves half a word behind, which must not be lent on.
            assert (
                own.integers(7, size=3, dtype="int32") == lent.integers(7, size=3, dtype="int32")
            ).all()
            assert own.normal() == lent.normal()


@pytest.mark.parametrize("high", [None, 40])
def test_normal_amounts_are_rounded_to_the_even_half_and_clipped(high):
    class Fixed:
        def __init__(self, value):
            self.normal = lambda mean, std: value

    amount = ud.NormalAmount(30, 20, 2, high)
    drawn = [amount.drawn(Fixed(value)) for value in (-7.2, 2.5, 3.5, 39.6, 77.7)]
    assert drawn == [2, 2, 4, 40, 78 if high is None else 40]
