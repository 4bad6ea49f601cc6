"""Loops check the cohorts that a sampler returns, because a sampler may be a user's own class."""

import json

import numpy as np
import pytest

import undrift as ud

LOSSES = ud.theory.random_quadratics(4, 2)


class Returning(ud.Sampler):
    """A sampler that returns what it is given, or calls it with the round and the mask."""

    participation = "fixed"

    def __init__(self, value):
        self.value = value

    def draw(self, roster, seed, round, among=None):
        return self.value(round, among) if callable(self.value) else self.value


def run(value, rounds=3, **options):
    local = ud.GD(lr=0.1, steps=1)
    sampler = Returning(value)
    return ud.train(
        ud.FedAvg(), problem=LOSSES, local=local, rounds=rounds, cohort=sampler, **options
    )


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([0, 1], r"Returning.draw returned for round 1 \[0, 1\], but must return a dict"),
        (None, "returned for round 1 None, but must return a dict from client ids to draws"),
        (np.array([0]), r"array\(\[0\]\), but must return a dict"),
        ({0: 1, 9: 1}, "the client 9, which does not exist: choose from roster.ids, such as 0"),
        ({"0": 1}, "the client '0', which does not exist"),
        ({0: 0}, "0 as the draws of client 0, but draws must be a whole number of at least 1"),
        ({0: -1}, "-1 as the draws of client 0"),
        ({0: 0.5}, "0.5 as the draws of client 0"),
        ({0: True}, "True as the draws of client 0"),
        ({0: None}, "None as the draws of client 0"),
        ({0: 1, 1: "once"}, "'once' as the draws of client 1"),
        ([7] * 1000, r"round 1 \[7, 7, .{40,60}…, but must return a dict"),
    ],
    ids=str,
)
def test_a_wrong_cohort_is_refused_with_a_sentence_that_names_the_sampler(value, words):
    with pytest.raises(ud.UndriftError, match=words) as error:
        run(value)
    assert str(error.value).startswith("Returning.draw returned for round 1 ")
    assert str(error.value).count(". ") == 0


def test_the_sentence_names_the_round():
    with pytest.raises(ud.UndriftError, match="draw returned for round 3 "):
        run(lambda round, among: {0: 1} if round < 2 else {5: 1})


def test_a_sampler_must_respect_who_is_available():
    devices = ud.Devices(speed=10.0, availability=ud.devices.Duty(7.0, 0.5))
    with pytest.raises(ud.UndriftError, match=r"client \d, which is not available: .* `among`"):
        run(lambda round, among: dict.fromkeys(range(4), 1), rounds=20, devices=devices)
    found = run(
        lambda round, among: {k: 1 for k in range(4) if among[k]}, rounds=20, devices=devices
    )
    assert len(found.records) == 21


def test_numpy_integers_serve_as_ids_and_draws(tmp_path):
    drawn = run(lambda round, among: dict.fromkeys(np.arange(2), np.int64(2)), out=tmp_path / "a")
    plain = run({0: 2, 1: 2})
    assert (drawn.x == plain.x).all()
    assert [type(id) for id in drawn.records[1].cohort] == [int, int]
    lines = (tmp_path / "a" / "FedAvg" / "seed-0" / "records.jsonl").read_text().splitlines()
    assert json.loads(lines[1])["cohort"] == [0, 1]


def test_an_empty_cohort_is_a_round_without_replies():
    found = run(lambda round, among: {0: 1} if round != 1 else {})
    assert [len(record.cohort) for record in found.records[1:]] == [1, 0, 1]
    assert [record.updates for record in found.records[1:]] == [1, 0, 1]
