"""Rounds of large models: threads add their chunks to the sums of the round, in turn.

Small models stand for large ones: the limits from which a model counts as large are lowered.
"""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

import undrift as ud
from undrift.core.problem import Client, Upload
from undrift.core.replies import Replies, q, q_draws
from undrift.core.round_result import RoundResult
from undrift.core.unformed import UnformedRows
from undrift.engines.thread_pool import Turns
from undrift.engines.vectorised import engine as vectorised
from undrift.engines.vectorised import moves, pieces

METHODS = [
    ud.FedAvg(),
    ud.FedProx(mu=0.1),
    ud.FedNova(),
    ud.SCAFFOLD(),
    ud.FedDyn(alpha=0.1),
    ud.FedDR(eta=1.0),
    ud.FedCM(alpha=0.5),
]
SIZES = [9, 4, 14, 6, 11, 8]


def data(spoiled: int | None = None) -> ud.data.FederatedData:
    clients = {}
    for k, n in enumerate(SIZES):
        g = torch.Generator().manual_seed(k)
        x = torch.randn(n, 12, generator=g, dtype=torch.float64)
        clients[k] = (x * 1e200 if k == spoiled else x, torch.arange(n) % 3)
    return ud.data.FederatedData.from_clients(clients)


def trained(method, threads=2, chunk=2, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 3)).double()
    return ud.train(
        method,
        model=model,
        data=options.pop("data", data()),
        local=ud.SGD(lr=0.05, batch_size=4, epochs=2),
        rounds=3,
        cohort=4,
        engine=ud.EngineOptions("vectorised", threads=threads, chunk=chunk),
        evaluate=ud.Evaluation(every=1),
        progress=False,
        **options,
    )


@pytest.fixture
def several_pieces(monkeypatch):
    """Vectors of the test's model are cut into several pieces of columns."""
    for module in (pieces, vectorised, moves):
        monkeypatch.setattr(module, "PIECE_NUMBERS", 50)


@pytest.fixture
def large(monkeypatch, several_pieces):
    monkeypatch.setattr(vectorised, "LARGE_MODEL_BYTES", 0)


def metrics_of(result):
    return [{**r.metrics, **r.diagnostics} for r in result.records]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_large_models_give_the_result_of_others(monkeypatch, several_pieces, method):
    usual = trained(method)
    monkeypatch.setattr(vectorised, "LARGE_MODEL_BYTES", 0)
    found = trained(method)
    assert torch.allclose(found.x, usual.x, rtol=0, atol=1e-12)
    for mine, other in zip(metrics_of(found), metrics_of(usual), strict=True):
        assert mine == pytest.approx(other, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_threads_change_no_bit_of_large_models(large, method, tmp_path):
    one, two = trained(method, threads=1, out=tmp_path), trained(method, threads=2)
    assert torch.equal(one.x, two.x)
    assert metrics_of(one) == metrics_of(two)


@pytest.mark.parametrize("method", [ud.FedAvg(), ud.SCAFFOLD()], ids=lambda method: method.name)
def test_a_client_without_finite_numbers_is_rejected(large, method):
    result = trained(method, data=data(spoiled=2))
    rejected = {client for record in result.records for client, _ in record.rejected}
    assert rejected == {2}
    assert bool(result.x.isfinite().all())


def sums_of_a_round(monkeypatch, method):
    """The numbers of vectors in double precision that a round holds at its end."""
    found = []
    original = RoundResult.arrange

    def counted(self, clients):
        found.append({**self.replies._sums})
        original(self, clients)

    monkeypatch.setattr(RoundResult, "arrange", counted)
    trained(method)
    return [len(sums) for sums in found]


def test_moves_that_the_method_sums_are_not_summed_again_for_diagnostics(large, monkeypatch):
    assert sums_of_a_round(monkeypatch, ud.FedAvg()) == [1, 1, 1]


def test_no_sum_of_a_chunk_is_formed(large, monkeypatch):
    def formed(*arguments):
        raise AssertionError("a sum of a chunk was formed")

    monkeypatch.setattr(moves.ChunkMoves, "_summed", formed)
    monkeypatch.setattr(pieces.SummedRows, "__init__", formed)
    trained(ud.FedAvg())
    trained(ud.SCAFFOLD())


def test_sums_that_were_proportional_and_are_not_any_more(large):
    """Weights q_k and q_k·draws agree until a client is drawn twice."""
    g = torch.Generator().manual_seed(0)
    x, center = torch.randn(4, 30, generator=g, dtype=torch.float64), torch.zeros(30).double()
    weights, drawn = torch.tensor([0.1, 0.2, 0.3, 0.4]).double(), torch.tensor([1, 1, 1, 2.0])
    by = {"moved": (q,), "@moved": (q_draws,)}
    total = Replies(by, 4)
    for row in range(4):
        own = moves.LargeMoves(x[row : row + 1], center, weights[row : row + 1])
        client = Client(row, 1, float(weights[row]), 1.0, float(drawn[row]))
        part = Replies(by, 4)
        part.wait_for_merge()
        rows = UnformedRows(own)
        part.add_several([client], client, Upload(**{"moved": rows, "@moved": rows}))
        total.merge(part)
        assert len(total._sums) == (1 if row < 3 else 2)
    assert torch.allclose(total.sum("moved", q), weights @ x, atol=1e-14)
    assert torch.allclose(total.sum("@moved", q_draws), (weights * drawn.double()) @ x, atol=1e-14)


def test_turns_are_taken_in_order():
    turns, order, started = Turns(), [], threading.Barrier(3)

    def work(number):
        with turns.of(number) as wait:
            started.wait()
            assert wait()
            order.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in (2, 0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert order == [0, 1, 2]


def test_nobody_waits_for_work_that_failed():
    turns, waited = Turns(), []

    def second():
        with turns.of(1) as wait:
            waited.append(wait())

    thread = threading.Thread(target=second)
    thread.start()
    with pytest.raises(ValueError, match="broken"), turns.of(0):
        raise ValueError("broken")
    thread.join(10)
    assert waited == [False]
