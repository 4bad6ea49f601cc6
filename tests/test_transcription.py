"""Every method against its NumPy transcription: 20 rounds, unequal clients, double precision."""

import numpy as np
import pytest
import torch

import transcription as paper
import undrift as ud
from undrift.core.clients import Roster
from undrift.local.schedules import Schedule
from undrift.methods.common.server_optimizers import Adagrad, Adam, Momentum, Plain, Yogi

ROUNDS, CLIENTS, COHORT = 20, 7, 3
STEPS = {k: 1 + (3 * k) % 5 for k in range(CLIENTS)}


class Slope(Schedule):
    """A step schedule that is neither constant nor geometric."""

    def at(self, round):
        return 1 / (1 + 0.3 * round)


def federation(size):
    """Unequal clients; `size` is that of the gradients, which FedLGA's literal form feels."""
    drawn = ud.theory.random_quadratics(CLIENTS, dimension=4, spread=2.0, seed=3)
    x0 = torch.tensor([0.3, -1.0, 0.5, 2.0])
    return ud.theory.Quadratics(drawn.H, size * drawn.b, drawn.sizes, initial=size * x0)


LOCAL = {
    "plain": ({}, {}),
    "momentum": ({"momentum": 0.8}, {"momentum": 0.8}),
    "nesterov": (
        {"momentum": 0.8, "nesterov": True},
        {"momentum": 0.8, "nesterov": True},
    ),
    "decay, clip": (
        {"weight_decay": 0.1, "clip": 0.7},
        {"weight_decay": 0.1, "clip": 0.7},
    ),
    "schedules": (
        {"lr": ud.Exponential(0.05, 0.97), "step_schedule": Slope(), "momentum": 0.5},
        {
            "lr": 0.05,
            "rate": lambda t: 0.97**t,
            "factor": lambda s: 1 / (1 + 0.3 * s),
            "momentum": 0.5,
        },
    ),
    "own rate": ({}, {"own": lambda k: 0.5 if k == 2 else 1.0}),
}


def solvers(name):
    """The same local work for the library and for the transcription."""
    ours, theirs = LOCAL[name]
    sgd = ud.GD(**{"lr": 0.05, "steps": STEPS, **ours})
    local = paper.Local(**{"lr": 0.05, "steps": lambda k, t: STEPS[k], **theirs})
    if name == "own rate":
        slow = ud.GD(lr=0.025, steps=STEPS)
        return ud.PerClient(sgd, {2: slow}), local
    return sgd, local


def soft(x, eta):
    return paper.soft_threshold(x, 0.1 * eta)


ANY, ALL, BY_WEIGHT = "uniform", "all", "weighted"
CASES = {
    "DistributedSGD": (ud.DistributedSGD(), paper.distributed_sgd, {}, ANY),
    **{
        f"FedAvg {scheme}": (ud.FedAvg(scheme), paper.fedavg, {"scheme": scheme}, sampling)
        for scheme, sampling in {
            "full": ALL,
            "original": ANY,
            "I": BY_WEIGHT,
            "II": ANY,
            "transformed II": ANY,
            "renormalised": ANY,
            "II-delta": ANY,
        }.items()
    },
    "FedAvg server lr": (
        ud.FedAvg(server=Plain(0.5)),
        paper.fedavg,
        {"server_lr": 0.5},
        ANY,
    ),
    **{
        f"FedAvg {kind}": (
            ud.FedAvg(server=optimizer),
            paper.fedavg_server,
            {"kind": kind, "lr": 0.2, "beta1": 0.7, "beta2": 0.9, "tau": 1e-2},
            ANY,
        )
        for kind, optimizer in {
            "momentum": Momentum(0.7, lr=0.2),
            "adam": Adam(0.2, 0.7, 0.9, 1e-2),
            "yogi": Yogi(0.2, 0.7, 0.9, 1e-2),
            "adagrad": Adagrad(0.2, 0.7, 0.9, 1e-2),
        }.items()
    },
    "FedAvgMin": (ud.FedAvgMin(), paper.fedavg_min, {}, ANY),
    "FedProx": (ud.FedProx(0.3), paper.fedprox, {"mu": 0.3}, ANY),
    "FedProx I": (ud.FedProx(0.3, "I"), paper.fedprox, {"mu": 0.3, "scheme": "I"}, BY_WEIGHT),
    "FedProx inside": (
        ud.FedProx(0.3, pull_inside_momentum=True),
        paper.fedprox,
        {"mu": 0.3, "inside": True},
        ANY,
    ),
    "FedSAM": (ud.FedSAM(0.2), paper.fedsam, {"rho": 0.2}, ANY),
    "FedSAM transformed II": (
        ud.FedSAM(0.2, "transformed II", Plain(0.8)),
        paper.fedsam,
        {"rho": 0.2, "scheme": "transformed II", "server_lr": 0.8},
        ANY,
    ),
    "SCAFFOLD II": (ud.SCAFFOLD(), paper.scaffold, {}, ANY),
    "SCAFFOLD II by weight": (ud.SCAFFOLD(), paper.scaffold, {}, BY_WEIGHT),
    "SCAFFOLD I": (
        ud.SCAFFOLD("I", server=Plain(0.7)),
        paper.scaffold,
        {"option": "I", "server_lr": 0.7},
        ANY,
    ),
    "VRLSGD": (ud.VRLSGD(), paper.vrlsgd, {}, ALL),
    "FedNova": (ud.FedNova(), paper.fednova, {}, ANY),
    "FedNova I": (ud.FedNova(weights="I"), paper.fednova, {"weights": "I"}, BY_WEIGHT),
    "FedNova prox": (ud.FedNova(mu=0.4), paper.fednova, {"mu": 0.4}, ANY),
    "FedNova prox, progress": (
        ud.FedNova(mu=0.4, tau_eff="progress"),
        paper.fednova,
        {"mu": 0.4, "tau_eff": "progress"},
        ANY,
    ),
    "FedNova steps": (ud.FedNova(tau_eff="steps"), paper.fednova, {"tau_eff": "steps"}, ANY),
    "FedNova public": (ud.FedNova(tau_eff=2.5), paper.fednova, {"tau_eff": 2.5}, ANY),
    "FedNova server momentum": (
        ud.FedNova(server=Momentum(0.6)),
        paper.fednova,
        {"server_momentum": 0.6},
        ANY,
    ),
    "FedNova VR": (
        ud.FedNova(variance_reduction=True),
        paper.fednova,
        {"variance_reduction": True},
        ANY,
    ),
    "FedNova VR I": (
        ud.FedNova(variance_reduction=True, weights="I", mu=0.2),
        paper.fednova,
        {"variance_reduction": True, "weights": "I", "mu": 0.2},
        BY_WEIGHT,
    ),
    "FedADMM": (ud.FedADMM(0.7), paper.fedadmm, {"rho": 0.7}, ANY),
    "FedADMM by weight": (ud.FedADMM(0.7), paper.fedadmm, {"rho": 0.7}, BY_WEIGHT),
    "FedVARP": (
        ud.FedVARP(server=Plain(0.6)),
        paper.last_moves,
        {"rule": "fedvarp", "server_lr": 0.6},
        ANY,
    ),
    "MIFA": (ud.MIFA(server=Plain(0.6)), paper.last_moves, {"rule": "mifa", "server_lr": 0.6}, ANY),
    "MIFA by weight": (ud.MIFA(), paper.last_moves, {"rule": "mifa"}, BY_WEIGHT),
    "FedCM": (
        ud.FedCM(0.3, server=Plain(0.8)),
        paper.fedcm,
        {"alpha": 0.3, "server_lr": 0.8},
        ANY,
    ),
    "FedACG": (ud.FedACG(0.6, 0.4), paper.fedacg, {"lam": 0.6, "beta": 0.4}, ANY),
    "FedExP": (ud.FedExP(1e-2), paper.fedexp, {"eps": 1e-2}, ANY),
    "FedExP last": (
        ud.FedExP(1e-2, "last"),
        paper.fedexp,
        {"eps": 1e-2, "average": False},
        ANY,
    ),
    "MimeLite": (
        ud.MimeLite(0.6, server=Plain(0.7)),
        paper.mimelite,
        {"beta": 0.6, "server_lr": 0.7},
        ANY,
    ),
    "Ditto": (
        ud.Ditto(0.4, server=Plain(0.8)),
        paper.ditto,
        {"lam": 0.4, "server_lr": 0.8},
        ANY,
    ),
    "Ditto by weight": (
        ud.Ditto(0.4, "I"),
        paper.ditto,
        {"lam": 0.4, "scheme": "I"},
        BY_WEIGHT,
    ),
    "PFedMe": (
        ud.PFedMe(2.0, 0.3, 3, 0.8),
        paper.pfedme,
        {"lam": 2.0, "eta": 0.3, "R": 3, "beta": 0.8},
        ANY,
    ),
    "PFedMe, one inner problem": (
        ud.PFedMe(0.7, 1.0, 1),
        paper.pfedme,
        {"lam": 0.7, "eta": 1.0, "R": 1, "beta": 1.0},
        ANY,
    ),
    "FedDyn": (ud.FedDyn(0.7), paper.feddyn, {"alpha": 0.7}, ANY),
    "FedDyn by weight": (ud.FedDyn(0.7), paper.feddyn, {"alpha": 0.7}, BY_WEIGHT),
    "FedSpeed": (
        ud.FedSpeed(1.4, 0.2, 0.7),
        paper.fedspeed,
        {"lam": 1.4, "rho": 0.2, "a": 0.7},
        ANY,
    ),
    "FedSpeed by weight": (
        ud.FedSpeed(1.4, 0.2),
        paper.fedspeed,
        {"lam": 1.4, "rho": 0.2, "a": 1.0},
        BY_WEIGHT,
    ),
    "FedSpeed act": (
        ud.FedSpeed(1.4, 0.2, 0.7, "act"),
        paper.fedspeed,
        {"lam": 1.4, "rho": 0.2, "a": 0.7, "cohort_only": True},
        ANY,
    ),
    "FedPD": (ud.FedPD(0.6), paper.fedpd, {"eta": 0.6}, ALL),
    "FedSplit": (ud.FedSplit(0.6), paper.fedsplit, {"eta": 0.6}, ALL),
    "FedSplit all": (
        ud.FedSplit(0.6, "all"),
        paper.fedsplit,
        {"eta": 0.6, "average": "all"},
        ANY,
    ),
    "FedSplit act": (
        ud.FedSplit(0.6, "act"),
        paper.fedsplit,
        {"eta": 0.6, "average": "act"},
        ANY,
    ),
    "FedDR": (ud.FedDR(0.6, 1.3), paper.feddr, {"eta": 0.6, "alpha": 1.3}, ANY),
    "FedDR l1": (
        ud.FedDR(0.6, 1.3, ud.L1(0.1)),
        paper.feddr,
        {"eta": 0.6, "alpha": 1.3, "prox": soft},
        ANY,
    ),
    "FedDR everyone": (
        ud.FedDR(0.6, 0.9, ud.L1(0.1), "everyone"),
        paper.feddr,
        {"eta": 0.6, "alpha": 0.9, "prox": soft, "start": "everyone"},
        ANY,
    ),
}
EXACTLY_SOLVED = ("FedDyn", "FedPD", "FedSplit", "FedDR", "FedADMM", "Ditto", "PFedMe")
SAMPLERS = {ANY: ud.Uniform(COHORT), ALL: ud.All(), BY_WEIGHT: ud.Weighted(COHORT)}


def compare_with_paper(
    method, transcribed, options, sampling, local, objective, limit=None, size=1.0
):
    ours, theirs = local
    problem = federation(size)
    roster = Roster(problem.ids, problem.sizes, objective)
    sampler = SAMPLERS[sampling]
    cohorts = []
    for t in range(ROUNDS):
        drawn = sampler.draw(roster, 5, t)
        cohorts.append([k for k, times in drawn.items() for _ in range(times)])
    if method.starts_with_all:
        cohorts[0] = list(range(CLIENTS))
    fed = paper.Federation(problem.H.numpy(), problem.b.numpy(), roster.weights.numpy())
    personal = {} if method.own_model is None else {"own": {}}
    expected = transcribed(fed, theirs, problem.initial().numpy(), cohorts, **options, **personal)

    models = []
    result = ud.train(
        method,
        problem=problem,
        local=ours,
        rounds=ROUNDS,
        cohort=sampler,
        objective=objective,
        seed=5,
        limit=limit,
        callbacks=[lambda run, record: models.append(run.server.x.numpy())],
    )
    assert np.abs(expected[-1] - expected[0]).max() > 1e-3  # something happened
    for found, wanted in zip(models[1:], expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)
    for client, model in personal.get("own", {}).items():
        found = result.run.last_of(client).numpy()
        np.testing.assert_allclose(found, model, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("objective", ["samples", "clients"])
@pytest.mark.parametrize("work", LOCAL)
@pytest.mark.parametrize("case", CASES)
def test_method_agrees_with_its_paper(case, work, objective):
    compare_with_paper(*CASES[case], solvers(work), objective)


@pytest.mark.parametrize("objective", ["samples", "clients"])
@pytest.mark.parametrize("case", [c for c in CASES if c.startswith(EXACTLY_SOLVED)])
def test_method_agrees_with_its_paper_when_solved_exactly(case, objective):
    exact = paper.Local(lr=1.0, steps=lambda k, t: 1, exact=True)
    compare_with_paper(*CASES[case], (ud.Exact(), exact), objective)


@pytest.mark.parametrize("work", ["plain", "momentum", "schedules"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"form": "literal", "damping": 0.3},
        {"form": "literal", "cap": True, "damping": 5.0},
        {"form": "literal", "cap": True, "damping": -5.0},
        {"form": "diagonal"},
        {"form": "diagonal", "cap": True},
        {"form": "extrapolate"},
        {"form": "none"},
        {"gradient": "last"},
        {"gradient": "last", "form": "diagonal", "damping": 0.5},
    ],
    ids=str,
)
def test_fedlga_agrees_with_its_paper(options, work):
    ours, theirs = LOCAL[work]
    managed = {k: 5 if k % 2 else STEPS[k] for k in STEPS}
    gd = ud.GD(**{"lr": 0.05, "steps": 5, **ours})
    local = paper.Local(**{"lr": 0.05, "steps": lambda k, t: managed[k], **theirs})
    compare_with_paper(
        ud.FedLGA(**options),
        paper.fedlga,
        {**options, "expected": 5},
        BY_WEIGHT,
        (gd, local),
        "samples",
        limit=lambda client, round: managed[client],
        size=0.1,
    )


@pytest.mark.parametrize("objective", ["samples", "clients"])
@pytest.mark.parametrize("work", LOCAL)
def test_scaffnew_agrees_with_its_paper(work, objective):
    from undrift.utils.keys import generator

    uniform = [generator(5, "scaffnew steps", t).random() for t in range(ROUNDS)]
    # Inversion of P(τ > n) = (1 − p)ⁿ, by counting instead of logarithms.
    steps = [next(n for n in range(1, 200) if 1 - u > 0.7**n) for u in uniform]
    assert max(steps) > 4 and min(steps) == 1
    options = {"p": 0.3, "steps": steps}
    compare_with_paper(ud.Scaffnew(0.3), paper.scaffnew, options, ALL, solvers(work), objective)


def test_fedpd_agrees_with_its_paper_when_it_does_not_always_talk():
    from undrift.utils.keys import generator

    talks = [generator(5, "communication", t).random() < 0.4 for t in range(ROUNDS)]
    assert 0 < sum(talks) < ROUNDS
    compare_with_paper(
        ud.FedPD(0.6, communication=0.4),
        paper.fedpd,
        {"eta": 0.6, "talks": talks},
        ALL,
        solvers("plain"),
        "samples",
    )
