"""What is computed for a million clients at once agrees with what is computed one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import undrift as ud
from undrift.core.clients import Roster
from undrift.core.sampling import _places_of_ranks
from undrift.data.partitions import Natural
from undrift.devices.availability_mask import AvailabilityMask
from undrift.devices.windows import DutyWindows, ListedWindows, MixedWindows
from undrift.utils.errors import UndriftError
from undrift.utils.keys import generator, generators, hashes, key, plain_ids


@pytest.mark.parametrize("ids", [range(5), [3, 0, 2**70], ["b", "a'é\\", 'x"y'], [1, "1", -4]])
def test_hashes_are_the_lower_halves_of_the_clients_keys(ids):
    expected = [key(0, "client", 0, id) % 2**64 for id in ids]
    assert hashes(plain_ids(ids)).tolist() == expected


def test_more_ids_than_are_hashed_at_once(monkeypatch):
    monkeypatch.setattr("undrift.utils.keys.HASHED_AT_ONCE", 3)
    assert hashes(list(range(8))).tolist() == [key(0, "client", 0, k) % 2**64 for k in range(8)]


def test_one_generator_object_draws_what_generators_of_the_clients_draw():
    clients = [5, "a", 2**40]
    for rng, client in zip(generators(3, "most", 2, clients), clients, strict=True):
        alone = generator(3, "most", 2, client)
        # An odd number of 32-bit draws first: it must not leave half a number for the next client.
        assert rng.integers(100, size=3, dtype=np.int32).tolist() == (
            alone.integers(100, size=3, dtype=np.int32).tolist()
        )
        assert rng.choice(50, 7, replace=False).tolist() == (
            alone.choice(50, 7, replace=False).tolist()
        )


@pytest.mark.parametrize(
    ("ids", "ordered"),
    [
        ([3, 1, 2], [1, 2, 3]),
        ([1, 2, 5], [1, 2, 5]),
        (["b", 2, "a", 10], [2, 10, "a", "b"]),
        ([2**70, 1], [1, 2**70]),
        (np.array([4, 2]), [2, 4]),
    ],
)
def test_a_roster_sorts_its_clients_by_id(ids, ordered):
    sizes = torch.arange(1, len(ids) + 1)
    roster = Roster(ids, sizes)
    assert roster.ids == ordered
    assert [plain_ids(ids)[k] for k in roster.place] == ordered
    assert roster.sizes.tolist() == [float(sizes[k]) for k in roster.place]
    back = roster.weights_in_data_order()
    assert [float(back[k]) for k in roster.place] == roster.weights.tolist()
    for k, id in enumerate(roster.ids):
        client = roster.client(id)
        assert (client.samples, client.q) == (roster.sizes[k].item(), roster.weights[k].item())
        assert type(client.q) is type(client.samples) is float


@pytest.mark.parametrize("ids", [[1, 2, 1], ["a", "b", "b"], [2, 1, 2]])
def test_two_clients_with_one_id_are_refused(ids):
    with pytest.raises(UndriftError, match="same id"):
        Roster(ids, torch.ones(3))


@given(st.integers(1, 5000), st.floats(0, 1), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_places_of_ranks_are_those_of_the_indices(clients, share, seed):
    rng = np.random.default_rng(seed)
    mask = rng.random(clients) < share
    indices = np.flatnonzero(mask)
    ranks = np.sort(rng.choice(len(indices), min(len(indices), 40), replace=False))
    assert _places_of_ranks(mask, ranks).tolist() == indices[ranks].tolist()


def test_a_weighted_draw_is_numpys_choice():
    roster = Roster(range(3000), torch.arange(1, 3001))
    for round in range(20):
        chosen = generator(7, "cohort", round).choice(3000, 25, p=roster.weights.numpy())
        numbers, draws = np.unique(chosen, return_counts=True)
        expected = dict(zip(numbers.tolist(), draws.tolist(), strict=True))
        assert ud.Weighted(25).draw(roster, 7, round) == expected


def _windows(kind: str, clients: int, rng: np.random.Generator):
    if kind == "duty":
        return DutyWindows(10 * rng.random(clients), 10.0, 3.0)
    if kind == "together":
        return DutyWindows(np.zeros(clients), 10.0, 3.0)
    if kind == "mixed":
        parts = [_windows("duty", clients, rng), _windows("listed", clients, rng)]
        return MixedWindows(parts, rng.integers(0, 2, clients))
    spans = []
    for _ in range(4):
        times = np.sort(rng.random(6) * 20)
        spans.append([(float(a), float(b)) for a, b in times.reshape(3, 2)])
    spans.append([])
    repeat = 25.0 if kind == "repeated" else None
    return ListedWindows(spans, rng.integers(0, len(spans), clients), repeat)


@pytest.mark.parametrize("kind", ["duty", "together", "listed", "repeated", "mixed"])
@given(
    seed=st.integers(0, 2**32),
    jumps=st.lists(st.floats(0, 12) | st.sampled_from([0.0, 3.0, 7.0, 10.0]), max_size=30),
)
@settings(max_examples=25, deadline=None)
def test_the_mask_that_follows_the_clock_is_that_of_every_moment(kind, seed, jumps):
    rng = np.random.default_rng(seed)
    windows = _windows(kind, 40, rng)
    gone_at = np.where(rng.random(40) < 0.3, 40 * rng.random(40), math.inf)
    mask, t = AvailabilityMask(windows, gone_at), 0.0
    for jump in [0.0, *jumps, -5.0, 1.0]:
        t = max(0.0, t + jump)
        found = mask.at(t)
        assert found.tolist() == (windows.available(t) & (t < gone_at)).tolist()
        some = np.flatnonzero(rng.random(40) < 0.5)
        assert windows.some_available(some, t).tolist() == windows.available(t)[some].tolist()
        assert windows.next_of_some(some, t).tolist() == windows.next(t)[some].tolist()
        found[:] = True  # a sampler may change the mask that it gets


def test_owners_with_numbers_and_with_words_are_split_alike():
    rng = np.random.default_rng(0)
    numbers = rng.integers(10, 90, 600)  # two digits, so that words sort like numbers
    labels = np.zeros(600)
    by_number = Natural(min_size=4).split(labels, None, owners=numbers)
    by_word = Natural(min_size=4).split(labels, None, owners=[str(each) for each in numbers])
    assert by_number.rows.tolist() == by_word.rows.tolist()
    assert by_number.bounds.tolist() == by_word.bounds.tolist()
    assert [str(id) for id in by_number.ids] == by_word.ids


def test_natural_takes_at_most_so_many_samples_of_an_owner():
    owners = np.array([7] * 10 + [3] * 2 + [9] * 5)
    split = Natural(most=4).split(np.zeros(17), None, 1, owners)
    assert split.ids == [3, 7, 9]
    assert split.sizes.tolist() == [2, 4, 4]
    chosen = generator(1, "most", 0, 7).choice(np.arange(10), 4, replace=False)
    assert split.of(1).tolist() == sorted(chosen.tolist())
