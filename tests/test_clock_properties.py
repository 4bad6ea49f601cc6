"""Properties of every run on the virtual clock, for any devices, pace and method."""

import copy
import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import undrift as ud
from looping import loop
from undrift.core.clients import ClientStates
from undrift.core.records import LOST
from undrift.devices import Always, Between, Duty, Ladder, LogNormal
from undrift.engines.serial import SerialEngine

pytestmark = pytest.mark.filterwarnings("ignore:.*alpha:UserWarning")

ROUNDS = 6
quick = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
GD = ud.GD(lr=0.1, steps={f"client {k}": 1 + (3 * k) % 5 for k in range(6)})
IN_ROUNDS = [ud.FedAvg(), ud.SCAFFOLD(), ud.FedDyn(0.8), ud.FedDR(0.5, 0.9)]
AS_THEY_ARRIVE = [
    ud.AsyncFedDR(0.3, 0.4),
    ud.AsyncFedDR(0.3, 0.4, ud.L1(0.1)),
    ud.FedAsync(),
    ud.FedBuff(3),
]


def problem(clients, seed=0, order=None):
    """Quadratics with named clients, in some order."""
    drawn = ud.theory.random_quadratics(clients, 3, spread=2.0, seed=seed)
    order = range(clients) if order is None else order
    return ud.theory.Quadratics(
        drawn.H[list(order)],
        drawn.b[list(order)],
        [int(drawn.sizes[k]) for k in order],
        ids=[f"client {k}" for k in order],
        initial=torch.tensor([1.0, -0.5, 2.0]),
    )


def law(*values):
    return st.sampled_from(values)


devices = st.builds(
    ud.Devices,
    speed=law(2.0, Ladder(0.5, 8.0), LogNormal(3.0, 1.0), Between(1.0, 5.0)),
    down=law(None, 80.0, LogNormal(100.0, 0.5)),
    up=law(None, 40.0, Ladder(20.0, 200.0)),
    latency=law(0.0, 0.125, Between(0.0, 0.5)),
    jitter=law(0.0, 0.0, 0.5),
    dropout=law(0.0, 0.0, 0.3, Between(0.0, 0.6)),
    damage=law(0.0, 0.0, 0.3),
    lifetime=law(None, None, LogNormal(12.0, 0.7)),
    availability=st.one_of(
        st.just(Always()),
        st.just(Always()),
        st.builds(
            Duty,
            period=st.floats(2.0, 12.0),
            share=st.floats(0.2, 0.9),
            together=st.booleans(),
        ),
    ),
)
min_replies = st.sampled_from([1, 1, 2, 4])
round_paces = st.one_of(
    st.builds(ud.WaitForAll, min_replies),
    st.builds(
        ud.Deadline, st.floats(0.2, 4.0), st.sampled_from(["partial", "dropped"]), min_replies
    ),
    st.builds(lambda K, least: ud.FirstToRespond(K, min(K, least)), st.integers(1, 4), min_replies),
)


@st.composite
def in_rounds(draw):
    """The arguments of a run in rounds."""
    clients = draw(st.integers(1, 6))
    sampler = draw(
        st.sampled_from([ud.All(), ud.Bernoulli(0.6), ud.Weighted(4)])
        | st.builds(ud.Uniform, st.integers(1, clients))
    )
    method, pace = draw(st.sampled_from(IN_ROUNDS)), draw(round_paces)
    most = min(getattr(sampler, "K", clients), clients)
    return dict(
        method=method,
        losses=problem(clients),
        sampler=sampler,
        devices=draw(devices),
        pace=replace(pace, min_replies=min(pace.min_replies, most)),
        seed=draw(st.integers(0, 1000)),
        objective="clients",
    )


@st.composite
def as_they_arrive(draw):
    """The arguments of an asynchronous run; its bound on the delay, if any, can be kept."""
    clients = draw(st.integers(1, 6))
    method = draw(st.sampled_from(AS_THEY_ARRIVE))
    concurrency = draw(st.none() | st.integers(1, clients))
    buffer = draw(st.none() | st.integers(1, 4)) if isinstance(method, ud.FedBuff) else None
    stale = draw(st.sampled_from(["wait", "discard"]))
    least = math.ceil(((concurrency or clients) - 1) / (buffer or method.buffer))
    max_delay = draw(st.none() | st.integers(0 if stale == "discard" else least, least + 3))
    replies = draw(st.none() | st.integers(1, 8))
    return dict(
        method=method,
        losses=problem(clients),
        sampler=ud.All(),
        devices=draw(devices),
        pace=ud.AsTheyArrive(concurrency, buffer, max_delay, stale, replies),
        seed=draw(st.integers(0, 1000)),
        objective="samples",
    )


runs = in_rounds() | as_they_arrive()


def started(method, losses, sampler, **options):
    return loop(method, losses, GD, sampler, ROUNDS, **options)


def finished(**options):
    run = started(**options)
    for _ in run.rounds():
        pass
    return run


def spans_of(run):
    return [span for record in run.records for span in record.spans]


# Time


@quick
@given(runs)
def test_time_never_runs_backwards(options):
    run = finished(**options)
    for before, after in pairwise(run.records):
        assert before.virtual_seconds <= after.virtual_seconds < math.inf
    for record in run.records:
        assert len(record.spans) == len(record.cohort) - len(record.absent)
        for span in record.spans:
            assert 0 <= span.start <= span.computing <= span.sending <= span.end
            assert span.end <= record.virtual_seconds * (1 + 1e-9)


@quick
@given(in_rounds())
def test_the_work_of_a_round_lies_within_it(options):
    run = finished(**options)
    for before, record in pairwise(run.records):
        if not record.spans:
            continue
        begin = record.spans[0].start
        assert begin >= before.virtual_seconds
        assert {span.start for span in record.spans} == {begin}  # all start together
        if isinstance(options["pace"], ud.Deadline):
            assert record.virtual_seconds <= (begin + options["pace"].seconds) * (1 + 1e-9)


@quick
@given(as_they_arrive())
def test_replies_are_taken_in_as_they_arrive(options):
    run = finished(**options)
    waits = options["pace"].stale == "wait" and options["pace"].max_delay is not None
    for before, record in pairwise(run.records):
        ends = [span.end for span in record.spans]
        if ends and not waits:
            assert [before.virtual_seconds, *ends] == sorted([before.virtual_seconds, *ends])
            assert record.virtual_seconds == ends[-1]


@quick
@given(runs)
def test_no_client_is_in_two_places_at_once(options):
    run = finished(**options)
    by_client = {}
    for span in spans_of(run):
        by_client.setdefault(span.client, []).append(span)
    for spans in by_client.values():
        spans.sort(key=lambda span: (span.start, span.end))
        for one, next_one in pairwise(spans):
            assert one.end <= next_one.start * (1 + 1e-9)


@quick
@given(as_they_arrive())
def test_no_more_clients_are_at_work_than_were_asked_for(options):
    run = finished(**options)
    most = options["pace"].concurrency or len(options["losses"])
    spans = spans_of(run)
    for at in {span.start for span in spans}:
        assert sum(span.start <= at < span.end for span in spans) <= most


@quick
@given(runs)
def test_clients_work_only_while_they_are_available(options):
    run = finished(**options)
    for span in spans_of(run):
        k = run.roster.position[span.client]
        assert run.fleet.is_available(k, span.start)
        leaves = float(run.fleet.leaves(k, span.start))
        assert span.end <= leaves
        if span.outcome == "left":
            assert span.end == leaves


@quick
@given(runs)
def test_time_at_work_adds_up(options):
    run = finished(**options)
    for record in run.records:
        at_work = sum(span.end - span.start for span in record.spans)
        assert record.busy_seconds == pytest.approx(at_work)
        assert record.idle_seconds >= 0


@quick
@given(runs)
def test_a_run_ends_early_only_when_nobody_will_ever_be_there_again(options):
    run = finished(**options)
    for_ever = [math.isinf(run.fleet.next_of(k, run.now)) for k in range(len(run.roster))]
    assert (run.stopped is None) or all(for_ever)
    assert len(run.records) == ROUNDS + 1 or run.stopped is not None


# Counting


@quick
@given(runs)
def test_everyone_who_was_asked_is_counted_once(options):
    run = finished(**options)
    for record in run.records:
        rejected = [client for client, _ in record.rejected]
        lost = [client for client, _ in record.lost]
        parts = [*record.replied, *rejected, *lost, *record.absent]
        assert Counter(parts) == Counter(record.cohort)
        assert {reason for _, reason in record.lost} <= set(LOST)
        outcomes = Counter((span.client, span.outcome) for span in record.spans)
        expected = [(client, "replied") for client in record.replied]
        expected += [(client, "rejected") for client in rejected] + record.lost
        assert outcomes == Counter(expected)
        if isinstance(options["pace"], ud.FirstToRespond):
            assert len(record.replied) + len(rejected) <= options["pace"].replies
        if not isinstance(options["pace"], ud.AsTheyArrive):
            assert len(set(record.cohort)) == len(record.cohort)
            assert record.updates == (len(record.replied) > 0)
            assert not record.staleness


@quick
@given(as_they_arrive())
def test_updates_are_made_of_the_replies_that_were_accepted(options):
    run = finished(**options)
    M = options["pace"].buffer or options["method"].buffer
    accepted = updates = 0
    for record in run.records:
        assert sum(record.staleness.values()) == len(record.replied)
        assert all(times > 0 for times in record.staleness.values())
        accepted += len(record.replied)
        updates += record.updates
        assert updates == accepted // M
        assert max(record.staleness, default=0) <= updates


@quick
@given(as_they_arrive())
def test_every_reply_is_as_old_as_the_updates_since_it_was_begun(options):
    """The same totals from the spans alone, where no two events are at the same time."""
    if options["pace"].stale == "wait":
        options["pace"] = replace(options["pace"], max_delay=None)
    run = finished(**options)
    M = options["pace"].buffer or options["method"].buffer
    spans = spans_of(run)
    replied = sorted(span.end for span in spans if span.outcome == "replied")
    if len(set(replied)) < len(replied) or len(spans) != sum(len(r.cohort) for r in run.records):
        return
    expected = Counter(
        sum(t < span.end for t in replied) // M - sum(t <= span.start for t in replied) // M
        for span in spans
        if span.outcome == "replied"
    )
    assert expected == sum((Counter(record.staleness) for record in run.records), Counter())


@quick
@given(as_they_arrive())
def test_no_reply_is_older_than_allowed(options):
    run = finished(**options)
    pace = options["pace"]
    reasons = {reason for record in run.records for _, reason in record.lost}
    if pace.max_delay is not None:
        assert max((u for r in run.records for u in r.staleness), default=0) <= pace.max_delay
    if pace.max_delay is None or pace.stale == "wait":
        assert "stale" not in reasons


# States


class Watched(ClientStates):
    """Client states that record whose state is stored."""

    def __init__(self, *args):
        super().__init__(*args)
        self.puts = []

    def put(self, client, keep):
        self.puts.append(client)
        super().put(client, keep)


def bits(named):
    return {
        name: value.numpy().tobytes() if isinstance(value, torch.Tensor) else value
        for name, value in named.items()
    }


def steps_of(run):
    """Each record, with the clients whose state it stored, and the states before and after it."""

    def all_there_is():
        states = {id: bits(run.states.get(id)) for id in run.roster.ids}
        return states, bits(run.server)

    before = all_there_is()
    for record in run.rounds():
        puts, run.states.puts = run.states.puts, []
        after = all_there_is()
        yield record, puts, before, after
        before = after


@quick
@given(runs)
def test_only_those_whose_reply_was_accepted_remember_it(options):
    run = started(**options, states=Watched)
    for record, puts, (states, server), (new_states, new_server) in steps_of(run):
        assert Counter(puts) == Counter(record.replied)
        for client in set(run.roster.ids) - set(record.replied):
            assert states[client] == new_states[client]
        if not record.updates:
            assert server == new_server


@quick
@given(in_rounds(), st.integers(1, 5))
def test_a_round_with_too_few_replies_changes_nothing(options, least):
    most = min(getattr(options["sampler"], "K", 9), len(options["losses"].ids))
    least = min(least, most, getattr(options["pace"], "replies", least))
    options["pace"] = replace(options["pace"], min_replies=least)
    run = started(**options, states=Watched)
    for record, puts, before, after in steps_of(run):
        if len(record.replied) < least:
            assert record.replied == [] and record.updates == 0 and puts == []
            assert before == after
            assert record.staleness == {} and record.partial == 0 and record.steps == 0
        else:
            assert record.updates == 1
            assert before[1]["x"] != after[1]["x"]
        if any(reason == "skipped" for _, reason in record.lost):
            skipped = [client for client, reason in record.lost if reason == "skipped"]
            assert record.updates == 0 and len(skipped) < least


# Repetition


def trace(run):
    """All but wall time and metrics, whose sums depend on the order of the data."""
    records = [replace(record, seconds=0.0, metrics={}, diagnostics={}) for record in run.records]
    states = {id: bits(run.states.get(id)) for id in run.roster.ids}
    return records, bits(run.server), states, run.stopped


@quick
@given(runs)
def test_the_same_seed_gives_the_same_run(options):
    one, two = finished(**options), finished(**options)
    assert trace(one) == trace(two)
    for a, b in zip(one.records, two.records, strict=True):
        assert repr((a.metrics, a.diagnostics)) == repr((b.metrics, b.diagnostics))


RANDOM = {
    "speed": ud.Devices(speed=LogNormal(3.0, 1.0)),
    "down": ud.Devices(down=LogNormal(100.0, 1.0)),
    "up": ud.Devices(up=LogNormal(100.0, 1.0)),
    "latency": ud.Devices(latency=Between(0.1, 0.9)),
    "jitter": ud.Devices(jitter=0.5),
    "dropout": ud.Devices(dropout=0.5),
    "lifetime": ud.Devices(lifetime=LogNormal(5.0, 1.0)),
    "availability": ud.Devices(availability=Duty(10.0, 0.7)),
}


@pytest.mark.parametrize("method", [ud.FedAvg(), ud.AsyncFedDR(0.3, 0.4)], ids=lambda m: m.name)
@pytest.mark.parametrize("what", RANDOM)
def test_another_seed_gives_other_devices_unless_they_have_their_own(what, method):
    def times(seed, devices):
        run = finished(
            method=method, losses=problem(5), sampler=ud.All(), devices=devices, seed=seed
        )
        return [record.virtual_seconds for record in run.records]

    assert times(1, RANDOM[what]) == times(1, RANDOM[what])
    assert times(1, RANDOM[what]) != times(2, RANDOM[what])
    own = replace(RANDOM[what], seed=7)
    of_the_run = what in ("jitter", "dropout")  # are drawn in every round
    assert (times(1, own) == times(2, own)) != of_the_run


@quick
@given(runs, st.randoms(use_true_random=False))
def test_the_order_of_the_clients_in_the_data_does_not_matter(options, random):
    clients = len(options["losses"])
    order = random.sample(range(clients), clients)
    one = finished(**options)
    other = finished(**{**options, "losses": problem(clients, order=order)})
    assert trace(one) == trace(other)


class Backwards(SerialEngine):
    """Gets several assignments at once and computes the last one first."""

    preferred_assignments = 4
    most = 0

    def replies(self, method, assignments, states, diagnose=True):
        assignments = list(assignments)
        Backwards.most = max(Backwards.most, len(assignments))
        found = []
        for assignment in reversed(assignments):
            found += super().replies(method, [assignment], states, diagnose)
        yield from reversed(found)


@quick
@given(runs)
def test_it_does_not_matter_in_which_order_and_when_work_is_computed(options):
    assert trace(finished(**options)) == trace(finished(**options, engine=Backwards))


def test_errands_are_given_together_where_the_engine_likes_that():
    Backwards.most = 0
    finished(
        method=ud.FedAsync(),
        losses=problem(6),
        sampler=ud.All(),
        devices=ud.Devices(speed=Ladder(1.0, 3.0)),
        engine=Backwards,
    )
    assert Backwards.most > 1


@quick
@given(runs, st.integers(0, ROUNDS))
def test_a_run_that_goes_on_later_is_the_same_run(options, rounds):
    whole, first, second = finished(**options), started(**options), started(**options)
    for record in first.rounds():
        if record.round == rounds:
            break
    saved = copy.deepcopy(first.saved() | first.write_once_parts())
    second.restore(saved.__getitem__, first.records)
    second.states = first.states
    for _ in second.rounds():
        pass
    assert trace(whole) == trace(second)


# Replies that wait for one that never arrives


def due_and_lost(folder, column, value):
    """Client 0 is slow and fails; the replies of the others soon wait for its reply."""
    path = folder / "devices.csv"
    path.write_text(f"client,speed,{column}\n0,0.01,{value}\n1,1,\n2,1.5,\n")
    return ud.train(
        ud.FedAsync(),
        problem=ud.theory.random_quadratics(3, 2, seed=0),
        local=ud.GD(lr=0.1, steps=1),
        rounds=5,
        devices=ud.DeviceFile(path),
        pace=ud.AsTheyArrive(max_delay=2),
        progress=False,
    )


def test_replies_do_not_wait_for_a_device_that_is_gone_for_good(tmp_path):
    result = due_and_lost(tmp_path, "lifetime", 5)
    assert result.stopped is None
    assert all(record.replied for record in result.records[1:])


def test_replies_do_not_wait_for_work_that_failed(tmp_path):
    result = due_and_lost(tmp_path, "dropout", 1)
    failures = [s.end for r in result.records for s in r.spans if s.outcome == "failed"]
    # When client 0 fails, the clients whose replies waited for it start again.
    starts = {s.start for r in result.records for s in r.spans if s.client != 0}
    assert failures and set(failures[:-1]) <= starts


class Ahead(SerialEngine):
    """Computes several assignments at once."""

    preferred_assignments = 4


def test_replies_that_were_computed_in_vain_are_forgotten():
    def start():
        return started(
            method=ud.FedAsync(),
            losses=problem(5),
            sampler=ud.All(),
            devices=ud.Devices(speed=Ladder(1.0, 9.0)),
            pace=ud.AsTheyArrive(max_delay=2, stale="discard"),
            engine=Ahead,
        )

    whole, first, second = start(), start(), start()
    for _ in whole.rounds():
        pass
    assert any(record.lost for record in whole.records)
    for record in first.rounds():
        if record.round == 4:
            break
    second.restore(
        copy.deepcopy(first.saved() | first.write_once_parts()).__getitem__, first.records
    )
    second.states = first.states
    for _ in second.rounds():
        pass
    assert trace(whole) == trace(second)
