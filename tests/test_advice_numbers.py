"""What advice measures, against closed forms and NumPy."""

import itertools

import numpy as np
import pytest
import torch

import undrift as ud
from advising import asked, labelled
from undrift.advice import gradients as measuring
from undrift.advice import participation as participation_module
from undrift.advice.facts import expected_distance
from undrift.advice.sentences import meaning
from undrift.advice.starting import PULL_PER_ROUND
from undrift.nets.module_losses import ModuleLosses

STEPS = {0: 1, 1: 2, 2: 5}
SIZES = [10, 20, 30]


def three(local, **options):
    """Three clients of unequal sizes."""
    data = labelled(3, each=30)
    pairs = [(data.client(k)[0][:n], data.client(k)[1][:n]) for k, n in enumerate(SIZES)]
    data = ud.data.FederatedData.from_clients(pairs)
    return ud.advise(**asked(data=data, local=local, **options))


def test_weights_chi_square_and_tau_eff_of_plain_sgd():
    q = np.array(SIZES) / 60
    tau = np.array([1.0, 2.0, 5.0])
    w = q * tau / (q * tau).sum()
    work = three(ud.SGD(lr=0.1, batch_size=5, steps=STEPS)).facts.work
    np.testing.assert_allclose(work.q, q)
    np.testing.assert_allclose(work.w, w)
    assert work.chi_square == pytest.approx(((q - w) ** 2 / w).sum())
    assert work.tau_eff == pytest.approx((q * tau).sum())
    assert work.over == (2, pytest.approx(w[2] / q[2]))
    assert work.under == (0, pytest.approx(w[0] / q[0]))


@pytest.mark.parametrize("objective", ["samples", "clients"])
def test_momentum_and_epochs_count_as_they_accumulate(objective):
    rho = 0.9
    q = np.array(SIZES) / 60 if objective == "samples" else np.full(3, 1 / 3)
    tau = np.array([2 * 2, 2 * 4, 2 * 6])  # two epochs in batches of five
    a = (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)
    w = q * a / (q * a).sum()
    local = ud.SGD(lr=0.1, batch_size=5, epochs=2, momentum=rho)
    work = three(local, objective=objective).facts.work
    np.testing.assert_allclose(work.w, w)
    assert work.chi_square == pytest.approx(((q - w) ** 2 / w).sum())
    assert work.tau_eff == pytest.approx((q * a).sum())


def test_the_numbers_are_those_of_the_run_itself():
    options = asked(local=ud.SGD(lr=0.1, batch_size=4, steps={k: 1 + k for k in range(12)}))
    result = ud.train(ud.FedAvg(), **options | {"rounds": 1})
    found = result.records[-1].diagnostics
    work = ud.advise(**options).facts.work
    assert work.chi_square == pytest.approx(found["chi_square"])
    assert work.tau_eff == pytest.approx(found["tau_eff"])


def test_gradients_are_those_of_inspect_where_all_are_measured():
    options = asked(skewed=True)
    found = ud.advise(**options).facts.gradients
    wanted = options["data"].describe(options["model"]).gradients
    assert found.everything
    assert found.ratio == pytest.approx(wanted.ratio, rel=1e-4)
    assert found.variance == pytest.approx(wanted.variance, rel=1e-4)


def test_chance_explains_what_equal_clients_differ_by():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200 * 6, 8, generator=generator)
    y = (x[:, 0] + torch.randn(1200, generator=generator) > 0).long()
    pairs = zip(x.split(6), y.split(6), strict=True)
    data = ud.data.FederatedData.from_clients(list(pairs))
    facts = ud.advise(**asked(data=data, model=ud.models.logistic(8, 2))).facts
    assert facts.gradients.clients == measuring.SAMPLED_CLIENTS and not facts.gradients.everything
    assert facts.gradients.ratio > 2 > facts.gradients.beyond_chance
    assert facts.labels.distance == pytest.approx(facts.labels.chance, abs=0.05)
    assert not facts.dissimilar


def test_the_curvature_of_quadratics_is_their_largest_eigenvalue():
    problem = ud.theory.random_quadratics(4, 3)
    found = ud.advise(problem=problem, local=ud.GD(lr=0.1, steps=3)).facts.curvature.L
    wanted = float(np.linalg.eigvalsh(problem.H.numpy()).max())
    assert wanted * 0.95 < found <= wanted * (1 + 1e-6)
    decayed = ud.advise(problem=problem, local=ud.GD(lr=0.1, steps=3, weight_decay=2.0))
    assert pytest.approx(found + 2) == decayed.facts.curvature.L


def test_the_distance_that_chance_alone_gives():
    p, n = np.array([0.5, 0.3, 0.2]), 4
    wanted = 0.0
    for labels in itertools.product(range(3), repeat=n):
        counts = np.bincount(labels, minlength=3) / n
        wanted += np.prod(p[list(labels)]) * np.abs(counts - p).sum() / 2
    assert expected_distance(p, np.array([n, 1, n]))[[0, 2]] == pytest.approx(wanted)
    assert expected_distance(np.array([1.0]), np.array([5])) == pytest.approx(0)


def test_starting_values_come_from_the_reach_of_a_round():
    facts = (advice := ud.advise(**asked(skewed=True, cohort=2))).facts
    reach = 0.1 * 2 * 3  # the rate, two epochs of three steps
    found = {each.name: each.method for each in advice.methods}
    assert found["FedDyn"].alpha == pytest.approx(1 / reach, rel=0.05)
    assert found["FedProx"].mu == pytest.approx(PULL_PER_ROUND / reach, rel=0.05)
    assert found["FedDR"].eta == pytest.approx(reach, rel=0.05)
    assert facts.work.progress_mean == 6


def test_no_clients_pull_overshoots_with_the_proposed_alpha():
    local = ud.SGD(lr=0.1, batch_size=5, steps=2)
    advice = three(local)
    alpha = next(each.method.alpha for each in advice.methods if each.name == "FedDyn")
    scale = 60 / 3 / np.array(SIZES)  # 1/(N q_k)
    assert (0.1 * alpha * scale).max() == pytest.approx(1, rel=0.05)


def test_delays_and_waiting_are_those_of_the_clock():
    fleet = ud.Devices(speed=ud.devices.Ladder(10, 100))
    facts = ud.advise(**asked(devices=fleet, pace=ud.AsTheyArrive(concurrency=4))).facts
    assert facts.delays.concurrency == 4
    assert facts.delays.mean == pytest.approx(3, rel=0.1)  # three others reply meanwhile
    assert facts.delays.most >= 3
    waits = ud.advise(**asked(devices=fleet)).facts
    times = 1 / np.linspace(10, 100, 12)
    assert waits.clock.seconds == pytest.approx(6 * times.max(), rel=1e-3)
    assert waits.clock.idle == pytest.approx(1 - times.mean() / times.max(), abs=0.02)


def test_a_large_model_is_measured_on_fewer_samples(monkeypatch):
    data = labelled(12, each=40)
    losses = ModuleLosses(ud.models.logistic(4, 4), data)
    assert measuring.operations(losses) == 3 * 2 * (4 * 4 + 4)
    assert ud.advise(**asked(data=data)).facts.gradients.everything
    room = 96  # samples: as if each took much longer
    monkeypatch.setattr(measuring, "OPERATIONS", room * measuring.operations(losses))
    facts = ud.advise(**asked(data=data)).facts
    assert (facts.gradients.clients, facts.gradients.samples) == (6, 96)
    assert any("on 96 samples of 6 clients" in each for each in meaning(facts))


def test_operations_are_counted_for_every_place_of_an_image():
    images = torch.zeros(4, 3, 32, 32)
    data = ud.data.FederatedData.from_clients([(images, torch.arange(4))])
    losses = ModuleLosses(ud.models.cifar_cnn(10), data)
    first = (3 * 5 * 5 + 1) * 64 * 28 * 28
    second = (64 * 5 * 5 + 1) * 64 * 10 * 10
    dense = (1600 + 1) * 384 + (384 + 1) * 192 + (192 + 1) * 10
    assert measuring.operations(losses) == 3 * 2 * (first + second + dense)


def test_drawn_work_is_looked_at_often_enough_to_average_out(monkeypatch):
    examined = 50 * participation_module.EXAMINED_ROUNDS
    monkeypatch.setattr(participation_module, "EXAMINED_CLIENTS", examined)
    problem = ud.theory.random_quadratics(80, 1)
    drawn = ud.GD(lr=0.01, steps=ud.NormalAmount(30, 20, low=1, high=96))
    work = ud.advise(problem=problem, local=drawn, cohort=10, objective="clients").facts.work
    assert (work.clients, work.varies) == (50, True)
    assert work.chi_square < 0.01  # one draw each would give about 0.3
