"""Devices: their laws, their windows, what becomes of trips, and every sentence of refusal."""

import math
import re
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from undrift import UndriftError
from undrift.clients import Roster
from undrift.devices import (
    LAWS,
    Always,
    Between,
    DeviceClasses,
    DeviceFile,
    Devices,
    Duty,
    Ladder,
    Law,
    LogNormal,
    Normal,
    Same,
    as_law,
    correlated,
    journey,
)
from undrift.devices.windows import DutyWindows, ListedWindows
from undrift.keys import uniforms


def roster(ids, sizes=None):
    ids = list(range(ids)) if isinstance(ids, int) else ids
    return Roster(ids, torch.tensor([1] * len(ids) if sizes is None else sizes))


MANY = roster(20_000, [1 + (37 * k) % 20_000 for k in range(20_000)])
EVERYONE = np.arange(len(MANY))
GRID = (np.arange(10_001) + 0.5) / 10_001


def refuses(sentence, make):
    with pytest.raises(UndriftError, match=re.escape(sentence)):
        make()


# Laws


def test_a_ladder_takes_both_ends_in_equal_steps():
    u = np.array([0.7, 0.0, 0.2, 0.99, 0.4])
    assert Ladder(1, 9).values(u) == pytest.approx([7, 1, 3, 9, 5])
    drawn = np.sort(Devices(speed=Ladder(0.1, 0.7)).fleet(roster(50), 3).speed)
    assert drawn[0] == 0.1 and drawn[-1] == 0.7
    assert np.diff(drawn) == pytest.approx(0.6 / 49)
    assert Ladder(1, 9).values(np.array([0.3])).tolist() == [9]


def test_laws_have_their_closed_forms():
    assert Same(3).values(GRID).tolist() == [3.0] * len(GRID)
    assert Between(2, 6).values(np.array([0, 0.25, 0.5])).tolist() == [2, 3, 4]
    values = LogNormal(median=5, sigma=0.8).values(GRID)
    assert np.median(values) == pytest.approx(5)
    assert values.mean() == pytest.approx(5 * math.exp(0.32), rel=2e-3)
    assert np.log(values).std() == pytest.approx(0.8, rel=2e-3)
    values = Normal(mean=10, std=2, low=0, high=100).values(GRID)
    assert values.mean() == pytest.approx(10)
    assert values.std() == pytest.approx(2, rel=2e-3)
    clipped = Normal(mean=10, std=2, low=9, high=12).values(GRID)
    assert clipped.min() == 9 and clipped.max() == 12
    assert (clipped == 9).mean() == pytest.approx(0.3085, abs=1e-3)  # Φ(−½)
    assert (clipped == 12).mean() == pytest.approx(0.1587, abs=1e-3)  # 1 − Φ(1)


@pytest.mark.parametrize(
    "law", [Same(1), Ladder(1, 2), Between(0, 1), LogNormal(1, 2), Normal(1, 1, 0, 2)], ids=repr
)
def test_laws_are_finite_and_grow_with_the_uniform_number(law):
    values = law.values(np.array([0.0, 2.0**-53, 0.3, 0.5, 1 - 2.0**-53]))
    assert np.isfinite(values).all()
    assert (np.diff(values) >= 0).all()
    assert type(law) in LAWS.values()


def test_a_uniform_number_of_zero_is_no_infinite_score():
    assert LogNormal(1, 1).values(np.array([0.0])) == pytest.approx(math.exp(-8.29), rel=0.01)


def test_a_number_is_the_same_for_everyone():
    assert as_law(2.5) == Same(2.5)
    assert as_law(Between(1, 2)) == Between(1, 2)


@pytest.mark.parametrize("rho", [-0.9, -0.4, 0.0, 0.6])
def test_numbers_correlate_with_the_sizes_by_rho_and_stay_uniform(rho):
    sizes = MANY.sizes.numpy()
    u = uniforms(5, "test", 0, MANY.hashes)
    found = correlated(u, sizes, rho, MANY.hashes)
    scores = [torch.special.ndtri(torch.from_numpy(x)) for x in (found, sizes / (sizes.max() + 1))]
    assert np.corrcoef(scores)[0, 1] == pytest.approx(rho, abs=0.02)
    assert np.sort(found) == pytest.approx(np.linspace(0, 1, len(u)), abs=0.02)


def test_a_correlation_of_one_follows_the_sizes_and_breaks_ties_by_hash():
    who = roster(12, [5] * 10 + [9, 1])
    u = uniforms(0, "test", 0, who.hashes)
    found = correlated(u, who.sizes.numpy(), 1, who.hashes)
    assert found.argmax() == 10 and found.argmin() == 11
    assert (np.argsort(found[:10]) == np.argsort(who.hashes[:10])).all()
    opposed = correlated(u, who.sizes.numpy(), -1, who.hashes)
    assert opposed == pytest.approx(1 - found)


def test_speed_goes_with_the_data_when_asked():
    speed = Devices(speed=Ladder(1, 2), size_correlation=1.0).fleet(MANY, 0).speed
    assert (np.argsort(speed) == np.argsort(MANY.sizes.numpy())).all()
    down = Devices(down=Ladder(1, 2), size_correlation=1.0).fleet(MANY, 0).down
    assert np.corrcoef(down, MANY.sizes.numpy())[0, 1] == pytest.approx(0, abs=0.03)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Same(math.nan), "Same's value is nan, but must be a number that is finite."),
        (lambda: Ladder(-1, 2), "Ladder's slowest is -1, but must be at least 0."),
        (lambda: Ladder(1, "2"), "Ladder's fastest is '2', but must be a number at least 0."),
        (lambda: Between(-1, 1), "Between's low is -1, but must be at least 0."),
        (lambda: Between(3, 1), "Between's high is 1, but must be at least 3."),
        (lambda: LogNormal(0, 1), "LogNormal's median is 0, but must be above 0."),
        (lambda: LogNormal(1, -1), "LogNormal's sigma is -1, but must be at least 0."),
        (lambda: Normal(math.inf, 1, 0, 2), "Normal's mean is inf, but must be a number"),
        (lambda: Normal(1, -1, 0, 2), "Normal's std is -1, but must be at least 0."),
        (lambda: Normal(1, 1, -1, 2), "Normal's low is -1, but must be at least 0."),
        (lambda: Normal(1, 1, 3, 2), "Normal's high is 2, but must be at least 3."),
        (
            lambda: correlated(GRID, GRID, 1.5, GRID),
            "The correlation with the data sizes is 1.5, but must be at least -1 and at most 1.",
        ),
        (lambda: Duty(0, 0.5), "Duty's period is 0, but must be above 0."),
        (lambda: Duty(1, 1.5), "Duty's share is 1.5, but must be above 0 and at most 1."),
        (lambda: Duty(1, 0.5, "no"), "Duty's together is 'no', but must be true or false."),
        (lambda: Devices(speed=0), "Devices' speed is 0, but must be above 0."),
        (lambda: Devices(speed=None), "Devices' speed is None, but must be a number above 0."),
        (lambda: Devices(down=-1), "Devices' down is -1, but must be above 0."),
        (lambda: Devices(latency=-1), "Devices' latency is -1, but must be at least 0."),
        (lambda: Devices(latency=None), "Devices' latency is None, but must be a number"),
        (lambda: Devices(dropout=2), "Devices' dropout is 2, but must be at least 0 and at most 1"),
        (lambda: Devices(lifetime=0), "Devices' lifetime is 0, but must be above 0."),
        (lambda: Devices(unit="step"), "Devices' unit is 'step', but must be one of 'steps', 's"),
        (lambda: Devices(availability=0.5), "Devices' availability is 0.5, but must be Always()"),
        (lambda: Devices(size_correlation=2), "Devices' size_correlation is 2, but must be"),
        (lambda: Devices(seed=-1), "Devices' seed is -1, but must be a whole number of at least 0"),
        (lambda: DeviceClasses({}), "DeviceClasses needs at least one class."),
        (lambda: DeviceClasses([1]), "DeviceClasses' classes is [1], but must be names with a"),
        (
            lambda: DeviceClasses({"a": 1.0}),
            "The class 'a' of DeviceClasses is 1.0, but must be a share and Devices(…).",
        ),
        (lambda: DeviceClasses({"a": (1.0,)}), "The class 'a' of DeviceClasses has 1 entries, but"),
        (
            lambda: DeviceClasses({"a": (0, Devices())}),
            "The share of class 'a' is 0, but must be above 0 and at most 1.",
        ),
        (
            lambda: DeviceClasses({"a": (1, 2.0)}),
            "The devices of class 'a' is 2.0, but must be Devices(…).",
        ),
        (
            lambda: DeviceClasses({"a": (0.5, Devices()), "b": (0.4, Devices())}),
            "The shares of DeviceClasses add up to 0.9, but must add up to 1.",
        ),
        (
            lambda: DeviceClasses({"a": (0.5, Devices()), "b": (0.5, Devices(unit="samples"))}),
            "units, but must agree: 'a' in steps, 'b' in samples.",
        ),
        (
            lambda: DeviceClasses({"a": (1, Devices())}, size_correlation=-2),
            "DeviceClasses' size_correlation is -2, but must be at least -1 and at most 1.",
        ),
        (lambda: DeviceFile(3), "DeviceFile's path is 3, but must be the path of a CSV file."),
        (lambda: DeviceFile("a", unit="x"), "DeviceFile's unit is 'x', but must be one of"),
        (lambda: DeviceFile("a", windows=3), "DeviceFile's windows is 3, but must be the path"),
        (lambda: DeviceFile("a", windows="b", repeat=0), "DeviceFile's repeat is 0, but must be"),
        (lambda: DeviceFile("a", repeat=5.0), "there is no file of windows to repeat."),
        (lambda: DeviceFile("a", match="x"), "DeviceFile's match is 'x', but must be one of"),
        (lambda: DeviceFile("a", seed=0.5), "DeviceFile's seed is 0.5, but must be a whole"),
    ],
)
def test_refusals_say_what_is_allowed(make, sentence):
    refuses(sentence, make)


def test_drawn_values_are_checked_and_the_client_is_named():
    class ToMinusTwo(Law):
        def values(self, u):
            return np.where(u == u.min(), -2.0, 1.0)

    who = roster(["ann", "bob", "cid"])
    lowest = who.ids[uniforms(0, "device speed", 0, who.hashes).argmin()]
    refuses(
        f"The speed of client {lowest!r} is -2.0, but must be above 0.",
        lambda: Devices(speed=ToMinusTwo()).fleet(who, 0),
    )
    highest = who.ids[uniforms(0, "device dropout", 0, who.hashes).argmax()]
    refuses(
        f"The dropout of client {highest!r} is 3.0, but must be at least 0 and at most 1.",
        lambda: Devices(dropout=Ladder(0, 3)).fleet(who, 0),
    )
    refuses("is inf, but must be", lambda: Devices(speed=LogNormal(1e308, 5)).fleet(MANY, 0))


# Draws


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


def test_a_client_keeps_its_device_whatever_the_order_and_the_others():
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


def test_a_class_may_have_a_seed_of_its_own():
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


def test_faster_classes_go_to_those_with_more_data_when_asked():
    fleet = classes(size_correlation=1.0).fleet(MANY, 2)
    order = [fleet.classes[k] for k in np.argsort(MANY.sizes.numpy())]
    assert order == ["phone"] * 12_000 + ["tablet"] * 6_000 + ["server"] * 2_000


def test_classes_that_are_always_there_are_steady():
    parts = {"a": (0.5, Devices()), "b": (0.5, Devices(speed=2, availability=Duty(9, 1)))}
    assert DeviceClasses(parts).fleet(roster(4), 0).reliable


# Availability


def agree_for_one_and_all(windows, t, who):
    mask = windows.available(t)
    following = windows.next(t) if hasattr(windows, "next") else windows.next_available(t)
    for k in who:
        assert windows.is_available(k, t) == mask[k]
        assert windows.next_of(k, t) == following[k]


def hold_together(windows, t, clients):
    """What must be true of any windows at any time."""
    agree_for_one_and_all(windows, t, range(clients))
    there = windows.available(t)
    following = windows.next(t)
    assert (following >= t).all()
    assert ((following == t) == there).all()
    for k in range(clients):
        if there[k]:
            until = windows.until(k, t)
            assert until > t
            assert windows.until(np.array([k]), t).tolist() == [until]
            between = t + (until - t) / 2 if math.isfinite(until) else 2 * t
            assert between == until or windows.is_available(k, between)
        elif following[k] < math.inf:
            assert windows.is_available(k, following[k])
            assert not windows.is_available(k, np.nextafter(following[k], -math.inf))


@given(
    t=st.floats(0, 1e9),
    period=st.floats(1e-2, 1e6),
    share=st.floats(1e-9, 1, exclude_max=True),
    fraction=st.floats(0, 1, exclude_max=True),
    together=st.booleans(),
)
def test_duty_windows_hold_together(t, period, share, fraction, together):
    who = roster(3)
    hold_together(Duty(period, share, together).of(who, 1), t, 3)
    hold_together(DutyWindows(np.array([fraction * period]), period, share * period), t, 1)


@given(
    m=st.integers(0, 10**6),
    period=st.floats(1e-2, 1e5),
    share=st.floats(0.01, 0.99),
    fraction=st.floats(0, 1, exclude_max=True),
)
def test_duty_windows_are_right_at_their_very_ends(m, period, share, fraction):
    phase = fraction * period
    windows = DutyWindows(np.array([phase]), period, share * period)
    begin = phase + m * period
    end = begin + share * period
    assume(begin < end < begin + period)
    for t in (begin, end, np.nextafter(begin, -math.inf), np.nextafter(end, 0)):
        hold_together(windows, float(t), 1)
    assert windows.is_available(0, begin)
    assert windows.until(0, begin) == end
    assert not windows.is_available(0, end)


@pytest.mark.parametrize(("phase", "m"), [(0.6859999999999999, 100), (0.189, 1)])
def test_a_quotient_that_rounds_up_does_not_open_a_window_early(phase, m):
    begin = phase + m * 0.7
    just_before = math.nextafter(begin, 0)
    assert (just_before - phase) // 0.7 == m
    windows = DutyWindows(np.array([phase]), 0.7, 0.35)
    assert not windows.is_available(0, just_before)
    assert windows.next_of(0, just_before) == begin


def test_duty_is_the_share_of_the_period_from_its_phase_on():
    who = roster(["x"])
    phase = 10 * uniforms(3, "device phase", 0, who.hashes)[0]
    windows = Duty(10, 0.4).of(who, 3)
    assert windows.until(0, phase + 20) == pytest.approx(phase + 24)
    assert windows.next_of(0, phase + 25) == pytest.approx(phase + 30)
    assert windows.next_of(0, phase + 21) == phase + 21
    together = Duty(10, 0.4, together=True).of(who, 3)
    times = np.arange(0, 30, 0.5)
    assert [together.is_available(0, t) for t in times] == [t % 10 < 4 for t in times]
    assert Duty(10, 0.4).of(MANY, 3).available(1234.5).mean() == pytest.approx(0.4, abs=0.02)


def test_always_has_no_end():
    for spec in (Always(), Duty(10, 1.0)):
        windows = spec.of(roster(3), 0)
        assert windows.always
        assert windows.until(np.array([0, 2]), 5.0).tolist() == [math.inf, math.inf]
        assert windows.until(1, 5.0) == math.inf
        hold_together(windows, 5.0, 3)


@st.composite
def spans(draw):
    """Sorted, disjoint windows within [0, 100], some of which touch."""
    cuts = draw(st.lists(st.integers(0, 1000), max_size=12, unique=True).map(sorted))
    return [(a / 10, b / 10) for a, b in pairwise(cuts) if draw(st.booleans())]


@given(
    devices=st.lists(spans(), min_size=1, max_size=4),
    device=st.lists(st.integers(0, 3), min_size=1, max_size=5),
    t=st.one_of(st.floats(0, 1000), st.integers(0, 10_000).map(lambda tenths: tenths / 10)),
    repeat=st.sampled_from([None, 100.0, 130.7]),
)
@settings(max_examples=300)
def test_listed_windows_hold_together_and_are_what_is_listed(devices, device, t, repeat):
    device = np.array(device) % len(devices)
    windows = ListedWindows(devices, device, repeat)
    hold_together(windows, t, len(device))
    turn = 0.0 if repeat is None else t // repeat * repeat
    for k, place in enumerate(device):
        listed = any(turn + begin <= t < turn + end for begin, end in devices[place])
        assert windows.is_available(k, t) == listed
        if not devices[place]:
            assert windows.next_of(k, t) == math.inf


def test_windows_that_touch_are_one_also_over_the_end_of_the_trace():
    windows = ListedWindows(
        [[(0, 2), (2, 6), (22, 24)], [(0, 24)], [(3, 5)]], np.array([0, 1, 2]), 24.0
    )
    assert windows.until(0, 1.0) == 6
    assert windows.until(0, 47.0) == 54
    assert windows.until(1, 47.0) == math.inf
    assert windows.next_of(2, 6.0) == 27
    once = ListedWindows([[(0, 2), (22, 24)]], np.array([0]))
    assert once.until(0, 23.0) == 24
    assert once.next_of(0, 24.0) == math.inf


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


def test_the_gone_are_gone_for_good():
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
def test_who_is_steady_and_reliable(devices, steady, reliable):
    fleet = devices.fleet(roster(4), 0)
    assert (fleet.steady, fleet.reliable) == (steady, reliable)


# Trips


def test_a_journey_is_the_same_for_one_and_for_many():
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


def test_whichever_comes_first_ends_a_trip():
    fleet = Devices(dropout=1.0, lifetime=3.0).fleet(MANY, 1)
    nothing = np.zeros(len(MANY))
    trips = fleet.trips(EVERYONE, 10, 0.0, nothing, nothing, 0)
    left = trips.outcome == "left"
    assert left.mean() == pytest.approx(0.7, abs=0.02)
    assert (trips.end[left] == 3).all()
    assert (trips.outcome[~left] == "failed").all() and (trips.end[~left] <= 3).all()


# Files


@pytest.fixture
def write(tmp_path):
    def written(text, name="devices.csv"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return written


def test_a_file_gives_each_client_its_row(write):
    path = write("speed, client ,down,lifetime\n2,1,,\n3,ann,100,50\n\n4,unused,,\n")
    fleet = DeviceFile(path, unit="samples").fleet(roster([1, "ann"]), 6)
    assert fleet.speed.tolist() == [2, 3]
    assert fleet.down.tolist() == [math.inf, 100]
    assert fleet.gone_at.tolist() == [math.inf, 50]
    assert fleet.up.tolist() == [math.inf] * 2
    for name in ("latency", "jitter", "dropout", "damage"):
        assert getattr(fleet, name).tolist() == [0, 0]
    assert (fleet.unit, fleet.seed, fleet.classes) == ("samples", 6, None)
    assert fleet.windows.always


def test_a_spreadsheet_s_mark_at_the_beginning_is_no_part_of_a_name(write):
    assert DeviceFile(str(write("\ufeffclient,speed\n0,2\n"))).fleet(roster(1), 0).speed == [2]


def test_windows_of_a_file_say_when_clients_are_there(write):
    path = write("client,speed\n0,1\n1,1\n2,1\n")
    windows = write("client,to,from\n0,6,4\n1,3,0\n0,2,1\n", "windows.csv")
    fleet = DeviceFile(path, windows=windows, repeat=10).fleet(roster(3), 0)
    assert fleet.available(5.0).tolist() == [True, False, False]
    assert fleet.next_available(6.0).tolist() == [11, 10, math.inf]
    assert fleet.leaves(np.array([0, 1]), 11.0).tolist() == [12, 13]
    once = DeviceFile(path, windows=windows).fleet(roster(3), 0)
    assert once.next_available(6.0).tolist() == [math.inf] * 3


def test_clients_draw_their_device_from_a_file_with_its_windows(write):
    path = write("device,speed\nold,1\nnew,4\n")
    windows = write("device,from,to\nold,0,10\nnew,10,20\n", "windows.csv")
    file = DeviceFile(path, windows=windows, match="random")
    fleet = file.fleet(MANY, 0)
    old = fleet.speed == 1
    assert old.mean() == pytest.approx(0.5, abs=0.02) and set(fleet.speed) == {1, 4}
    assert (fleet.available(5.0) == old).all() and (fleet.available(15.0) == ~old).all()
    few = roster([5, "new one", 9])
    assert file.fleet(few, 0).speed[:2].tolist() == fleet.speed[[5, 9]].tolist()
    assert (file.fleet(MANY, 1).speed != fleet.speed).any()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "devices.csv, line 1 has no column 'client' (or 'device')."),
        ("speed\n1\n", "devices.csv, line 1 has no column 'client' (or 'device')."),
        ("client,down\n0,1\n", "devices.csv, line 1 has no column 'speed'."),
        ("client,speed,latence\n0,1,1\n", "devices.csv, line 1: a column is 'latence', but must"),
        ("client,device,speed\n0,1,1\n", "devices.csv, line 1: a column is 'device', but must"),
        ("client,speed,speed\n0,1,1\n", "devices.csv, line 1 has the column 'speed' twice."),
        ("client,speed\n", "devices.csv has no rows below its header."),
        ("client,speed\n0,1\n1\n", "devices.csv, line 3 has 1 cells, but the header has 2."),
        ("client,speed\n0,1\n,2\n", "devices.csv, line 3 has nothing in column 'client'."),
        ("client,speed\n0,1\n1,\n", "devices.csv, line 3 has no speed of '1'."),
        ("client,speed\n0,fast\n", "devices.csv, line 2 has 'fast' in column 'speed', which must"),
        ("client,speed\n0,nan\n", "devices.csv, line 2: speed is nan, but must be a number above"),
        ("client,speed\n0,-1\n", "devices.csv, line 2: speed is -1.0, but must be above 0."),
        (
            "client,speed,damage\n0,1,2\n",
            "devices.csv, line 2: damage is 2.0, but must be at least 0 and at most 1.",
        ),
        ("client,speed\n0,1\n\n0,2\n", "devices.csv, line 4 describes '0' again, which "),
        ("client,speed\n0,1\n", "devices.csv has no row of client 1; match='random' draws"),
        ("client,speed\n0,1\x00\n", "devices.csv"),
    ],
)
def test_a_wrong_file_of_devices_is_refused_with_its_line(write, text, sentence):
    path = write(text)
    refuses(sentence, lambda: DeviceFile(path).fleet(roster(2), 0))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("client,from\n0,1\n", "windows.csv, line 1 has no column 'to'."),
        ("client,from,to,x\n0,1,2,3\n", "windows.csv, line 1: a column is 'x', but must be one of"),
        ("client,from,to\n5,1,2\n", "windows.csv, line 2 names '5', which has no row in "),
        ("client,from,to\n0,,2\n", "windows.csv, line 2 has '' in column 'from', which must be a"),
        ("client,from,to\n0,-1,2\n", "windows.csv, line 2: from is -1.0, but must be at least 0."),
        (
            "client,from,to\n0,3,2\n",
            "windows.csv, line 2: to is 2.0, but must be above 3 and at most 9.",
        ),
        (
            "client,from,to\n0,3,10\n",
            "windows.csv, line 2: to is 10.0, but must be above 3 and at most 9.",
        ),
        ("client,from,to\n0,3,7\n1,0,9\n0,1,4\n", "The windows of '0' overlap: "),
    ],
)
def test_a_wrong_file_of_windows_is_refused_with_its_line(write, text, sentence):
    file = DeviceFile(
        write("client,speed\n0,1\n1,1\n"), windows=write(text, "windows.csv"), repeat=9
    )
    refuses(sentence, lambda: file.fleet(roster(2), 0))


def test_files_that_cannot_be_read_are_named(write, tmp_path):
    missing = tmp_path / "none.csv"
    refuses(f"{missing} cannot be read", lambda: DeviceFile(missing).fleet(roster(1), 0))
    refuses(f"{tmp_path} cannot be read", lambda: DeviceFile(tmp_path).fleet(roster(1), 0))
    path = write("client,speed\n0,1\n")
    file = DeviceFile(path, windows=missing)
    refuses(f"{missing} cannot be read", lambda: file.fleet(roster(1), 0))
    path.write_bytes(b"client,speed\n\xff,1\n")
    refuses(f"{path} cannot be read", lambda: DeviceFile(path).fleet(roster(1), 0))
