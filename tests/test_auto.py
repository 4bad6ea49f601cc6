"""The "auto" engine chooses by a rule: the same choice at every moment, without clock and files."""

import random
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import undrift as ud
from choosing import DATA, LOCAL, MODELS, TWO, losses_of, mlp, odd, trained
from looping import synchronous
from undrift.engines import strategy_cache
from undrift.engines.cost_model import ModelWork, RoundWork
from undrift.engines.strategies import Strategy, candidates
from undrift.nets.module_losses import ModuleLosses

pytestmark = pytest.mark.usefixtures("forgotten")


def rule(losses, clients=7, threads=2, local=LOCAL, memory=1000, chunk=None):
    return candidates(losses, local, clients, threads, memory, chunk).strategies[0]


# What the choice does not depend on


@pytest.mark.parametrize("name", MODELS)
def test_no_clock_and_no_file_decides(name, monkeypatch, forgotten):
    first, records = trained(losses_of(name))
    assert not forgotten.exists()
    # A machine on which every strategy is slow at random moments, and a cache that says otherwise.
    monkeypatch.setattr(strategy_cache, "lookup", lambda *_: Strategy("module", 1, 1))
    monkeypatch.setattr(time, "perf_counter", lambda: random.random() * 100)
    again, others = trained(losses_of(name))
    assert torch.equal(first.server.x, again.server.x)
    assert [record.strategy for record in records] == [record.strategy for record in others]
    assert not forgotten.exists()


def test_the_first_candidate_is_taken():
    losses = losses_of()
    _, records = trained(losses)
    loop = synchronous(ud.FedAvg(), losses, LOCAL, ud.All(), 1)
    assert records[-1].strategy == rule(losses).engine(losses, loop.job).strategy


def test_more_threads_than_chunks_change_no_bit():
    """A small model is one chunk, however many threads there are."""
    several = [trained(losses_of(), ud.EngineOptions(threads=each))[0] for each in (1, 2, 5)]
    for other in several[1:]:
        assert torch.equal(several[0].server.x, other.server.x)


def test_nothing_is_chosen_without_work():
    loop = synchronous(ud.FedAvg(), losses_of(), LOCAL, ud.All(), 1, engine=TWO)
    result = loop.engine.run(loop.method, [], loop.states, 0)
    assert not result.replies.count
    assert loop.engine.strategy == ""
    assert loop.engine.saved() == {}


def test_what_cannot_be_done_at_once_is_said_in_a_sentence():
    losses = ModuleLosses(odd(), DATA)
    _, records = trained(losses)
    first = records[1].strategy
    assert first.startswith("one by one, ")
    assert " (it" in first
    assert "\n" not in first
    assert {record.strategy for record in records[1:]} == {first}
    problem = ud.theory.random_quadratics(3, 2, seed=0)
    options = {"problem": problem, "local": ud.GD(lr=0.1, steps=2), "rounds": 1}
    analytic = ud.train(ud.FedAvg(), progress=False, **options)
    assert analytic.records[-1].strategy == "serial"


def test_nothing_is_said_without_progress(capsys):
    setting = {"model": mlp(), "data": DATA, "local": LOCAL, "rounds": 2}
    ud.train(ud.FedAvg(), progress=False, **setting)
    assert capsys.readouterr() == ("", "")


# What it depends on


def work(flops=1e6, operators=6, clients=10, steps=10, batch=20, **model):
    return RoundWork(ModelWork(flops, operators, **model), clients, steps, batch)


def test_little_work_is_one_chunk_and_much_work_is_shared_by_the_threads():
    assert rule(losses_of()) == Strategy("stacked", 7, 1)
    wide = ModuleLosses(ud.models.mlp(60, 2000, classes=10), DATA)
    assert rule(wide) == rule(wide, threads=4) == Strategy("stacked", 4, 2)
    assert rule(wide, threads=1) == Strategy("stacked", 7, 1)
    wider = ModuleLosses(ud.models.mlp(60, 2000, 2000, classes=10), DATA)
    assert rule(wider, threads=4) == Strategy("stacked", 2, 4)


def test_a_chunk_that_the_user_chose_is_kept():
    assert rule(losses_of(), chunk=3) == Strategy("stacked", 3, 2)


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_chunks_that_fill_the_cache_are_split(threads):
    small, large = 1000, 1_000_000
    for parameters in (small, large):
        round = work(flops=1e8, clients=64, parameters=parameters)
        whole = round.seconds("stacked", 64 // threads, threads, False)
        half = round.seconds("stacked", 32 // threads, threads, False)
        assert (whole < half) == (parameters == small)


def test_a_model_that_python_slows_down_is_trained_by_one_thread():
    little, much = work(flops=100), work(flops=1e8)
    for round, best in ((little, 1), (much, 2)):
        seconds = {n: round.seconds("module", 1, n, False) for n in (1, 2)}
        assert min(seconds, key=seconds.get) == best


def test_a_long_recurrence_of_wide_layers_is_left_to_the_module():
    """Stacked layers compute time steps one by one, in Python; the module has one kernel."""
    short, long = work(flops=1e4, time_steps=5), work(flops=1e8, time_steps=200, clients=3)
    for round, best in ((short, "stacked"), (long, "module")):
        seconds = {
            "stacked": round.seconds("stacked", 10, 1, False),
            "module": round.seconds("module", 1, 2, False),
        }
        assert min(seconds, key=seconds.get) == best


def test_convolutions_have_their_channels_last():
    assert rule(losses_of("cnn")).channels_last


# What is counted


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(4, 4)

    def forward(self, x):
        x = x.view(-1, 3, 1, 4).transpose(1, 2)
        return nn.functional.scaled_dot_product_attention(x, x, self.mix(x)).flatten(1)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 5, num_layers=2, batch_first=True)

    def forward(self, x):
        return self.lstm(x.view(-1, 4, 3))[0][:, -1]


LSTM_WEIGHTS = 4 * 5 * (3 + 5 + 2) + 4 * 5 * (5 + 5 + 2)
COUNTED = {
    "linear": (lambda: nn.Linear(12, 5), 2 * 12 * 5, 0),
    "product": (lambda: nn.Bilinear(12, 12, 2) and nn.Linear(12, 7, bias=False), 2 * 12 * 7, 0),
    "convolution": (
        lambda: nn.Sequential(nn.Unflatten(1, (3, 2, 2)), nn.Conv2d(3, 6, 2), nn.Flatten()),
        2 * 6 * 3 * 4,
        0,
    ),
    "attention": (Attention, 3 * 2 * 16 + 4 * 12 * 3, 0),
    "lstm": (Recurrent, 2 * 4 * LSTM_WEIGHTS, 8),
}


@pytest.mark.parametrize("name", COUNTED)
def test_arithmetic_is_counted(name):
    make, flops, time_steps = COUNTED[name]
    data = ud.data.FederatedData.from_clients(
        {k: (torch.rand(6, 12), torch.zeros(6, dtype=torch.int64)) for k in range(2)}
    )
    found = ModelWork.of(ModuleLosses(make(), data))
    assert found.flops == flops
    assert found.time_steps == time_steps
    assert found.convolves == (name == "convolution")


def test_steps_and_batches_are_those_of_an_average_client():
    losses = losses_of()
    size = round(len(losses.train_part) / 7)
    found = RoundWork.of(losses, ud.SGD(lr=0.1, batch_size=4, epochs=2), 5)
    assert (found.clients, found.steps, found.batch) == (5, 2 * -(-size // 4), 4)
    found = RoundWork.of(losses, ud.GD(lr=0.1, steps=3), 5)
    assert (found.steps, found.batch) == (3, size)


def test_the_engine_reads_no_clock():
    folder = Path(strategy_cache.__file__).parent
    for name in ("auto", "choosing", "cost_model", "strategies"):
        source = (folder / f"{name}.py").read_text()
        assert "import time" not in source
        assert "strategy_cache" not in source
