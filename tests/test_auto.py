"""The engine that chooses: by time, once, and the same again wherever a run goes on."""

import json
import multiprocessing
import shutil
import signal
from dataclasses import replace

import pytest
import torch
from torch import nn

import kept_runs
import undrift as ud
from experiments import refused
from test_runs import contents, same
from undrift.clients import ClientStates
from undrift.engines import AutoEngine, SerialEngine, VectorisedEngine, auto, choices
from undrift.engines.strategies import COPIES, SERIAL, Strategy, candidates
from undrift.loops import Synchronous
from undrift.modules import ModuleLosses
from undrift.runs.execution import Keeping, execute
from undrift.runs.watching import Lines

DATA = ud.data.synthetic(1, 1, clients=7, seed=0, most=60)
PICTURES = ud.data.FederatedData.from_clients(
    {k: (x.view(-1, 1, 6, 10), y) for k in DATA.ids for x, y in [DATA.train.client(k)]}
)
LOCAL = ud.SGD(lr=0.05, batch_size=10, epochs=1)
TWO = ud.EngineOptions(threads=2)


class Odd(nn.Module):
    """What it does depends on its inputs, so that nothing can be done at once."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(60, 10)

    def forward(self, x):
        return self.layer(x) if float(x.sum()) > 0 else self.layer(-x)


class Gate(nn.Module):
    """A layer that nobody has written out."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 60))

    def forward(self, x):
        return x * torch.sin(self.weight)


def mlp():
    return ud.models.mlp(60, 8, classes=10, seed=1)


def gated():
    torch.manual_seed(0)
    return nn.Sequential(Gate(), nn.Linear(60, 10))


def cnn():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(2 * 2 * 6, 10)
    )


def odd():
    torch.manual_seed(0)
    return Odd()


MODELS = {"mlp": (mlp, DATA), "gated": (gated, DATA), "cnn": (cnn, PICTURES)}


def losses_of(name="mlp", dtype=torch.float64):
    make, data = MODELS[name]
    return ModuleLosses(make().to(dtype), data)


def trained(losses, engine=TWO, method=None, rounds=3, local=LOCAL, **options):
    method = method or ud.FedDyn(0.5)
    loop = Synchronous(method, losses, local, ud.All(), rounds, engine=engine, **options)
    return loop, list(loop.rounds())


def described(strategy, losses):
    """A strategy in the words of the records."""
    job = Synchronous(ud.FedAvg(), losses, LOCAL, ud.All(), 1).job
    return strategy.engine(losses, job).strategy


@pytest.fixture(autouse=True)
def forgotten(tmp_path, monkeypatch):
    """Nothing was chosen yet: the folder in which choices will be remembered."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(choices, "_known", {})
    return tmp_path / "cache" / "undrift" / "strategies"


@pytest.fixture
def rigged(monkeypatch):
    """Lets those win whose description begins in a given way; tells what was timed."""

    def rig(*winners):
        timed = []

        def seconds(self, engine, method, errands, states):
            timed.append(engine.strategy)
            return 0.1 if engine.strategy.startswith(winners) else 1.0

        monkeypatch.setattr(AutoEngine, "_seconds", seconds)
        return timed

    return rig


@pytest.fixture
def no_timing(monkeypatch):
    """Refuses that anything is timed."""

    def forbid():
        def seconds(*_):
            raise AssertionError("A strategy was timed.")

        monkeypatch.setattr(AutoEngine, "_seconds", seconds)

    return forbid


def written(folder):
    (file,) = folder.iterdir()
    return file, Strategy.from_dict(json.loads(file.read_text()))


# The choice


@pytest.mark.parametrize("name", MODELS)
def test_each_candidate_can_win_and_agrees_with_the_serial_engine(name, rigged, forgotten):
    losses = losses_of(name)
    serial, _ = trained(losses, SerialEngine)
    found = candidates(losses, 7, 2, TWO.memory).strategies
    assert len(found) >= 3
    for strategy in found:
        words = described(strategy, losses)
        timed = rigged(words)
        loop, records = trained(losses)
        assert [record.strategy for record in records] == ["", words, words, words]
        assert {*timed} == {described(each, losses) for each in found}
        assert torch.allclose(loop.server.x, serial.server.x, atol=1e-10, rtol=0)
        assert written(forgotten)[1] == strategy
        shutil.rmtree(forgotten)
        choices._known.clear()


def test_the_clock_decides(monkeypatch):
    """Time passes only while one kind of strategy is at work."""
    losses, now = losses_of(), [0.0]
    monkeypatch.setattr(auto.time, "perf_counter", lambda: now[0])
    run = VectorisedEngine.run

    def slow(self, *args, **options):
        now[0] += 5.0 if self.strategy.startswith("stacked") else 0.01
        return run(self, *args, **options)

    monkeypatch.setattr(VectorisedEngine, "run", slow)
    _, records = trained(losses)
    assert records[-1].strategy.startswith("one by one")


def test_what_is_much_slower_is_not_timed_again(rigged):
    losses = losses_of()
    timed = rigged("stacked layers, 4")
    trained(losses)
    slow = described(Strategy("module", 1, 2), losses)
    assert timed.count(slow) < timed.count("stacked layers, 4 clients at once, 2 threads")


def test_timing_changes_nothing(rigged):
    """States, buffers and draws are what they were: the first round is as if nothing was tried."""
    model = nn.Sequential(nn.Linear(60, 6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, 10))
    losses = ModuleLosses(model, DATA)
    chosen = candidates(losses, 7, 2, TWO.memory).strategies[-1]
    local = replace(LOCAL, momentum=0.5)
    for method in (ud.SCAFFOLD(), ud.FedDR(1.0, 1.0)):
        loop, _ = trained(losses, method=method, local=local)
        again = Strategy.from_dict(loop.engine.saved())
        assert again.network in ("stacked", chosen.network)
        direct, _ = trained(losses, again.engine, method=method, local=local)
        assert torch.equal(loop.server.x, direct.server.x)
        before = torch.random.get_rng_state()
        choices._known.clear()
        trained(losses, method=method, local=local)
        assert torch.equal(before, torch.random.get_rng_state())


def test_a_strategy_that_the_model_does_not_bear_is_left_out(monkeypatch):
    losses = losses_of()
    run = VectorisedEngine.run

    def failing(self, *args, **options):
        if self.strategy.startswith("stacked"):
            raise ud.UndriftError("The model failed on client 0 in round 1: no.")
        return run(self, *args, **options)

    monkeypatch.setattr(VectorisedEngine, "run", failing)
    _, records = trained(losses)
    assert records[-1].strategy.startswith("one by one")
    with pytest.raises(ud.UndriftError, match="The model failed on client 0 in round 1: no"):
        trained(losses, ud.EngineOptions("vectorised", threads=2))


def test_nothing_is_chosen_without_work(no_timing, forgotten):
    loop = Synchronous(ud.FedAvg(), losses_of(), LOCAL, ud.All(), 1, engine=TWO)
    no_timing()
    result = loop.engine.run(loop.method, [], loop.states, 0)
    assert not result.replies.count
    assert loop.engine.strategy == ""
    assert loop.engine.saved() == {}
    loop.engine.restore({})
    assert loop.engine.strategy == ""
    assert not forgotten.exists()


def test_what_cannot_be_done_at_once_is_said_in_a_sentence():
    losses = ModuleLosses(odd(), DATA)
    _, records = trained(losses)
    first = records[1].strategy
    assert first.startswith("one by one, 2 threads (it")
    assert "\n" not in first
    assert {record.strategy for record in records[1:]} == {first}
    problem = ud.theory.random_quadratics(3, 2, seed=0)
    options = {"problem": problem, "local": ud.GD(lr=0.1, steps=2), "rounds": 1}
    analytic = ud.train(ud.FedAvg(), progress=False, **options)
    assert analytic.records[-1].strategy == "serial"


# The user's cache


def test_the_same_again_is_not_timed_and_gives_the_same_bits(rigged, no_timing, forgotten):
    rigged("stacked layers, 4")
    losses = losses_of(dtype=torch.float32)
    first, records = trained(losses)
    no_timing()
    again, others = trained(losses)
    assert torch.equal(first.server.x, again.server.x)
    choices._known.clear()  # as in another process
    again, others = trained(losses_of(dtype=torch.float32))
    assert torch.equal(first.server.x, again.server.x)
    assert [record.strategy for record in records] == [record.strategy for record in others]
    assert len(list(forgotten.iterdir())) == 1


DAMAGED = {
    "empty": b"",
    "half": b'{"network": "stac',
    "a list": b"[]",
    "null": b"null",
    "incomplete": b'{"network": "stacked"}',
    "no text": b"\xff\xfe\x00",
    "no number": b'{"network": "stacked", "chunk": "x", "threads": 2, "channels_last": false}',
    "infinite": b'{"network": "stacked", "chunk": Infinity, "threads": 2, "channels_last": false}',
    "unknown": b'{"network": "magic", "chunk": 7, "threads": 1, "channels_last": false}',
    "no candidate": b'{"network": "stacked", "chunk": 5, "threads": 9, "channels_last": false}',
    "not for this model": b'{"network": "vmap", "chunk": 7, "threads": 1, "channels_last": false}',
}


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_choice_that_cannot_be_used_is_made_anew(content, known, rigged, no_timing, forgotten):
    losses = losses_of()
    rigged("stacked")
    trained(losses)
    file, _ = written(forgotten)
    file.write_bytes(content)
    choices._known.clear()
    if known:  # this process may have read it before
        choices.recall(file.stem)
    rigged("one by one")
    _, records = trained(losses)
    assert records[-1].strategy.startswith("one by one")
    assert written(forgotten) == (file, Strategy("module", 1, 2))
    no_timing()
    choices._known.clear()
    assert trained(losses)[1][-1].strategy == records[-1].strategy


def test_a_cache_that_cannot_be_written_is_survived(rigged, no_timing, forgotten):
    forgotten.parent.parent.mkdir()
    forgotten.parent.write_text("a file where a folder should be")
    rigged("stacked")
    _, records = trained(losses_of())
    assert records[-1].strategy.startswith("stacked")
    no_timing()  # this process knows it still
    assert trained(losses_of())[1][-1].strategy == records[-1].strategy


def test_a_folder_in_the_place_of_a_choice_is_survived(rigged, forgotten):
    rigged("stacked")
    trained(losses_of())
    file, _ = written(forgotten)
    file.unlink()
    file.mkdir()
    choices._known.clear()
    assert trained(losses_of())[1][-1].strategy.startswith("stacked")
    assert list(forgotten.iterdir()) == [file]


def test_the_process_that_writes_first_wins(rigged, forgotten, monkeypatch):
    losses = losses_of()
    rigged("stacked layers, 4")
    trained(losses)
    file, _ = written(forgotten)
    file.unlink()
    choices._known.clear()
    other = Strategy("module", 1, 2)

    def slower(self, *_):  # while this process is timing, another one is done
        file.write_text(json.dumps(other.as_dict()))
        return 1.0

    monkeypatch.setattr(AutoEngine, "_seconds", slower)
    _, records = trained(losses)
    assert records[-1].strategy == described(other, losses)
    assert written(forgotten) == (file, other)
    assert choices.recall(file.stem) == other


def test_other_questions_have_other_answers():
    losses, small = losses_of(), ModuleLosses(ud.models.logistic(60, 10).double(), DATA)
    limits = 2, 1000, None
    names = [
        choices.question(*facts)
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
    assert choices.question(losses_of(), replace(LOCAL, lr=0.2), 7, limits) == names[0]


# Runs that are kept

SETTING = {"engine": TWO}


def assert_same_run(folder, other, label):
    for ours, theirs in zip(contents(folder, label), contents(other, label), strict=True):
        assert same(ours, theirs), label


def cut_short(folder, **changed):
    """Runs that were killed after their fourth round, as far as anyone can tell."""
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
    choices._known.clear()
    cut_short(half)
    shutil.rmtree(forgotten)
    choices._known.clear()
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
    kept_runs.run(half, engine=ud.EngineOptions(threads=3, memory=1), **changed)
    assert_same_run(half, whole, "FedDyn")


@pytest.mark.parametrize(("number", "moment"), [(2, "after"), (3, "during")])
def test_killed_before_the_first_round_is_there(number, moment, rigged, forgotten, tmp_path):
    """The writes are: what the store belongs to, the initial model, the first round."""
    # A server of processes would keep this test's environment for all later ones.
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
        # The first of the two runs chose; the second one remembers.
        assert all(record.strategy.startswith("one by one") for record in records[1:])
    assert_same_run(folder, again, "FedDyn")


def first_model(seed):
    return ud.models.mlp(60, 20, classes=10, seed=seed)


# What is said


def test_the_choice_is_said_once(rigged, tmp_path, capsys):
    rigged("stacked")
    plan = kept_runs.plan(3, methods={"FedAvg": ud.FedAvg(), "FedDyn": ud.FedDyn(0.5)}, **SETTING)
    execute(plan, tmp_path / "run", Keeping(), Lines(3))
    lines = [line for line in capsys.readouterr().err.splitlines() if "engine: " in line]
    assert len(lines) == len(set(lines)) <= 2
    assert lines[0].startswith("FedAvg, seed 0: engine: stacked layers, ")
    setting = {"model": mlp(), "data": DATA, "local": LOCAL, "rounds": 2}
    ud.train(ud.FedAvg(), progress=True, **setting)
    lines = [line for line in capsys.readouterr().err.splitlines() if "engine: " in line]
    assert len(lines) == 1


def test_nothing_is_said_without_progress(capsys):
    setting = {"model": mlp(), "data": DATA, "local": LOCAL, "rounds": 2}
    ud.train(ud.FedAvg(), progress=False, **setting)
    assert capsys.readouterr() == ("", "")


# Options

REFUSED = [
    ({"threads": 0}, "The engine's threads is 0, but must be a whole number of at least 1."),
    ({"threads": True}, "The engine's threads is True, but must be a whole number of at least 1."),
    ({"chunk": 0}, "The engine's chunk is 0, but must be a whole number of at least 1."),
    ({"chunk": 2.5}, "The engine's chunk is 2.5, but must be a whole number of at least 1."),
    ({"memory": -1}, "The engine's memory is -1, but must be above 0."),
    ({"memory": float("nan")}, "The engine's memory is nan, but must be a number above 0."),
    ({"memory": "much"}, "The engine's memory is 'much', but must be a number above 0."),
    ({"name": "fast"}, "engine is 'fast', but must be one of 'auto', 'vectorised', 'serial'."),
]


@pytest.mark.parametrize(("options", "sentence"), REFUSED, ids=str)
def test_options_that_make_no_sense_are_refused(options, sentence):
    with pytest.raises(ud.UndriftError) as caught:
        ud.EngineOptions(**options)
    assert str(caught.value) == sentence


@pytest.mark.parametrize("engine", [3, None, ["auto"], SerialEngine])
def test_an_engine_that_is_none_is_refused(engine):
    with pytest.raises(ud.UndriftError, match=r"engine is .*, but must be a name or ud.EngineOpt"):
        ud.train(ud.FedAvg(), model=mlp(), data=DATA, local=LOCAL, rounds=1, engine=engine)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"name": "sereal"}, ("engine.name", "serial")),
        ({"threads": -1}, ("engine.threads", "-1")),
        ({"chunk": 1.5}, ("engine.chunk", "1.5")),
        ({"chunk": "all"}, ("engine.chunk", "all")),
        ({"memory": 0}, ("engine.memory", "0")),
        ({"memory": "1 GB"}, ("engine.memory", "1 GB")),
        ({"thread": 2}, ("engine.thread", "threads")),
    ],
    ids=str,
)
def test_a_file_with_a_wrong_engine_is_refused(table, words):
    said = refused(engine=table)
    assert all(word in said for word in words), said
    assert len(said.splitlines()) == 1


def test_a_given_chunk_is_used(rigged):
    rigged("stacked")
    loop, records = trained(losses_of(), ud.EngineOptions(threads=2, chunk=3))
    assert records[-1].strategy == "stacked layers, 3 clients at once, 2 threads"
    loop, _ = trained(losses_of(), ud.EngineOptions("vectorised", threads=1, chunk=5))
    assert loop.engine.strategy == "stacked layers, 5 clients at once, 1 thread"


# Memory


@pytest.mark.parametrize("clients", [7, 40, 300])
@pytest.mark.parametrize("memory", [0.001, 0.1, 3, 1000])
@pytest.mark.parametrize("hidden", [(), (200,)])
def test_chunks_are_bounded_by_memory(clients, memory, hidden):
    losses = ModuleLosses(ud.models.mlp(60, *hidden, classes=10), DATA)
    size = COPIES * losses.dimension * losses.flat.x.element_size()
    for threads in (1, 2, 5):
        for each in candidates(losses, clients, threads, memory).strategies:
            assert each.chunk == 1 or each.chunk * each.threads * size <= memory * 1e6
            assert each.chunk <= clients


def test_a_large_cohort_works_in_chunks_of_the_given_memory(monkeypatch):
    data = ud.data.synthetic(1, 1, clients=200, seed=0, most=20)
    losses = ModuleLosses(ud.models.mlp(60, 20, classes=10), data)
    size = COPIES * losses.dimension * losses.flat.x.element_size()
    sizes = []
    finished = VectorisedEngine._finished

    def watched(self, method, chunk, lasting=False):
        sizes.append(len(chunk.errands))
        return finished(self, method, chunk, lasting)

    monkeypatch.setattr(VectorisedEngine, "_finished", watched)
    options = ud.EngineOptions("vectorised", threads=2, memory=1)
    loop, _ = trained(losses, options, method=ud.SCAFFOLD(), rounds=1)
    assert loop.engine.chunk > 1
    assert sum(sizes) == 200
    assert max(sizes) * 2 * size <= 1e6


def test_what_a_client_keeps_holds_on_to_nothing_else():
    losses = losses_of()
    evaluation = ud.Evaluation(models=("server", "all"))
    for method in (ud.SCAFFOLD(), ud.FedDR(1.0, 1.0), ud.FedPD(1.0), ud.FedAvg()):
        for strategy in (Strategy("stacked", 4, 2), Strategy("vmap", 7, 1), Strategy("module", 1)):
            setting = {"method": method, "evaluation": evaluation, "objective": "clients"}
            loop, _ = trained(losses, strategy.engine, **setting)
            for client in loop.states.seen():
                for _, value in loop.states.get(client).items():
                    own = value.numel() * value.element_size()
                    assert value.untyped_storage().nbytes() == own


def test_states_copy_a_row_and_keep_a_vector():
    states = ClientStates({"h": "zero"}, torch.zeros(3))
    many, one = torch.ones(4, 3), torch.ones(3)
    states.put("row", ud.Keep(h=many[2]))
    states.put("vector", ud.Keep(h=one))
    many.zero_()
    assert torch.equal(states.get("row").h, torch.ones(3))
    assert states.get("vector").h is one


# Clients on which the model fails

BAD = 5


def with_a_bad_token():
    """Words of three letters; one of a client's is not in the table."""
    clients = {}
    for k, name in enumerate(("ann", "bob", "cleo", "dan", "eve")):
        g = torch.Generator().manual_seed(k)
        n = 6 + k
        clients[name] = torch.randint(0, BAD, (n, 3), generator=g), torch.arange(n) % BAD
    clients["cleo"][0][4, 1] = BAD
    data = ud.data.FederatedData.from_clients(clients)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(BAD, 2), nn.Flatten(), nn.Linear(6, BAD))
    return ModuleLosses(model.double(), data)


FAILING = [
    SERIAL,
    Strategy("module", 1, 1),
    Strategy("module", 1, 3),
    Strategy("stacked", 1, 2),
    Strategy("stacked", 2, 2),
    Strategy("stacked", 5, 1),
    Strategy("vmap", 2, 3),
    Strategy("vmap", 5, 1),
    None,
]


@pytest.mark.parametrize("strategy", FAILING, ids=str)
def test_a_model_that_fails_on_a_client_says_so_and_can_go_on(strategy):
    losses = with_a_bad_token()
    engine = TWO if strategy is None else strategy.engine
    local = ud.SGD(lr=0.1, batch_size=4, epochs=1)
    loop = Synchronous(ud.SCAFFOLD(), losses, local, ud.All(), 4, engine=engine)
    for _ in range(2):
        with pytest.raises(ud.UndriftError) as caught:
            loop.step()
        assert str(caught.value).startswith("The model failed on client 'cleo' in round 1: ")
        assert len(str(caught.value).splitlines()) == 1
        assert not list(loop.states.seen())
    inputs = losses.train_part.x
    inputs[inputs == BAD] = 0
    serial = Synchronous(ud.SCAFFOLD(), losses, local, ud.All(), 4)
    for each in (loop, serial):
        each.step()
    assert torch.allclose(loop.server.x, serial.server.x, atol=1e-10, rtol=0)
