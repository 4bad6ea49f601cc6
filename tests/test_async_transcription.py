"""Asynchronous methods and rounds on the clock against their NumPy transcription."""

import csv
import math

import numpy as np
import pytest
import torch

import async_transcription as clock
import transcription as paper
import undrift as ud
from undrift.core.clients import Roster

CLIENTS, DIMENSION, ROUNDS = 5, 4, 12
BYTES = 8 * DIMENSION
SIZES = [40, 3, 11, 25, 6]
X0 = torch.tensor([0.3, -1.0, 0.5, 2.0])
STEPS = {0: 3, 1: 5, 2: 2, 3: 4, 4: 3}
OBJECTIVES = ["clients", "samples"]

NO_TIME = np.full(CLIENTS, np.inf)
FLEETS = {
    # no two events at the same time
    "uneven": clock.Fleet(
        speed=np.array([7.3, 0.61, 2.9, 19.7, 1.37]),
        latency=np.array([0.011, 0.3, 0.07, 0.003, 0.19]),
        down=np.array([1e3, 300.0, 777.0, 5e4, 900.0]),
        up=np.array([500.0, 100.0, 777.0, 1e4, 450.0]),
    ),
    # times are multiples of 1/16, so that many events are at exactly the same time
    "ties": clock.Fleet(
        speed=np.array([8.0, 1.0, 4.0, 8.0, 2.0]),
        latency=np.array([0.3125, 0.5, 0.25, 0.0, 0.25]),
        down=NO_TIME,
        up=NO_TIME,
    ),
}


def federation():
    drawn = ud.theory.random_quadratics(CLIENTS, DIMENSION, spread=2.0, seed=3)
    return ud.theory.Quadratics(drawn.H, drawn.b, SIZES, initial=X0)


def transcribed(problem, objective):
    q = np.array(SIZES) / sum(SIZES) if objective == "samples" else np.full(CLIENTS, 1 / CLIENTS)
    return paper.Federation(problem.H.numpy(), problem.b.numpy(), q)


def written(fleet, folder, unit="steps"):
    """The devices as a file, which the library reads."""
    path = folder / "devices.csv"
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["client", "speed", "latency", "down", "up"])
        for k in reversed(range(CLIENTS)):
            rates = [r if math.isfinite(r) else "" for r in (fleet.down[k], fleet.up[k])]
            rows.writerow([k, float(fleet.speed[k]), float(fleet.latency[k]), *rates])
    return ud.DeviceFile(path, unit)


def train(method, local, devices, pace, objective, **options):
    """The records and the server's models, one per round."""
    models = []
    result = ud.train(
        method,
        problem=federation(),
        local=local,
        rounds=ROUNDS,
        devices=devices,
        pace=pace,
        objective=objective,
        seed=5,
        progress=False,
        callbacks=[lambda run, record: models.append(run.server.x.numpy())],
        **options,
    )
    return result.records[1:], models[1:]


def soft(x, eta):
    return clock.soft_threshold(x, 0.1 * eta)


GD = ud.GD(lr=0.05, steps=STEPS)
LR = 0.05


def feddr(**options):
    def make(fed, x0):
        return PerClientSteps(clock.AsyncFedDR(fed, x0, 0.6, 0.7, **options))

    return make


def fedasync(alpha, s, mu=0.0):
    def make(fed, x0):
        return PerClientSteps(clock.FedAsync(fed, x0, LR, 0, alpha, s, mu))

    return make


def fedbuff(M, s, server_lr=1.0):
    def make(fed, x0):
        return PerClientSteps(clock.FedBuff(fed, x0, LR, 0, M, s, server_lr))

    return make


class PerClientSteps:
    """Clients do different numbers of steps."""

    def __init__(self, method):
        self.method, self.needs = method, method.needs

    @property
    def x(self):
        return self.method.x

    def work(self, k, read):
        self.method.steps = STEPS[k]
        return self.method.work(k, read)

    def update(self, replies):
        self.method.update(replies)


ONE = dict.fromkeys(range(CLIENTS), 1)
CASES = {
    "AsyncFedDR": (ud.AsyncFedDR(0.6, 0.7), feddr(), ud.Exact(), ONE),
    "AsyncFedDR l1": (ud.AsyncFedDR(0.6, 0.7, ud.L1(0.1)), feddr(prox=soft), ud.Exact(), ONE),
    "AsyncFedDR GD": (ud.AsyncFedDR(0.6, 0.7), feddr(lr=LR), GD, STEPS),
    "FedAsync constant": (
        ud.FedAsync(0.6, staleness=ud.staleness.Constant()),
        fedasync(0.6, clock.constant),
        GD,
        STEPS,
    ),
    "FedAsync polynomial": (
        ud.FedAsync(0.9, staleness=ud.staleness.Polynomial(0.7)),
        fedasync(0.9, clock.polynomial(0.7)),
        GD,
        STEPS,
    ),
    "FedAsync hinge": (
        ud.FedAsync(0.8, staleness=ud.staleness.Hinge(2.0, 1.0)),
        fedasync(0.8, clock.hinge(2.0, 1.0)),
        GD,
        STEPS,
    ),
    "FedAsync proximal": (
        ud.FedAsync(0.9, mu=1.5),
        fedasync(0.9, clock.polynomial(0.5), mu=1.5),
        GD,
        STEPS,
    ),
    "FedBuff 1": (ud.FedBuff(1), fedbuff(1, clock.polynomial(0.5)), GD, STEPS),
    "FedBuff 3": (ud.FedBuff(3), fedbuff(3, clock.polynomial(0.5)), GD, STEPS),
    "FedBuff 3 constant": (
        ud.FedBuff(3, server=ud.server.Plain(0.7), staleness=ud.staleness.Constant()),
        fedbuff(3, clock.constant, 0.7),
        GD,
        STEPS,
    ),
    "FedBuff 3 hinge": (
        ud.FedBuff(3, staleness=ud.staleness.Hinge(2.0, 0.0)),
        fedbuff(3, clock.hinge(2.0, 0.0)),
        GD,
        STEPS,
    ),
}
beyond_the_bound = pytest.mark.filterwarnings("ignore:.*alpha:UserWarning")


def compare(records, models, expected):
    assert len(records) == len(models) == len(expected) == ROUNDS
    assert np.abs(expected[-1].x - expected[0].x).max() > 1e-3  # the model has moved
    for record, model, wanted in zip(records, models, expected, strict=True):
        assert record.cohort == wanted.cohort
        assert [client for client, _ in record.lost] == wanted.lost
        assert record.staleness == wanted.staleness
        assert record.updates == wanted.updates
        assert record.virtual_seconds == pytest.approx(wanted.time, rel=1e-12)
        np.testing.assert_allclose(model, wanted.x, rtol=0, atol=1e-10)


@beyond_the_bound
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("fleet", FLEETS)
@pytest.mark.parametrize("case", CASES)
def test_asynchronous_method_agrees_with_its_paper(case, fleet, objective, tmp_path):
    method, make, local, units = CASES[case]
    devices = written(FLEETS[fleet], tmp_path)
    records, models = train(method, local, devices, None, objective)
    second = make(transcribed(federation(), objective), X0.double().numpy())
    expected = clock.asynchronous(second, FLEETS[fleet], units.__getitem__, BYTES, ROUNDS, CLIENTS)
    compare(records, models, expected)
    if "FedAsync" in case and objective == "samples":
        weights = second.method.weights
        assert max(weights) == 1.0 and min(weights) < 0.5  # min(1, …) matters


BOUNDS = [
    *((case, d, "wait") for case in ("AsyncFedDR", "FedAsync polynomial") for d in (4, 5, 7)),
    *(("FedBuff 3", d, "wait") for d in (2, 3, 4)),
    *(("AsyncFedDR", d, "discard") for d in (0, 2, 5)),
    *(("FedAsync hinge", d, "discard") for d in (0, 2, 5)),
    *(("FedBuff 3", d, "discard") for d in (0, 1, 3)),
]


@beyond_the_bound
@pytest.mark.parametrize("fleet", FLEETS)
@pytest.mark.parametrize(("case", "max_delay", "stale"), BOUNDS)
def test_a_bound_on_the_delay_is_kept(case, max_delay, stale, fleet, tmp_path):
    method, make, local, units = CASES[case]
    pace = ud.AsTheyArrive(max_delay=max_delay, stale=stale)
    records, models = train(method, local, written(FLEETS[fleet], tmp_path), pace, "samples")
    second = make(transcribed(federation(), "samples"), X0.double().numpy())
    expected = clock.asynchronous(
        second,
        FLEETS[fleet],
        units.__getitem__,
        BYTES,
        ROUNDS,
        CLIENTS,
        max_delay=max_delay,
        stale=stale,
    )
    compare(records, models, expected)
    assert all(reason == "stale" for record in records for _, reason in record.lost)
    assert any(record.lost for record in records) == (stale == "discard")


@beyond_the_bound
@pytest.mark.parametrize("case", ["AsyncFedDR l1", "FedAsync polynomial", "FedBuff 3"])
@pytest.mark.parametrize("concurrency", [1, 2, 4])
def test_fewer_clients_at_once_agree_given_who_set_out(case, concurrency, tmp_path):
    method, make, local, units = CASES[case]
    pace = ud.AsTheyArrive(concurrency=concurrency, replies=5)
    fleet = FLEETS["uneven"]
    records, models = train(method, local, written(fleet, tmp_path), pace, "samples")
    spans = [span for record in records for span in record.spans]
    assert len(spans) == 5 * ROUNDS
    assert len({span.client for span in spans}) == CLIENTS

    def launches(t):
        return [span.client for span in spans if abs(span.start - t) < 1e-9]

    assert len(launches(0.0)) == concurrency
    second = make(transcribed(federation(), "samples"), X0.double().numpy())
    expected = clock.asynchronous(
        second, fleet, units.__getitem__, BYTES, ROUNDS, 5, launches=launches
    )
    compare(records, models, expected)


@pytest.mark.parametrize("fleet", FLEETS)
def test_a_pace_may_have_another_buffer_and_devices_may_count_samples(fleet, tmp_path):
    _, make, local, _ = CASES["FedBuff 3"]
    devices = written(FLEETS[fleet], tmp_path, unit="samples")
    pace = ud.AsTheyArrive(buffer=3, replies=7)
    records, models = train(ud.FedBuff(2), local, devices, pace, "clients")
    second = make(transcribed(federation(), "clients"), X0.double().numpy())
    expected = clock.asynchronous(
        second, FLEETS[fleet], lambda k: STEPS[k] * SIZES[k], BYTES, ROUNDS, 7
    )
    compare(records, models, expected)


# Rounds on the clock


@pytest.fixture(params=["FedAvg", "FedNova", "SCAFFOLD"])
def averaging(request):
    """A method, its transcription, and the bytes of a download and an upload."""
    return {
        "FedAvg": (ud.FedAvg(), paper.fedavg, BYTES, BYTES),
        "FedNova": (ud.FedNova(), paper.fednova, BYTES, BYTES + 16),
        "SCAFFOLD": (ud.SCAFFOLD(), paper.scaffold, 2 * BYTES, 2 * BYTES),
    }[request.param]


def cohorts_of(sampler, objective):
    roster = Roster(list(range(CLIENTS)), torch.tensor(SIZES), objective)
    return [[*sampler.draw(roster, 5, t)] for t in range(ROUNDS)]


def compare_rounds(averaging, pace, rounds_of, objective, fleet, sampler, folder, unit="steps"):
    method, second, down, up = averaging
    cohorts = cohorts_of(sampler, objective)
    records, models = train(
        method, GD, written(FLEETS[fleet], folder, unit), pace, objective, cohort=sampler
    )
    per_step = SIZES if unit == "samples" else [1] * CLIENTS
    rounds = rounds_of(FLEETS[fleet].scaled(per_step), STEPS.__getitem__, down, up, cohorts)
    local = paper.Local(lr=LR, steps=lambda k, t: rounds[t].steps[k])
    fed = transcribed(federation(), objective)
    expected = second(fed, local, X0.double().numpy(), [each.used for each in rounds])
    assert np.abs(expected[-1] - expected[0]).max() > 1e-3
    for record, model, cohort, done, wanted in zip(
        records, models, cohorts, rounds, expected, strict=True
    ):
        assert record.cohort == cohort
        assert record.replied == done.used
        assert record.lost == [(k, "late") for k in done.lost]
        assert record.absent == done.absent
        assert record.steps == sum(done.steps[k] for k in done.used)
        assert record.partial == sum(done.steps[k] < STEPS[k] for k in done.used)
        assert record.virtual_seconds == pytest.approx(done.time, rel=1e-12)
        np.testing.assert_allclose(model, wanted, rtol=0, atol=1e-10)
    return rounds


SAMPLERS = {"everyone": ud.All(), "four": ud.Uniform(4)}


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("fleet", FLEETS)
@pytest.mark.parametrize("K", [1, 2, 3])
def test_first_to_respond(averaging, K, fleet, sampler, objective, tmp_path):
    def rounds(*args):
        return clock.first_to_respond(*args, K=K)

    found = compare_rounds(
        averaging, ud.FirstToRespond(K), rounds, objective, fleet, SAMPLERS[sampler], tmp_path
    )
    assert all(len(each.used) == K and each.lost for each in found)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize(("fleet", "seconds"), [("uneven", 4.9), ("ties", 2.0), ("ties", 3.5)])
def test_deadline_with_partial_work(averaging, fleet, seconds, sampler, objective, tmp_path):
    def rounds(*args):
        return clock.deadline_partial(*args, seconds=seconds)

    found = compare_rounds(
        averaging, ud.Deadline(seconds), rounds, objective, fleet, SAMPLERS[sampler], tmp_path
    )
    assert any(0 < each.steps[k] < STEPS[k] for each in found for k in each.used)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize(("fleet", "seconds"), [("uneven", 0.97), ("ties", 0.75)])
def test_deadline_that_leaves_no_time_for_some(averaging, fleet, seconds, objective, tmp_path):
    def rounds(*args):
        return clock.deadline_partial(*args, seconds=seconds)

    found = compare_rounds(
        averaging, ud.Deadline(seconds), rounds, objective, fleet, ud.All(), tmp_path
    )
    assert any(each.absent for each in found)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize(("fleet", "seconds"), [("uneven", 2.9), ("ties", 1.0), ("ties", 2.0)])
def test_deadline_that_drops(averaging, fleet, seconds, sampler, objective, tmp_path):
    def rounds(*args):
        return clock.deadline_dropped(*args, seconds=seconds)

    found = compare_rounds(
        averaging,
        ud.Deadline(seconds, "dropped"),
        rounds,
        objective,
        fleet,
        SAMPLERS[sampler],
        tmp_path,
    )
    assert any(each.lost for each in found)


@pytest.mark.parametrize("unit", ["steps", "samples"])
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("fleet", FLEETS)
def test_waiting_for_all(averaging, fleet, sampler, unit, tmp_path):
    compare_rounds(
        averaging,
        ud.WaitForAll(),
        clock.wait_for_all,
        "samples",
        fleet,
        SAMPLERS[sampler],
        tmp_path,
        unit,
    )
