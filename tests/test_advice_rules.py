"""The reasons for which methods are left out or recommended, and that they are true."""

import pytest
import torch

import undrift as ud
from advising import asked, names
from undrift.advice.rules import RULES
from undrift.core.sampling import All, Uniform
from undrift.methods.traffic import traffic_of
from undrift.theory import fixed_points
from undrift.verify import runs

SINGLE = ud.SGD(lr=0.1, batch_size=4, steps=1)
UNEQUAL = ud.SGD(lr=0.1, batch_size=4, steps={k: 1 + k for k in range(12)})
DRAWN = ud.SGD(lr=0.1, batch_size=4, epochs=ud.UniformAmount(2, 5))
NO_DRIFT = "there is no drift that its momentum could reduce, and it takes more traffic"
COUNTS_STEPS = "it counts clients with more steps for more, as FedAvg does, whatever its alpha"
FEW_GRADIENTS = "few gradients form its momentum, whose noise outweighs the bias that it removes"
NOISIER = "its momentum enlarges the noise of sampling clients that differ"
SAME_POINT = "it is faster than FedAvg, but converges to the same biased point"
LIKE_FEDAVG = "its step is longer than FedAvg's only where clients' moves differ much (B² > 2)"
UNSETTLED = "its step grows near the limit, so that the model does not settle"
ALL_PRESENT = "with all clients in every round it is equal to FedAvg"
ONE_CLIENT = "it may diverge if a round has one client, which takes many steps; MIFA does not"
STILL_DRIFTS = "it removes the noise of sampling, but clients that differ still drift"
EQUAL_WORK = "all clients do equal work, so it is equal to FedAvg"
SAME_STEPS = "it is exact only if all clients take the same number of steps"
OWN_MODELS = "clients are alike, so that models of their own have little to gain"

SITUATIONS = {
    "alike": {},
    "alike, sampled": {"cohort": 6},
    "alike, one": {"cohort": 1},
    "alike, one, single steps": {"cohort": 1, "local": SINGLE},
    "alike, unequal": {"local": UNEQUAL},
    "alike, drawn work": {"local": DRAWN},
    "differ": {"skewed": True},
    "differ, half": {"skewed": True, "cohort": 6},
    "differ, few": {"skewed": True, "cohort": 2},
    "differ, single steps": {"skewed": True, "local": SINGLE},
    "differ, unequal": {"skewed": True, "local": UNEQUAL},
}


@pytest.fixture(scope="module")
def reasons():
    """Why each method is left out, None if it is compared, by situation and name."""
    return {
        situation: {each.name: each.left_out for each in ud.advise(**asked(**options)).methods}
        for situation, options in SITUATIONS.items()
    }


@pytest.mark.parametrize(
    ("name", "situation", "reason"),
    [
        ("FedCM", "alike", NO_DRIFT),
        ("FedCM", "differ, single steps", NO_DRIFT),
        ("FedCM", "differ, unequal", COUNTS_STEPS),
        ("FedCM", "differ", None),
        ("FedCM", "differ, few", None),
        ("MimeLite", "alike", NO_DRIFT),
        ("MimeLite", "differ, single steps", NO_DRIFT),
        ("MimeLite", "differ, few", FEW_GRADIENTS),
        ("MimeLite", "differ", None),
        ("MimeLite", "differ, half", None),
        ("MimeLite", "differ, unequal", None),
        ("FedACG", "alike", None),
        ("FedACG", "alike, sampled", None),
        ("FedACG", "differ", SAME_POINT),
        ("FedACG", "differ, half", NOISIER),
        ("FedExP", "alike", LIKE_FEDAVG),
        ("FedExP", "differ", UNSETTLED),
        ("FedVARP", "alike", ALL_PRESENT),
        ("FedVARP", "alike, sampled", None),
        ("FedVARP", "alike, one", ONE_CLIENT),
        ("FedVARP", "differ, half", STILL_DRIFTS),
        ("MIFA", "alike", ALL_PRESENT),
        ("MIFA", "alike, sampled", None),
        ("MIFA", "alike, one", None),
        ("MIFA", "differ, half", STILL_DRIFTS),
        ("Scaffnew", "differ", None),
        (
            "Scaffnew",
            "differ, unequal",
            "all clients take the same number of steps, so that fast ones wait",
        ),
        ("FedADMM", "differ, half", "it does what FedDyn does, with twice the state"),
        (
            "FedSpeed",
            "differ",
            "it does what FedDyn does, towards a flatter point, with two gradients a step",
        ),
        (
            "FedSAM",
            "alike",
            "its steps cost two gradients: worth it if models fit the training data far better "
            "than the test data",
        ),
        ("FedNova", "differ", EQUAL_WORK),
        ("FedAvgMin", "differ", EQUAL_WORK),
        ("FedAvgMin", "alike, unequal", None),
        ("VRLSGD", "differ", None),
        ("VRLSGD", "differ, unequal", SAME_STEPS),
        ("VRLSGD", "alike, drawn work", SAME_STEPS),
        ("Ditto", "alike", OWN_MODELS),
        ("Ditto", "differ", None),
        (
            "PFedMe",
            "differ",
            "it serves the same purpose as Ditto, with more local work: R problems in a round",
        ),
        (
            "FedSplit",
            "differ",
            "it is FedDR without relaxation (alpha = 2), which needs an accurate local solver",
        ),
        (
            "FedPD",
            "differ",
            "with all clients in every round it does what FedDyn does, with twice the state",
        ),
        ("FedBuff", "differ", "it is for asynchronous training, which was not asked for"),
    ],
)
def test_a_method_is_left_out_for_a_reason(reasons, name, situation, reason):
    assert reasons[situation][name] == reason


def test_clients_without_state_follow_the_servers_direction_if_many_take_part():
    many = ud.advise(**asked(skewed=True, cohort=6), stateless=True)
    assert names(many) == ["FedCM", "MimeLite"]
    few = ud.advise(**asked(skewed=True, cohort=2), stateless=True)
    assert names(few) == ["FedProx", "FedAvg"]
    rule = next(rule for rule in RULES if rule.methods == ("FedCM", "MimeLite"))
    assert "alpha times" in rule.because and "(1 − beta)²" in rule.beside
    needs = {each.name: each.needs for each in many.methods}
    assert needs["MimeLite"] == ("a full gradient of each client per round",)
    assert needs["FedCM"] == ("gradient steps",)


RATE, STEPS, CLIENTS = 0.1, 5, 6
START = torch.full((4,), 3.0, dtype=torch.float64)


def clients(spread):
    """Clients whose minima lie apart by about the spread."""
    drawn = ud.theory.random_quadratics(CLIENTS, 4, spread=spread)
    return ud.theory.Quadratics(drawn.H, drawn.b, [10] * CLIENTS, initial=START)


PROBLEM = clients(spread=1.0)
SHARES = PROBLEM.weights("clients")
OPTIMUM = fixed_points.surrogate_optimum(PROBLEM.H, PROBLEM.b, SHARES)


def path(method, rounds, steps=STEPS, problem=PROBLEM, rate=RATE, cohort=None):
    """The models after each round."""
    sampler = All() if cohort is None else Uniform(cohort)
    return runs.path(runs.run_of(method, problem, ud.GD(lr=rate, steps=steps), sampler), rounds)


def bias(point):
    return float((point - OPTIMUM).norm())


def limit(of, steps=STEPS, **options):
    """The closed form of a method's limit with every client; `undrift verify` compares both."""
    taus = [steps] * CLIENTS if isinstance(steps, int) else steps
    return of(PROBLEM.H, PROBLEM.b, SHARES, RATE, taus, **options)


def spread(method, steps, cohort):
    """The root mean square distance from the optimum in the long run."""
    late = path(method, 250, steps, cohort=cohort)[50:] - OPTIMUM
    return float(late.square().sum(1).mean().sqrt())


@pytest.mark.parametrize("share", [0.05, 0.1, 0.3])
def test_the_biases_of_momentum_methods_are_shares_of_fedavgs(share):
    plain = bias(limit(fixed_points.fedavg))
    fedcm = limit(fixed_points.fedcm, alpha=share)
    assert bias(fedcm) == pytest.approx(share * plain, rel=0.1)
    mimelite = limit(fixed_points.mimelite, beta=1 - share)
    assert bias(mimelite) == pytest.approx(share**2 * plain, rel=0.1)


def test_the_runs_end_at_these_limits_and_fedprox_hardly_nearer_than_fedavg():
    plain = bias(limit(fixed_points.fedavg))
    assert bias(path(ud.FedCM(0.1), 150)[-1]) == pytest.approx(0.1 * plain, rel=0.1)
    assert bias(path(ud.MimeLite(0.9), 300)[-1]) == pytest.approx(0.01 * plain, rel=0.1)
    assert bias(path(ud.FedProx(0.2 / (RATE * STEPS)), 50)[-1]) > 0.9 * plain


def test_a_small_alpha_does_not_correct_unequal_work():
    steps = [1 + k for k in range(CLIENTS)]
    weights = SHARES * torch.tensor(steps)
    surrogate = fixed_points.surrogate_optimum(PROBLEM.H, PROBLEM.b, weights / weights.sum())
    found = limit(fixed_points.fedcm, steps, alpha=1e-4)
    assert (found - surrogate).norm() < 1e-3 < 0.05 < bias(found)
    mimelite = limit(fixed_points.mimelite, steps, beta=0.9)
    assert bias(mimelite) < 0.25 * bias(limit(fixed_points.fedavg, steps))


def test_single_steps_leave_no_bias_to_reduce_and_momentum_takes_traffic():
    assert bias(limit(fixed_points.fedavg, 1)) < 1e-12
    for method in (ud.FedCM(), ud.MimeLite()):
        assert len(traffic_of(method).down) == 2 > len(traffic_of(ud.FedAvg()).down)


def test_fedacg_is_faster_and_ends_where_fedprox_does():
    method = ud.FedACG(lam=0.85, beta=0.01)
    point = limit(fixed_points.fedprox, mu=0.01)
    assert (path(method, 150)[-1] - point).norm() < 1e-6
    assert bias(point) == pytest.approx(bias(limit(fixed_points.fedavg)), rel=0.01)
    slow, fast = (path(each, 20, rate=0.005)[-1] for each in (ud.FedAvg(), method))
    assert (fast - OPTIMUM).norm() < 0.5 * (slow - OPTIMUM).norm()


@pytest.mark.parametrize("cohort", [1, 3])
def test_sampling_clients_that_differ_makes_fedacg_noisier(cohort):
    assert spread(ud.FedACG(), STEPS, cohort) > 1.1 * spread(ud.FedAvg(), STEPS, cohort)


def test_with_few_clients_mimelite_is_no_nearer_to_the_optimum_than_fedavg():
    plain = spread(ud.FedAvg(), 20, 1)
    assert spread(ud.MimeLite(), 20, 1) > 1.1 * plain
    assert spread(ud.FedCM(), 20, 1) < plain


@pytest.mark.parametrize("spread", [0.1, 5.0])
def test_fedexp_steps_as_fedavg_while_clients_agree(spread):
    problem = clients(spread)
    gradients = problem.H @ START - problem.b
    square = float(gradients.mean(0).square().sum())
    dissimilar = float(gradients.square().sum(1).mean()) > 2 * square  # B² > 2
    assert dissimilar == (spread > 1)
    plain, found = (
        path(method, 1, steps=1, problem=problem)
        for method in (ud.FedAvg(), ud.FedExP(eps=1e-12, reports="last"))
    )
    assert torch.allclose(found, plain, atol=1e-12) == (not dissimilar)


def test_fedexp_does_not_settle_where_fedavg_does():
    restless, settled = (path(each, 120)[-50:] for each in (ud.FedExP(), ud.FedAvg()))
    assert restless.diff(dim=0).norm() > 0.01
    assert settled.diff(dim=0).norm() < 1e-8


@pytest.mark.parametrize("method", [ud.FedVARP(), ud.MIFA()], ids=str)
def test_without_the_noise_of_sampling_clients_still_drift(method):
    point = limit(fixed_points.fedavg)
    assert (path(method, 200, cohort=3)[-1] - point).norm() < 1e-6
    assert bias(point) > 0.01
    assert torch.allclose(path(method, 10), path(ud.FedAvg(), 10), atol=1e-12)


def spheres(sizes):
    """f_k = ½|x − e_k|² on twelve clients, and the optimum."""
    e = torch.randn(12, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    problem = ud.theory.Quadratics(torch.eye(2).expand(12, 2, 2).double(), e, sizes=sizes)
    return problem, (torch.tensor(sizes).double() / sum(sizes)) @ e


def error_of_fedvarp(start, chosen, q, c):
    """The error after rounds of one client each, by the recursion on FedVARP's page.

    With weights that differ it is x − c Σ q_k z_k + N q_i c(z_i − x); z_k is the error when client
    k last took part. One that did not yet has no move, as if it had been at its own minimum.
    """
    x, z = start[-1], start[:-1].clone()
    for i in chosen:
        x, z[i] = x - c * (q @ z) + len(q) * q[i] * c * (z[i] - x), x
    return x


@pytest.mark.parametrize("equal", [True, False])
def test_fedvarp_with_one_client_in_a_round_and_many_steps_does_not_settle(equal):
    """So it is by the method's formulas: the recursion that follows from them does the same."""
    sizes = [5] * 12 if equal else [1 + k for k in range(12)]
    problem, optimum = spheres(sizes)
    q = torch.tensor(sizes).double() / sum(sizes)

    def run(method):
        local = ud.GD(lr=0.3, steps=20)
        return ud.train(method, problem=problem, local=local, rounds=400, cohort=1)

    found = run(ud.FedVARP())
    chosen = [int(record.cohort[0]) for record in found.records[1:]]
    start = torch.cat([problem.b, torch.zeros(1, 2)]) - optimum
    predicted = error_of_fedvarp(start, chosen, q, c=1 - 0.7**20)
    assert torch.allclose(found.x - optimum, predicted, rtol=1e-8, atol=1e-10)
    assert (found.x - optimum).norm() > (0.1 if equal else 100)
    overshooting = error_of_fedvarp(start, chosen * 10, q, c=1.1)
    assert overshooting.norm() > 1e6
    for settled in (ud.MIFA(), ud.FedVARP(ud.server.Plain(0.5))):
        assert (run(settled).x - optimum).norm() < 0.01


def test_fedadmm_and_fedspeed_do_what_feddyn_does():
    rho = 1 / (RATE * STEPS)
    feddyn = path(ud.FedDyn(rho), 40)
    assert torch.allclose(path(ud.FedADMM(rho), 40), feddyn, atol=1e-12)
    assert torch.allclose(path(ud.FedSpeed(1 / rho, rho=0), 40), feddyn, atol=1e-12)
    assert bias(feddyn[-1]) < 1e-6
    kept = [traffic_of(each).kept_vectors for each in (ud.FedDyn(rho), ud.FedADMM(rho))]
    assert kept == [1, 2]
    assert traffic_of(ud.FedSpeed()).gradients_per_step == 2
