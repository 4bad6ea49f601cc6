"""Synchronous rounds on the virtual clock: waiting, lost replies, and costs."""

import numpy as np
import pytest
import torch

import undrift as ud
from undrift.core.clients import Roster
from undrift.theory import fixed_points

NEVER = ud.Evaluation(every=10**6)


def problem(clients=6, seed=0):
    return ud.theory.random_quadratics(clients, 3, 0.5, 2.0, spread=1.0, seed=seed)


def devices(tmp_path, **columns):
    """Devices from a CSV file with a row per client."""
    rows = [",".join(["client", *columns])]
    for k, values in enumerate(zip(*columns.values(), strict=True)):
        rows.append(",".join(map(str, [k, *values])))
    path = tmp_path / "devices.csv"
    path.write_text("\n".join(rows))
    return ud.DeviceFile(path)


def run(method, losses, rounds, local=ud.GD(lr=0.1, steps=4), **options):
    options = {"problem": losses, "evaluate": NEVER, "progress": False, **options}
    return ud.train(method, local=local, rounds=rounds, **options)


SPEEDS = [1, 2, 3, 5, 8, 13]


@pytest.mark.parametrize("objective", ["samples", "clients"])
@pytest.mark.parametrize("lr", [0.2, 0.02])
def test_unequal_steps_by_a_deadline_lead_to_the_closed_forms(tmp_path, objective, lr):
    losses = problem()
    q = Roster(losses.ids, losses.sizes, objective).weights
    fleet = devices(tmp_path, speed=SPEEDS)
    local = ud.GD(lr=lr, steps=100)
    options = {"devices": fleet, "pace": ud.Deadline(1.0), "objective": objective}
    closed = {
        "FedAvg": fixed_points.fedprox(losses.H, losses.b, q, lr, SPEEDS, 0.0),
        "FedNova": fixed_points.fednova(losses.H, losses.b, q, lr, SPEEDS, 0.0),
    }
    for name, method in {"FedAvg": ud.FedAvg(), "FedNova": ud.FedNova()}.items():
        goal = closed[name]
        near = [lambda run, record, goal=goal: float((run.server.x - goal).norm()) < 1e-10]
        result = run(method, losses, int(16 / lr) + 100, local, callbacks=near, **options)
        assert float((result.x - goal).norm()) < 1e-8, name
        assert {record.partial for record in result.records[1:]} == {6}
        assert result.records[-1].steps == sum(SPEEDS)


def test_the_bias_of_fednova_shrinks_with_the_learning_rate_and_that_of_fedavg_does_not(tmp_path):
    losses = problem()
    optimum = losses.optimum(Roster(losses.ids, losses.sizes, "samples").weights)
    fleet = devices(tmp_path, speed=SPEEDS)

    def bias(method, lr):
        local = ud.GD(lr=lr, steps=100)
        options = {"devices": fleet, "pace": ud.Deadline(1.0)}
        result = run(method, losses, int(6 / lr), local, **options)
        return float((result.x - optimum).norm())

    nova = [bias(ud.FedNova(), lr) for lr in (0.08, 0.04, 0.02)]
    fedavg = [bias(ud.FedAvg(), lr) for lr in (0.08, 0.02)]
    assert nova[0] / nova[1] == pytest.approx(2, abs=0.2)
    assert nova[1] / nova[2] == pytest.approx(2, abs=0.1)
    assert fedavg[1] > 0.5 * fedavg[0]
    assert fedavg[1] > 10 * nova[2]


def test_virtual_seconds_are_reading_computing_and_sending(tmp_path):
    losses = problem(2)
    fleet = devices(tmp_path, speed=[2, 4], down=[24, 12], up=[6, 12], latency=[0.5, 1])
    result = run(ud.FedAvg(), losses, 3, devices=fleet)
    # The model has 3 numbers of 8 bytes; 4 steps.
    first = 0.5 + 24 / 24 + 4 / 2 + 0.5 + 24 / 6
    second = 1 + 24 / 12 + 4 / 4 + 1 + 24 / 12
    assert first != second
    slow = max(first, second)
    assert [r.virtual_seconds for r in result.records] == pytest.approx(
        [0, slow, 2 * slow, 3 * slow]
    )
    record = result.records[1]
    assert record.busy_seconds == pytest.approx(first + second)
    assert record.idle_seconds == pytest.approx(abs(first - second))
    span = record.spans[0]
    assert span[1:5] == pytest.approx((0, 1.5, 3.5, first))
    assert span.outcome == "replied"


def test_speed_may_count_samples_instead_of_steps():
    data = ud.data.synthetic(1, 1, clients=3, seed=0, most=60)
    result = ud.train(
        ud.SCAFFOLD("I"),
        model=ud.models.logistic(60, 10),
        data=data,
        local=ud.SGD(lr=0.01, batch_size=16, epochs=2),
        devices=ud.Devices(speed=7, unit="samples"),
        rounds=1,
        progress=False,
    )
    # Two epochs, and the full gradient that option I asks for.
    assert result.records[1].virtual_seconds == pytest.approx(3 * max(data.train.sizes) / 7)
    assert result.records[1].gradients == 3 * len(data.train)


def test_the_first_to_respond_are_used_and_the_others_are_wasted(tmp_path):
    losses = problem()
    fleet = devices(tmp_path, speed=SPEEDS)
    result = run(ud.FedAvg(), losses, 5, devices=fleet, pace=ud.FirstToRespond(2))
    for record in result.records[1:]:
        assert record.cohort == [0, 1, 2, 3, 4, 5]
        assert record.replied == [4, 5]
        assert record.lost == [(k, "late") for k in range(4)]
        # Client 4 needs 4/8 s, in which the others do ⌊speed/2⌋ steps.
        assert record.wasted_steps == 0 + 1 + 1 + 2
    assert result.records[-1].virtual_seconds == pytest.approx(5 * 4 / 8)
    alone = run(ud.FedAvg(), losses, 5, cohort=ud.Fixed([4, 5]))
    assert torch.equal(result.x, alone.x)


def test_clients_that_miss_the_deadline_are_dropped(tmp_path):
    losses = problem()
    fleet = devices(tmp_path, speed=SPEEDS)
    result = run(ud.SCAFFOLD(), losses, 5, devices=fleet, pace=ud.Deadline(1.0, late="dropped"))
    alone = run(ud.SCAFFOLD(), losses, 5, cohort=ud.Fixed([3, 4, 5]))
    assert torch.equal(result.x, alone.x)
    assert {tuple(record.lost) for record in result.records[1:]} == {
        ((0, "late"), (1, "late"), (2, "late"))
    }
    assert result.records[1].wasted_steps == 1 + 2 + 3
    assert [record.virtual_seconds for record in result.records] == [0, 1, 2, 3, 4, 5]
    assert set(result.run.states.seen()) == {3, 4, 5}


def test_a_device_that_cannot_do_one_step_in_time_is_absent(tmp_path):
    fleet = devices(tmp_path, speed=[0.5, 2, 3, 5, 8, 13])
    result = run(ud.FedAvg(), problem(), 2, devices=fleet, pace=ud.Deadline(1.0))
    assert [record.absent for record in result.records[1:]] == [[0], [0]]
    assert result.records[1].steps == 2 + 3 + 4 + 4 + 4


@pytest.mark.parametrize("scheme", ["original", "II-delta", "renormalised", "II"])
def test_weights_are_recomputed_over_the_clients_that_replied(tmp_path, scheme):
    losses = problem()
    fleet = devices(tmp_path, speed=SPEEDS, dropout=[0, 1, 0, 0, 1, 0])
    result = run(ud.FedAvg(scheme), losses, 4, devices=fleet)
    alone = run(ud.FedAvg(scheme), losses, 4, cohort=ud.Fixed([0, 2, 3, 5]))
    assert torch.equal(result.x, alone.x)
    assert {client for record in result.records for client, _ in record.lost} == {1, 4}


@pytest.mark.parametrize(
    "method",
    [ud.SCAFFOLD(), ud.FedDyn(1.0), ud.FedDR(0.4, 1.0), ud.FedNova(variance_reduction=True)],
)
def test_the_state_of_clients_without_a_reply_does_not_change(tmp_path, method):
    losses = problem()
    fleet = devices(tmp_path, speed=SPEEDS, dropout=[0, 0.5, 0.5, 0.5, 0.5, 0], damage=[0.5] * 6)
    before, lost = {}, set()

    def watch(run, record):
        for client in losses.ids:
            state = {name: value.clone() for name, value in run.states.get(client).items()}
            if client not in record.replied and client in before:
                lost.add(client)
                for name, value in state.items():
                    assert torch.equal(value, before[client][name])
            before[client] = state

    run(method, losses, 12, devices=fleet, callbacks=[watch])
    assert lost == set(losses.ids)


def test_a_damaged_reply_is_refused_and_named(tmp_path):
    losses = problem()
    fleet = devices(tmp_path, speed=SPEEDS, damage=[0, 0, 1, 0, 0, 0])
    result = run(ud.FedAvg(), losses, 3, devices=fleet)
    alone = run(ud.FedAvg(), losses, 3, cohort=ud.Fixed([0, 1, 3, 4, 5]))
    assert torch.equal(result.x, alone.x)
    assert result.records[1].rejected == [(2, "moved is not finite (NaN or Inf)")]
    assert [s.outcome for s in result.records[1].spans].count("rejected") == 1


def test_a_round_without_replies_is_skipped_and_counted(tmp_path):
    losses = problem()
    result = run(ud.SCAFFOLD(), losses, 3, devices=ud.Devices(dropout=1.0))
    assert torch.equal(result.x, losses.initial())
    assert [record.updates for record in result.records] == [0, 0, 0, 0]
    assert all(len(record.lost) == 6 for record in result.records[1:])
    assert result.records[-1].virtual_seconds > 0
    damaged = run(ud.SCAFFOLD(), losses, 2, devices=ud.Devices(damage=1.0))
    assert [record.updates for record in damaged.records] == [0, 0, 0]
    assert len(damaged.records[1].rejected) == 6


def test_fewer_replies_than_are_required_change_nothing(tmp_path):
    losses = problem()
    fleet = devices(tmp_path, speed=SPEEDS, dropout=[0, 1, 0, 0, 1, 0])
    skipped = run(ud.SCAFFOLD(), losses, 2, devices=fleet, pace=ud.WaitForAll(min_replies=5))
    assert torch.equal(skipped.x, losses.initial())
    assert list(skipped.run.states.seen()) == []
    record = skipped.records[1]
    assert reasons(record.lost) == {"failed": 2, "skipped": 4}
    assert (record.updates, record.replied, record.steps) == (0, [], 0)
    assert record.wasted_steps >= 16
    enough = run(ud.SCAFFOLD(), losses, 2, devices=fleet, pace=ud.WaitForAll(min_replies=4))
    assert not torch.equal(enough.x, losses.initial())
    # The same holds without a clock.
    absent = run(
        ud.FedAvg(), losses, 2, limit={0: 0, 1: 0, 2: 0}, pace=ud.WaitForAll(min_replies=4)
    )
    assert torch.equal(absent.x, losses.initial())


@pytest.mark.parametrize(
    ("pace", "cohort", "sentence"),
    [
        (ud.WaitForAll(7), None, "must be at most 6, the largest number"),
        (ud.WaitForAll(4), 3, "must be at most 3, the largest number"),
        (ud.WaitForAll(3), ud.Fixed([[0], [1, 2]]), "must be at most 2, the largest number"),
    ],
)
def test_more_replies_than_there_can_be_are_not_required(pace, cohort, sentence):
    with pytest.raises(ud.UndriftError, match=sentence):
        run(ud.FedAvg(), problem(), 1, cohort=cohort, pace=pace)
    with pytest.raises(ud.UndriftError, match="must be at most 2, the number of replies"):
        ud.FirstToRespond(2, min_replies=3)


@pytest.mark.parametrize("method", [ud.FedPD(), ud.FedSplit(), ud.VRLSGD()])
def test_a_method_that_needs_all_clients_is_not_run_with_some(method):
    slow = ud.Devices(speed=ud.devices.Ladder(0.1, 100))
    with pytest.raises(ud.UndriftError, match="does no work, but"):
        run(method, problem(), 2, devices=slow, pace=ud.Deadline(1.0))
    with pytest.raises(ud.UndriftError, match="client 0 does no work"):
        run(method, problem(), 2, limit={0: 0})


def test_work_that_was_refused_or_cut_short_is_wasted():
    losses = problem(4)
    refused = run(ud.FedAvg(), losses, 1, devices=ud.Devices(damage=0.5))
    record = refused.records[1]
    assert 0 < len(record.rejected) < 4
    assert record.steps == 4 * len(record.replied)
    assert record.wasted_steps == 4 * len(record.rejected)
    # The full gradient of SCAFFOLD's option I comes first; all but finished clients did it.
    fleet = ud.Devices(speed=ud.devices.Ladder(0.99, 1), unit="samples")
    late = run(ud.SCAFFOLD("I"), losses, 1, devices=fleet, pace=ud.FirstToRespond(1))
    record, sizes = late.records[1], losses.sizes.tolist()
    least = min(range(4), key=lambda k: late.run.fleet.speed[k] ** -1 * sizes[k])
    assert record.replied == [least]
    assert record.gradients == 5 * sizes[least]
    assert record.wasted_gradients >= 3 * sizes[least]


@pytest.mark.parametrize(
    ("devices", "options", "sentence"),
    [
        (ud.Devices(speed=1e-320), {}, "longer than the virtual clock can count"),
        (ud.Devices(latency=1e308), {}, "longer than the virtual clock can count"),
        (ud.Devices(speed=5.0), {"pace": ud.Deadline(1e308)}, None),
    ],
)
def test_extreme_devices_give_a_result_or_a_clear_error(devices, options, sentence):
    if sentence is None:
        assert run(ud.FedAvg(), problem(), 1, devices=devices, **options).records[1].steps == 24
        return
    for method in (ud.FedAvg(), ud.FedAsync()):
        with pytest.raises(ud.UndriftError, match=sentence):
            run(method, problem(), 1, devices=devices, **options)


def reasons(lost):
    found = {}
    for _, reason in lost:
        found[reason] = found.get(reason, 0) + 1
    return found


def test_clients_past_their_lifetime_are_not_asked_again(tmp_path):
    fleet = devices(tmp_path, speed=[4] * 6, lifetime=[2.5, *[1e9] * 5])
    result = run(ud.FedAvg(), problem(), 6, devices=fleet)
    assert [0 in record.cohort for record in result.records[1:]] == [True] * 3 + [False] * 3
    assert result.records[3].lost == [(0, "left")]


def test_the_run_ends_when_all_clients_have_left():
    result = run(ud.FedAvg(), problem(), 50, devices=ud.Devices(lifetime=10.0))
    assert result.stopped == "no client is available any more"
    assert len(result.records) < 10


def test_cohorts_are_sampled_from_available_clients():
    duty = ud.Devices(speed=4, availability=ud.devices.Duty(period=10, share=0.4))
    for cohort in (2, None, ud.Weighted(3), ud.Bernoulli(0.8), ud.Fixed([0, 1, 2])):
        objective = "clients"
        result = run(ud.FedAvg(), problem(), 40, devices=duty, cohort=cohort, objective=objective)
        fleet, roster = result.run.fleet, result.run.roster
        for record in result.records:
            for span in record.spans:
                assert fleet.is_available(roster.position[span.client], span.start)
        asked = {client for record in result.records for client in record.cohort}
        assert asked == ({0, 1, 2} if isinstance(cohort, ud.Fixed) else set(range(6)))
        assert result.records[-1].virtual_seconds > 20


def test_the_server_waits_while_no_client_is_available():
    night = ud.Devices(speed=4, availability=ud.devices.Duty(period=10, share=0.3, together=True))
    result = run(ud.FedAvg(), problem(), 6, devices=night)
    # Each round takes a second: three by day, then the night.
    ends = [record.virtual_seconds for record in result.records[1:]]
    assert ends == pytest.approx([1, 2, 3, 11, 12, 13])


def test_without_devices_there_is_no_clock():
    result = run(ud.FedAvg(), problem(), 2)
    assert all(not r.virtual_seconds and not r.spans and not r.lost for r in result.records)
    for pace in (ud.Deadline(1.0), ud.FirstToRespond(2)):
        with pytest.raises(ud.UndriftError, match="needs a virtual clock"):
            run(ud.FedAvg(), problem(), 2, pace=pace)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        (ud.FedPD(), {"devices": ud.Devices(dropout=0.1)}),
        (ud.FedPD(), {"devices": ud.Devices(), "pace": ud.FirstToRespond(3)}),
        (ud.VRLSGD(), {"devices": ud.Devices(), "pace": ud.Deadline(1, late="dropped")}),
        (ud.FedAvg("full"), {"devices": ud.Devices(lifetime=9)}),
    ],
)
def test_a_method_that_needs_all_clients_rejects_devices_that_fail(method, options):
    with pytest.raises(ud.UndriftError, match="with these devices and this pace some clients"):
        run(method, problem(), 1, **options)


def test_jitter_and_failures_are_the_same_for_all_methods():
    fleet = ud.Devices(speed=ud.devices.LogNormal(5, 0.5), jitter=0.4, dropout=0.2)
    methods = [ud.FedAvg(), ud.FedDR(0.4, 1.0), ud.FedNova()]
    results = ud.compare(
        methods,
        problem=problem(),
        local=ud.GD(lr=0.1, steps=4),
        rounds=10,
        devices=fleet,
        cohort=4,
        progress=False,
    )
    times = [[record.virtual_seconds for record in result.records] for result in results]
    assert times[0] == times[1] == times[2]
    assert len(np.unique(np.diff(times[0]))) == 10
    lost = [[record.lost for record in result.records] for result in results]
    assert lost[0] == lost[1] == lost[2]
    assert any(lost[0])


def test_a_round_with_an_empty_cohort_takes_no_time(tmp_path):
    """The server does not wait for an unavailable client while others are available."""
    table, windows = tmp_path / "devices.csv", tmp_path / "windows.csv"
    table.write_text("client,speed\n0,1\n1,1\n2,1\n")
    windows.write_text("client,from,to\n0,0,1e9\n1,0,1e9\n2,50000,1e9\n")
    fleet = ud.DeviceFile(table, windows=windows)
    options = {"devices": fleet, "objective": "clients"}
    result = run(ud.FedAvg(), problem(3), 20, cohort=ud.Bernoulli(0.3), **options)
    assert [] in [record.cohort for record in result.records[1:]]
    assert 0 < result.records[-1].virtual_seconds <= 80
    fixed = run(ud.FedAvg(), problem(3), 2, cohort=ud.Fixed([2]), **options)
    assert [record.virtual_seconds for record in fixed.records] == [0, 50004, 50008]


def test_the_server_waits_until_the_deadline_for_missing_replies(tmp_path):
    fleet = devices(tmp_path, speed=[0.5, 8, 8])
    result = run(ud.FedAvg(), problem(3), 2, devices=fleet, pace=ud.Deadline(1.0))
    assert [record.virtual_seconds for record in result.records] == [0, 1, 2]
    alone = run(ud.FedAvg(), problem(3), 2, devices=fleet, pace=ud.Deadline(9.0))
    assert [record.virtual_seconds for record in alone.records] == [0, 8, 16]


def test_a_deadline_is_as_strict_late_as_it_is_early():
    pace = ud.Deadline(1.0, "dropped")
    ends, both = np.array([0.5, 1.0 + 1e-6]), np.array([True, True])
    for start in (0.0, 1e8):
        used, over = pace.closes(start, start + ends, both)
        assert used.tolist() == [True, False]
        assert over == start + 1
