"""Availability windows: periodic, listed in a trace, and always open."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fleets import MANY, agree_for_one_and_all, roster
from undrift.devices import Always, Duty
from undrift.devices.windows import DutyWindows, ListedWindows
from undrift.utils.keys import uniforms


def check_consistency(windows, t, clients):
    """Check properties that all windows have at any time."""
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
def test_duty_windows_are_consistent(t, period, share, fraction, together):
    who = roster(3)
    check_consistency(Duty(period, share, together).of(who, 1), t, 3)
    check_consistency(DutyWindows(np.array([fraction * period]), period, share * period), t, 1)


@given(
    m=st.integers(0, 10**6),
    period=st.floats(1e-2, 1e5),
    share=st.floats(0.01, 0.99),
    fraction=st.floats(0, 1, exclude_max=True),
)
def test_duty_windows_are_exact_at_their_ends(m, period, share, fraction):
    phase = fraction * period
    windows = DutyWindows(np.array([phase]), period, share * period)
    begin = phase + m * period
    end = begin + share * period
    assume(begin < end < begin + period)
    for t in (begin, end, np.nextafter(begin, -math.inf), np.nextafter(end, 0)):
        check_consistency(windows, float(t), 1)
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
        check_consistency(windows, 5.0, 3)


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
def test_listed_windows_are_consistent_and_as_listed(devices, device, t, repeat):
    device = np.array(device) % len(devices)
    windows = ListedWindows(devices, device, repeat)
    check_consistency(windows, t, len(device))
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
