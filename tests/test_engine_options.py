"""Engine options are checked, and engines keep to their limit of memory."""

import pytest
import torch

import undrift as ud
from choosing import DATA, LOCAL, losses_of, mlp, trained
from experiments import refused
from undrift.core.clients import ClientStates
from undrift.engines import SerialEngine, VectorisedEngine
from undrift.engines.strategies import COPIES, Strategy, candidates
from undrift.nets.module_losses import ModuleLosses

pytestmark = pytest.mark.usefixtures("forgotten")


# Options

REFUSED = [
    ({"threads": 0}, "The engine's threads is 0, but must be a whole number of at least 1."),
    ({"threads": True}, "The engine's threads is True, but must be a whole number of at least 1."),
    ({"chunk": 0}, "The engine's chunk is 0, but must be a whole number of at least 1."),
    ({"chunk": 2.5}, "The engine's chunk is 2.5, but must be a whole number of at least 1."),
    ({"memory": -1}, "The engine's memory is -1, but must be above 0."),
    ({"memory": float("nan")}, "The engine's memory is nan, but must be a number above 0."),
    ({"memory": "much"}, "The engine's memory is 'much', but must be a number above 0."),
    (
        {"name": "fast"},
        "engine is 'fast', but must be one of 'auto', 'tuned', 'vectorised', 'serial', 'ray'.",
    ),
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


def test_a_given_chunk_is_used():
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
        for each in candidates(losses, LOCAL, clients, threads, memory).strategies:
            assert each.chunk == 1 or each.chunk * each.threads * size <= memory * 1e6
            assert each.chunk <= clients


def test_a_large_cohort_works_in_chunks_of_the_given_memory(monkeypatch):
    data = ud.data.synthetic(1, 1, clients=200, seed=0, most=20)
    losses = ModuleLosses(ud.models.mlp(60, 20, classes=10), data)
    size = COPIES * losses.dimension * losses.flat.x.element_size()
    sizes = []
    solve = VectorisedEngine._solve

    def watched(self, method, chunk, *arguments, **options):
        sizes.append(len(chunk.assignments))
        return solve(self, method, chunk, *arguments, **options)

    monkeypatch.setattr(VectorisedEngine, "_solve", watched)
    options = ud.EngineOptions("vectorised", threads=2, memory=1)
    loop, _ = trained(losses, options, method=ud.SCAFFOLD(), rounds=1)
    assert loop.engine.chunk > 1
    assert sum(sizes) == 200
    assert max(sizes) * loop.engine.threads * size <= 1e6


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
