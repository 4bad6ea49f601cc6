"""The rows that the guide and `undrift show` print are what the methods compute."""

import zlib

import pytest
import torch

import undrift as ud
from formulas import Reader
from undrift.core.clients import Roster
from undrift.core.problem import Keep, LocalResult, ServerState
from undrift.core.replies import Replies
from undrift.experiments.method_rows import ROWS, row_of
from undrift.methods import METHODS

RATE = 0.3
SUBJECTS = {
    **{name: METHODS[name]() for name in METHODS},
    "FedProx": ud.FedProx(mu=0.7),
    "FedNova": ud.FedNova(mu=0.0),
    "FedNova VR": ud.FedNova(variance_reduction=True),
    "FedDyn": ud.FedDyn(alpha=0.4),
    "FedPD": ud.FedPD(eta=0.6),
    "FedSplit": ud.FedSplit(eta=0.6),
    "FedDR": ud.FedDR(eta=0.6, alpha=0.8),
    "AsyncFedDR": ud.AsyncFedDR(eta=0.6, alpha=0.8),
    "FedAsync": ud.FedAsync(alpha=0.3, mu=0.2),
    "FedBuff": ud.FedBuff(buffer=3),
}


def vector(*seed):
    key = zlib.crc32(repr(seed).encode())
    return torch.randn(3, generator=torch.Generator().manual_seed(key)).double()


class Case:
    """Three of four clients at work, everything they and the server hold drawn at random."""

    def __init__(self, label):
        self.method, self.row = SUBJECTS[label], ROWS[label]
        first = self.method.init(torch.zeros(3, dtype=torch.float64))
        held = {
            name: vector(1, n) for n, (name, v) in enumerate(first.items()) if torch.is_tensor(v)
        }
        self.server = self.method.begin(first.replace(**held), lambda purpose: 0.0)
        self.down = self.method.download(self.server)
        roster = Roster(list(range(4)), torch.tensor([5, 9, 20, 12]), "samples")
        who = roster.ids if self.method.needs_all else roster.ids[:3]
        self.clients = [
            type(c)(**{**vars(c), "staleness": 2 * c.id}) for c in map(roster.client, who)
        ]
        self.mine = [
            Keep(
                **{
                    name: 0.8 + client.id if kind == ud.NUMBER else vector(2, client.id, n)
                    for n, (name, kind) in enumerate(self.method.kept().items())
                }
            )
            for client in self.clients
        ]
        expected = {c.id: 3.0 + c.id for c in self.clients}
        if label == "FedLGA":  # client 2 does all that is expected, the others do not
            expected = dict.fromkeys(expected, 5.0)
        self.results = [
            LocalResult(vector(3, c.id), 3.0 + c.id, expected[c.id], 3.0 + c.id, RATE)
            for c in self.clients
        ]
        self.common = {"η": RATE, "N": 4.0, "K": float(len(who)), "M": float(len(who))}
        self.own = [self._letters(k) for k in range(len(who))]

    def _letters(self, k):
        """What every letter stands for, before the client works."""
        around = {
            "down": self.down,
            "mine": self.mine[k],
            "server": self.server,
            "method": self.method,
            "client": self.clients[k],
        }
        found = {name: eval(code, around) for name, code in self.row.letters.items()}
        steps = {"‖a_k‖₁": 3.0 + k, "τ_k": 3.0 + k, "E_k": 3.0 + k, "q_k": self.clients[k].q}
        return self.common | {"x": getattr(self.down, "x", None)} | steps | found

    def do(self, k, *assignments):
        for each in assignments:
            name, _, formula = each.partition(" ← ")
            self.own[k][name] = Reader(formula, self.own[k]).value()

    def close(self, expected, found):
        torch.testing.assert_close(torch.as_tensor(found).double(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("label", list(ROWS))
def test_a_row_is_what_the_method_computes(label):
    case = Case(label)
    method, row = case.method, case.row
    replies = Replies(method.sums(), 4, RATE)
    for k, (client, mine) in enumerate(zip(case.clients, case.mine, strict=True)):
        problem = method.problem(case.down, mine, client)
        case.do(k, *row.first)
        letters = case.own[k]
        case.close(problem.start, Reader(row.start, letters).value())
        v = problem.linear if problem.linear is not None else torch.zeros(3).double()
        case.close(v, Reader(row.linear, letters).value() + 0 * v)
        case.close(torch.as_tensor(problem.weight).double(), Reader(row.weight, letters).value())
        if row.center != "–":
            case.close(problem.center, Reader(row.center, letters).value())
        else:
            assert problem.center is None

        upload, keep = method.finish(case.down, mine, case.results[k], client)
        letters[row.ends] = case.results[k].x
        case.do(k, *row.then)
        for value, letter in zip(dict(upload.items()).values(), row.uploads, strict=False):
            case.close(torch.as_tensor(value).double(), letters[letter])
        for name, value in keep.items():  # what is kept is what its letter has become
            letter = next((n for n, code in row.letters.items() if code == f"mine.{name}"), None)
            if letter is not None:
                case.close(value, letters[letter])
        replies.add(client, upload)

    assert_folds(case, method.fold(case.server, replies))


def assert_folds(case, new: ServerState):
    server = dict(case.own[0])
    held = {code.partition(".")[2]: n for n, code in case.row.letters.items() if "down." in code}
    held |= {c.partition(".")[2]: n for n, c in case.row.letters.items() if "server." in c}
    for step in case.row.fold:
        _, only, step = step.rpartition("if E_k < E:  ")
        name, _, formula = step.partition(" ← ")
        if name == "ŵ":
            assert formula == "x + the mean of Δ_k over those with E_k = E"
            formula = "x + Δ_complete"
            server["Δ_complete"] = case.own[2]["Δ_k"]
        functions = {"min": min, "prox_{ηg}": lambda x: x}
        if name.endswith("_k"):
            for own in case.own[: 2 if only else None]:
                own[name] = Reader(formula, own, functions=functions).value()
        else:
            server[name] = Reader(formula, server, case.own, functions).value()
            for own in case.own:
                own[name] = server[name]
    for name, value in new.items():
        if torch.is_tensor(value):
            case.close(value, server[held.get(name, name)])


def test_every_method_has_a_row():
    assert all(row_of(method()) is ROWS[name] for name, method in METHODS.items())
    assert row_of(ud.FedNova(variance_reduction=True)) is ROWS["FedNova VR"]

    class FedAvg(ud.FedAvg):
        pass

    assert row_of(FedAvg()) is None


@pytest.mark.parametrize("wrong", ["c_k − c", "c − c_k − c", "c"])
def test_a_wrong_formula_is_noticed(wrong):
    case = Case("SCAFFOLD")
    problem = case.method.problem(case.down, case.mine[0], case.clients[0])
    with pytest.raises(AssertionError):
        case.close(problem.linear, Reader(wrong, case.own[0]).value())
