"""Which methods are recommended, for federations where the answer is known."""

import json
import re

import pytest

import undrift as ud
from advising import asked, labelled, names
from undrift.advice.rules import RULES
from undrift.advice.starting import STARTS

UNEQUAL = ud.SGD(lr=0.1, batch_size=4, steps={k: 1 + k for k in range(12)})
FLEET = ud.Devices(speed=ud.devices.Ladder(10, 100))


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, ["FedAvg"]),
        ({"local": UNEQUAL}, ["FedNova", "SCAFFOLD"]),
        ({"local": UNEQUAL, "skewed": True}, ["SCAFFOLD", "FedNova"]),
        ({"local": UNEQUAL, "skewed": True, "cohort": 2}, ["FedDyn", "FedNova"]),
        ({"skewed": True, "cohort": 2}, ["FedDyn", "SCAFFOLD"]),
        ({"skewed": True}, ["SCAFFOLD", "FedDyn"]),
        ({"skewed": True, "local": ud.SGD(lr=0.1, steps=1)}, ["FedAvg"]),
        ({"regularizer": ud.L1(0.01)}, ["FedDR"]),
        ({"devices": FLEET, "pace": ud.AsTheyArrive()}, ["AsyncFedDR", "FedBuff"]),
        (
            {"devices": FLEET, "pace": ud.AsTheyArrive(), "regularizer": ud.L1(0.01)},
            ["AsyncFedDR"],
        ),
        ({"devices": FLEET, "skewed": True}, ["SCAFFOLD", "AsyncFedDR"]),
    ],
)
def test_the_answer_is_the_known_one(options, wanted):
    assert names(ud.advise(**asked(**options))) == wanted


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, ["FedAvg"]),
        ({"local": UNEQUAL, "skewed": True, "cohort": 2}, ["FedNova"]),
        ({"skewed": True, "cohort": 2}, ["FedProx", "FedAvg"]),
        ({"devices": FLEET, "pace": ud.AsTheyArrive()}, ["FedBuff"]),
        ({"regularizer": ud.Box(-1, 1)}, []),
    ],
)
def test_clients_that_keep_nothing_get_no_method_with_state(options, wanted):
    advice = ud.advise(**asked(**options), stateless=True)
    assert names(advice) == wanted
    compared = [each for each in advice.methods if each.left_out is None]
    assert not any(each.kept or each.method.kept() for each in compared)
    assert "needs state" in {e.name: e for e in advice.methods}["SCAFFOLD"].left_out or not wanted


def test_what_is_kept_is_of_no_use_to_clients_that_are_hardly_seen_twice():
    few = asked(skewed=True, cohort=1, rounds=20)  # 20/12 visits a client
    advice = ud.advise(**few)
    assert advice.facts.hardly_seen_again and names(advice) == ["FedProx", "FedAvg"]
    assert any("takes part 1.7 times in the whole run" in each for each in advice.meaning)
    assert names(ud.advise(**few | {"rounds": 60})) == ["FedDyn", "SCAFFOLD"]


def test_a_deadline_makes_work_unequal():
    local = ud.SGD(lr=0.1, batch_size=4, steps=10)
    fast = ud.advise(**asked(local=local, devices=FLEET, pace=ud.Deadline(2.0)))
    slow = ud.advise(**asked(local=local, devices=FLEET, pace=ud.Deadline(0.25)))
    assert names(fast) == ["FedAvg"] and fast.facts.work.unfinished == 0
    assert names(slow) == ["FedNova", "SCAFFOLD"] and slow.facts.work.unfinished == pytest.approx(
        4 / 12
    )
    assert slow.facts.work.steps_least == 2 and slow.facts.work.steps_most == 10
    none = ud.advise(**asked(local=local, devices=FLEET, pace=ud.Deadline(0.05)))
    assert none.facts.work.never == 2  # the two with less than 20 steps a second
    assert any("2 clients never finish a step" in each for each in none.meaning)


def test_work_that_is_drawn_anew_every_round_favours_nobody():
    drawn = ud.SGD(lr=0.1, batch_size=4, epochs=ud.UniformAmount(2, 5))
    own = ud.SGD(lr=0.1, batch_size=4, epochs=ud.UniformAmount(1, 9, per="client"))
    advice = ud.advise(**asked(local=drawn))
    assert advice.facts.work.varies and not advice.facts.unequal
    assert ud.advise(**asked(local=own)).facts.unequal


def test_who_is_hardly_ever_there_is_told():
    first = ud.advise(**asked(devices=FLEET, pace=ud.FirstToRespond(6)))
    assert first.facts.participation.never == 6
    assert any("6 never reply" in each for each in first.meaning)


def test_every_method_is_compared_or_left_out_with_a_reason():
    advice = ud.advise(**asked(skewed=True, cohort=2))
    assert {each.name for each in advice.methods} == set(STARTS) == set(ud.METHODS)
    for each in advice.methods:
        assert (each.left_out is None) or each.left_out[0].islower() or "FedDR" in each.left_out
    found = {each.name: each for each in advice.methods}
    vector = 4 * (4 * 4 + 4)
    assert (found["FedAvg"].down, found["FedAvg"].up, found["FedAvg"].kept) == (vector, vector, 0)
    scaffold = found["SCAFFOLD"]
    assert (scaffold.down, scaffold.up, scaffold.kept) == (2 * vector, 2 * vector, vector)
    assert (found["FedDR"].kept, found["FedDyn"].server) == (2 * vector, 2 * vector)
    assert found["FedAvg"].gradients == 2 * 12  # two epochs of twelve samples
    assert "every client" in found["FedPD"].left_out


def test_the_rules_are_read_from_the_top_and_the_last_always_holds():
    assert [rule.name for rule in RULES][-1] == "otherwise"
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert all(set(rule.methods) <= set(STARTS) for rule in RULES)
    assert all(bool(rule.beside) == (len(rule.methods) == 2) for rule in RULES)


def test_what_is_recommended_runs_as_it_is():
    options = asked(skewed=True, cohort=2)
    advice = ud.advise(**options)
    for method in advice.recommended:
        result = ud.train(method, **options | {"rounds": 40})
        assert result.metrics["train_accuracy"] > 0.9


def test_a_learning_rate_is_proposed_where_none_is_given():
    advice = ud.advise(**asked(local=None))
    L = advice.facts.curvature.L
    assert advice.local.lr == pytest.approx(1 / L, rel=0.05)
    assert advice.local.epochs == 1
    assert any("No learning rate was given" in each for each in advice.meaning)
    wild = ud.advise(**asked(local=ud.SGD(lr=100.0)))
    assert any("where gradient descent on a quadratic diverges" in each for each in wild.meaning)


def test_an_exact_solver_and_an_analytic_problem_are_understood():
    problem = ud.theory.random_quadratics(5, 3)
    advice = ud.advise(problem=problem, local=ud.Exact(), rounds=50)
    assert advice.facts.work is None and advice.facts.labels is None
    assert names(advice) == ["SCAFFOLD", "FedDyn"]
    assert advice.recommended[0].option == "I"  # there are no steps to divide by
    for method in advice.recommended:
        ud.train(method, problem=problem, local=ud.Exact(), rounds=2)


def test_clients_drawn_by_weight_get_methods_that_are_defined_for_that():
    data = labelled(6)
    sizes = torch_sizes(data, [4, 12, 12, 12, 12, 12])
    advice = ud.advise(**asked(data=sizes, cohort=ud.Weighted(3)))
    assert advice.recommended[0].weights == "I"
    ud.train(advice.recommended[0], **asked(data=sizes, cohort=ud.Weighted(3), rounds=1))


def torch_sizes(data, sizes):
    pairs = [(data.client(k)[0][:n], data.client(k)[1][:n]) for k, n in enumerate(sizes)]
    return ud.data.FederatedData.from_clients(pairs)


def test_it_is_shown_as_text_json_and_html():
    advice = ud.advise(**asked(skewed=True, cohort=2, devices=FLEET))
    text = advice.summary()
    assert max(map(len, text.splitlines())) <= 80
    for head in ("What this means", "Recommended", "Left out", "What this cannot tell"):
        assert head in text
    assert str(advice) == text and repr(advice).startswith("Advice(FedDyn(alpha=")
    found = json.loads(advice.to_json())
    assert found["recommended"][0].startswith("FedDyn(") and found["facts"]["answers"]["few"]
    assert found["methods"][0]["parameters"]["alpha"] == advice.recommended[0].alpha
    page = advice._repr_html_()
    assert page.count("<tr>") == 1 + sum(each.left_out is None for each in advice.methods)
    assert not re.search(r"<(script|style)", page)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"pace": {"FedAvg": ud.WaitForAll()}}, "there are no methods yet"),
        ({"local": 3}, "local is 3, but must be what clients run"),
        ({"regularizer": 0.1}, "regularizer is 0.1, but must be ud.L1"),
        ({"stateless": 1}, "stateless is 1, but must be True or False"),
        ({"cohort": 99}, "99"),
        ({"modle": None}, "did you mean 'model'"),
    ],
)
def test_what_cannot_be_answered_is_refused_with_a_sentence(options, sentence):
    with pytest.raises(ud.UndriftError, match=re.escape(sentence)):
        ud.advise(**asked() | options)
