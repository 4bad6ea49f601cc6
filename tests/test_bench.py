"""`undrift bench`: the bare loop does the same work as undrift, and the output has its form."""

import json
import sys
import time
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Event, Thread

import pytest
import torch
from tools.pages.speed import page, write

from commands import called
from undrift import bench
from undrift.bench import (
    FURTHER,
    WORKLOADS,
    RoundTiming,
    StrategyTiming,
    scale,
    take_profile,
    timing,
)
from undrift.bench.bare import BareLoop, Visit, bare_round, trainable
from undrift.bench.bench_run import METHODS, BenchRun
from undrift.bench.precision import learnable
from undrift.bench.profiling.arithmetic import kernel_seconds, round_gigaflop
from undrift.bench.profiling.instrumentation import PARTS, REST, WAIT, instrumented
from undrift.bench.stopwatch import Stopwatch
from undrift.bench.timing import interleaved
from undrift.engines.compiled.dense import DenseChain
from undrift.engines.vectorised.batches import BatchStream
from undrift.engines.vectorised.networks import Network
from undrift.engines.vectorised.steps import FusedStep
from undrift.local import minibatches
from undrift.local.minibatches import batches
from undrift.nets.client_losses import ModuleLoss
from undrift.nets.models import parameter_count
from undrift.nets.module_losses import ModuleLosses
from undrift.utils.keys import hashes, keys

KEYS = {"workload", "method", "engine", "strategy", "ratio"}
KEYS |= {"bare_seconds", "our_seconds", "peak_mb", "target"}


def small(name, **changed):
    return replace(WORKLOADS[name], **{"clients": 5, "cohort": 2, "samples": 25, **changed})


@pytest.mark.parametrize("engine", ["auto", "vectorised", "serial"])
@pytest.mark.parametrize("name", ["W1", "W2", "W6", "W7", "W10"])
def test_the_bare_loop_computes_the_same_as_undrift(name, engine):
    workload = small(name, batch=10)
    data = workload.data()
    ours = BenchRun(workload, data, engine=engine)
    loop = ours.loop
    module = workload.model()
    start = [p.detach().clone() for p in trainable(module)]
    visits = []
    for client in loop.sampler.draw(loop.roster, loop.seed, 0):
        (own,) = keys(loop.seed, "batches", 0, hashes([client])).tolist()
        drawn = batches(workload.samples, workload.batch, own)
        chosen = [torch.from_numpy(each) for each in islice(drawn, workload.steps)]
        visits.append(Visit(*data.client(client), 1 / workload.cohort, chosen))
    ours.round()
    assert ours.steps == workload.steps * workload.cohort
    found = torch.cat([p.reshape(-1) for p in bare_round(module, start, visits, workload.lr)])
    before = torch.cat([p.reshape(-1) for p in start])
    assert float((found - before).norm()) > 1e-3
    torch.testing.assert_close(found, loop.server.x, rtol=1e-4, atol=1e-6)


def test_the_bare_loop_goes_through_every_clients_samples_in_batches():
    workload = small("W1", epochs=3)
    bare = BareLoop(workload, workload.data())
    for x, y, weight, chosen in bare._visits(2):
        assert (len(x), len(y), weight) == (25, 25, 0.5)
        chosen = list(chosen)
        assert [len(each) for each in chosen] == [10, 10, 5] * 3
        assert len(chosen) == workload.steps
        for epoch in range(3):
            assert sorted(torch.cat(chosen[3 * epoch : 3 * epoch + 3]).tolist()) == list(range(25))
    assert bare.timed(1) > 0


@pytest.mark.parametrize(("two", "kept"), [(0.2, [2]), (0.6, [1, 2]), (1.9, [1, 2]), (9.0, [1])])
def test_only_a_hopeless_number_of_threads_is_left_out(two, kept, monkeypatch):
    workload = small("W1")
    bare = BareLoop(workload, workload.data())
    monkeypatch.setattr(bare, "timed", lambda threads, cohort=None: {1: 1.0, 2: two}[threads])
    assert bare.settings(2) == kept
    assert bare.settings(1) == [1]


def test_workloads_have_the_sizes_they_are_known_by():
    sizes = {name: parameter_count(w.model()) for name, w in WORKLOADS.items()}
    assert sizes == {
        "W1": 610,
        "W2": 178_110,
        "W3": 797_962,
        "W4": 50_890,
        "W5": 1_626_442,
        "W6": 133_520,
        "W7": 704_010,
        "W8": 10_068_810,
        "W9": 11_173_962,
        "W10": 4 * 2 * 2 * 4 * 128,
    }
    assert [w.steps for w in WORKLOADS.values()] == [20, 12, 10, 2, 5, 2, 5, 10, 5, 5]


def test_clients_beyond_the_workloads_own_share_samples():
    data = small("W1").data(1000)
    assert len(data) == 1000
    assert len(data.train.y) == 125
    assert torch.equal(data.client(7)[0], data.client(2)[0])


@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs(method):
    workload = small("W1")
    run = BenchRun(workload, workload.data(), method)
    assert run.round() > 0
    assert run.steps == 2 * workload.steps


def test_a_committed_run_leaves_nothing_behind():
    workload = small("W1")
    run = BenchRun(workload, workload.data(), "SCAFFOLD", committed=True)
    folder = Path(run._store._folder.name)
    assert run.round() > 0
    assert run._store._store.round == 1
    run.close()
    assert not folder.exists()


def test_times_are_taken_in_turn_and_the_best_counts(monkeypatch):
    monkeypatch.setattr(timing, "TURN_SECONDS", 0.0)
    calls, shares = [], []
    times = {"a": iter([3.0, 1.0, 2.0]), "b": iter([5.0, 6.0, 4.0])}

    def timed(name):
        calls.append(name)
        return next(times[name])

    best = interleaved([partial(timed, "a"), partial(timed, "b")], 3, shares.append)
    assert best == [1.0, 4.0]
    assert calls == ["a", "b"] * 3
    assert shares == sorted(shares) and shares[-1] == 1


def test_a_short_candidate_is_repeated_within_a_turn():
    calls = []

    def short():
        calls.append(time.sleep(0.01))
        return float(len(calls))

    found = timing.mean_of_turn(short)
    assert len(calls) >= 2
    assert found == sum(range(1, len(calls) + 1)) / len(calls)


def test_nothing_is_timed_while_other_threads_are_awake(monkeypatch):
    awake, pauses = iter([True, True, False]), []
    monkeypatch.setattr(timing, "_other_threads_run", lambda: next(awake))
    monkeypatch.setattr("time.sleep", pauses.append)
    assert interleaved([lambda: 1.0], 1) == [1.0]
    assert len(pauses) == 2
    monkeypatch.setattr(timing, "_other_threads_run", lambda: True)
    now = iter(range(1000))
    monkeypatch.setattr("time.perf_counter", lambda: 0.05 * next(now))
    timing.let_threads_sleep()  # it stops waiting after MAX_WAIT_SECONDS
    assert len(pauses) < 10


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_thread_that_computes_is_awake():
    over = Event()

    def compute():
        x = torch.rand(600, 600)
        while not over.is_set():
            x @ x

    thread = Thread(target=compute)
    thread.start()
    try:
        assert any(timing._other_threads_run() for _ in range(10_000))
    finally:
        over.set()
        thread.join()


def test_the_first_two_rounds_do_not_count():
    workload = small("W1")
    run = BenchRun(workload, workload.data())
    assert run.strategy == ""
    run.warm_up()
    assert run.loop.round == 2
    assert run.strategy


def test_a_clock_stands_still_while_another_part_is_inside(monkeypatch):
    now = iter([0.0, 1.0, 3.0, 7.0, 8.0, 10.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(now))
    watch = Stopwatch()
    with watch.part(REST), watch.part("update"), watch.part("fold"):
        pass
    assert watch.lap() == {REST: 1 + 2, "update": 2 + 1, "fold": 4}
    assert watch.lap() == {}


def test_clocks_of_threads_do_not_stop_each_other():
    watch = Stopwatch()
    inside, other_done = Event(), Event()

    def work():
        with watch.part("update"):
            inside.set()
            other_done.wait()

    thread = Thread(target=work)
    thread.start()
    inside.wait()
    with watch.part("fold"):
        pass
    other_done.set()
    thread.join()
    found = watch.lap()
    assert set(found) == {"update", "fold"}
    assert found["update"] >= found["fold"]  # it was inside the whole time


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", ["W2", "W3"])  # a kernel does all steps of W1 at once
@pytest.mark.parametrize("engine", ["auto", "vectorised", "serial"])
def test_every_part_of_a_round_is_clocked_and_functions_are_restored(
    engine, name, threads, monkeypatch
):
    # The C kernel gathers samples and updates models while it computes gradients.
    monkeypatch.setattr(DenseChain, "suits", lambda *arguments: False)
    workload = small(name)
    run = BenchRun(workload, workload.data(), "SCAFFOLD", engine, threads)
    run.warm_up()

    def clocked_functions():
        kinds = Network.__subclasses__()
        return (
            *(minibatches.batches, ModuleLoss.gradient, ModuleLosses.training),
            *(
                BatchStream.at,
                BatchStream.__init__,
                FusedStep.plain,
                *(kind.backward for kind in kinds),
            ),
        )

    before = clocked_functions()
    with instrumented(run.loop) as watch:
        began = time.perf_counter()
        with watch.part(REST):
            seconds = run.round()
        elapsed = time.perf_counter() - began
        found = watch.lap()
    assert set(found) - {WAIT} == set(PARTS)
    assert all(value >= 0 for value in found.values())
    if run.threads_used == 1:  # no time is counted twice or left out
        assert seconds <= sum(found.values()) <= elapsed
    assert before == clocked_functions()
    assert "put" not in vars(run.loop.states) and "fold" not in vars(run.loop.method)


@pytest.mark.parametrize("engine", ["auto", "vectorised", "serial"])
def test_a_profile_adds_up(engine):
    found = take_profile(small("W1"), "FedDyn", engine, 2, repeats=1)
    fields = found.as_dict()
    assert fields["engine"] == engine and fields["strategy"] == found.strategy != ""
    assert fields["busy_seconds"] == pytest.approx(sum(fields["seconds"].values()))
    whole = found.threads * found.clocked_seconds
    assert found.idle_seconds == pytest.approx(max(0, whole - found.busy_seconds))
    assert found.threads == 1 or engine != "serial"
    assert found.round_seconds > 0 and found.evaluation_seconds > 0
    rate = found.gigaflop / found.round_seconds
    assert found.share_of_peak == pytest.approx(rate / found.peak_gigaflops)


def test_the_arithmetic_of_a_round_is_counted():
    # Logistic regression: scores and the gradient of the weights, each 2·60·10 a sample.
    assert round_gigaflop(WORKLOADS["W1"]) == pytest.approx(30 * 20 * 10 * 4 * 60 * 10 / 1e9)
    # Shakespeare: forward and backward pass of two levels of an LSTM over 80 characters, and of
    # the layer after them.
    tokens = 10 * 2 * 100 * 80
    recurrent = 2 * tokens * (400 * (8 + 100) + 400 * (100 + 100))
    last = 2 * 10 * 2 * 100 * 100 * 80
    assert round_gigaflop(WORKLOADS["W6"]) == pytest.approx(3 * (recurrent + last) / 1e9)


def test_only_kernels_that_multiply_are_timed():
    a = torch.rand(600, 600)
    products, others = (kernel_seconds(do) for do in (lambda: a @ a, lambda: a.sin().sum()))
    assert products > 0 and others == 0


def test_scaling_counts_clients_steps():
    found = scale(
        WORKLOADS["W1"], "FedAvg", "serial", 1, repeats=1, cohorts=(1, 3), populations=(4, 60)
    )
    shape = [(each.grows, each.cohort, each.population) for each in found]
    assert shape == [
        ("cohort", 1, 1000),
        ("cohort", 3, 1000),
        ("population", 4, 4),
        ("population", 4, 60),
    ]
    for each in found:
        assert each.seconds == pytest.approx(each.step_seconds * 20 * each.cohort)
    assert found[0].relative == found[2].relative == 1


def test_the_limits_of_a_million_clients_are_their_own():
    sizes = {"cohorts": (1,), "populations": (1000,)}
    cohort, without, on_clock = scale(
        WORKLOADS["W1"], "FedAvg", "vectorised", 1, repeats=1, **sizes
    )
    assert (without.grows, on_clock.grows) == ("population", "on clock")
    assert cohort.met is None and "target" not in cohort.as_dict()
    assert without.partition_seconds > 0 and on_clock.partition_seconds is None
    at = partial(replace, without, start_seconds=4.0, partition_seconds=1.0)
    assert at(population=1_000_000, relative=1.19).met
    assert not at(population=1_000_000, relative=1.21).met
    assert not at(population=1_000_000, relative=1.0, partition_seconds=5.5).met
    assert not at(population=100_000, relative=1.0).met
    assert at(population=100_000, relative=1.09, start_seconds=2.9).met


def test_the_command_prints_json(tmp_path):
    done = called("bench", "W1", "--repeats", "1", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert set(row) == KEYS
    assert (row["workload"], row["method"], row["engine"]) == ("W1", "FedAvg", "auto")
    assert row["strategy"] and row["target"] == 25
    assert row["ratio"] == pytest.approx(row["bare_seconds"] / row["our_seconds"])
    assert row["peak_mb"] is None or row["peak_mb"] > 50


def test_the_command_prints_a_table_of_eighty_columns(tmp_path):
    done = called("bench", "w1", "--repeats", "1", "--method", "FedDyn", "--commits", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for word in ("FedAvg", "FedDyn", "kept ms", "target", "Random data"):
        assert word in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


def test_rows_come_as_soon_as_they_are_measured(tmp_path, monkeypatch):
    printed = []
    strategy = "one by one, channels last, 2 threads (its loss is not known for single samples)"

    def compare(workload, methods, engines, threads, **options):
        printed.append(sys.stdout.getvalue())
        figures = {"bare_seconds": 99.9, "our_seconds": 9.9, "committed_seconds": 10.1}
        more = {"bare_threads": 1, "peak_mb": 123.4, "target": 2.2}
        who = {"method": "SCAFFOLD", "engine": "vectorised", "strategy": strategy}
        return [RoundTiming(workload=workload.name, **who, **figures, **more)]

    monkeypatch.setattr(bench, "compare", compare)
    done = called("bench", "W1", "W2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first, second = printed
    assert first == "" and "W1  SCAFFOLD" in second and "W2" not in second
    assert " ".join(done.stdout.split()).count(strategy) == 2
    assert done.stdout.count("bare ms") == 1
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


def test_other_methods_are_measured_beside_fedavg(tmp_path):
    done = called("bench", "W1", "--repeats", "1", "--method", "FedProx", "--json", cwd=tmp_path)
    average, prox = json.loads(done.stdout)
    assert (average["method"], prox["method"]) == ("FedAvg", "FedProx")
    assert prox["target"] == pytest.approx(average["ratio"] / 1.3)


def test_strategies_are_timed_and_the_rules_choice_is_marked(tmp_path):
    done = called("bench", "W1", "--strategies", "--repeats", "1", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    keys = {"strategy", "chosen", "seconds", "expected_seconds", "bare_seconds", "ratio"}
    assert all(keys <= set(each) for each in found)
    assert [each["chosen"] for each in found] == [True, *[False] * (len(found) - 1)]
    assert {each["strategy"].split(",")[0] for each in found} == {
        *("stacked layers", "one by one", "serial")
    }
    done = called("bench", "X1", "--strategies", "--repeats", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("▸ stacked layers, 20 clients at once, 1 thread") == 1
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


def test_a_choice_is_good_if_it_is_near_the_fastest_and_beats_the_bare_loop():
    usual = {"workload": "W1", "strategy": "serial", "expected_seconds": 1.0, "chosen": True}
    usual |= {"seconds": 1.0, "fastest_seconds": 1.0, "bare_seconds": 2.0}
    for changed, met in (
        ({}, True),
        ({"fastest_seconds": 0.92}, True),
        ({"fastest_seconds": 0.9}, False),
        ({"bare_seconds": 0.99}, False),
        ({"chosen": False}, None),
    ):
        assert StrategyTiming(**usual | changed).met is met


@pytest.mark.parametrize("name", FURTHER)
def test_the_bare_loop_can_train_the_further_models(name):
    workload = replace(FURTHER[name], clients=3, cohort=2, samples=8)
    data = workload.data()
    bare, ours = BareLoop(workload, data), BenchRun(workload, data, "FedAvg", "auto", 1)
    before = [each.clone() for each in bare.weights]
    assert bare.timed(1) > 0
    assert any(not torch.equal(a, b) for a, b in zip(before, bare.weights, strict=True))
    ours.round()
    assert ours.steps == 2


@pytest.mark.parametrize(
    ("mode", "keys"),
    [
        ("--unequal", {"equal_seconds", "unequal_seconds", "ratio", "target"}),
        ("--profile", {"round_seconds", "busy_seconds", "idle_seconds", "seconds"}),
    ],
)
def test_other_measurements_print_json_and_a_table(mode, keys, tmp_path):
    done = called("bench", "W1", mode, "--repeats", "1", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)
    assert keys <= set(found)
    more = ["--engine", "serial", "--engine", "vectorised", "--threads", "2"]
    done = called("bench", "W1", mode, "--repeats", "1", *more, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "vectorised" in done.stdout and "serial" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["W11"], "The workload is 'W11', but must be one of 'W1'"),
        (["--method", "FedAvgg"], "did you mean 'FedAvg'?"),
        (["--engine", "steam"], "engine is 'steam', but must be one of 'auto'"),
        (["--scaling", "--profile"], "--scaling and --profile are different measurements"),
        (["--unequal", "--commits"], "--commits cannot be combined with --unequal"),
        (["--scaling", "--population", "9"], "--population cannot be combined with --scaling"),
        (["W1", "--population", "9"], "The cohort has 30 clients, but there are only 9"),
    ],
)
def test_impossible_measurements_are_rejected_with_one_sentence(arguments, message, tmp_path):
    done = called("bench", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())


def test_help_teaches(tmp_path):
    done = called("bench", "--help", cwd=tmp_path)
    assert done.returncode == 0
    printed = " ".join(done.stdout.split())
    words = ("undrift bench W1 W2", "--scaling", "--profile", "--unequal", "bare loop")
    for word in (*words, "--default", "--precision", "--memory"):
        assert word in printed


def test_the_page_of_the_guide_shows_what_was_measured():
    row = RoundTiming("W2", "FedDyn", "auto", "stacked layers", 0.3, 0.12, None, 2, 500.0, 1.5)
    profile = {
        **{"workload": "W2", "threads": 2, "round_seconds": 0.1, "busy_seconds": 0.16},
        **{"idle_seconds": 0.04, "kernel_seconds": 0.12, "gigaflop": 4.5, "share_of_peak": 0.25},
    }
    compiled = {**profile, "kernel_seconds": 0.0}
    text = page([row.as_dict()], [profile, compiled], "two cores")
    assert "two cores" in text
    line, *limits = [line for line in text.splitlines() if line.startswith("| W2")]
    # Kernels of 0.12 s on two threads: 0.06 s are left of the bare loop's 0.3 s.
    assert limits == [
        "| W2 | 4.5 | 45 | 25% | 75% | 5.00 | 20% |",
        "| W2 | 4.5 | 45 | 25% | · | · | 20% |",
    ]
    assert "10 of 100 clients × " in line
    assert "| FedDyn | 300 | 120 | 2.50 | 2.8 | stacked layers |" in line


def test_the_readme_shows_what_was_measured(tmp_path):
    names = ("bench.json", "profile.json", "bench.md", "README.md", "index.md")
    measured, profiled, guide, readme, first = (tmp_path / name for name in names)
    profiled.write_text("[]")
    row = RoundTiming("W2", "FedAvg", "auto", "stacked layers", 0.3, 0.12, None, 2, 500.0, 1.5)
    measured.write_text(json.dumps([row.as_dict()]))
    readme.write_text("before\n\n<!-- made: speed -->\nold\n<!-- end -->\n\nafter\n")
    first.write_text("<!-- made: fast -->\n<!-- end -->\n")
    write(measured, profiled, guide, readme, first)
    assert "was 2.5 to 2.5 times as fast" in first.read_text()
    text = readme.read_text()
    assert "| MLP on MNIST's shape | 10 of 100 | 300 ms | 120 ms | 2.5 |" in text
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert "| FedAvg | 300 | 120 |" in guide.read_text()


def rows_of(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if "|" in line]


def test_the_readme_and_the_guide_show_the_same_measurement():
    root = Path(__file__).parent.parent
    rows = [row for row in rows_of(root / "docs" / "bench.md") if "," in row[0]]
    guide = {row[0].partition(",")[0]: row for row in rows}
    readme = {row[0]: row for row in rows_of(root / "README.md")}
    for name, workload in WORKLOADS.items():
        bare, ours, ratio = guide[name][3:6]
        shown = readme[workload.is_about]
        assert shown[2:4] == [f"{bare} ms", f"{ours} ms"]
        assert float(shown[4]) == pytest.approx(float(ratio), abs=0.06)


def test_a_run_with_all_defaults_is_timed_against_its_rounds():
    found = bench.time_default(small("W1"), "FedAvg", "serial", 1)
    assert (found.every, found.train_samples, found.test_samples) == (1, 125, 25)
    assert min(found.start_seconds, found.plain_seconds, found.last_seconds) > 0
    timing = replace(
        found,
        every=5,
        start_seconds=2.0,
        plain_seconds=1.0,
        committed_seconds=1.1,
        evaluated_seconds=1.6,
        last_seconds=4.1,
    )
    assert timing.ratio == pytest.approx((4 * 1.1 + 1.6) / 5)
    assert timing.ratio_of(100) == pytest.approx(timing.ratio + (2.0 + 3.0) / 100)
    assert timing.met and not replace(timing, evaluated_seconds=3.0).met
    assert timing.as_dict()["ratio_of_100_rounds"] == timing.ratio_of(100)


def test_memory_is_measured_in_new_processes():
    found = bench.measure_memory(WORKLOADS["W1"], "FedAvg", "serial", 1, repeats=1)
    assert found.bare_mb > found.bare_work_mb >= 0 and found.our_mb > found.our_work_mb >= 0
    assert found.ratio == found.our_mb / found.bare_mb
    assert not replace(found, our_mb=1.6 * found.bare_mb).met
    assert found.as_dict()["ratio"] == found.ratio


def test_precisions_are_timed_and_their_losses_compared(tmp_path):
    workload = small("W5", cohort=1, clients=2, samples=10)
    found = bench.time_precision(workload, "FedAvg", "auto", 1, repeats=1)
    assert found.strategy.endswith("bf16")
    assert len(found.fp32_losses) == len(found.bf16_losses) == 11
    assert found.fp32_losses[0] == found.bf16_losses[0]  # evaluated in float32 before any step
    assert found.fp32_losses[1:] != found.bf16_losses[1:]
    assert replace(found, fp32_losses=(3.0, 1.0), bf16_losses=(3.0, 1.5)).gap == 0.25
    bench.draw_curves([found, found], tmp_path / "curves.svg")
    assert (tmp_path / "curves.svg").read_text().startswith("<?xml")


def test_what_is_learnt_for_the_curves_depends_on_the_class():
    images, text = learnable(small("W2")), learnable(small("W7"))
    means = [images.train.x[images.train.y == c].mean(0) for c in (0, 1)]
    assert (means[0] - means[1]).norm() > 1
    assert torch.equal(text.train.x[:, 0], text.train.y)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--picture", "a.svg"], "add --precision"),
        (["--precision", "--picture", "a.jpg"], "The kind of picture is '.jpg'"),
        (["--precision", "--memory"], "--precision and --memory are different measurements"),
    ],
)
def test_a_picture_belongs_to_the_precisions(arguments, message, tmp_path):
    done = called("bench", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
