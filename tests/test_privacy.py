"""Client-level differential privacy: the mechanism's facts, in simulations."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import undrift as ud
from looping import synchronous
from undrift.core.clients import Roster
from undrift.core.problem import Keep, Upload, Work
from undrift.core.replies import Replies, once, q
from undrift.core.uploads import Senders
from undrift.engines import EngineOptions
from undrift.nets.module_losses import ModuleLosses
from undrift.privacy.clipping import CLIP, WITHIN, JointClip, joint_norm
from undrift.privacy.mechanism import Guarantee, Mechanism
from undrift.privacy.noise_sources import KeyedNoise, SystemNoise
from undrift.privacy.sampling import poisson

QUADRATICS = ud.theory.random_quadratics(clients=6, dimension=3, seed=1)
GD = ud.GD(lr=0.05, steps=5)
SEED = 1
METHODS = {
    "FedAvg": ud.FedAvg(),
    "FedProx": ud.FedProx(mu=0.1),
    "SCAFFOLD": ud.SCAFFOLD(),
    "FedDyn": ud.FedDyn(alpha=0.5),
    "FedDR": ud.FedDR(eta=0.5),
    "FedADMM": ud.FedADMM(rho=1.0),
    "FedVARP": ud.FedVARP(),
    "MIFA": ud.MIFA(),
    "MimeLite": ud.MimeLite(),
    "FedSpeed": ud.FedSpeed(),
    "FedACG": ud.FedACG(),
    "FedNova": ud.FedNova(tau_eff=4.0),
    "FedNova VR": ud.FedNova(tau_eff=4.0, variance_reduction=True),
}


def private(method, rounds=5, cohort=None, problem=QUADRATICS, local=GD, **options):
    settings = {"noise": 0, "clip": None} | options.pop("privacy", {})
    return ud.train(
        method,
        problem=problem,
        local=local,
        rounds=rounds,
        cohort=cohort,
        objective=options.pop("objective", "clients"),
        privacy=ud.privacy.Gaussian(**settings),
        **options,
    )


# Denominators


@pytest.mark.parametrize("name", METHODS)
def test_no_noise_and_no_clipping_with_everyone_changes_no_bit(name):
    plain = ud.train(METHODS[name], problem=QUADRATICS, local=GD, rounds=5, objective="clients")
    assert torch.equal(private(METHODS[name]).x, plain.x)


class FixedDenominators(Replies):
    """The replies of a round with the mean cohort, qN, in the place of the number of replies."""

    probability = 0.5

    @property
    def count(self):
        return self.probability * self.clients

    @property
    def share(self):
        return self.probability

    def weight(self, by):
        everyone = [ROSTER.client(id) for id in ROSTER.ids]
        return self.probability * float(sum(float(by(client)) for client in everyone))


ROSTER = Roster(QUADRATICS.ids, QUADRATICS.sizes, "clients")


@pytest.mark.parametrize("name", METHODS)
def test_no_noise_and_no_clipping_equals_the_run_with_fixed_denominators(name, monkeypatch):
    method, options = METHODS[name], dict(rounds=8, cohort=ud.Bernoulli(0.5), seed=SEED)
    plain = options | dict(problem=QUADRATICS, local=GD, objective="clients")
    found = private(method, **options).x
    usual = ud.train(method, **plain)
    assert all(record.cohort for record in usual.records[1:])  # no round of this seed is skipped
    fold = type(method).fold

    def fold_with_fixed(self, server, replies):
        fixed = FixedDenominators({}, replies.clients, replies.rate)
        fixed.__dict__.update(replies.__dict__)
        return fold(self, server, fixed)

    monkeypatch.setattr(type(method), "fold", fold_with_fixed)
    assert torch.equal(found, ud.train(method, **plain).x)
    # Methods that divide by the number of replies differ from that.
    assert torch.equal(found, usual.x) == (name in ("FedDR", "FedADMM", "MIFA"))


STEPS = {0: 1, 1: 2, 2: 3, 3: 4, 4: 5, 5: 6}


@pytest.mark.parametrize("variance_reduction", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_fednova_with_the_public_tau_eff_it_would_have_computed(variance_reduction, momentum):
    """The mean of the ‖a_k‖₁ as a public number, without noise: the run without privacy."""
    local = ud.GD(lr=0.05, steps=lambda client, round: STEPS[client], momentum=momentum)
    plain = ud.train(
        ud.FedNova(variance_reduction=variance_reduction),
        problem=QUADRATICS,
        local=local,
        rounds=6,
        objective="clients",
    )
    # ‖a‖₁ = Σ_i (1 − m^{τ − i})/(1 − m), for momentum m
    a = [sum((1 - momentum**s) / (1 - momentum) for s in range(1, t + 1)) for t in STEPS.values()]
    method = ud.FedNova(tau_eff=sum(a) / 6, variance_reduction=variance_reduction)
    found = private(method, rounds=6, local=local)
    torch.testing.assert_close(found.x, plain.x, rtol=1e-12, atol=1e-14)
    assert set(found.records[-1].bytes_up) == {"direction"}
    other = private(ud.FedNova(tau_eff=2.0), rounds=6, local=local)
    assert float((other.x - plain.x).norm()) > 1e-3


def test_feddyn_divides_by_the_mean_cohort():
    """x ← x + Σ_S(θ_k − x)/(qN) − h/α, by hand for one round of a cohort that is not qN."""
    run = synchronous(
        ud.FedDyn(alpha=0.5),
        QUADRATICS,
        GD,
        ud.Bernoulli(0.5),
        1,
        objective="clients",
        privacy=ud.privacy.Gaussian(noise=0, clip=None),
    )
    list(run.rounds())
    cohort = run.records[-1].cohort
    assert len(cohort) != 3
    moved = sum(-run.states.get(client).h / 0.5 for client in cohort)  # h_k = −α(θ_k − x)
    h = -0.5 * moved / 6
    torch.testing.assert_close(run.server.x, moved / 3 - h / 0.5)


# Sensitivity


def senders(rate=0.1, clip=None, clients=1):
    works = [
        Work(client=k, round=0, turn=0, steps=1, expected=1, rate=rate, key=0)
        for k in range(clients)
    ]
    return Senders(0, works, {} if clip is None else {CLIP: clip})


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from([*METHODS]),
    clip=st.floats(1e-3, 10),
    clients=st.integers(2, 7),
    dimension=st.integers(1, 9),
    size=st.floats(1e-4, 1e4),
    double=st.booleans(),
    capped=st.booleans(),
    seed=st.integers(0, 2**20),
)
def test_removing_a_client_changes_the_scaled_sum_by_at_most_the_clipping_norm(
    name, clip, clients, dimension, size, double, capped, seed
):
    """Over methods, uploads, weights and types: |(ΔΣ_i / (s_i w_i))_i| ≤ C."""
    method = METHODS[name]
    if name == "MimeLite":
        method = ud.MimeLite(beta=0.5)
    generator = torch.Generator().manual_seed(seed)
    dtype = torch.float64 if double else torch.float32
    sizes = torch.randint(1, 100, (clients,), generator=generator)
    cap = 30 if capped else None
    roster = Roster(
        range(clients),
        sizes,
        "samples" if capped else "clients",
        sizes.clamp_max(30) if capped else None,
    )
    scale = method.upload_scales(0.1, 4)
    transform = JointClip(clip, lambda rate: method.upload_scales(rate, 4))
    uploads = []
    for _ in range(clients):
        spread = size * 10 ** float(torch.randn(1, generator=generator))
        vectors = {
            each: spread * torch.randn(dimension, generator=generator).to(dtype)
            for each in method.sums()
        }
        uploads.append(transform.update(Upload(**vectors), Keep(), senders())[0])
    privacy = ud.privacy.Gaussian(noise=0, clip=clip, max_samples=cap)
    mechanism = Mechanism(
        privacy,
        Guarantee(0.0, poisson(0.5, clients), 1e-5, "pld"),
        method,
        roster,
        transform.scales,
        KeyedNoise(0),
    )
    like = torch.zeros(dimension, dtype=dtype)

    def sums(present):
        replies = Replies(method.sums(), clients)
        for k in present:
            replies.add(roster.client(k), uploads[k])
        released = mechanism.release(replies, like, 0, 0.1)
        return {
            (each, by): released.exact_sum(each, by) / (scale.get(each, 1.0) * mechanism._most(by))
            for each, weights in method.sums().items()
            for by in weights[:1]
        }

    everyone = sums(range(clients))
    for absent in range(clients):
        others = sums(k for k in range(clients) if k != absent)
        change = math.hypot(*(float((everyone[w] - others[w]).norm()) for w in everyone))
        assert change <= clip * (1 + 1e-12)


def test_clipping_keeps_small_uploads_and_bounds_large_ones_in_every_type():
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        small, large = torch.tensor([0.3, 0.4], dtype=dtype), torch.tensor([3.0, 4.0], dtype=dtype)
        clip = JointClip(1.0, lambda rate: {})
        assert torch.equal(clip.update(Upload(u=small), Keep(), senders())[0].u, small)
        sent = clip.update(Upload(u=large), Keep(), senders())[0].u
        assert 0.97 < float(sent.double().norm()) <= 1
        both = clip.update(Upload(u=torch.stack([small, large])), Keep(), senders(clients=2))[0].u
        assert torch.equal(both, torch.stack([small, sent]))
    zero = torch.zeros(3)
    assert torch.equal(clip.update(Upload(u=zero), Keep(), senders())[0].u, zero)


def test_scaffolds_control_is_clipped_on_the_scale_of_the_move():
    scales = ud.SCAFFOLD().upload_scales(0.05, 5)
    assert scales == {"c_change": 4.0}
    moved, control = torch.tensor([3.0, 0.0]), torch.tensor([0.0, 16.0])  # 16 / 4 = 4
    assert float(joint_norm({"moved": moved, "c_change": control}, scales)) == 5
    with pytest.raises(ud.UndriftError, match="public number of local steps"):
        private(
            ud.SCAFFOLD(), local=ud.GD(lr=0.1, steps=lambda client, round: 3), privacy={"clip": 1.0}
        )
    private(
        ud.SCAFFOLD(),
        local=ud.GD(lr=0.1, steps=lambda client, round: 3),
        privacy={"clip": 1.0, "steps": 3},
    )


# Noise


@pytest.mark.parametrize("source", [KeyedNoise(3), SystemNoise()])
def test_the_noise_in_a_sum_has_the_variance_zc_squared(source):
    """Chi-square test with an error rate of 1e-6; the keyed source is seeded."""
    method, dimension, z, clip = ud.SCAFFOLD(), 20_000, 1.3, 0.7
    roster = Roster(range(10), torch.ones(10), "clients")
    mechanism = Mechanism(
        ud.privacy.Gaussian(noise=z, clip=clip),
        Guarantee(z, poisson(0.3, 10), 1e-5, "pld"),
        method,
        roster,
        lambda rate: method.upload_scales(rate, 4),
        source,
    )
    replies = Replies(method.sums(), 10)  # an empty cohort releases noise too
    found = mechanism.release(replies, torch.zeros(dimension, dtype=torch.float64), 0, 0.1)
    for name, scale in (("moved", 1.0), ("c_change", 2.5)):
        noise = 10 * found.sum(name, by=q) / scale  # the weight of a client is 1/10
        assert abs(float(noise.mean())) < 5 * z * clip / math.sqrt(dimension)
        square = float(noise.square().sum()) / (z * clip) ** 2
        low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], dimension)
        assert low < square < high
        assert stats.kstest(noise.numpy() / (z * clip), "norm").pvalue > 1e-6
    together = np.corrcoef(found.sum("moved", by=q), found.sum("c_change", by=q))[0, 1]
    assert abs(together) < 5 / math.sqrt(dimension)
    again = mechanism.release(replies, torch.zeros(dimension, dtype=torch.float64), 1, 0.1)
    assert not torch.equal(again.sum("moved", by=q), found.sum("moved", by=q))


def test_an_empty_cohort_releases_noise_and_is_accounted():
    run = private(
        ud.FedAvg(), rounds=4, cohort=ud.Bernoulli(1e-9), privacy={"noise": 1.0, "clip": 0.1}
    )
    assert [record.cohort for record in run.records[1:]] == [[]] * 4
    assert [record.updates for record in run.records[1:]] == [1] * 4
    assert float(run.x.norm()) > 0
    assert run.run.mechanism.releases == 4


def test_noise_in_the_model_is_that_of_the_mean():
    """x moves by N(0, (zC/(qN))²) in a round of an empty cohort; error rate 1e-6, seeded."""
    z, clip, moves = 2.0, 0.5, []
    for seed in range(400):
        run = private(
            ud.FedAvg(),
            rounds=1,
            cohort=ud.Bernoulli(1e-9),
            seed=seed,
            privacy={"noise": z, "clip": clip},
            evaluate=ud.Evaluation(every=10**6),
        )
        moves.append(run.x)
    deviation = z * clip / (1e-9 * 6)
    square = float(torch.stack(moves).square().sum()) / deviation**2
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], 3 * 400)
    assert low < square < high


# Adaptive clipping


def test_the_clipping_norm_settles_at_the_quantile():
    generator = torch.Generator().manual_seed(0)
    norms = torch.exp(0.5 * torch.randn(2000, generator=generator, dtype=torch.float64))
    for quantile in (0.2, 0.5, 0.9):
        mechanism = adaptive(2000, 1.0, ud.privacy.AdaptiveClip(0.01, quantile), q=0.2)
        history = []
        for round in range(400):
            replies = Replies({"moved": (q,)}, 2000)
            chosen = torch.rand(2000, generator=generator) < 0.2
            within = (norms[chosen] <= mechanism.clip).double() - 0.5
            replies._single[WITHIN] = [within]
            replies._who = [ROSTER.client(0)] * int(chosen.sum())
            mechanism.release(replies, torch.zeros(1), round, 0.1)
            history.append(mechanism.clip)
        settled = float(np.exp(np.mean(np.log(history[200:]))))
        share = float((norms <= settled).double().mean())
        assert abs(share - quantile) < 0.03


def adaptive(clients, z, clip, q):
    roster = Roster(range(clients), torch.ones(clients), "clients")
    return Mechanism(
        ud.privacy.Gaussian(noise=z, clip=clip),
        Guarantee(z, poisson(q, clients), 1e-5, "pld"),
        ud.FedAvg(),
        roster,
        lambda rate: {},
        KeyedNoise(0),
    )


def test_the_noise_of_adaptive_clipping_follows_the_paper():
    mechanism = adaptive(1000, 1.0, ud.privacy.AdaptiveClip(), q=0.1)
    assert mechanism.bit_noise == 5.0  # qN/20
    assert mechanism.noise == pytest.approx((1 - 0.1**2) ** -0.5)
    few = adaptive(10, 2.0, ud.privacy.AdaptiveClip(), q=0.5)
    assert few.bit_noise == 2.0  # 2·(qN/20) is not above z
    assert few.noise == pytest.approx(1.1547 * 2, rel=1e-4)
    # The uploads and the bits together have the noise multiplier z.
    assert few.noise**-2 + (2 * few.bit_noise) ** -2 == pytest.approx(2.0**-2)


def test_clients_bits_say_whether_they_are_within_the_norm_that_the_server_sends():
    transform = JointClip(None, lambda rate: {})
    rows = torch.tensor([[0.3, 0.4], [3.0, 4.0]])
    sent = transform.update(Upload(moved=rows), Keep(), senders(clip=1.0, clients=2))[0]
    assert getattr(sent, WITHIN).tolist() == [[0.5], [-0.5]]
    run = private(
        ud.FedAvg(), rounds=60, privacy={"noise": 0, "clip": ud.privacy.AdaptiveClip(0.01, 0.5)}
    )
    clips = [record.privacy["clip"] for record in run.records]
    assert clips[:2] == [0.01, 0.01] and clips[2] == pytest.approx(0.01 * math.exp(0.1))
    assert clips[-1] > 0.02


# State


@pytest.mark.parametrize("name", ["SCAFFOLD", "FedDyn", "FedDR", "FedADMM", "FedNova VR"])
@pytest.mark.parametrize("cohort", [None, ud.Bernoulli(0.5)])
def test_clipped_methods_with_state_reach_the_optimum(name, cohort):
    local = GD if name in ("SCAFFOLD", "FedNova VR") else ud.Exact()
    run = private(
        METHODS[name],
        rounds=800,
        cohort=cohort,
        local=local,
        privacy={"clip": 0.05},
        evaluate=ud.Evaluation(every=10**6),
    )
    best = QUADRATICS.optimum(QUADRATICS.weights("clients"))
    assert float((run.x - best).norm()) < 1e-8


# Engines and resuming


def losses(clients=7):
    generator = torch.Generator().manual_seed(0)
    data = ud.data.FederatedData.from_clients(
        [
            (
                torch.randn(6 + k, 4, generator=generator),
                torch.randint(0, 3, (6 + k,), generator=generator),
            )
            for k in range(clients)
        ],
        test=(
            torch.randn(20, 4, generator=generator),
            torch.randint(0, 3, (20,), generator=generator),
        ),
    )
    torch.manual_seed(0)
    return torch.nn.Linear(4, 3), data


@pytest.mark.parametrize("name", ["FedAvg", "SCAFFOLD", "FedDyn"])
def test_engines_agree_on_private_runs(name):
    model, data = losses()
    found = {}
    for engine in ("serial", "vectorised"):
        run = synchronous(
            METHODS[name],
            ModuleLosses(model, data),
            ud.SGD(lr=0.1, batch_size=2, steps=3),
            ud.Bernoulli(0.6),
            4,
            objective="clients",
            privacy=ud.privacy.Gaussian(noise=0.5, clip=ud.privacy.AdaptiveClip(0.05)),
            engine=EngineOptions(engine),
        )
        list(run.rounds())
        found[engine] = run
    a, b = found["serial"], found["vectorised"]
    torch.testing.assert_close(a.server.x, b.server.x, rtol=1e-4, atol=1e-6)
    assert a.mechanism.clip == b.mechanism.clip
    assert a.records[-1].bytes_up == b.records[-1].bytes_up
    assert a.records[-1].bytes_up[WITHIN] == 8 * len(a.records[-1].cohort)
    assert a.records[-1].bytes_down[CLIP] == 8 * len(a.records[-1].cohort)


def arguments(**more):
    model, data = losses()
    return dict(
        model=model,
        data=data,
        local=ud.SGD(lr=0.1, batch_size=2, steps=3),
        cohort=ud.Bernoulli(0.6),
        objective="clients",
        engine="serial",
        progress=False,
        privacy=ud.privacy.Gaussian(epsilon=8.0, clip=ud.privacy.AdaptiveClip(0.05)),
        **more,
    )


def test_a_resumed_run_has_the_same_bits_and_remembers_what_it_spent(tmp_path: Path):
    whole = ud.train(ud.SCAFFOLD(), rounds=6, out=tmp_path / "whole", **arguments())

    def stop(run, record):
        if record.round == 3:
            raise SystemExit(9)

    with pytest.raises(SystemExit):
        ud.train(ud.SCAFFOLD(), rounds=6, out=tmp_path / "cut", callbacks=[stop], **arguments())
    resumed = ud.resume(tmp_path / "cut", ud.SCAFFOLD(), **arguments())
    assert torch.equal(resumed.x, whole.x)
    assert resumed.records[-1].privacy == whole.records[-1].privacy
    assert resumed.records[-1].privacy["epsilon"] <= 8
    # More rounds have the noise of the first ones, and the budget allows none of them.
    extended = ud.resume(tmp_path / "cut", ud.SCAFFOLD(), rounds=9, **arguments())
    assert torch.equal(extended.x, whole.x)
    assert "privacy budget is spent" in extended.stopped


CHANGED = [
    ({"privacy": ud.privacy.Gaussian(noise=0.5, clip=0.3)}, "noise = 1.0 so far, but .* with 0.5"),
    ({"privacy": ud.privacy.Gaussian(noise=1.0, clip=0.6)}, "clip = 0.3 so far, but .* with 0.6"),
    ({"sampler": ud.Bernoulli(0.1)}, "the sampling probability = 0.5 so far, but .* with 0.1"),
    ({"privacy": None}, "its ε would not cover rounds without privacy"),
]


@pytest.mark.parametrize(("change", "said"), CHANGED)
def test_a_run_does_not_go_on_with_settings_that_its_epsilon_does_not_cover(change, said):
    quadratics = ud.theory.random_quadratics(clients=6, dimension=3, seed=0)
    before = {
        "sampler": ud.Bernoulli(0.5),
        "privacy": ud.privacy.Gaussian(noise=1.0, clip=0.3),
    }
    now, local = before | change, ud.GD(lr=0.1, steps=2)
    run = synchronous(ud.FedAvg(), quadratics, local, rounds=3, objective="clients", **before)
    records = [run.step()]
    other = synchronous(ud.FedAvg(), quadratics, local, rounds=3, objective="clients", **now)
    with pytest.raises(ud.UndriftError, match=said):
        other.restore(run.saved().__getitem__, records)


def test_a_budget_stops_a_run_before_it_is_exceeded():
    settings = {"noise": 1.0, "clip": 0.1, "epsilon": 6.0}
    run = private(
        ud.FedAvg(),
        rounds=100,
        cohort=ud.Bernoulli(0.5),
        privacy=settings,
        evaluate=ud.Evaluation(every=100),
    )
    done = run.records[-1].round
    most = ud.privacy.rounds(epsilon=6.0, noise=1.0, clients=6, probability=0.5)
    assert 0 < done == most < 100
    assert "another round would exceed ε = 6" in run.stopped
    assert run.records[-1].privacy["epsilon"] <= 6
    after = ud.privacy.epsilon(noise=1.0, rounds=done + 1, clients=6, probability=0.5)
    assert after > 6


def test_private_runs_measure_on_test_data_and_have_no_diagnostics():
    run = ud.train(ud.FedAvg(), rounds=2, **arguments())
    assert {name.split("_")[0] for name in run.records[-1].metrics} == {"test"}
    assert run.records[-1].diagnostics == {}


# Weights


def test_capped_weights_have_the_noise_of_the_cap():
    sizes = torch.tensor([1.0, 2.0, 8.0])
    roster = Roster(range(3), sizes, "samples", sizes.clamp_max(4))
    assert roster.weights.tolist() == pytest.approx([1 / 7, 2 / 7, 4 / 7])
    mechanism = Mechanism(
        ud.privacy.Gaussian(noise=1.0, clip=1.0, max_samples=4),
        Guarantee(1.0, poisson(0.5, 3), 1e-5, "pld"),
        ud.FedAvg(),
        roster,
        lambda rate: {},
        KeyedNoise(0),
    )
    assert mechanism._most(q) == pytest.approx(4 / 7)
    assert mechanism._most(once) == 1
    model, data = losses()
    run = synchronous(
        ud.FedAvg(),
        ModuleLosses(model, data),
        GD,
        ud.Bernoulli(0.5),
        1,
        privacy=ud.privacy.Gaussian(noise=1.0, clip=1.0, max_samples=8),
    )
    total = 6 + 7 + 8 * 5
    assert run.roster.weights.tolist() == pytest.approx([6 / total, 7 / total] + [8 / total] * 5)
    list(run.rounds())


def test_noise_that_was_drawn_ahead_is_that_of_its_round():
    source = KeyedNoise(7)
    for round in (0, 1, 2, 5, 4, 5, 6):
        for purpose, size in (("moved", 20_000), ("c", 20_000), ("moved", 10)):
            alone = KeyedNoise(7).normal(purpose, round, size)
            assert torch.equal(source.normal(purpose, round, size), alone)
