"""FedNova's reproductions: the published table, and claims that can fail."""

import math

import pytest

from undrift.report.tables import OverSeeds
from undrift.reproduce.fednova import cifar10, quadratics, synthetic
from undrift.reproduce.fednova.cifar10 import DRAWN, PUBLISHED, TWO


def run(*gaps, diverged=False):
    return {"gaps": list(gaps), "models": [], "diverged": diverged}


def test_every_claim_holds_of_the_published_table():
    for part in (TWO, DRAWN):
        assert all(claim.holds for claim in cifar10.claims_of(part, PUBLISHED[part]))


def test_the_published_table_has_the_gains_that_the_text_gives():
    gains = {
        (part, solver): PUBLISHED[part][f"FedNova, {solver}"] - PUBLISHED[part][f"FedAvg, {solver}"]
        for part in (TWO, DRAWN)
        for solver in ("vanilla", "momentum", "proximal")
    }
    assert gains[TWO, "vanilla"] == pytest.approx(5.63)
    assert gains[TWO, "proximal"] == pytest.approx(9.48)
    assert gains[DRAWN, "momentum"] == pytest.approx(6.63)


def test_an_order_fails_when_reversed_and_is_undecided_when_close():
    assert cifar10.higher("", {"a": 60.0, "b": 65.0}, "a", "b").holds is False
    assert cifar10.higher("", {"a": 65.2, "b": 65.0}, "a", "b").holds is None


def test_a_proximal_term_without_effect_is_noted():
    assert cifar10.proximal_without_effect(TWO, PUBLISHED[TWO]) == []
    repeated = {f"{m}, proximal": PUBLISHED[TWO][f"{m}, vanilla"] for m in ("FedAvg", "FedNova")}
    assert len(cifar10.proximal_without_effect(TWO, {**PUBLISHED[TWO], **repeated})) == 1


def test_fednova_must_be_a_hundred_times_below_both():
    of = {"FedAvg": [run(1e-3)], "FedProx": [run(5e-5)], "FedNova": [run(1e-6)]}
    assert not quadratics.far_below("", of).holds
    assert quadratics.far_below("", {**of, "FedProx": [run(1e-4)]}).holds


def test_growth_counts_as_divergence():
    assert math.isinf(quadratics.last(run(1.0, 1e7)))
    assert math.isinf(quadratics.last(run(1.0, 0.5, diverged=True)))
    assert quadratics.last(run(1.0, 0.5)) == pytest.approx(0.75)


def test_the_lowest_loss_is_compared_with_the_better_of_the_others():
    losses = {
        "FedAvg": OverSeeds((1.0,)),
        "FedProx": OverSeeds((0.5,)),
        "FedNova": OverSeeds((0.7,)),
    }
    assert not synthetic.lowest("", losses).holds
