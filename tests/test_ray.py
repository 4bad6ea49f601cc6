"""The Ray engine: the same results as the serial one, from any number of workers."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from textwrap import dedent

import pytest
import torch
from torch import nn

import undrift as ud
from agreement import assert_same
from commands import called
from looping import asynchronous, synchronous
from test_vectorised import METHODS
from undrift.engines import EngineOptions, SerialEngine
from undrift.nets.module_losses import ModuleLosses
from undrift.utils.errors import UndriftError

ray = pytest.importorskip("ray", reason="Ray is not installed")
from undrift.engines.ray import engine as ray_engine  # noqa: E402
from undrift.engines.ray import worker_pool as pools  # noqa: E402

pytestmark = pytest.mark.xdist_group("ray")  # one test process starts Ray once

DATA = ud.data.synthetic(1, 1, clients=11, seed=0, most=60)
LOCAL = ud.SGD(lr=0.05, batch_size=10, epochs=1, momentum=0.5)
TWO = EngineOptions("ray", workers=2, threads=1, inner="serial")


def mlp():
    return ud.models.mlp(60, 16, classes=10, seed=1).double()


def losses_of(model=mlp, data=DATA, **options):
    return ModuleLosses(model(), data, **options)


def trained(engine, method, losses, rounds=3, kind=synchronous, cohort=None, **options):
    options = {"objective": "clients", "local": LOCAL, **options}
    sampler = ud.All() if cohort is None else ud.Uniform(cohort)
    loop = kind(method, losses, sampler=sampler, rounds=rounds, engine=engine, **options)
    return loop, list(loop.rounds())


def both(method, losses, **options):
    """Sums over blocks differ from sums over clients in the last bits only."""
    serial = trained(SerialEngine, method, losses, **options)
    assert_same(serial, trained(TWO, method, losses, **options), tolerance=1e-12)


@pytest.fixture
def on_workers(monkeypatch):
    """The workers evaluate models, however short that takes."""
    monkeypatch.setattr(ray_engine._EvaluationTiming, "on_workers", True)


# The same results


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_every_method_agrees_with_the_serial_engine(method):
    both(method, losses_of())


@pytest.mark.parametrize(
    "method", [ud.AsyncFedDR(eta=0.5, alpha=0.1), ud.FedAsync(), ud.FedBuff(buffer=3)], ids=repr
)
def test_asynchronous_methods_agree_with_the_serial_engine(method):
    devices = ud.Devices(speed=ud.devices.Ladder(10, 60), jitter=0.3, dropout=0.1)
    both(method, losses_of(), kind=asynchronous, devices=devices)


def test_clients_that_fail_are_counted_like_anywhere():
    devices = ud.Devices(speed=ud.devices.Ladder(10, 60), dropout=0.1, damage=0.3)
    both(ud.SCAFFOLD(), losses_of(), devices=devices, rounds=4, cohort=6)


def test_a_client_whose_update_is_not_finite_is_left_out_like_anywhere():
    pairs = {k: DATA.train.client(k) for k in range(5)}
    clients = {k: (x.double(), y) for k, (x, y) in pairs.items()}
    _, y = DATA.train.client(5)
    clients[99] = (torch.full((200, 60), 1e200, dtype=torch.float64), y[:1].repeat(200))
    losses = losses_of(data=ud.data.FederatedData.from_clients(clients))  # it comes first
    evaluation = ud.Evaluation(every=3, train_clients=1)
    loop, records = trained(TWO, ud.SCAFFOLD(), losses, rounds=2, evaluation=evaluation)
    serial, _ = trained(SerialEngine, ud.SCAFFOLD(), losses, rounds=2, evaluation=evaluation)
    assert [client for client, _ in records[1].rejected] == [99]
    assert torch.allclose(loop.server.x, serial.server.x, atol=1e-12)


def test_uploads_over_the_bound_are_rejected_like_anywhere():
    clients = {k: DATA.train.client(k) for k in range(5)}
    x, y = DATA.train.client(5)
    clients[99] = (1e3 * x, y)
    losses = losses_of(data=ud.data.FederatedData.from_clients(clients))
    options = {"rounds": 3, "robust": ud.NormBound()}
    loop, records = trained(TWO, ud.SCAFFOLD(), losses, **options)
    serial, others = trained(SerialEngine, ud.SCAFFOLD(), losses, **options)
    assert [client for client, _ in records[1].rejected] == [99]
    assert [r.rejected for r in records] == [r.rejected for r in others]
    assert torch.allclose(loop.server.x, serial.server.x, atol=1e-12)


def test_compressed_and_robust_runs_are_those_of_the_serial_engine():
    compression = ud.compression.Compression(ud.compression.QSGD(4), ud.compression.TopK(0.2))
    for method, options in (
        (ud.SCAFFOLD(), {"compression": compression}),
        (
            ud.FedAvg(),
            {
                "compression": compression,
                "statistic": ud.robust.MultiKrum(2),
                "attack": ud.attacks.ALittle(0.3),
            },
        ),
    ):
        loop, records = trained(TWO, method, losses_of(), rounds=3, **options)
        serial, others = trained(SerialEngine, method, losses_of(), rounds=3, **options)
        assert torch.allclose(loop.server.x, serial.server.x, atol=1e-6)
        assert [r.bytes_up for r in records] == [r.bytes_up for r in others]
        assert [r.bytes_down for r in records] == [r.bytes_down for r in others]


def test_a_round_without_anybody():
    loop, records = trained(
        TWO, ud.FedAvg(), losses_of(), rounds=2, limit=dict.fromkeys(DATA.ids, 0)
    )
    assert len(records[1].absent) == 11
    assert torch.equal(loop.server.x, loop.x0)


def test_a_network_with_statistics_dropout_a_loss_and_a_metric_of_the_users_own(on_workers):
    def model():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(60, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 10)
        ).double()

    def loss(outputs, targets):
        return nn.functional.cross_entropy(outputs, targets, label_smoothing=0.1)

    def margin(outputs, targets):
        return outputs.topk(2).values.diff().abs().mean()

    losses = losses_of(model, loss=loss, metrics={"margin": margin})
    both(ud.FedDyn(0.5), losses, local=ud.GD(lr=0.05, steps=2))


@pytest.mark.parametrize("sample", [None, 4])
def test_workers_evaluate_a_model_to_the_same_bits(on_workers, monkeypatch, sample):
    monkeypatch.setattr("undrift.nets.passes.PIECE_SAMPLES", 16)  # several pieces
    evaluation = ud.Evaluation(models=("server", "own"), gradient_mapping=0.5, train_clients=sample)
    method, losses = ud.FedDR(eta=0.5, g=ud.L1(1e-3)), losses_of()
    (_, ours), (_, theirs) = (
        trained(engine, method, losses, evaluation=evaluation) for engine in (TWO, SerialEngine)
    )
    first, other = ours[0].metrics, theirs[0].metrics  # of the same model: the same bits
    assert "own/train_loss" in first
    mapping = "gradient_mapping"  # this alone is added up in blocks
    assert first.pop(mapping) == pytest.approx(other.pop(mapping), rel=1e-12)
    assert first == other
    for mine, other in zip(ours[1:], theirs[1:], strict=True):
        assert mine.metrics == pytest.approx(other.metrics, rel=1e-10)


def test_an_analytic_problem():
    problem = ud.theory.Quadratics(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2), sizes=[4, 5, 6])
    both(ud.SCAFFOLD(), problem, local=ud.GD(lr=0.05, steps=4))


@pytest.mark.parametrize("inner", ["auto", "vectorised"])
def test_the_same_bits_from_one_and_two_workers(inner, forgotten, rigged):
    rigged("stacked layers, 2")
    found = []
    data = ud.data.synthetic(1, 1, clients=40, seed=0, most=60)
    losses = ModuleLosses(ud.models.mlp(60, 16, classes=10, seed=1), data)
    for workers in (2, 1):
        engine = EngineOptions("ray", workers=workers, threads=1, inner=inner)
        found.append(trained(engine, ud.SCAFFOLD(), losses, cohort=30)[0])
    a, b = found
    assert torch.equal(a.server.x, b.server.x)
    assert all(torch.equal(a.states.get(k).c, b.states.get(k).c) for k in a.states.seen())
    assert a.engine.saved() == b.engine.saved()
    assert a.engine.strategy.replace("2 workers", "1 worker") == b.engine.strategy
    in_one = trained(EngineOptions("vectorised", threads=1), ud.SCAFFOLD(), losses, cohort=30)[0]
    assert torch.allclose(a.server.x, in_one.server.x, atol=1e-5)


# Workers that die


def unhurried(outputs, targets):
    """A slow loss, so that workers can be killed in the middle of a round."""
    if outputs.requires_grad:
        time.sleep(0.005)
    return nn.functional.cross_entropy(outputs, targets)


def steps(loop, number):
    for _ in range(number):
        loop.step()


class Killer(threading.Thread):
    """Kills workers at random moments, at most one in a round."""

    def __init__(self, loop, number, seed=0):
        super().__init__(daemon=True)
        self.loop, self.number = loop, number
        self.killed, self.rng = [], random.Random(seed)

    def run(self):
        last = -1
        while len(self.killed) < self.number:
            time.sleep(self.rng.uniform(0.05, 0.5))
            processes = self.loop.engine._pool.processes
            alive = [each for each in processes if each not in self.killed]
            if alive and self.loop.round > last:
                last = self.loop.round
                self.killed.append(self.rng.choice(alive))
                os.kill(self.killed[-1], signal.SIGKILL)


def test_ten_workers_killed_at_random_moments_change_nothing():
    losses = losses_of(loss=unhurried)
    setting = ud.SCAFFOLD(), losses, LOCAL, ud.Uniform(6)
    loop = synchronous(*setting, 10_000, engine=TWO)
    killer = Killer(loop, 10)
    killer.start()
    while killer.is_alive():
        loop.step()
    assert len(killer.killed) == 10
    undisturbed = synchronous(*setting, 10_000, engine=TWO)
    steps(undisturbed, loop.round)
    assert_same((loop, []), (undisturbed, []), tolerance=0.0)


def test_a_worker_that_keeps_dying_is_left_out(monkeypatch):
    losses = losses_of(loss=unhurried)
    loop = synchronous(ud.FedAvg(), losses, LOCAL, ud.All(), 10, engine=TWO)
    loop.step()
    pool = loop.engine._pool
    while len(pool.processes) < 2:  # the other one may still be starting
        loop.step()
    # Not before: on a busy machine Ray may take a worker for dead while the other one starts.
    monkeypatch.setattr(pools, "MAX_DEATHS", 1)
    os.kill(pool.processes[0], signal.SIGKILL)
    with pytest.warns(UserWarning, match=r"Worker . of 2 died 1 times .* continues with 1 worker"):
        steps(loop, 5)
    os.kill(pool.processes[0], signal.SIGKILL)
    with pytest.raises(UndriftError, match="All 2 workers died"):
        steps(loop, 5)


def deadly(outputs, targets):
    if outputs.requires_grad and len(targets) > 2:
        os._exit(1)
    return nn.functional.cross_entropy(outputs, targets)


def test_a_model_that_ends_its_process_is_named(monkeypatch):
    monkeypatch.setattr(pools, "MAX_DEATHS_PER_CALL", 2)
    data = ud.data.FederatedData.from_clients(
        {"a": (torch.ones(4, 60), torch.tensor([0, 1, 2, 9]))}
    )
    with pytest.raises(UndriftError, match=r"2 workers died .* same work \(client 'a'\)"):
        trained(TWO, ud.FedAvg(), losses_of(data=data, loss=deadly), local=ud.GD(0.1, steps=1))


def failing(outputs, targets):
    if outputs.requires_grad and len(targets) > 2:
        raise ValueError("no such thing")
    return nn.functional.cross_entropy(outputs, targets)


def test_what_goes_wrong_in_the_model_is_said_as_anywhere():
    with pytest.raises(UndriftError, match=r"The model failed on client .* no such thing"):
        trained(TWO, ud.FedAvg(), losses_of(loss=failing))


class Once:
    """A loss that takes a minute the first time that any worker computes it."""

    def __init__(self, file):
        self.file = file

    def __call__(self, outputs, targets):
        if outputs.requires_grad and len(targets) > 2:
            try:
                self.file.touch(exist_ok=False)
                time.sleep(60)
            except FileExistsError:
                pass
        return nn.functional.cross_entropy(outputs, targets)


def test_others_do_the_work_of_one_who_takes_too_long(tmp_path, monkeypatch):
    monkeypatch.setattr(pools, "STRAGGLER_MIN_SECONDS", 0.5)
    began = time.monotonic()
    losses = losses_of(loss=Once(tmp_path / "first"))
    loop, _ = trained(TWO, ud.SCAFFOLD(), losses, rounds=1)
    assert time.monotonic() - began < 50
    loop.engine._pool.stop()  # one of them still sleeps
    serial, _ = trained(SerialEngine, ud.SCAFFOLD(), losses, rounds=1)
    assert_same((loop, []), (serial, []), tolerance=1e-12)


NODES = """
    import sys, threading, time
    from dataclasses import replace
    sys.path.insert(0, {tests!r})
    import torch, ray
    from ray.cluster_utils import Cluster
    import undrift as ud
    from test_ray import LOCAL, losses_of, unhurried
    from undrift.engines import EngineOptions
    from looping import asynchronous, synchronous

    cluster = Cluster(initialize_head=True, head_node_args={{"num_cpus": 0}})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    engine = EngineOptions("ray", workers=2, threads=1, address=cluster.address, inner="serial")
    setting = ud.SCAFFOLD(), losses_of(loss=unhurried), LOCAL, ud.Uniform(6), 1000
    loop = synchronous(*setting, engine=engine)
    pool = loop.engine._pool
    while len(pool.processes) < 2:
        loop.step()
    gone = threading.Timer(0.15, lambda: cluster.remove_node(nodes[1], allow_graceful=False))
    gone.start()
    while gone.is_alive() or len(pool.processes) > 1:
        loop.step()
    for _ in range(3):
        loop.step()
    left = len(pool.processes)
    one = replace(engine, workers=1)  # Ray has one CPU left
    undisturbed = synchronous(*setting, engine=one)
    for _ in range(loop.round):
        undisturbed.step()
    assert torch.equal(loop.server.x, undisturbed.server.x)
    print("the same after", loop.round, "rounds with", left, "worker")
"""


def test_a_machine_that_goes_takes_nothing_with_it():
    program = dedent(NODES).format(tests=str(Path(__file__).parent))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=200, check=False
    )
    assert "with 1 worker" in done.stdout, done.stderr[-3000:]


ROUNDS = """
    import json, os, sys
    sys.path.insert(0, {tests!r})
    import undrift as ud
    from test_ray import LOCAL, TWO, own_memory
    from looping import asynchronous, synchronous
    from undrift.nets.module_losses import ModuleLosses

    data = ud.data.synthetic(1, 1, clients=2, seed=0, most=20)
    losses = ModuleLosses(ud.models.mlp(60, 100, classes=10, seed=0), data)
    loop = synchronous(ud.SCAFFOLD(), losses, LOCAL, ud.All(), 1000, engine=TWO)
    pool = loop.engine._pool
    while len(pool.processes) < 2:
        loop.step()

    def peak(first, last):
        used = []
        while loop.round < last:
            loop.step()
            if loop.round >= first and loop.round % 10 == 0:
                used.append([own_memory(each) for each in (os.getpid(), *pool.processes)])
        return [max(each) for each in zip(*used, strict=True)]

    print(json.dumps([peak(20, 100), peak(900, 1000)]))
"""


def test_memory_does_not_grow_over_a_thousand_rounds():
    """Peak memory of this process and of each worker, in the first and last hundred rounds."""
    program = dedent(ROUNDS).format(tests=str(Path(__file__).parent))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    first, last = json.loads(done.stdout.splitlines()[-1])
    assert len(first) == 3
    # A vector that is kept in every round would be 26 megabytes.
    assert all(b < a + 5 for a, b in zip(first, last, strict=True)), (first, last)


def own_memory(process):
    """Anonymous memory of a process in megabytes, without its pages of Ray's store.

    Pages of the store count as private of the one process that has touched them so far.
    """
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    sizes = {line.split(":")[0]: line.split()[1] for line in lines[1:]}
    return int(sizes["Anonymous"]) / 1024


# Errors and commands


def test_without_ray_the_sentence_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UndriftError, match=r"pip install 'undrift\[ray\]'"):
        trained(TWO, ud.FedAvg(), losses_of())


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("127.0.0.1:1", "Nothing answers at the cluster's address '127.0.0.1:1'"),
        ("nonsense", "but must be 'auto'"),
        ("ray://127.0.0.1:1", "is that of a Ray client"),
    ],
)
def test_a_wrong_address_is_refused_at_once(address, sentence):
    from undrift.engines.ray.cluster import require_reachable

    with pytest.raises(UndriftError, match=sentence):
        require_reachable(address)


def test_an_address_where_somebody_else_answers():
    from undrift.engines.ray.cluster import require_reachable

    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        def answer():
            line, _ = other.accept()
            line.recv(9)
            line.sendall(b"HTTP/1.1 404 Not Found\r\n\r\n")
            line.close()

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(UndriftError, match="is not the head of a Ray cluster"):
            require_reachable(f"127.0.0.1:{port}")


def test_more_than_ray_has_is_refused_at_once():
    trained(TWO, ud.FedAvg(), losses_of(), rounds=0)
    with pytest.raises(UndriftError, match=r"2 workers with 1 GPU each are more than the 0 that"):
        trained(EngineOptions("ray", workers=2, threads=1, gpus=1), ud.FedAvg(), losses_of())


def test_what_cannot_be_sent_is_said():
    lock = threading.Lock()
    with pytest.raises(UndriftError, match="cannot be sent to them: TypeError: cannot"):
        trained(TWO, ud.FedAvg(), losses_of(loss=lambda o, t: (o.mean(), lock)[0]))


def test_a_cluster_that_is_not_there_leaves_no_folder(tmp_path):
    (tmp_path / "exp.toml").write_text(EXPERIMENT)
    options = ("--address", "127.0.0.1:1", "--out", "out")
    done = called("run", "exp.toml", *options, cwd=tmp_path)
    assert done.returncode == 2 and "Nothing answers" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("option", [{"workers": 2}, {"address": "auto"}, {"gpus": 0.5}])
def test_what_is_for_ray_only_is_refused_elsewhere(option):
    with pytest.raises(UndriftError, match="is for engine = 'ray' only"):
        EngineOptions("auto", **option)


EXPERIMENT = """
rounds = 40
engine = "ray"

[data]
source = "synthetic"
clients = 8
most = 60

[model]
name = "logistic"

[local]
lr = 0.05
batch_size = 10

[sampling]
cohort = 4

[[method]]
name = "SCAFFOLD"
"""


def test_a_killed_run_goes_on_with_other_workers(tmp_path):
    """It leaves no worker behind either."""
    (tmp_path / "exp.toml").write_text(EXPERIMENT)
    inner = ("--set", "engine.inner=serial")
    command = [sys.executable, "-m", "undrift", "run", "exp.toml", "--out", "out", *inner]
    running = subprocess.Popen([*command, "--workers", "1", "--quiet"], cwd=tmp_path)
    lines = tmp_path / "out" / "SCAFFOLD" / "seed-0" / "records.jsonl"
    deadline = time.monotonic() + 120
    while not lines.exists() or len(lines.read_text().splitlines()) < 4:
        assert running.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    workers = [each for each in _children(running.pid) if "ray::Worker" in _command(each)]
    assert len(workers) == 1
    running.kill()
    running.wait()
    done = called("resume", "out", "--workers", "2", "--quiet", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    whole = ("--workers", "2", "--out", "whole", "--quiet", *inner)
    assert called("run", "exp.toml", *whole, cwd=tmp_path).returncode == 0
    files = (lines, tmp_path / "whole" / "SCAFFOLD" / "seed-0" / "records.jsonl")
    ours, theirs = ([json.loads(one) for one in f.read_text().splitlines()] for f in files)
    assert len(ours) == 41
    assert [each["metrics"] for each in ours] == [each["metrics"] for each in theirs]
    assert ours[-1]["strategy"] == "Ray, 2 workers: serial"
    deadline = time.monotonic() + 60
    while any("ray::Worker" in _command(each) for each in workers):
        assert time.monotonic() < deadline, "a worker outlives the program"
        time.sleep(0.2)


def _command(process):
    try:
        return Path(f"/proc/{process}/cmdline").read_text()
    except OSError:
        return ""


def _children(process):
    """The child processes of a process, and their children."""
    found = subprocess.run(["pgrep", "-P", str(process)], capture_output=True, text=True)
    own = [int(each) for each in found.stdout.split()]
    return own + [deeper for each in own for deeper in _children(each)]
