"""A chosen strategy is kept in the user's cache and in resumed runs."""

import json
import multiprocessing
import shutil
import signal
from dataclasses import replace

import pytest
import torch

import kept_runs
import undrift as ud
from choosing import (
    DATA,
    LOCAL,
    TUNED,
    described,
    losses_of,
    odd,
    trained,
    written,
)
from test_runs import contents, same
from undrift.engines import TunedEngine, strategy_cache
from undrift.engines.strategies import Strategy
from undrift.engines.strategy_cache import Choice
from undrift.engines.tuned import noise_of
from undrift.nets.module_losses import ModuleLosses

pytestmark = pytest.mark.usefixtures("forgotten")


# The user's cache


def test_the_same_again_is_not_timed_and_gives_the_same_bits(rigged, no_timing, forgotten):
    rigged("stacked layers, 4")
    losses = losses_of(dtype=torch.float32)
    first, records = trained(losses, TUNED)
    no_timing()
    again, others = trained(losses, TUNED)
    assert torch.equal(first.server.x, again.server.x)
    strategy_cache._known.clear()  # as in another process
    again, others = trained(losses_of(dtype=torch.float32), TUNED)
    assert torch.equal(first.server.x, again.server.x)
    assert [record.strategy for record in records] == [record.strategy for record in others]
    assert len(list(forgotten.iterdir())) == 1


def test_a_number_has_the_same_key_however_it_is_written(rigged, no_timing):
    """A run's own experiment file says 1000.0 megabytes where the user's said nothing."""
    rigged("stacked layers, 4")
    first, _ = trained(losses_of(), ud.EngineOptions("tuned", threads=2, memory=1000))
    no_timing()
    again, _ = trained(losses_of(), ud.EngineOptions("tuned", threads=2, memory=1000.0))
    assert first.engine.strategy == again.engine.strategy


USUAL = {"network": "stacked", "chunk": 7, "threads": 1, "channels_last": False}
USUAL |= {"noise": 0.0, "times": []}
DAMAGED = {
    "empty": b"",
    "half": b'{"network": "stac',
    "a list": b"[]",
    "null": b"null",
    "no text": b"\xff\xfe\x00",
    "incomplete": {"network": "stacked"},
    "of an earlier version": {k: v for k, v in USUAL.items() if k not in ("noise", "times")},
    "no number": USUAL | {"chunk": "x"},
    "infinite": USUAL | {"chunk": float("inf")},
    "no times": USUAL | {"times": [{"seconds": 1}]},
    "unknown": USUAL | {"network": "magic"},
    "no candidate": USUAL | {"chunk": 5, "threads": 9},
    "not for this model": USUAL | {"network": "vmap"},
    "noisy": USUAL | {"noise": 0.2},
}


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_choice_that_cannot_be_used_is_made_anew(content, known, rigged, no_timing, forgotten):
    losses = losses_of()
    rigged("stacked")
    trained(losses, TUNED)
    file, _ = written(forgotten)
    file.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    strategy_cache._known.clear()
    if known:  # this process may have made such a choice before
        strategy_cache._known[file.stem] = Choice(Strategy("stacked", 5, 9), 0.0)
    rigged("one by one")
    _, records = trained(losses, TUNED)
    assert records[-1].strategy.startswith("one by one")
    assert written(forgotten)[0] == file
    assert written(forgotten)[1].network == "module"
    no_timing()
    strategy_cache._known.clear()
    assert trained(losses, TUNED)[1][-1].strategy == records[-1].strategy


def test_a_cache_that_cannot_be_written_is_survived(rigged, no_timing, forgotten):
    forgotten.parent.parent.mkdir()
    forgotten.parent.write_text("a file where a folder should be")
    rigged("stacked")
    _, records = trained(losses_of(), TUNED)
    assert records[-1].strategy.startswith("stacked")
    no_timing()  # this process knows it still
    assert trained(losses_of(), TUNED)[1][-1].strategy == records[-1].strategy


def test_a_folder_in_the_place_of_a_choice_is_survived(rigged, forgotten):
    rigged("stacked")
    trained(losses_of(), TUNED)
    file, _ = written(forgotten)
    file.unlink()
    file.mkdir()
    strategy_cache._known.clear()
    assert trained(losses_of(), TUNED)[1][-1].strategy.startswith("stacked")
    assert list(forgotten.iterdir()) == [file]


def test_the_process_that_writes_first_wins(rigged, forgotten, monkeypatch):
    losses = losses_of()
    rigged("stacked layers, 4")
    trained(losses, TUNED)
    file, _ = written(forgotten)
    file.unlink()
    strategy_cache._known.clear()
    other = Strategy("module", 1, 1)

    def slower(self, *_):  # while this process is timing, another one is done
        file.write_text(json.dumps(Choice(other, 0.0).as_dict()))
        return 1.0

    monkeypatch.setattr(TunedEngine, "_seconds", slower)
    _, records = trained(losses, TUNED)
    assert records[-1].strategy == described(other, losses)
    assert written(forgotten) == (file, other)
    assert strategy_cache.lookup(file.stem, [other]).strategy == other


# Noise


def test_a_quiet_choice_holds_and_a_noisy_one_is_made_again(rigged, no_timing, forgotten):
    losses = losses_of()
    rigged("stacked")
    trained(losses, TUNED)
    file, _ = written(forgotten)
    stored = json.loads(file.read_text())
    assert stored["noise"] == 0.0
    assert len(stored["times"]) > 1
    for noise, kept in ((strategy_cache.NOISY, True), (strategy_cache.NOISY + 0.01, False)):
        file.write_text(json.dumps(stored | {"noise": noise}))
        strategy_cache._known.clear()
        timed = rigged("stacked")
        trained(losses, TUNED)
        assert bool(timed) == (not kept)


def test_a_noisy_choice_holds_within_a_process(rigged, no_timing, forgotten):
    """Methods that are compared with each other must use the same strategy."""
    rigged("stacked")
    trained(losses_of(), TUNED)
    file, _ = written(forgotten)
    known = strategy_cache._known
    known[file.stem] = replace(known[file.stem], noise=5.0)
    no_timing()
    trained(losses_of(), TUNED)


def test_the_shortest_times_of_two_timings_decide():
    a, b, c = (Strategy("stacked", chunk, 2) for chunk in (1, 2, 3))
    noisy = Choice(a, 0.5, {a: 1.0, b: 3.0})
    again = Choice(b, 0.02, {a: 2.0, b: 1.5, c: 4.0}).with_earlier(noisy)
    assert again == Choice(a, 0.02, {a: 1.0, b: 1.5, c: 4.0})
    assert Choice.from_dict(json.loads(json.dumps(again.as_dict()))) == again


def test_noise_is_that_of_the_most_disturbed_strategy():
    assert noise_of([[1.0, 1.0, 1.0], [3.0, 2.0, 2.2]]) == pytest.approx(0.1)
    assert noise_of([[1.0], [2.0]]) == 0.0


def test_different_settings_have_different_keys():
    losses, small = losses_of(), ModuleLosses(ud.models.logistic(60, 10).double(), DATA)
    limits = 2, 1000, None
    names = [
        strategy_cache.cache_key(*facts)
        for facts in (
            (losses, LOCAL, 7, limits),
            (small, LOCAL, 7, limits),
            (losses_of(dtype=torch.float32), LOCAL, 7, limits),
            (losses, replace(LOCAL, batch_size=9), 7, limits),
            (losses, replace(LOCAL, momentum=0.5), 7, limits),
            (losses, LOCAL, 6, limits),
            (losses, LOCAL, 7, (1, 1000, None)),
            (losses, LOCAL, 7, (2, 500, None)),
            (losses, LOCAL, 7, (2, 1000, 3)),
        )
    ]
    assert len(set(names)) == len(names)
    assert strategy_cache.cache_key(losses_of(), replace(LOCAL, lr=0.2), 7, limits) == names[0]


# Runs that are kept

SETTING = {"engine": TUNED}


def assert_same_run(folder, other, label):
    for ours, theirs in zip(contents(folder, label), contents(other, label), strict=True):
        assert same(ours, theirs), label


def cut_short(folder, **changed):
    """Runs in the state in which a kill after the fourth round leaves them."""
    kept_runs.run(folder, rounds=4, **SETTING, **changed)
    for file in folder.rglob("run.json"):
        file.unlink()


@pytest.mark.parametrize(
    ("winner", "later"), [("one by one", "stacked"), ("stacked", "one by one")]
)
def test_a_resumed_run_goes_on_as_it_began(winner, later, rigged, no_timing, forgotten, tmp_path):
    rigged(winner)
    whole, half = tmp_path / "whole", tmp_path / "half"
    kept_runs.run(whole, **SETTING)
    shutil.rmtree(forgotten)
    strategy_cache._known.clear()
    cut_short(half)
    shutil.rmtree(forgotten)
    strategy_cache._known.clear()
    rigged(later)
    no_timing()
    kept_runs.run(half, **SETTING)
    for label in kept_runs.plan().methods:
        *_, records, _ = contents(half, label)
        assert all(record.strategy.startswith(winner) for record in records[1:])
        assert_same_run(half, whole, label)


def test_a_resumed_run_says_why_it_is_slow(tmp_path):
    changed = {"methods": {"FedAvg": ud.FedAvg()}, "model": lambda seed: odd()}
    whole, half = tmp_path / "whole", tmp_path / "half"
    kept_runs.run(whole, **SETTING, **changed)
    cut_short(half, **changed)
    kept_runs.run(half, **SETTING, **changed)
    *_, records, _ = contents(half, "FedAvg")
    assert "cannot be" in records[-1].strategy
    assert_same_run(half, whole, "FedAvg")


def test_more_threads_later_change_nothing(rigged, tmp_path):
    rigged("stacked")
    changed = {"methods": {"FedDyn": ud.FedDyn(alpha=0.5)}}
    whole, half = tmp_path / "whole", tmp_path / "half"
    kept_runs.run(whole, **SETTING, **changed)
    cut_short(half, **changed)
    kept_runs.run(half, engine=ud.EngineOptions("tuned", threads=3, memory=1), **changed)
    assert_same_run(half, whole, "FedDyn")


@pytest.mark.parametrize(("number", "moment"), [(2, "after"), (3, "during")])
def test_killed_before_the_first_round_is_there(number, moment, rigged, forgotten, tmp_path):
    """The store is written three times: its identity, the initial model, the first round."""
    # With a fork server, all later processes would inherit this test's environment.
    context = multiprocessing.get_context("spawn")
    changed = {"methods": {"FedDyn": ud.FedDyn(alpha=0.5)}, "model": first_model, **SETTING}
    folder, again = tmp_path / "run", tmp_path / "again"
    killed = context.Process(
        target=kept_runs.run, args=(folder, 3, (number, moment)), kwargs=changed
    )
    killed.start()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    shutil.rmtree(forgotten, ignore_errors=True)
    for winner, each in (("one by one", folder), ("stacked", again)):
        rigged(winner)
        assert {outcome.status for outcome in kept_runs.run(each, 3, **changed)} == {"finished"}
        *_, records, _ = contents(each, "FedDyn")
        # The first of the two runs chose; the second one found that choice in the cache.
        assert all(record.strategy.startswith("one by one") for record in records[1:])
    assert_same_run(folder, again, "FedDyn")


def first_model(seed):
    return ud.models.mlp(60, 20, classes=10, seed=seed)
