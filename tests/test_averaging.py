"""Averaging schemes: their formulas and their expected values."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import undrift as ud
from undrift.core.clients import Roster
from undrift.core.replies import Replies
from undrift.methods.common.schemes import SCHEMES

SIZES = [1, 2, 3, 10]
MOVED = torch.tensor([[1.0, 0.0], [0.0, 2.0], [-3.0, 1.0], [4.0, 4.0]], dtype=torch.float64)
X = torch.tensor([10.0, -7.0], dtype=torch.float64)


def folded(scheme, cohort, objective="samples"):
    """The server's model after clients of a cohort moved as given."""
    roster = Roster(list(range(4)), torch.tensor(SIZES), objective)
    method = ud.FedAvg(scheme)
    replies = Replies(method.sums(), 4)
    for k, drawn in cohort.items():
        replies.add(roster.client(k, drawn), ud.Upload(moved=MOVED[k]))
    return method.fold(method.init(X), replies).x, roster.weights


def pairs():
    return [dict.fromkeys(pair, 1) for pair in itertools.combinations(range(4), 2)]


def test_schemes_are_their_formulas():
    cohort = {1: 1, 3: 1}
    models = X + MOVED
    _, q = folded("original", cohort)
    expected = {
        "original": q[1] * models[1] + q[3] * models[3] + (1 - q[1] - q[3]) * X,
        "I": (models[1] + models[3]) / 2,
        "II": 4 / 2 * (q[1] * models[1] + q[3] * models[3]),
        "transformed II": (models[1] + models[3]) / 2,
        "renormalised": (q[1] * models[1] + q[3] * models[3]) / (q[1] + q[3]),
        "II-delta": X + 4 / 2 * (q[1] * MOVED[1] + q[3] * MOVED[3]),
    }
    for scheme, wanted in expected.items():
        torch.testing.assert_close(folded(scheme, cohort)[0], wanted)
    everyone = dict.fromkeys(range(4), 1)
    torch.testing.assert_close(folded("full", everyone)[0], q @ models)
    torch.testing.assert_close(folded("I", {0: 3, 2: 1})[0], (3 * models[0] + models[2]) / 4)


@pytest.mark.parametrize("objective", ["samples", "clients"])
def test_ii_and_ii_delta_are_unbiased_and_renormalised_is_not(objective):
    _, q = folded("II", pairs()[0], objective)
    wanted = X + q @ MOVED

    def average(scheme):
        return torch.stack([folded(scheme, pair, objective)[0] for pair in pairs()]).mean(0)

    torch.testing.assert_close(average("II"), wanted)
    torch.testing.assert_close(average("II-delta"), wanted)
    biased = float((average("renormalised") - wanted).norm())
    assert biased < 1e-12 if objective == "clients" else biased > 0.1


def test_scheme_one_is_unbiased_under_draws_by_weight():
    _, q = folded("I", {0: 2})
    mean = torch.zeros(2, dtype=torch.float64)
    for i, j in itertools.product(range(4), repeat=2):
        cohort = {i: 2} if i == j else {i: 1, j: 1}
        mean += q[i] * q[j] * folded("I", cohort)[0]
    torch.testing.assert_close(mean, X + q @ MOVED)


@given(
    st.sampled_from(sorted(set(SCHEMES) - {"II", "full"})), st.sets(st.integers(0, 3), min_size=1)
)
@settings(deadline=None)
def test_clients_that_do_not_move_leave_the_server_where_it_is(scheme, cohort):
    roster = Roster(list(range(4)), torch.tensor(SIZES))
    method = ud.FedAvg(scheme)
    replies = Replies(method.sums(), 4)
    for k in cohort:
        replies.add(roster.client(k), ud.Upload(moved=torch.zeros(2, dtype=torch.float64)))
    assert torch.equal(method.fold(method.init(X), replies).x, X)


def test_scheme_two_moves_the_server_even_if_no_client_moves():
    roster = Roster(list(range(4)), torch.tensor(SIZES))
    method = ud.FedAvg("II")
    replies = Replies(method.sums(), 4)
    replies.add(roster.client(3), ud.Upload(moved=torch.zeros(2, dtype=torch.float64)))
    torch.testing.assert_close(method.fold(method.init(X), replies).x, 4 * 10 / 16 * X)


REFUSED = [
    (ud.FedAvg("full"), ud.Uniform(2), "only when every client takes part"),
    (ud.FedAvg("I"), ud.Uniform(2), "drawn with probability q_k"),
    (ud.FedAvg("I"), ud.All(), "drawn with probability q_k"),
    (ud.FedAvg("II-delta"), ud.Weighted(2), "for uniform sampling"),
    (ud.FedProx(0.1, "renormalised"), ud.Weighted(2), "FedProx weights"),
    (ud.FedNova(), ud.Weighted(2), "FedNova weights"),
    (ud.FedNova(weights="I"), ud.Uniform(2), "FedNova takes the plain mean"),
    (ud.FedLGA(), ud.Uniform(2), "FedLGA takes the plain mean"),
    (ud.FedPD(), ud.Uniform(2), "FedPD is defined only when every client takes part"),
    (ud.FedSplit(), ud.Uniform(2), "FedSplit is defined only"),
    (ud.VRLSGD(), ud.Bernoulli(0.5), "VRLSGD is defined only"),
]


@pytest.mark.parametrize(("method", "sampler", "words"), REFUSED, ids=str)
def test_undefined_combinations_are_rejected(method, sampler, words):
    losses = ud.theory.random_quadratics(4, 2, sizes=SIZES)
    setting = dict(problem=losses, local=ud.GD(lr=0.1, steps=1), rounds=1, cohort=sampler)
    with pytest.raises(ud.UndriftError) as error:
        ud.train(method, **setting)
    assert words in str(error.value)
    if not method.needs_all and "every client" not in words:
        ud.train(method, **setting, objective="clients")  # defined with equal weights


@pytest.mark.parametrize("method", [ud.SCAFFOLD(), ud.FedNova(), ud.VRLSGD(), ud.FedLGA()])
def test_methods_that_count_steps_refuse_the_exact_solver(method):
    losses = ud.theory.random_quadratics(4, 2, sizes=[1] * 4)
    with pytest.raises(ud.UndriftError, match="number of gradient steps"):
        ud.train(method, problem=losses, local=ud.Exact(), rounds=1)
