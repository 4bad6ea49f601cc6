"""The event queue: events come in the order of time, also after a restore or a reset."""

from itertools import pairwise
from math import inf

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import undrift as ud
from looping import asynchronous
from undrift.core.clients import Roster
from undrift.deploy.loops import SiteEventQueue
from undrift.loops.event_queue import EventQueue, VirtualEventQueue

CLIENTS = 7


def queue(**devices):
    roster = Roster([f"client {k}" for k in range(CLIENTS)], torch.ones(CLIENTS))
    devices = {"speed": ud.devices.Ladder(1, 9), "jitter": 0.4, **devices}
    fleet = ud.Devices(**devices).fleet(roster, seed=3)
    return VirtualEventQueue(fleet, fleet.reading(10), fleet.sending(10))


def launch(found, number, units=5.0):
    return [found.launch(found.pick(), units) for _ in range(number)]


@pytest.mark.parametrize("kind", [VirtualEventQueue, SiteEventQueue])
def test_both_clocks_implement_the_whole_interface(kind):
    assert issubclass(kind, EventQueue)
    assert not kind.__abstractmethods__


@settings(deadline=None, max_examples=100)
@given(st.lists(st.sampled_from(["launch", "land", "peek", "save"]), max_size=60))
def test_trips_land_in_the_order_of_time_whatever_happens_in_between(actions):
    found, expected = queue(), []
    for action in actions:
        if action == "launch" and len(expected) < CLIENTS:
            expected += launch(found, 1)
        elif action == "land" and expected:
            first = min(expected)
            expected.remove(first)
            assert found.land() == first and found.now == first.end
            found.free(first.k)
        elif action == "peek":
            assert found.next_time == min((trip.end for trip in expected), default=inf)
        elif action == "save":
            saved = found.saved()
            found = queue()
            found.restore(saved)
        assert len(found) == len(expected)


def test_a_restored_queue_continues_as_if_nothing_had_happened():
    whole, first = queue(dropout=0.3), queue(dropout=0.3)
    for each in (whole, first):
        launch(each, 4)
        each.free(each.land().k)
    second = queue(dropout=0.3)
    second.restore(first.saved())
    for each in (whole, second):
        each.trips = launch(each, 2) + [each.land() for _ in range(5)]
    assert whole.trips == second.trips
    assert any(trip.outcome == "failed" for trip in whole.trips)


def test_a_reset_makes_everyone_idle_and_keeps_the_clock_and_the_numbers():
    found = queue()
    launch(found, CLIENTS)
    assert found.pick() is None
    now = found.land().end
    found.reset()
    assert (len(found), found.next_time) == (0, inf)
    assert (found.now, found.launched) == (now, CLIENTS)
    trips = launch(found, CLIENTS)
    assert sorted(trip.k for trip in trips) == list(range(CLIENTS))
    assert [trip.number for trip in trips] == list(range(CLIENTS, 2 * CLIENTS))


def test_a_loop_that_is_reset_starts_everyone_again_with_the_present_model():
    losses = ud.theory.random_quadratics(5, 4, 0.5, 2.0, spread=1.0, seed=0)
    run = asynchronous(
        method=ud.FedBuff(3),
        losses=losses,
        local=ud.GD(lr=0.1, steps=3),
        sampler=ud.All(),
        rounds=8,
        devices=ud.Devices(speed=ud.devices.Ladder(1, 5)),
    )
    rounds = run.rounds()
    before = [next(rounds) for _ in range(5)]
    version, waiting, x = run.version, len(run._buffer), run.server.x.clone()
    run.reset()
    assert (run.version, len(run._buffer), len(run.queue)) == (version, waiting, 0)
    assert torch.equal(run.server.x, x)
    first = next(rounds)
    # Without the reset, clients that read an older model would reply now.
    assert max(first.staleness) <= run.version - version
    times = [record.virtual_seconds for record in (*before, first, *rounds)]
    assert run.round == 8 and all(a <= b for a, b in pairwise(times))
