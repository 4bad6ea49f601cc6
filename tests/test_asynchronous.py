"""Asynchronous training: equivalences, limits, resuming, and settings it refuses."""

import math
from collections import Counter

import numpy as np
import pytest
import torch

import undrift as ud
from looping import asynchronous, synchronous
from undrift.core.clients import Roster
from undrift.engines.serial import SerialEngine
from undrift.nets.module_losses import ModuleLosses

NEVER = ud.Evaluation(every=10**6)
LADDER = ud.Devices(speed=ud.devices.Ladder(1, 2))
OUTSIDE = "ignore:asyncFedDR's alpha"


def problem(clients=5, seed=0):
    return ud.theory.random_quadratics(clients, 4, 0.5, 2.0, spread=1.0, seed=seed)


def smoothness(losses):
    return max(float(torch.linalg.eigvalsh(H).max()) for H in losses.H)


def run(method, losses, rounds, local=ud.Exact(), **options):
    options = {"problem": losses, "evaluate": NEVER, "progress": False, **options}
    return ud.train(method, local=local, rounds=rounds, **options)


def module():
    data = ud.data.synthetic(1, 1, clients=8, seed=0, most=60)
    return ModuleLosses(ud.models.mlp(60, 8, classes=10, seed=0), data)


@pytest.mark.parametrize("objective", ["samples", "clients"])
@pytest.mark.parametrize(
    ("losses", "local"),
    [
        (problem, ud.Exact()),
        (problem, ud.GD(lr=0.1, steps=ud.UniformAmount(1, 5))),
        (module, ud.SGD(lr=ud.Exponential(0.1, 0.9), batch_size=10, epochs=1, momentum=0.5)),
    ],
)
def test_without_delay_it_is_feddr_with_one_client_at_a_time(losses, local, objective):
    losses = losses()
    g = ud.L1(0.01)
    alone = asynchronous(
        ud.AsyncFedDR(eta=0.3, alpha=0.9, g=g),
        losses,
        local,
        ud.Uniform(1),
        30,
        objective=objective,
        seed=3,
        devices=LADDER,
    )
    records = list(alone.rounds())
    order = [list(record.cohort) for record in records[1:]]
    assert len({client for (client,) in order}) > 3
    assert all(record.staleness == {0: 1} for record in records[1:])
    rounds = synchronous(
        ud.FedDR(eta=0.3, alpha=0.9, g=g),
        losses,
        local,
        ud.Fixed(order),
        30,
        objective=objective,
        seed=3,
    )
    others = list(rounds.rounds())
    assert torch.equal(alone.server.x, rounds.server.x)
    assert [r.metrics for r in records] == [r.metrics for r in others]
    for client in rounds.states.seen():
        ours, theirs = alone.states.get(client), rounds.states.get(client)
        assert torch.equal(ours.x, theirs.x)
        assert torch.equal(ours.y, theirs.y)


@pytest.mark.parametrize("g", [None, ud.L1(0.3)])
@pytest.mark.parametrize(("clients", "delay"), [(2, 1), (3, 4), (5, 6)])
def test_bounded_delays_and_computed_step_sizes_lead_to_the_optimum(clients, delay, g):
    losses = problem(clients, seed=clients)
    optimum = losses.optimum(Roster(losses.ids, losses.sizes, "clients").weights, g)
    method = ud.AsyncFedDR(smoothness=smoothness(losses), clients=clients, delay=delay, g=g)

    def close(run, record):
        return float((run.server.x - optimum).norm()) < 1e-9

    devices = ud.Devices(speed=ud.devices.Ladder(1, 3), jitter=0.5)
    pace = ud.AsTheyArrive(max_delay=delay)
    result = run(
        method, losses, 4000, devices=devices, pace=pace, objective="clients", callbacks=[close]
    )
    assert float((result.x - optimum).norm()) < 1e-8
    ages = sum((Counter(record.staleness) for record in result.records), Counter())
    assert max(ages) <= delay
    assert max(ages) >= clients - 1
    if g is not None:
        assert bool(((result.x == 0) == (optimum == 0)).all())


def test_the_step_sizes_are_those_of_the_theorem():
    method = ud.AsyncFedDR(smoothness=2.0, clients=10, delay=2)
    sizes = ud.theory.step_sizes.async_feddr(2.0, 10, 2)
    assert (method.eta, method.alpha) == (sizes.eta, sizes.alpha)
    half = ud.AsyncFedDR(smoothness=2.0, clients=10, delay=2, alpha=0.25)
    assert half.alpha == 0.25
    # 2τ² ≤ n: η < [√(16 − 8α − 7α²) − α] / (2L(2 + α))
    bound = (math.sqrt(16 - 8 * 0.25 - 7 * 0.25**2) - 0.25) / (2 * 2 * 2.25)
    assert half.eta == pytest.approx(0.99 * bound)


def test_a_step_size_outside_the_bound_is_warned_of():
    losses = problem(5)
    with pytest.warns(UserWarning, match="alpha = 1 has no convergence guarantee"):
        run(ud.AsyncFedDR(eta=0.1, alpha=1.0), losses, 1)
    with pytest.warns(UserWarning, match="eta = 100 has no convergence guarantee"):
        run(ud.AsyncFedDR(eta=100.0, alpha=0.1, smoothness=2.0), losses, 1)
    run(ud.AsyncFedDR(eta=100.0, alpha=0.1), losses, 1)  # L is not known, so there is no warning
    run(ud.AsyncFedDR(eta=0.1, alpha=1.0), losses, 1, pace=ud.WaitForAll())


@pytest.mark.parametrize(
    "method", [ud.FedBuff(buffer=1), ud.FedBuff(buffer=1, staleness=ud.staleness.Polynomial(3.0))]
)
def test_fedbuff_without_delay_is_fedavg_with_one_client_at_a_time(method):
    losses, local = problem(), ud.GD(lr=0.1, steps=3)
    alone = asynchronous(method, losses, local, ud.Uniform(1), 20, devices=LADDER)
    order = [record.cohort for record in list(alone.rounds())[1:]]
    rounds = synchronous(ud.FedAvg(), losses, local, ud.Fixed(order), 20)
    list(rounds.rounds())
    assert torch.equal(alone.server.x, rounds.server.x)


def test_a_full_buffer_of_fresh_replies_is_a_round_of_fedavg():
    """Equal devices reply at the same time, and are taken in the order in which they started."""
    losses, local = problem(), ud.GD(lr=0.1, steps=3)
    buffered = run(ud.FedBuff(buffer=5), losses, 6, local, devices=ud.Devices())
    averaged = run(ud.FedAvg(), losses, 6, local)
    assert torch.allclose(buffered.x, averaged.x, atol=1e-14)
    assert [record.updates for record in buffered.records] == [0, 1, 1, 1, 1, 1, 1]
    assert [record.staleness for record in buffered.records] == [{}] + 6 * [{0: 5}]


@pytest.mark.filterwarnings(OUTSIDE)
@pytest.mark.parametrize(
    "method", [ud.AsyncFedDR(eta=0.3, alpha=0.5), ud.FedAsync(alpha=0.3), ud.FedBuff(buffer=3)]
)
def test_what_the_engine_computes_together_changes_nothing(method):
    class Eager(SerialEngine):
        preferred_assignments = 4
        most = 0

        def replies(self, method, assignments, states, diagnose=True):
            assignments = list(assignments)
            Eager.most = max(Eager.most, len(assignments))
            found = list(super().replies(method, assignments[::-1], states, diagnose))
            yield from found[::-1]

    def end(engine):
        local = ud.SGD(lr=0.1, batch_size=10, epochs=1)
        devices = ud.Devices(speed=ud.devices.Ladder(1, 3), jitter=0.3, dropout=0.1)
        loop = asynchronous(method, module(), local, ud.All(), 5, devices=devices, engine=engine)
        return loop, list(loop.rounds())

    one, records = end(SerialEngine)
    many, others = end(Eager)
    assert Eager.most == 4
    assert torch.equal(one.server.x, many.server.x)
    for ours, theirs in zip(records, others, strict=True):
        ours.seconds = theirs.seconds = 0.0
        assert ours == theirs


@pytest.mark.filterwarnings(OUTSIDE)
@pytest.mark.parametrize("together", [1, 3])
@pytest.mark.parametrize("stop", [1, 4])
@pytest.mark.parametrize(
    ("method", "pace"),
    [
        (ud.AsyncFedDR(eta=0.3, alpha=0.5), ud.AsTheyArrive()),
        (ud.AsyncFedDR(eta=0.3, alpha=0.5), ud.AsTheyArrive(max_delay=7, replies=3)),
        (ud.FedBuff(buffer=5), ud.AsTheyArrive(concurrency=4, replies=3)),
        (ud.FedAsync(alpha=0.3), ud.AsTheyArrive(concurrency=3, max_delay=2, stale="discard")),
    ],
)
def test_what_is_saved_is_all_there_is(method, pace, stop, together):
    """Trips under way, replies that wait, are computed ahead or buffered: all bits are the same."""

    class Engine(SerialEngine):
        pass

    Engine.preferred_assignments = together

    def start():
        devices = ud.Devices(
            speed=ud.devices.Ladder(1, 3),
            jitter=0.3,
            dropout=0.1,
            damage=0.1,
            availability=ud.devices.Duty(period=20, share=0.7),
        )
        local = ud.SGD(lr=0.1, batch_size=10, steps=ud.UniformAmount(2, 6))
        return asynchronous(
            method, module(), local, ud.All(), 8, devices=devices, pace=pace, engine=Engine
        )

    whole = start()
    list(whole.rounds())
    first = start()
    for record in first.rounds():
        if record.round == stop:
            break
    saved = {
        name: {key: _copied(value) for key, value in part.items()}
        for name, part in (first.saved() | first.write_once_parts()).items()
    }
    later = start()
    later.states = first.states
    later.restore(lambda name: saved[name], first.records)
    list(later.rounds())
    assert torch.equal(later.server.x, whole.server.x)
    for ours, theirs in zip(later.records, whole.records, strict=True):
        ours.seconds = theirs.seconds = 0.0
        assert ours == theirs
    assert later.saved().keys() == whole.saved().keys()
    ours, theirs = later.saved()["under way"], whole.saved()["under way"]
    for key in theirs:
        same = torch.equal if isinstance(theirs[key], torch.Tensor) else type(theirs[key]).__eq__
        assert same(ours[key], theirs[key]), key


def _copied(value):
    import json

    return value.clone() if isinstance(value, torch.Tensor) else json.loads(json.dumps(value))


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        (ud.FedAvg(), "began at the same model"),
        (ud.FedProx(), "began at the same model"),
        (ud.SCAFFOLD(), "control variates"),
        (ud.FedNova(), "average over a cohort"),
        (ud.FedDyn(), "one common model"),
        (ud.FedPD(), "every client in every round"),
        (ud.FedSplit(), "one common model"),
        (ud.FedLGA(), "same round"),
        (ud.VRLSGD(), "every client in every round"),
        (ud.FedDR(start="everyone"), "start='everyone'"),
    ],
)
def test_a_method_whose_fold_needs_a_cohort_is_refused_with_the_reason(method, reason):
    with pytest.raises(ud.UndriftError, match=reason):
        run(method, problem(), 1, ud.GD(lr=0.1, steps=2), pace=ud.AsTheyArrive())


@pytest.mark.filterwarnings(OUTSIDE)
def test_feddr_runs_asynchronously_when_it_is_asked_to():
    losses = problem()
    one = run(ud.FedDR(eta=0.3, alpha=0.2), losses, 5, pace=ud.AsTheyArrive(), devices=LADDER)
    other = run(ud.AsyncFedDR(eta=0.3, alpha=0.2), losses, 5, devices=LADDER)
    assert torch.equal(one.x, other.x)
    assert any(record.staleness for record in one.records)


def test_a_method_of_the_users_own_that_says_nothing_is_refused():
    class Mine(ud.Averaging):
        def fold(self, server, replies):
            return ud.ServerState(x=server.x + replies.sum("moved", by=ud.q))

    with pytest.raises(ud.UndriftError, match="one by one as they arrive"):
        run(Mine(), problem(), 1, ud.GD(lr=0.1, steps=2), pace=ud.AsTheyArrive())
    Mine.asynchronous = True
    run(Mine(), problem(), 1, ud.GD(lr=0.1, steps=2), pace=ud.AsTheyArrive())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"cohort": ud.Weighted(2)}, "drawn uniformly"),
        ({"cohort": ud.Bernoulli(0.5)}, "drawn uniformly"),
        ({"limit": {0: 1}}, "limit is for synchronous rounds"),
        ({"limit": ud.Unfinished()}, "limit is for synchronous rounds"),
        ({"pace": ud.AsTheyArrive(max_delay=3)}, "max_delay is 3, but must be at least 4"),
        ({"pace": "asynchronous"}, "pace is 'asynchronous'"),
        ({"pace": {"x": ud.WaitForAll()}}, "A label of pace is 'x'"),
    ],
)
def test_what_makes_no_sense_is_refused(options, sentence):
    with pytest.raises(ud.UndriftError, match=sentence):
        run(ud.FedAsync(), problem(), 1, ud.GD(lr=0.1, steps=2), **options)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: ud.AsyncFedDR(smoothness=1.0), "give all "),
        (lambda: ud.AsyncFedDR(smoothness=-1.0), "smoothness is -1.0"),
        (lambda: ud.FedAsync(alpha=1.5), "at most 1"),
        (lambda: ud.FedAsync(staleness="old"), "must be one of ud.staleness"),
        (lambda: ud.staleness.Polynomial(-1), "at least 0"),
        (lambda: ud.FedBuff(buffer=0), "at least 1"),
        (lambda: ud.AsTheyArrive(concurrency=0), "at least 1"),
        (lambda: ud.AsTheyArrive(stale="never"), "'wait', 'discard'"),
        (lambda: ud.Deadline(0), "above 0"),
        (lambda: ud.Deadline(1, late="soon"), "'partial', 'dropped'"),
        (lambda: ud.FirstToRespond(0), "at least 1"),
        (lambda: ud.WaitForAll(min_replies=0), "at least 1"),
    ],
)
def test_parameters_out_of_range_are_refused(make, sentence):
    with pytest.raises(ud.UndriftError, match=sentence):
        make()


def test_old_replies_count_less():
    """x ← x + w(x_k − x), with w = α·s(u) and the weights N·q_k of unequal clients."""
    fresh = {
        ud.staleness.Constant(): lambda u: 1.0,
        ud.staleness.Polynomial(0.5): lambda u: (1 + u) ** -0.5,
        ud.staleness.Hinge(0.5, 4): lambda u: 1.0 if u <= 4 else 1 / (1 + 0.5 * (u - 4)),
    }
    for kind, s in fresh.items():
        method = ud.FedAsync(alpha=0.4, staleness=kind)
        weight = method.uploads["model"]
        for u in (0, 3, 7):
            client = ud.Client(id=0, samples=1, q=0.1, scale=0.5, staleness=u)
            assert weight(client) == pytest.approx(min(1.0, 0.4 * s(u) / 0.5))
    heavy = ud.Client(id=0, samples=1, q=0.9, scale=0.1)
    assert ud.FedAsync(alpha=0.4).uploads["model"](heavy) == 1.0


def test_a_client_that_always_fails_is_left_out_and_the_others_go_on(tmp_path):
    table = tmp_path / "devices.csv"
    rows = ["client,speed,dropout,damage", "0,1,1,0", "1,1,0,1", "2,1,0,0", "3,1,0,0", "4,1,0,0"]
    table.write_text("\n".join(rows))
    result = run(
        ud.FedAsync(alpha=0.3),
        problem(),
        10,
        ud.GD(lr=0.1, steps=2),
        devices=ud.DeviceFile(table),
    )
    replied = {client for record in result.records for client in record.replied}
    assert replied == {2, 3, 4}
    assert {why for record in result.records for c, why in record.lost if c == 0} == {"failed"}
    assert {c for record in result.records for c, _ in record.rejected} == {1}
    assert set(result.run.states.seen()) == {2, 3, 4}


def test_when_everyone_is_gone_the_run_ends():
    result = run(
        ud.FedAsync(),
        problem(),
        100,
        ud.GD(lr=0.1, steps=2),
        devices=ud.Devices(lifetime=10.0),
    )
    assert result.stopped == "no client is available any more"
    assert result.records[-1].virtual_seconds <= 10


def test_updates_that_are_all_unusable_end_the_run():
    with pytest.raises(ud.Diverged, match="the last 5 replies were unusable"):
        run(ud.FedAsync(), problem(), 50, ud.GD(lr=1e200, steps=9))


def test_whose_reply_is_damaged_is_a_function_of_its_number():
    devices = ud.Devices(speed=ud.devices.Ladder(1, 3), damage=0.4)
    result = run(ud.FedAsync(alpha=0.3), problem(), 8, ud.GD(lr=0.1, steps=2), devices=devices)
    fleet = result.run.fleet
    spans = sorted(
        (span for record in result.records for span in record.spans),
        key=lambda span: (span.start, span.client),
    )
    assert len({span.outcome for span in spans}) == 2
    number = {}
    for span in spans[:5]:  # all start together, in the order of their ids
        number[span.client] = len(number)
        damaged = bool(fleet.damaged(number[span.client], np.array([span.client]))[0])
        assert (span.outcome == "rejected") == damaged
    assert any(span.outcome == "rejected" for span in spans[:5])


def test_bytes_of_replies_that_came_too_late_are_counted():
    result = run(
        ud.FedAsync(),
        problem(),
        3,
        ud.GD(lr=0.1, steps=2),
        devices=LADDER,
        pace=ud.AsTheyArrive(max_delay=0, stale="discard"),
    )
    for record in result.records[1:]:
        assert {reason for _, reason in record.lost} == {"stale"}
        assert sum(record.bytes_up.values()) == sum(record.bytes_down.values()) == 5 * 4 * 8


def test_a_delay_that_nothing_bounds_is_warned_of():
    losses = problem(5)
    method = ud.AsyncFedDR(smoothness=smoothness(losses), clients=5, delay=5)
    with pytest.warns(UserWarning, match="delays up to 5, but nothing bounds them"):
        run(method, losses, 1, devices=LADDER)
    run(method, losses, 1, devices=LADDER, pace=ud.AsTheyArrive(max_delay=5))
    given = ud.AsyncFedDR(eta=0.01, smoothness=1.0, clients=5, delay=5)
    assert given.eta == 0.01
    assert given.alpha == ud.theory.step_sizes.async_feddr(1.0, 5, 5).alpha


def test_rounds_of_the_records_have_the_same_number_of_clients():
    pace = ud.AsTheyArrive(max_delay=4, replies=3)
    devices = ud.Devices(speed=ud.devices.Ladder(1, 5), jitter=0.4)
    result = run(
        ud.FedAsync(alpha=0.3), problem(), 20, ud.GD(lr=0.1, steps=2), devices=devices, pace=pace
    )
    assert {len(record.cohort) for record in result.records[1:]} == {3}


def test_the_mean_of_last_models_is_that_of_the_clients_between_updates():
    losses = problem()
    evaluation = ud.Evaluation(every=1, models=("server", "all"))
    run_ = asynchronous(
        ud.FedBuff(4),
        losses,
        ud.GD(lr=0.1, steps=2),
        ud.All(),
        6,
        evaluation=evaluation,
        devices=LADDER,
        pace=ud.AsTheyArrive(replies=3),
    )
    for _ in run_.rounds():
        q = run_.roster.weights
        mean = sum(w * run_.last_of(id) for w, id in zip(q, run_.roster.ids, strict=True))
        assert torch.allclose(mean, run_.last_mean, atol=1e-12)
