"""The distributions of device quantities, and the errors for invalid ones."""

import math

import numpy as np
import pytest
import torch

from fleets import MANY, refuses, roster
from undrift.devices import (
    LAWS,
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
)
from undrift.utils.keys import uniforms

GRID = (np.arange(10_001) + 0.5) / 10_001


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


def test_a_uniform_number_of_zero_has_a_finite_quantile():
    assert LogNormal(1, 1).values(np.array([0.0])) == pytest.approx(math.exp(-8.29), rel=0.01)


def test_a_number_is_the_same_for_all_clients():
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


def test_speed_correlates_with_data_size_if_asked():
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
        (
            lambda: DeviceClasses([1]),
            "DeviceClasses' classes is [1], but must be a mapping from names to a",
        ),
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
            "but they differ: 'a' in steps, 'b' in samples.",
        ),
        (
            lambda: DeviceClasses({"a": (1, Devices())}, size_correlation=-2),
            "DeviceClasses' size_correlation is -2, but must be at least -1 and at most 1.",
        ),
        (lambda: DeviceFile(3), "DeviceFile's path is 3, but must be the path of a CSV file."),
        (lambda: DeviceFile("a", unit="x"), "DeviceFile's unit is 'x', but must be one of"),
        (lambda: DeviceFile("a", windows=3), "DeviceFile's windows is 3, but must be the path"),
        (lambda: DeviceFile("a", windows="b", repeat=0), "DeviceFile's repeat is 0, but must be"),
        (
            lambda: DeviceFile("a", repeat=5.0),
            "repeat needs windows, the file with the times to repeat.",
        ),
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
