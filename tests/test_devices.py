"""Devices: random quantities, device classes, fleets, and the outcomes of trips."""

import math

import numpy as np
import pytest

from fleets import EVERYONE, MANY, agree_for_one_and_all, roster
from undrift.devices import Between, DeviceClasses, Devices, Duty, Ladder, LogNormal, journey

# Random quantities


ALL_LAWS = Devices(
    speed=LogNormal(10, 1),
    down=Between(1, 2),
    up=LogNormal(5, 0.5),
    latency=Between(0, 1),
    jitter=Between(0, 0.5),
    dropout=Between(0, 0.2),
    damage=Between(0, 0.1),
    lifetime=LogNormal(1000, 1),
    availability=Duty(100, 0.5),
)
QUANTITIES = ("speed", "down", "up", "latency", "jitter", "dropout", "damage", "gone_at")


def described(fleet, k):
    values = [getattr(fleet, name)[k] for name in QUANTITIES]
    return [*values, fleet.next_of(k, 0.0), fleet.next_of(k, 260.0)]


def test_a_fleet_depends_on_the_seed_alone():
    who = roster(30)
    one, same, other = (ALL_LAWS.fleet(who, seed) for seed in (4, 4, 5))
    for name in QUANTITIES:
        assert (getattr(one, name) == getattr(same, name)).all()
        assert (getattr(one, name) != getattr(other, name)).all()
    own = Devices(speed=LogNormal(10, 1), seed=4).fleet(who, 77)
    assert (own.speed == one.speed).all()
    assert own.seed == 77


def test_a_clients_device_does_not_depend_on_order_or_other_clients():
    ids = ["ann", "bob", "cid", 7]
    reference = ALL_LAWS.fleet(roster(ids), 1)
    more = roster([12, "zoe", *reversed(ids), "aaa"])
    larger = ALL_LAWS.fleet(more, 1)
    for id in ids:
        k, j = roster(ids).position[id], more.position[id]
        assert described(reference, k) == described(larger, j)


def test_quantities_are_drawn_independently_of_each_other():
    fleet = ALL_LAWS.fleet(MANY, 1)
    drawn = np.argsort(np.argsort([getattr(fleet, name) for name in QUANTITIES]))
    assert np.corrcoef(drawn) == pytest.approx(np.eye(len(QUANTITIES)), abs=0.04)


# Classes


def classes(**options):
    phones = Devices(speed=Ladder(1, 2), dropout=0.5, availability=Duty(10, 0.5))
    return DeviceClasses(
        {
            "phone": (0.6, phones),
            "tablet": (0.3, Devices(speed=5, lifetime=100)),
            "server": (0.1, Devices(speed=Ladder(50, 90))),
        },
        **options,
    )


def test_classes_have_their_shares_of_the_clients_and_their_own_laws():
    who = roster(107)  # exact shares 64.2, 32.1, 10.7
    fleet = classes().fleet(who, 2)
    names = np.array(fleet.classes)
    assert [int((names == name).sum()) for name in ("phone", "tablet", "server")] == [64, 32, 11]
    assert np.sort(fleet.speed[names == "phone"]) == pytest.approx(np.linspace(1, 2, 64))
    assert (fleet.speed[names == "tablet"] == 5).all()
    assert np.sort(fleet.speed[names == "server"]) == pytest.approx(np.linspace(50, 90, 11))
    assert ((fleet.gone_at == 100) == (names == "tablet")).all()
    assert ((fleet.dropout == 0.5) == (names == "phone")).all()
    assert fleet.classes != classes().fleet(who, 3).classes
    assert fleet.classes == classes(seed=2).fleet(who, 3).classes


def test_a_class_may_have_its_own_seed():
    laws = dict(speed=LogNormal(10, 1), availability=Duty(100, 0.5))
    fleet = DeviceClasses({"a": (1.0, Devices(**laws, seed=8))}, seed=5).fleet(roster(9), 3)
    alone = Devices(**laws).fleet(roster(9), 8)
    assert (fleet.speed == alone.speed).all()
    assert (fleet.next_available(0.0) == alone.next_available(0.0)).all()


def test_a_class_without_clients_does_no_harm():
    fleet = classes().fleet(roster(2), 0)
    assert sorted(fleet.classes) == ["phone", "tablet"]


def test_each_class_has_its_own_windows():
    fleet = classes().fleet(MANY, 2)
    phones = np.array(fleet.classes) == "phone"
    assert not fleet.windows.always
    assert fleet.available(3.0)[~phones].all()
    assert fleet.available(3.0)[phones].mean() == pytest.approx(0.5, abs=0.02)
    assert not fleet.steady
    there = np.flatnonzero(fleet.available(3.0))
    leaves = fleet.leaves(there, 3.0)
    assert (leaves[phones[there]] <= 8).all()
    tablets = np.array(fleet.classes)[there] == "tablet"
    assert (leaves[tablets] == 100).all()
    assert fleet.leaves(int(there[0]), 3.0) == leaves[0]
    agree_for_one_and_all(fleet, 3.0, range(50))


def test_faster_classes_go_to_clients_with_more_data_if_correlated():
    fleet = classes(size_correlation=1.0).fleet(MANY, 2)
    order = [fleet.classes[k] for k in np.argsort(MANY.sizes.numpy())]
    assert order == ["phone"] * 12_000 + ["tablet"] * 6_000 + ["server"] * 2_000


def test_classes_that_are_always_available_are_steady():
    parts = {"a": (0.5, Devices()), "b": (0.5, Devices(speed=2, availability=Duty(9, 1)))}
    assert DeviceClasses(parts).fleet(roster(4), 0).reliable


# Fleets


def test_transfers_take_latency_and_bytes_by_bandwidth():
    fleet = Devices(latency=0.5, down=100, up=None).fleet(roster(3), 0)
    assert fleet.reading(50).tolist() == [1.0] * 3
    assert fleet.sending(50).tolist() == [0.5] * 3
    fleet = Devices(latency=0.5, up=Ladder(10, 30)).fleet(roster(3), 0)
    assert fleet.sending(60) == pytest.approx(0.5 + 60 / fleet.up)
    assert len(fleet) == 3


def test_jitter_has_mean_one_and_changes_by_round():
    fleet = Devices(jitter=0.5).fleet(MANY, 3)
    factors = np.array([fleet.factor(t, EVERYONE) for t in range(20)])
    assert factors.mean() == pytest.approx(1, abs=5e-3)
    assert np.log(factors).std() == pytest.approx(0.5, abs=5e-3)
    assert np.log(factors).mean() == pytest.approx(-0.125, abs=5e-3)
    assert np.corrcoef(factors)[0, 1] == pytest.approx(0, abs=0.03)
    assert (fleet.factor(7, np.array([5, 2])) == factors[7, [5, 2]]).all()
    assert (Devices().fleet(MANY, 3).factor(0, EVERYONE) == 1.0).all()


def test_damage_has_its_frequency_and_changes_by_round():
    fleet = Devices(damage=0.2).fleet(MANY, 3)
    first, second = fleet.damaged(0, EVERYONE), fleet.damaged(1, EVERYONE)
    assert first.mean() == pytest.approx(0.2, abs=0.01)
    assert (first & second).mean() == pytest.approx(0.04, abs=0.01)
    assert (fleet.damaged(0, np.array([9, 4])) == first[[9, 4]]).all()
    assert not Devices().fleet(MANY, 3).damaged(0, EVERYONE).any()


def test_clients_past_their_lifetime_never_return():
    fleet = Devices(lifetime=Ladder(10, 30), availability=Duty(8, 0.5, together=True)).fleet(
        roster(3), 0
    )
    ten, twenty, thirty = np.argsort(fleet.gone_at).tolist()
    assert fleet.available(9.0).all() and not fleet.available(5.0).any()
    assert fleet.is_available(ten, 9.0) and not fleet.is_available(ten, 10.0)
    assert fleet.leaves(ten, 9.0) == 10 and fleet.leaves(thirty, 9.0) == 12
    assert fleet.next_of(ten, 11.0) == math.inf and fleet.next_of(twenty, 13.0) == 16
    assert fleet.next_available(25.0)[[ten, twenty, thirty]].tolist() == [math.inf, math.inf, 25]
    assert fleet.next_available(29.0).tolist() == [math.inf] * 3
    assert not fleet.available(32.0).any()
    for t in (0.0, 9.0, 10.0, 13.0, 31.0):
        agree_for_one_and_all(fleet, t, range(3))


@pytest.mark.parametrize(
    ("devices", "steady", "reliable"),
    [
        (Devices(), True, True),
        (Devices(jitter=1, down=5, latency=3), True, True),
        (Devices(dropout=Ladder(0, 0.1)), True, False),
        (Devices(damage=0.1), True, False),
        (Devices(lifetime=9), False, False),
        (Devices(availability=Duty(9, 0.9)), False, False),
    ],
    ids=repr,
)
def test_steady_and_reliable_fleets(devices, steady, reliable):
    fleet = devices.fleet(roster(4), 0)
    assert (fleet.steady, fleet.reliable) == (steady, reliable)


# Trips


def test_trip_times_are_the_same_for_one_client_and_for_many():
    rng = np.random.default_rng(0)
    parts = rng.random((4, 50))
    many = journey(3.7, *parts)
    each = [journey(3.7, *map(float, column)) for column in parts.T]
    assert (np.array(many) == np.array(each).T).all()
    assert all(type(moment) is float for moment in each[0])
    assert journey(10.0, 1.0, 2.0, 4.0, 2.0) == (12.0, 16.0, 24.0)


def test_trips_have_their_closed_form_without_jitter():
    fleet = Devices(speed=Ladder(1, 4), down=100, up=50, latency=0.25).fleet(roster(4), 0)
    who = np.array([2, 0, 3])
    units = np.array([10, 20, 0])
    trips = fleet.trips(who, units, 5.0, fleet.reading(100)[who], fleet.sending(100)[who], 8)
    assert trips.computing.tolist() == [6.25] * 3
    assert trips.sending == pytest.approx(6.25 + units / fleet.speed[who])
    assert trips.end == pytest.approx(trips.sending + 2.25)
    assert trips.outcome.tolist() == ["arrives"] * 3
    assert trips.done.tolist() == [1, 1, 1]
    assert trips.who is who and trips.start == 5.0


def test_jitter_stretches_a_whole_trip():
    fleet = Devices(jitter=0.5).fleet(roster(4), 0)
    who = np.arange(4)
    trips = fleet.trips(who, 3, 10.0, np.full(4, 1.0), np.full(4, 2.0), round=6)
    factor = fleet.factor(6, who)
    assert trips.computing - 10 == pytest.approx(factor)
    assert trips.sending - 10 == pytest.approx(4 * factor)
    assert trips.end - 10 == pytest.approx(6 * factor)


def test_dropouts_have_their_frequency_and_a_uniform_moment():
    fleet = Devices(dropout=0.3).fleet(MANY, 1)
    one, two = np.full(len(MANY), 1.0), np.full(len(MANY), 2.0)
    trips = fleet.trips(EVERYONE, 1, 100.0, one, two, round=4)  # 1 s + 1 s + 2 s
    failed = trips.outcome == "failed"
    assert failed.mean() == pytest.approx(0.3, abs=0.01)
    assert (trips.end[~failed] == 104).all() and (trips.done[~failed] == 1).all()
    moments = np.sort(trips.end[failed] - 100) / 4
    assert moments == pytest.approx(np.linspace(0, 1, len(moments)), abs=0.03)
    assert trips.done[failed] == pytest.approx(np.clip(trips.end[failed] - 101, 0, 1))
    assert trips.done.min() == 0 and (trips.done[failed] == 1).any()
    later = fleet.trips(EVERYONE, 1, 100.0, one, two, round=5).outcome == "failed"
    assert (failed & later).mean() == pytest.approx(0.09, abs=0.01)
    some = fleet.trips(np.array([7, 3]), 1, 100.0, one[:2], two[:2], round=4)
    assert some.end.tolist() == trips.end[[7, 3]].tolist()
    certain = Devices(dropout=1.0).fleet(MANY, 1).trips(EVERYONE, 1, 0.0, one, two, 0)
    assert (certain.outcome == "failed").all()


def test_clients_leave_when_their_window_ends_or_they_are_gone():
    fleet = Devices(
        speed=Ladder(1, 4), lifetime=7.5, availability=Duty(8, 0.5, together=True)
    ).fleet(roster(2), 0)
    slow, fast = np.argsort(fleet.speed)
    nothing = np.zeros(2)
    trips = fleet.trips(np.array([slow, fast]), 8, 1.0, nothing, nothing, 0)
    assert trips.outcome.tolist() == ["left", "arrives"]
    assert trips.end.tolist() == [4, 3]
    assert trips.done.tolist() == [3 / 8, 1]
    gone = Devices(lifetime=7.5).fleet(roster(1), 0)
    trips = gone.trips(np.array([0]), 2, 6.0, np.ones(1), np.ones(1), 0)
    assert (trips.outcome[0], trips.end[0], trips.done[0]) == ("left", 7.5, 0.25)
    just = gone.trips(np.array([0]), 1.5, 6.0, np.zeros(1), np.zeros(1), 0)
    assert (just.outcome[0], just.end[0]) == ("arrives", 7.5)


def test_the_earlier_of_failing_and_leaving_ends_a_trip():
    fleet = Devices(dropout=1.0, lifetime=3.0).fleet(MANY, 1)
    nothing = np.zeros(len(MANY))
    trips = fleet.trips(EVERYONE, 10, 0.0, nothing, nothing, 0)
    left = trips.outcome == "left"
    assert left.mean() == pytest.approx(0.7, abs=0.02)
    assert (trips.end[left] == 3).all()
    assert (trips.outcome[~left] == "failed").all() and (trips.end[~left] <= 3).all()
