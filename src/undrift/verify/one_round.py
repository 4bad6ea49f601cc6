"""The fact "formula": one round computed from the formulas equals what the method's code computes.

Everything that the server and the clients hold is drawn at random, and clients differ in weight,
draws, steps, ‖a‖₁ and staleness, so that no factor is hidden by a 1 or a 0.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from undrift.core.clients import Roster
from undrift.core.method import NUMBER
from undrift.core.problem import Client, Keep, LocalProblem, LocalResult, ServerState
from undrift.core.replies import Replies
from undrift.methods import FedLGA
from undrift.methods.formulas import LaterProblem, MethodRow, row_of
from undrift.verify.formulas import Reader
from undrift.verify.runs import Finding, worst
from undrift.verify.subjects import Subject

SIZES = [5, 9, 20, 12, 7]
COHORT = [0, 2, 3]
RATE = 0.3
RANDOM = 0.37
"""u, the random number of the round."""
STEPS = {0: 3.0, 1: 2.0, 2: 5.0, 3: 4.0, 4: 6.0}
EXPECTED = 5.0
"""E: client 2 does all that is expected, clients 0 and 3 do less."""
UPLOAD_SCALES = {
    "SCAFFOLD": {"c_change": "1/(ητ)"},
    "MimeLite": {"gradient": "1/(ητ)"},
    "FedVARP": {"change": "1/η"},
    "MIFA": {"change": "1/η"},
}
"""How uploads that are no moves compare with one, after τ steps of rate η."""
A_NORMS = {k: 1.7 * tau for k, tau in STEPS.items()}


def formula(subject: Subject) -> Finding | None:
    """The largest difference between a round of the code and one of the formulas."""
    row = row_of(subject.method)
    if row is None:
        return None
    findings = []
    for objective in ("samples", "clients"):
        findings.append(_Round(subject, row, objective).compare())
    # Moves that nearly cancel: the other branch of FedExP's max(1, ·).
    findings.append(_Round(subject, row, "samples", opposed=True).compare())
    if isinstance(subject.method, FedLGA):
        uncorrected = row_of(_without_target(subject.method))
        assert uncorrected is not None
        uncorrected = replace(row, fold=uncorrected.fold)
        findings.append(_Round(subject, uncorrected, "samples", expected=8.0).compare())
        # Two clients finish, one of them drawn three times.
        findings.append(_Round(subject, row, "samples", expected=4.0).compare())
    if subject.method.name == "FedPD" and subject.method.hyperparameters()["communication"] < 1:
        findings += [
            _Round(subject, row, "samples", fresh=False).compare(),
            _Round(subject, replace(row, uploads=(), fold=()), "samples", random=0.99).compare(),
        ]
    return worst(findings)


def _without_target(method: FedLGA) -> FedLGA:
    """What FedLGA is in a round that no client finished: there is no ŵ to correct towards."""
    return method if method.form == "extrapolate" else FedLGA("none", server=method.server)


@dataclass
class _Difference:
    """The largest difference that was found so far, and where."""

    error: float = 0.0
    where: str = "everything"
    expected: Any = 0.0
    measured: Any = 0.0

    def add(self, where: str, expected: Any, measured: Any) -> None:
        a = torch.as_tensor(expected, dtype=torch.float64).reshape(-1)
        b = torch.as_tensor(measured, dtype=torch.float64).reshape(-1)
        size = max(len(a), len(b))
        error = float((a.expand(size) - b.expand(size)).abs().nan_to_num(math.inf).max())
        if error > self.error:
            self.error, self.where = error, where
            self.expected, self.measured = a.tolist(), b.tolist()

    def differs(self, where: str, expected: object, measured: object) -> None:
        """Compare values that are not numbers."""
        if expected != measured and self.error < 1:
            self.error, self.where = 1.0, where
            self.expected, self.measured = str(expected), str(measured)


class _Round:
    """One round of a cohort, with random values."""

    def __init__(
        self,
        subject: Subject,
        row: MethodRow,
        objective: str,
        expected: float = EXPECTED,
        fresh: bool = True,
        random: float = RANDOM,
        opposed: bool = False,
    ):
        method = self.method = subject.method
        self.row = row
        self.random = random
        self.opposed = opposed
        self.found = _Difference()
        first = method.init(_vector("x⁰"))
        x = _vector("x⁰")
        self.found.add("server x at first", x if method.starts_with_all else self._prox(x), first.x)
        self.vectors = {name for name, value in first.items() if isinstance(value, Tensor)}
        drawn = {
            name: _vector("server", name) ** 2 if name == "square" else _vector("server", name)
            for name, value in first.items()
            if isinstance(value, Tensor)
        }
        extra = {} if fresh else {"fresh": 0.0}
        self.server = method.begin(first.replace(**drawn, **extra), lambda purpose: random)
        self.down = method.download(self.server)
        roster = Roster(list(range(len(SIZES))), torch.tensor(SIZES), objective)
        ids = roster.ids if method.needs_all else COHORT
        self.clients = [self._client(roster, int(str(id))) for id in ids]
        self.mine = [self._state(client) for client in self.clients]
        self.results = [self._result(client, expected) for client in self.clients]
        K = sum(float(c.draws) if row.draws else 1.0 for c in self.clients)
        self.common = {"η": RATE, "N": float(len(SIZES)), "K": K, "M": K, "u": random}
        self.common |= {"least": min(STEPS[int(str(c.id))] for c in self.clients)}
        self.own = [self._letters(k) for k in range(len(self.clients))]
        self.functions = {"prox_{ηg}": self._prox}

    def _client(self, roster: Roster, id: int) -> Client:
        asynchronous = self.method.meant_asynchronous
        draws = 1 if asynchronous else 1 + id % 3
        return replace(roster.client(id, draws), staleness=2 * id if asynchronous else 0)

    def _state(self, client: Client) -> Keep:
        values = {
            name: 0.8 + float(str(client.id)) if kind == NUMBER else _vector(client.id, name)
            for name, kind in self.method.kept().items()
        }
        return Keep(**values)

    def _result(self, client: Client, expected: float) -> LocalResult:
        id = int(str(client.id))
        return LocalResult(
            x=self._opposed(id) if self.opposed else _vector(id, "result"),
            steps=STEPS[id],
            expected=expected,
            a_norm=A_NORMS[id],
            rate=RATE,
            first_gradient=_vector(id, "first gradient"),
            last_gradient=_vector(id, "last gradient"),
            later=tuple(_vector(id, "later", n) for n in range(1, self.method.problems)),
        )

    def _opposed(self, id: int) -> Tensor:
        """A result such that the moves cancel: the heaviest client against the others."""
        along = 1.0 if id == 2 else -3.0
        return self.server.x + along * _vector("direction") + 0.1 * _vector(id, "result")

    def _prox(self, x: Tensor) -> Tensor:
        g = self.method.g
        return x if g is None else g.prox(x, self.method.hyperparameters()["eta"])

    def _letters(self, k: int) -> dict[str, Any]:
        """What every letter stands for before the client works."""
        client, result = self.clients[k], self.results[k]
        around = {
            "down": self.down,
            "mine": self.mine[k],
            "server": self.server,
            "method": self.method,
            "client": client,
            "result": result,
        }
        own = {
            "q_k": float(client.q),
            "τ_k": result.steps,
            "E_k": result.steps,
            "E": result.expected,
            "c_k": float(result.steps >= result.expected),
            "‖a_k‖₁": result.a_norm,
            "x": getattr(self.down, "x", None) if "x" in self.down else None,
        }
        # The expressions come from the library's own table, or from the class under test.
        placed = {name: eval(code, around) for name, code in self.row.letters.items()}
        return self.common | own | placed

    def compare(self) -> Finding:
        """The largest difference between the code and the formulas."""
        row, method = self.row, self.method
        sent = self.own[0]
        for name, formula in map(_split, row.before):
            self.found.add(f"send {name}", self._read(formula, sent), sent[name])
        replies = Replies(method.sums(), len(SIZES), RATE)
        for k, client in enumerate(self.clients):
            self._first_problem(k)
            self._later_problems(k)
            replies.add(client, self._work(k))
        self._fold(method.fold(self.server, replies))
        self._diagnostics()
        self._steps()
        self._scales()
        found = self.found
        return Finding(found.expected, found.measured, found.error, found.where)

    def _read(self, formula: str, letters: Mapping[str, Any], clients: Any = ()) -> Any:
        return Reader(formula, letters, clients, self.functions).value()

    def _do(self, k: int, formulas: tuple[str, ...]) -> None:
        for name, formula in map(_split, formulas):
            self.own[k][name] = self._read(formula, self.own[k])

    def _first_problem(self, k: int) -> None:
        problem = self.method.problem(self.down, self.mine[k], self.clients[k])
        self._do(k, self.row.first)
        self._compare_problem(k, self.row, problem)
        radius, share = (0.0, 0.0) if problem.ascent is None else astuple(problem.ascent)
        self.found.add("radius ρ", self._read(self.row.radius, self.own[k]), radius)
        found_share = self._read(self.row.share, self.own[k])
        self.found.add("share of the shifted gradient", found_share, share)
        self.found.differs("what it asks for", self.row.asks, problem.ask)
        self.own[k][self.row.ends] = self.results[k].x

    def _later_problems(self, k: int) -> None:
        """The further problems, each from the solutions of those before."""
        later, result, letters = self.row.later, self.results[k], self.own[k]
        times = 0.0 if later is None else float(self._read(later.times, letters))
        self.found.add("the number of problems", 1 + times, float(self.method.problems))
        if later is None:
            return
        solved = [result.x]
        for solution in result.later:
            self._do(k, later.before)
            problem = self.method.next_problem(self.down, self.mine[k], solved, self.clients[k])
            self._compare_problem(k, later, problem)
            letters[later.ends] = solution
            solved.append(solution)

    def _compare_problem(
        self, k: int, row: MethodRow | LaterProblem, problem: LocalProblem
    ) -> None:
        letters = self.own[k]
        zero = torch.zeros_like(problem.start)
        self.found.add("start", self._read(row.start, letters), problem.start)
        self.found.add("scale s", self._read(row.scale, letters), problem.scale)
        linear = zero if problem.linear is None else problem.linear
        self.found.add("linear term v", self._read(row.linear, letters) + zero, linear)
        self.found.add("weight r", self._read(row.weight, letters), problem.weight)
        self.found.differs("centre z", row.center != "–", problem.center is not None)
        if row.center != "–" and problem.center is not None:
            self.found.add("centre z", self._read(row.center, letters), problem.center)
        self.found.differs("the pull outside momentum", row.outside, problem.pull_outside_momentum)

    def _work(self, k: int) -> Any:
        row, letters = self.row, self.own[k]
        upload, keep = self.method.finish(self.down, self.mine[k], self.results[k], self.clients[k])
        self._do(k, row.then)
        values = [(name, value) for name, value in upload.items() if not name.startswith("@")]
        self.found.differs("the number of uploads", len(row.uploads), len(values))
        sent = {name for name, value in values if isinstance(value, Tensor) and value.ndim > 0}
        if row.uploads:
            self.found.differs("the declared uploads", sent, set(self.method.sums()))
        for (_, value), letter in zip(values, row.uploads, strict=False):
            self.found.add(f"upload {letter}", letters[letter], value)
        for name, code in row.letters.items():
            for kept, value in keep.items():
                if code == f"mine.{kept}":
                    self.found.add(f"kept {name}", letters[name], value)
                elif code == f"1/mine.{kept}":
                    self.found.add(f"kept {name}", letters[name], 1 / value)
        return upload

    def _fold(self, new: ServerState) -> None:
        server = dict(self.own[0])
        each = [
            own
            for own, client in zip(self.own, self.clients, strict=True)
            for _ in range(int(client.draws) if self.row.draws else 1)
        ]
        for name, formula in map(_split, self.row.fold):
            if name.endswith("_k"):
                for own in self.own:
                    own[name] = self._read(formula, own)
            else:
                server[name] = self._read(formula, server, each)
                for own in self.own:
                    own[name] = server[name]
        places = {
            code.partition(".")[2]: name
            for name, code in self.row.letters.items()
            if code.startswith(("down.", "server.")) and " " not in code
        }
        made = {name for name, value in new.items() if isinstance(value, Tensor)}
        self.found.differs("the server's vectors", self.vectors, made)
        if "fresh" in new:  # FedPD: whether x is sent in the next round
            self.found.differs("server fresh", bool(self.row.fold), bool(new.fresh))
        if self.method.name == "FedACG":  # x and the model that is sent differ
            places["x"] = "x"
        for name, value in new.items():
            if isinstance(value, Tensor):
                expected = server.get(places.get(name, name))
                if not self.row.fold:
                    expected = getattr(self.server, name)
                self.found.add(f"server {name}", expected, value)

    def _diagnostics(self) -> None:
        row = self.row
        wanted = torch.tensor([0.4 + 0.1 * k for k in range(len(self.own))], dtype=torch.float64)
        a_norm = torch.tensor([own["‖a_k‖₁"] for own in self.own], dtype=torch.float64)
        used = self.method.weights_used(wanted, a_norm)
        self.found.differs("whether it has effective weights", row.used is None, used is None)
        if row.used is not None and used is not None:
            letters = [{**own, "w_k": w} for own, w in zip(self.own, wanted, strict=True)]
            expected = [float(self._read(row.used, each)) for each in letters]
            self.found.add("effective weights", expected, used)
        residual = self.method.dual_residual(self.server)
        self.found.differs("whether it has a residual", row.residual is None, residual is None)
        if row.residual is not None:
            place = row.letters[row.residual].partition(".")[2]
            self.found.add("residual", getattr(self.server, place).norm(), residual)

    def _scales(self) -> None:
        """The public scales by which uploads are clipped together."""
        found = self.method.upload_scales(RATE, 4)
        wanted = UPLOAD_SCALES.get(self.method.name, {})
        if type(self.method).__module__.startswith("undrift.methods."):
            self.found.differs("uploads with a scale", set(wanted), set(found))
            for name, formula in wanted.items():
                expected = self._read(formula, {"η": RATE, "τ": 4.0})
                self.found.add(f"the scale of {name}", expected, found.get(name, 0.0))

    def _steps(self) -> None:
        planned = [int(STEPS[int(str(c.id))]) for c in self.clients]
        found = self.method.steps(planned, lambda purpose: self.random)
        draws = list(self.method.steps(planned, lambda purpose: 0.99)) != list(found)
        self.found.differs("whether steps are drawn", draws, self.method.draws_steps)
        alone = [self.method.steps([n], lambda purpose: self.random)[0] for n in planned]
        others = alone != list(found)
        self.found.differs("whose steps count", others, self.method.steps_of_others)
        expected = [float(self._read(self.row.steps, own)) for own in self.own]
        self.found.add("number of steps", expected, list(found))


def _split(line: str) -> tuple[str, str]:
    name, _, formula = line.partition(" ← ")
    return name, formula


def _vector(*what: object) -> Tensor:
    """A random vector that depends on what it is for."""
    key = zlib.crc32(repr(what).encode())
    drawn = torch.randn(3, generator=torch.Generator().manual_seed(key), dtype=torch.float64)
    return drawn
