"""Metrics of private runs: withheld, noisy and accounted, or exact because the user says so."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import undrift as ud
from commands import called
from undrift.core.clients import Roster
from undrift.privacy.accountant import Measured, epsilon_spent
from undrift.privacy.mechanism import Guarantee, Mechanism
from undrift.privacy.noise_sources import KeyedNoise
from undrift.privacy.sampling import fixed_size, poisson

NOISY = ud.privacy.NoisyMetrics(noise=3.0, every=2, largest_loss=4.0)


def federation(common_test=False, clients=7):
    generator = torch.Generator().manual_seed(0)

    def samples(number):
        x = torch.randn(number, 4, generator=generator)
        return x, torch.randint(0, 3, (number,), generator=generator)

    train = [samples(6 + k) for k in range(clients)]
    test = samples(20) if common_test else None
    data = ud.data.FederatedData.from_clients(train, test=test)
    return data if common_test else data.with_test(0.3)


def run(metrics="public", common_test=False, **options):
    torch.manual_seed(0)
    arguments = dict(
        model=torch.nn.Linear(4, 3),
        data=federation(common_test),
        local=ud.SGD(lr=0.1, batch_size=2, steps=3),
        rounds=5,
        cohort=ud.Bernoulli(0.6),
        objective="clients",
        engine="serial",
        progress=False,
    )
    settings = dict(noise=1.0, clip=0.2, metrics=metrics) | options.pop("privacy", {})
    return ud.train(ud.FedAvg(), **arguments | options, privacy=ud.privacy.Gaussian(**settings))


def numbers_in(folder):
    """Every number in the text files of a run folder, and every value that its records have."""
    found = set()
    for path in folder.rglob("*"):
        if path.suffix in (".json", ".jsonl", ".csv", ".txt", ".toml"):
            text = path.read_text(encoding="utf-8")
            found |= {float(each) for each in re.findall(r"-?\d+\.\d+(?:e-?\d+)?", text)}
    return found


@pytest.mark.parametrize("metrics", ["public", NOISY])
def test_the_folder_of_a_private_run_has_no_exact_metric_of_clients_data(tmp_path, metrics):
    """The models of both runs are equal, so that an exact metric would be found."""
    exact = run("exact", evaluate=ud.Evaluation(every=1, clients=True), out=tmp_path / "exact")
    private = run(metrics, out=tmp_path / "private")
    assert torch.equal(exact.x, private.x)
    secret = {value for record in exact.records for value in record.metrics.values()}
    secret |= {value for row in exact.clients() for value in row.values() if type(value) is float}
    secret = {value for value in secret if len(repr(value)) > 8}  # 0.2 may be a setting
    assert len(secret) > 50 and secret <= numbers_in(tmp_path / "exact")
    assert secret.isdisjoint(numbers_in(tmp_path / "private"))
    with pytest.raises(ud.UndriftError, match="no metrics of single clients"):
        private.clients()


def test_a_common_test_set_is_measured_and_the_clients_data_are_not():
    found = run(common_test=True)
    assert set(found.records[-1].metrics) == {"test_loss", "test_accuracy"}
    assert set(found.records[-1].measured) == {"test"}
    assert found.records[-1].privacy["metrics"] == "only of data that belong to no client"
    held = run()
    assert all(record.metrics == {} and record.measured == {} for record in held.records)
    assert "train_loss" in run("exact").records[-1].metrics
    assert run("exact").records[-1].privacy["metrics"] == "exact, outside the guarantee"
    both = run(NOISY, common_test=True)
    exact = run("exact", common_test=True)
    assert both.records[-1].metrics["test_loss"] == exact.records[-1].metrics["test_loss"]
    assert both.records[-1].metrics["train_loss"] != exact.records[-1].metrics["train_loss"]
    assert both.records[-1].measured == {"test": (20, 20)}


@pytest.mark.parametrize(
    ("evaluate", "said"),
    [
        (dict(parts=("train", "test")), "parts has 'train' and 'test', whose data belong"),
        (dict(clients=True), "evaluation clients is measured on single clients"),
        (dict(models=("server", "own")), "evaluation models is measured on single clients"),
        (dict(train_samples=5), "evaluation train_samples is measured"),
    ],
)
def test_metrics_of_clients_that_are_asked_for_by_name_are_refused(evaluate, said):
    with pytest.raises(ud.UndriftError, match=said):
        run(evaluate=ud.Evaluation(**evaluate))
    run("exact", rounds=1, evaluate=ud.Evaluation(**evaluate))


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ud.UndriftError, match="accounted for every 2 rounds"):
        run(NOISY, evaluate=ud.Evaluation(every=3))
    with pytest.raises(ud.UndriftError, match="never measured"):
        run(target={"train_accuracy": 0.9})
    with pytest.raises(ud.UndriftError, match="did you mean 'exact'"):
        ud.privacy.Gaussian(noise=1, clip=1, metrics="exakt")
    with pytest.raises(ud.UndriftError, match="noisy metrics alone spend"):
        run(ud.privacy.NoisyMetrics(0.5, every=1), privacy=dict(noise=None, epsilon=2.0))


# The mechanism


def mechanism(clients, z=1.0, metrics=NOISY, sizes=None, law=None):
    sizes = torch.ones(clients) if sizes is None else sizes
    cap = None if bool((sizes == 1).all()) else int(sizes.max())
    roster = Roster(range(clients), sizes, "clients" if cap is None else "samples", sizes)
    law = poisson(0.5, clients) if law is None else law
    return Mechanism(
        ud.privacy.Gaussian(noise=z, clip=1.0, metrics=metrics, max_samples=cap),
        Guarantee(z, law, 1e-5, "pld", metrics),
        ud.FedAvg(),
        roster,
        lambda rate: {},
        KeyedNoise(0),
    )


@settings(max_examples=60, deadline=None)
@given(
    clients=st.integers(2, 6),
    parts=st.sampled_from([("train",), ("train", "test"), ("train", "validation", "test")]),
    losses=st.lists(st.floats(-1, 50), min_size=6, max_size=6),
    accuracies=st.lists(st.floats(0, 1), min_size=6, max_size=6),
    uneven=st.booleans(),
)
def test_one_client_moves_all_means_together_by_at_most_the_sensitivity(
    clients, parts, losses, accuracies, uneven
):
    """|(Δ_j/B_j)_j| ≤ max q_k·√n/2 without a client, and the noise is its z-fold."""
    quiet = ud.privacy.NoisyMetrics(1e-12, every=1, largest_loss=4.0)
    sizes = torch.arange(1.0, clients + 1) if uneven else None
    made = mechanism(clients, metrics=quiet, sizes=sizes)

    def means(absent):
        present = [k for k in range(clients) if k != absent]
        by_client = {}
        for part in parts:
            by_client[f"{part}_loss"] = {k: losses[k] for k in present}
            by_client[f"{part}_accuracy"] = {k: accuracies[k] for k in present}
        found = made.release_metrics(by_client, parts, 0)
        return np.array([v / (4.0 if name.endswith("loss") else 1.0) for name, v in found.items()])

    everyone, number = means(None), 2 * len(parts)
    largest = max(made._roster.client(k).q for k in range(clients))
    for absent in range(clients):
        change = np.linalg.norm(everyone - means(absent))
        assert change <= largest * math.sqrt(number) / 2 + 1e-10


def test_the_noise_in_the_means_has_the_accounted_variance():
    """Chi-square test with an error rate of 1e-6; seeded."""
    z, clients, rounds = 2.0, 40, 1000
    made = mechanism(clients, metrics=ud.privacy.NoisyMetrics(z, every=1, largest_loss=4.0))
    # The deviation is a 28th of the range, so that no mean is cut to it.
    by_client = {
        "train_loss": dict.fromkeys(range(clients), 2.0),
        "train_accuracy": dict.fromkeys(range(clients), 0.5),
    }
    found = [made.release_metrics(by_client, ("train",), t) for t in range(rounds)]
    deviation = z / clients * math.sqrt(2) / 2
    for name, mean, most in (("train_loss", 2.0, 4.0), ("train_accuracy", 0.5, 1.0)):
        noise = np.array([each[name] - mean for each in found]) / most
        low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], rounds)
        assert low < float((noise**2).sum()) / deviation**2 < high
    assert made.evaluations == rounds


def test_noisy_means_are_those_of_the_clients_cut_values():
    quiet = ud.privacy.NoisyMetrics(1e-9, every=5, largest_loss=1.0)
    exact = run("exact", evaluate=ud.Evaluation(every=5, clients=True), rounds=5)
    rows = exact.clients()
    found = run(quiet).records[-1].metrics
    cut = [min(row["train_loss"], 1.0) for row in rows]
    assert found["train_loss"] == pytest.approx(sum(cut) / len(rows), abs=1e-6)
    mean = sum(row["test_accuracy"] for row in rows) / len(rows)
    assert found["test_accuracy"] == pytest.approx(mean, abs=1e-6)


# The accountant


def closed_form(mu, delta):
    """ε of Gaussian mechanisms without sampling, Σ 1/z² = μ² (Balle and Wang, ICML 2018)."""

    def exceeds(epsilon):
        a = stats.norm.cdf(mu / 2 - epsilon / mu)
        return a - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu) > delta

    low, high = 0.0, 100.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if exceeds(middle) else (low, middle)
    return high


def test_epsilon_includes_the_noisy_metrics():
    metrics = Measured(8.0, 6)
    mu = math.sqrt(10 / 25 + 6 / 64)
    everyone = epsilon_spent(5.0, poisson(1.0, 50), 10, 1e-5, "pld", 1, metrics)
    assert everyone == pytest.approx(closed_form(mu, 1e-5), rel=1e-3)
    fixed = epsilon_spent(5.0, fixed_size(5, 50, amplified=False), 10, 1e-5, "pld", 1, metrics)
    assert fixed == pytest.approx(closed_form(2 * mu, 1e-5), rel=1e-3)
    for law in (poisson(0.1, 1000), fixed_size(50, 1000, amplified=True)):
        without = epsilon_spent(2.0, law, 10, 1e-5, "rdp")
        known = epsilon_spent(2.0, law, 10, 1e-5, "rdp", 1, metrics)
        alone = epsilon_spent(2.0, law, 0, 1e-5, "rdp", 1, metrics)
        assert max(without, alone) < known < without + alone
    assert epsilon_spent(2.0, poisson(0.1, 10), 0, 1e-5, "pld", 1, Measured(8.0, 0)) == 0


def test_a_budget_includes_the_metrics_and_a_resumed_run_has_the_same_bits(tmp_path):
    privacy = dict(noise=1.5, epsilon=8.0)
    options = dict(rounds=40, privacy=privacy)
    whole = run(NOISY, out=tmp_path / "whole", **options)
    last = whole.records[-1]
    assert 0 < last.round < 40 and "budget is spent" in whole.stopped
    evaluations = sum(bool(record.metrics) for record in whole.records)
    made = whole.run.mechanism
    assert made.evaluations == evaluations and last.metrics
    assert last.privacy["epsilon"] == made.guarantee.epsilon(last.round, evaluations) <= 8.0
    more = made.guarantee.epsilon(last.round + 1)
    assert more > 8.0
    without = run("public", **options)
    assert without.records[-1].round > last.round

    def stop(loop, record):
        if record.round == 3:
            raise SystemExit(9)

    with pytest.raises(SystemExit):
        run(NOISY, out=tmp_path / "cut", callbacks=[stop], **options)
    torch.manual_seed(0)
    resumed = ud.resume(
        tmp_path / "cut",
        ud.FedAvg(),
        model=torch.nn.Linear(4, 3),
        data=federation(),
        local=ud.SGD(lr=0.1, batch_size=2, steps=3),
        cohort=ud.Bernoulli(0.6),
        objective="clients",
        engine="serial",
        progress=False,
        privacy=ud.privacy.Gaussian(clip=0.2, metrics=NOISY, **privacy),
    )
    assert torch.equal(resumed.x, whole.x)
    assert [r.metrics for r in resumed.records] == [r.metrics for r in whole.records]
    assert resumed.records[-1].privacy == last.privacy


def test_the_metrics_of_a_round_that_ends_a_run_early_count():
    found = run(
        ud.privacy.NoisyMetrics(noise=3.0, every=4),
        rounds=8,
        callbacks=[lambda loop, record: record.round == 3],
    )
    last = found.records[-1]
    assert last.round == 3 and last.metrics
    assert last.privacy["evaluations"] == 2  # the initial model, and the last
    assert last.privacy["epsilon"] == found.run.mechanism.guarantee.epsilon(3, 2)


def test_metrics_beyond_the_budget_are_not_released():
    """A run whose server died after each of many evaluations has spent its budget on them."""
    made = mechanism(5)
    made.privacy = replace(made.privacy, epsilon=5.0)
    made.evaluations = 0
    while made.guarantee.epsilon(0, made.evaluations + 1) <= 5.0:
        assert made.may_measure()
        made.evaluations += 1
    assert made.evaluations > 1 and not made.may_measure()


# From files


EXPERIMENT = """
rounds = 4
objective = "clients"
data = {source = "synthetic", clients = 12}
model = {name = "logistic"}
local = {lr = 0.05, batch_size = 10, steps = 2}
sampling = {kind = "bernoulli", cohort = 0.5}

[privacy]
noise = 1.0
clip = 0.3
METRICS

[[method]]
name = "FedAvg"
"""


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("evaluation.clients=true", "evaluation clients is measured on single clients"),
        ('evaluation.models=["server","own"]', "evaluation models is measured on single"),
        ("privacy.secure=true", "With secure aggregation every site knows the cohort"),
    ],
)
def test_a_dry_run_refuses_what_the_run_refuses_with_the_same_sentence(tmp_path, setting, said):
    (tmp_path / "own.toml").write_text(EXPERIMENT.replace("METRICS", ""))
    planned = called("run", "own.toml", "--set", setting, "--dry-run", cwd=tmp_path)
    found = called("run", "own.toml", "--set", setting, "--out", "runs", cwd=tmp_path)
    assert planned.returncode == found.returncode == 2
    assert planned.stderr == found.stderr and said in " ".join(found.stderr.split())


def test_a_dry_run_says_what_a_simulation_leaves_out_of_secure_aggregation(tmp_path):
    (tmp_path / "own.toml").write_text(
        EXPERIMENT.replace("METRICS", "secure = true\nword_bits = 16\nrange = 4.0").replace(
            'sampling = {kind = "bernoulli", cohort = 0.5}\n', ""
        )
    )
    planned = called("run", "own.toml", "--dry-run", cwd=tmp_path)
    assert planned.returncode == 0, planned.stderr
    assert "does not round them to privacy.word_bits" in planned.stdout


@pytest.mark.parametrize(
    ("metrics", "names", "said"),
    [
        ("", set(), "only of data that belong to no client"),
        (
            "noisy_metrics = {noise = 4.0, every = 2}",
            {"train_loss", "train_accuracy", "test_loss", "test_accuracy"},
            "noisy means, accounted with noise multiplier 4",
        ),
    ],
)
def test_files_reports_and_dry_runs_say_which_metrics_there_are(tmp_path, metrics, names, said):
    (tmp_path / "own.toml").write_text(EXPERIMENT.replace("METRICS", metrics))
    planned = called("run", "own.toml", "--dry-run", cwd=tmp_path)
    assert planned.returncode == 0, planned.stderr
    assert ("3 noisy metrics with 4" in " ".join(planned.stdout.split())) == bool(names)
    found = called("run", "own.toml", "--out", "runs", cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert said in " ".join((found.stdout + found.stderr).split())
    lines = (tmp_path / "runs" / "FedAvg" / "seed-0" / "records.jsonl").read_text().splitlines()
    assert set(json.loads(lines[-1])["metrics"]) == names
    reported = called("report", "runs", "--out", "report.html", cwd=tmp_path)
    assert reported.returncode == 0, reported.stderr
    pages = list(tmp_path.glob("report*.html")) + list((tmp_path / "runs").glob("*.html"))
    assert said in pages[0].read_text(encoding="utf-8")
