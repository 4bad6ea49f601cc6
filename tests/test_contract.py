"""The contract: users' own methods, [P] and [C, P] algebra, sums of partial sums, traffic."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import undrift as ud
from undrift.core.clients import ClientStates, Roster
from undrift.core.problem import Client
from undrift.core.replies import Replies, q_draws
from undrift.methods.traffic import traffic_of
from undrift.verify.invariances import stacked
from undrift.verify.subjects import Subject


class Halfway(ud.Method):
    """A user's method: clients keep their own average and start halfway to it."""

    keeps = {"mean": ud.INITIAL}
    uploads = {"moved": (ud.q,)}
    converges_to = None

    def __init__(self, share: float = 0.5):
        self.share = share

    def problem(self, down, mine, client):
        return ud.LocalProblem(start=down.x + self.share * (mine.mean - down.x))

    def finish(self, down, mine, result, client):
        mean = (mine.mean + result.x) / 2
        return ud.Upload(moved=result.x - down.x), ud.Keep(mean=mean)

    def fold(self, server, replies):
        return ud.ServerState(x=server.x + replies.mean("moved", by=ud.q))


def test_a_users_method_trains_and_shows_its_parameters():
    losses = ud.theory.random_quadratics(seed=1)
    result = ud.train(Halfway(), problem=losses, local=ud.GD(lr=0.1, steps=3), rounds=30, cohort=3)
    assert result.metrics["train_loss"] < result.records[0].metrics["train_loss"]
    assert repr(Halfway()) == "Halfway()"
    assert repr(Halfway(share=0.2)) == "Halfway(share=0.2)"


@pytest.mark.parametrize(
    "method",
    [
        Halfway(),
        ud.FedAvg("transformed II"),
        ud.SCAFFOLD("I"),
        ud.FedNova(mu=0.3, variance_reduction=True),
        ud.FedDyn(0.3),
        ud.FedLGA("diagonal", gradient="last", cap=True),
        ud.FedSplit(0.4, "act"),
        ud.FedSplit(0.4, "all"),
    ],
    ids=repr,
)
def test_stacked_clients_give_the_same_as_single_clients(method):
    assert stacked(Subject("method", method)).error <= 1e-12


def clients(sizes, draws):
    roster = Roster(list(range(len(sizes))), torch.tensor(sizes))
    return [roster.client(k, r) for k, r in zip(range(len(sizes)), draws, strict=True)]


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 3)), min_size=1, max_size=8))
@settings(deadline=None)
def test_sums_do_not_depend_on_chunks(cohort):
    sizes, drawn = zip(*cohort, strict=True)
    who = clients(list(sizes), list(drawn))
    vectors = torch.randn(len(who), 4, generator=torch.Generator().manual_seed(0)).double()
    by = {"moved": (ud.q, ud.once, ud.draws, q_draws), "each": ()}

    single = Replies(by, 100)
    for client, vector in zip(who, vectors, strict=True):
        single.add(client, ud.Upload(moved=vector, each=vector, steps=float(client.samples)))
    together = Replies(by, 100)
    for first in range(0, len(who), 3):
        part = who[first : first + 3]
        rows = vectors[first : first + 3]
        steps = torch.tensor([[float(client.samples)] for client in part])
        upload = ud.Upload(moved=rows, each=rows, steps=steps)
        together.add_several(part, Client.stack(part, vectors), upload)

    merged = Replies(by, 100)
    for client, vector in zip(who, vectors, strict=True):
        part = Replies(by, 100)
        part.add(client, ud.Upload(moved=vector, each=vector, steps=float(client.samples)))
        merged.merge(part)

    assert single.count == together.count == merged.count == len(who)
    for weight in by["moved"]:
        column = torch.tensor([float(weight(client)) for client in who], dtype=torch.float64)
        expected = (column[:, None] * vectors).sum(0)
        for replies in (single, together, merged):
            torch.testing.assert_close(replies.sum("moved", weight), expected)
            assert replies.sum("steps", weight) == pytest.approx(
                float(column @ torch.tensor(sizes).double())
            )
            assert replies.weight(weight) == pytest.approx(float(column.sum()))
    assert torch.equal(single.stack("each"), vectors)
    assert torch.equal(together.stack("each"), vectors)
    assert torch.equal(merged.stack("each"), vectors)
    assert single.each("steps").tolist() == list(sizes)


def test_a_sum_that_was_not_declared_raises():
    replies = Replies({"moved": (ud.q,)}, 10)
    replies.add(clients([3], [1])[0], ud.Upload(moved=torch.ones(2)))
    with pytest.raises(ud.UndriftError, match="not declared"):
        replies.sum("moved", ud.once)


def test_the_error_of_a_missing_value_lists_the_names():
    with pytest.raises(ud.UndriftError, match="Download has no 'c': it holds x"):
        _ = ud.Download(x=torch.ones(2)).c


def test_clients_that_never_took_part_have_no_stored_state():
    states = ClientStates({"h": ud.ZERO, "x": ud.INITIAL, "n": ud.NUMBER}, torch.ones(3))
    assert states.get(5).h.tolist() == [0, 0, 0]
    assert states.get(5).x.tolist() == [1, 1, 1]
    assert states.get(5).n.tolist() == [0]
    assert list(states.seen()) == []
    states.put(5, ud.Keep(h=torch.ones(3), x=torch.zeros(3), n=2.5))
    assert list(states.seen()) == [5]
    assert states.get(5).n.tolist() == [2.5]


def test_traffic_is_what_the_method_declares():
    losses = ud.theory.random_quadratics(6, 5, seed=0)

    def traffic(method, cohort=3):
        result = ud.train(
            method, problem=losses, local=ud.GD(lr=0.05, steps=2), rounds=1, cohort=cohort
        )
        return result.records[1].bytes_down, result.records[1].bytes_up

    vector = 5 * 8 * 3  # five doubles, three clients
    assert traffic(ud.FedAvg()) == ({"x": vector}, {"moved": vector})
    assert traffic(ud.SCAFFOLD()) == (
        {"x": vector, "c": vector},
        {"moved": vector, "c_change": vector},
    )
    assert traffic(ud.FedNova()) == (
        {"x": vector},
        {"direction": vector, "progress": 24, "steps": 24},
    )
    assert traffic(ud.FedNova(variance_reduction=True))[0] == {"x": vector, "d": vector}
    assert traffic(ud.FedDyn(1.0)) == ({"x": vector}, {"moved": vector})
    assert traffic(ud.FedDR(0.3)) == ({"x": vector}, {"change": vector})
    assert traffic(ud.FedPD(0.3), None)[1] == {"x0": 2 * vector}


NEWER = {
    # From the algorithm listings of the papers: what one client receives and what it uploads in a
    # round, in models. Numbers of 8 bytes come last: |Δ_k|² of FedExP is in its paper, and ‖a_k‖₁
    # of FedCM takes the place of the paper's τ, which is the same for every client.
    "FedCM": ((2, 0), (1, 1)),  # x and Δ_t down, Δ_k up
    "FedACG": ((1, 0), (1, 0)),  # x + λm down, where the client starts, Δ_k up
    "FedExP": ((1, 0), (1, 1)),
    "FedADMM": ((1, 0), (1, 0)),  # the change of x_k + λ_k/ρ up
    "FedVARP": ((1, 0), (1, 0)),
    "MIFA": ((1, 0), (1, 0)),  # the change of the last update up
    "Scaffnew": ((1, 0), (1, 0)),  # h_k is updated from x⁺, when it arrives
    "MimeLite": ((2, 0), (2, 0)),  # x and m down, x_k and ∇f_k(x) up
    "FedSAM": ((1, 0), (1, 0)),
    "FedSpeed": ((1, 0), (1, 0)),  # ĝ_k stays at the client
}


def units_sent(method):
    """Vectors and numbers that each client received and uploaded, by round."""
    parameters, itemsize, clients = 101, 8, 4
    losses = ud.theory.random_quadratics(clients, parameters, seed=0)
    cohort = None if method.needs_all else 3
    result = ud.train(
        method, problem=losses, local=ud.GD(lr=0.01, steps=2), rounds=3, cohort=cohort
    )

    def units(sent, size):
        each, rest = divmod(sum(sent.values()), size)
        assert rest == 0
        vectors, numbers = divmod(each, parameters * itemsize)
        return vectors, numbers / 8

    return [
        (units(r.bytes_down, len(r.cohort)), units(r.bytes_up, len(r.cohort)))
        for r in result.records[1:]
    ]


@pytest.mark.parametrize("name", NEWER)
def test_newer_methods_send_what_their_papers_say(name):
    method = getattr(ud, name)()
    assert units_sent(method) == [NEWER[name]] * 3
    forecast = traffic_of(method)
    assert (sum(forecast.down.values()), sum(forecast.up.values())) == (
        NEWER[name][0][0],
        NEWER[name][1][0],
    )


@pytest.mark.parametrize("name", NEWER)
def test_one_vector_more_is_counted(name):
    kind = getattr(ud, name)

    class SendsMore(kind):
        def download(self, server):
            return ud.Download(**dict(super().download(server).items()), more=server.x)

        def finish(self, down, mine, result, client):
            upload, keep = super().finish(down, mine, result, client)
            return ud.Upload(**dict(upload.items()), more=result.x), keep

        @property
        def uploads(self):
            declared = kind.uploads
            declared = declared.fget(self) if isinstance(declared, property) else declared
            return {**declared, "more": ud.q}

    (down, numbers_down), (up, numbers_up) = NEWER[name]
    expected = ((down + 1, numbers_down), (up + 1, numbers_up))
    assert units_sent(SendsMore()) == [expected] * 3


def test_a_round_of_fedpd_without_communication_sends_nothing():
    losses = ud.theory.random_quadratics(3, 2, seed=0)
    result = ud.train(ud.FedPD(0.3, communication=0.3), problem=losses, local=ud.Exact(), rounds=30)
    silent = [r for r in result.records[1:] if not r.bytes_up.get("x0")]
    talking = [r for r in result.records[1:] if r.bytes_up.get("x0")]
    assert 15 <= len(silent) < 30
    for before, after in zip(result.records[1:], result.records[2:], strict=False):
        # the model is sent down only after a round that communicated
        assert bool(after.bytes_down.get("x")) == bool(before.bytes_up.get("x0"))
    assert talking


def test_work_is_counted():
    losses = ud.theory.Quadratics(torch.eye(2).expand(3, 2, 2), torch.ones(3, 2), sizes=[4, 5, 6])
    result = ud.train(ud.FedAvg(), problem=losses, local=ud.GD(lr=0.1, steps=3), rounds=2)
    assert [record.gradients for record in result.records] == [0, 45, 45]
    assert [record.steps for record in result.records] == [0, 9, 9]
    option_one = ud.train(ud.SCAFFOLD("I"), problem=losses, local=ud.GD(lr=0.1, steps=3), rounds=1)
    assert option_one.gradients == 45 + 15  # one more pass over the data
