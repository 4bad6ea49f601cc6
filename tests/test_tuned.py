"""The "tuned" engine times the strategies, keeps the fastest and names it."""

import shutil
from dataclasses import replace

import pytest
import torch
from torch import nn

import kept_runs
import undrift as ud
from choosing import DATA, LOCAL, MODELS, TUNED, described, losses_of, mlp, trained, written
from looping import synchronous
from undrift.engines import SerialEngine, VectorisedEngine, strategy_cache, tuned
from undrift.engines.strategies import Strategy, candidates
from undrift.nets.module_losses import ModuleLosses
from undrift.runs.driver import execute
from undrift.runs.observers import LineObserver
from undrift.runs.storage import FolderStorage

pytestmark = pytest.mark.usefixtures("forgotten")


@pytest.mark.parametrize("name", MODELS)
def test_each_candidate_can_win_and_agrees_with_the_serial_engine(name, rigged, forgotten):
    losses = losses_of(name)
    serial, _ = trained(losses, SerialEngine)
    found = candidates(losses, LOCAL, 7, 2, TUNED.memory).strategies
    assert len(found) >= 2
    for strategy in found:
        words = described(strategy, losses)
        timed = rigged(words)
        loop, records = trained(losses, TUNED)
        assert [record.strategy for record in records] == ["", words, words, words]
        assert {*timed} == {described(each, losses) for each in found}
        assert torch.allclose(loop.server.x, serial.server.x, atol=1e-10, rtol=0)
        assert written(forgotten)[1] == strategy
        shutil.rmtree(forgotten)
        strategy_cache._known.clear()


def test_the_clock_decides(monkeypatch):
    """The clock advances only while strategies run, and by more for one kind."""
    losses, now = losses_of(), [0.0]
    monkeypatch.setattr(tuned.time, "perf_counter", lambda: now[0])
    run = VectorisedEngine.run

    def slow(self, *args, **options):
        now[0] += 5.0 if self.strategy.startswith("stacked") else 0.01
        return run(self, *args, **options)

    monkeypatch.setattr(VectorisedEngine, "run", slow)
    _, records = trained(losses, TUNED)
    assert records[-1].strategy.startswith("one by one")


def test_a_trial_of_slow_work_has_as_many_clients_as_may_work_together(monkeypatch):
    """With fewer clients, strategies with large chunks would leave threads idle and seem slow."""
    losses, sizes = losses_of(), []

    def seconds(self, engine, method, assignments, states):
        sizes.append((len(assignments), sum(assignment.work.steps for assignment in assignments)))
        return 10.0

    monkeypatch.setattr(tuned.TunedEngine, "_seconds", seconds)
    trained(losses, TUNED)
    assert max(sizes) == (7, 7)  # everyone's first step


def test_what_is_much_slower_is_not_timed_again(rigged):
    losses = losses_of()
    timed = rigged("stacked layers, 4")
    trained(losses, TUNED)
    slow = described(Strategy("module", 1, 1), losses)
    assert timed.count(slow) < timed.count("stacked layers, 4 clients at once, 2 threads")


def test_timing_changes_nothing(rigged):
    """Trials leave states, buffers and random numbers unchanged before the first round."""
    model = nn.Sequential(nn.Linear(60, 6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, 10))
    losses = ModuleLosses(model, DATA)
    chosen = candidates(losses, LOCAL, 7, 2, TUNED.memory).strategies[-1]
    local = replace(LOCAL, momentum=0.5)
    for method in (ud.SCAFFOLD(), ud.FedDR(1.0, 1.0)):
        loop, _ = trained(losses, TUNED, method=method, local=local)
        again = Strategy.from_dict(loop.engine.saved())
        assert again.network in ("stacked", chosen.network)
        direct, _ = trained(losses, again.engine, method=method, local=local)
        assert torch.equal(loop.server.x, direct.server.x)
        before = torch.random.get_rng_state()
        strategy_cache._known.clear()
        trained(losses, TUNED, method=method, local=local)
        assert torch.equal(before, torch.random.get_rng_state())


def test_a_strategy_under_which_the_model_fails_is_left_out(monkeypatch):
    losses = losses_of()
    run = VectorisedEngine.run

    def failing(self, *args, **options):
        if self.strategy.startswith("stacked"):
            raise ud.UndriftError("The model failed on client 0 in round 1: no.")
        return run(self, *args, **options)

    monkeypatch.setattr(VectorisedEngine, "run", failing)
    _, records = trained(losses, TUNED)
    assert records[-1].strategy.startswith("one by one")
    with pytest.raises(ud.UndriftError, match="The model failed on client 0 in round 1: no"):
        trained(losses, ud.EngineOptions("vectorised", threads=2))


def test_nothing_is_chosen_without_work(no_timing, forgotten):
    loop = synchronous(ud.FedAvg(), losses_of(), LOCAL, ud.All(), 1, engine=TUNED)
    no_timing()
    result = loop.engine.run(loop.method, [], loop.states, 0)
    assert not result.replies.count
    assert loop.engine.strategy == ""
    assert loop.engine.saved() == {}
    loop.engine.restore({})
    assert loop.engine.strategy == ""
    assert not forgotten.exists()


def test_the_choice_is_said_once(rigged, tmp_path, capsys):
    rigged("stacked")
    plan = kept_runs.plan(
        3, methods={"FedAvg": ud.FedAvg(), "FedDyn": ud.FedDyn(0.5)}, engine=TUNED
    )
    execute(plan, FolderStorage(tmp_path / "run"), LineObserver(3))
    lines = [line for line in capsys.readouterr().err.splitlines() if "engine: " in line]
    assert len(lines) == len(set(lines)) <= 2
    assert lines[0].startswith("FedAvg, seed 0: engine: stacked layers, ")
    setting = {"model": mlp(), "data": DATA, "local": LOCAL, "rounds": 2}
    ud.train(ud.FedAvg(), progress=True, **setting)
    lines = [line for line in capsys.readouterr().err.splitlines() if "engine: " in line]
    assert len(lines) == 1
