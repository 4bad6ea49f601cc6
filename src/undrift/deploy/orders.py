"""The orders of a deployment: what the server asks a site to do, and nothing that a site knows.

An order says which round of which run is due, and carries the model. Steps, batches, learning rate
and metrics are not in it: a site derives them from its own copy of the experiment. An order with
missing, additional or malformed fields is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from undrift.core.messages import buffer_bytes, bytes_of
from undrift.core.problem import Download, Named
from undrift.deploy.wire_format import InvalidMessage, encode
from undrift.utils.errors import UndriftError

IDENTIFY, DESCRIBE, WORK, EVALUATE = "identify", "describe", "work", "evaluate"
STATISTICS = "statistics"
"""The kinds of requests: say your name, describe your data and model, train, evaluate a model, give
statistics of the training samples before a run."""
SECURE = "secure"
"""The kind of the requests of a stage of secure aggregation."""
MAX_NUMBER = (1 << 53) - 1
"""The largest round, attempt or version."""
MAX_CHANGES = 1000
"""The most changes of a vector in one order; a site that lacks more gets the whole vector."""
MAX_CHARACTERS = 200
"""The longest name of a run, a method, a site or a model."""

Roster = Mapping[str, tuple[float, float]]
"""By site: its number of training samples n_k, and its weight q_k in the objective."""


@dataclass(frozen=True)
class RunTerms:
    """Which run an order belongs to, and what all its orders have in common."""

    run: str
    """a random name of the run folder"""
    label: str
    """the method's label in the experiment"""
    seed: int
    attempt: int
    """how often the server has been started: within an attempt, rounds only go forward"""
    rounds: int
    """the number of rounds of the server's experiment"""
    roster: Roster

    @property
    def key(self) -> str:
        """Identifies the run of a method with a seed, for states and answers."""
        return f"{self.run} {self.label} {self.seed}"

    def values(self) -> dict[str, Any]:
        """The terms as plain values."""
        return {
            "run": self.run,
            "label": self.label,
            "seed": self.seed,
            "attempt": self.attempt,
            "rounds": self.rounds,
            "roster": {site: list(row) for site, row in self.roster.items()},
        }


@dataclass(frozen=True)
class StatisticsTerms:
    """The questions for statistics that come before a run."""

    run: str
    revealed: tuple[str, ...]
    """what the answers tell the server, in sentences"""


@dataclass(frozen=True)
class VectorChanges:
    """A downloaded vector as compressed changes of one that the site has."""

    base: str
    """the checksum of the vector that the site has"""
    result: str
    """the checksum of the vector with all changes"""
    rounds: tuple[int, ...]
    """the rounds that the changes are of"""
    parts: tuple[Mapping[str, Tensor], ...]
    """the encoding of each change"""

    @property
    def bytes(self) -> int:
        """The bytes of all encodings."""
        return sum(each.nbytes for parts in self.parts for each in parts.values())


@dataclass(frozen=True)
class WorkOrder:
    """The order to do a client's work of a round."""

    terms: RunTerms
    round: int
    """counted from 0"""
    turn: int
    """the round, or in asynchronous training the number of the launch"""
    base: int
    """the version of the client's state to start from; 0 if it has not taken part yet"""
    committed: int
    """the version that a restarted server continues from: the site keeps it and all that follow"""
    available: tuple[str, ...] | None
    """the sites among which the cohort was drawn; None for all of them"""
    download: Download
    buffers: Mapping[str, Tensor]
    sealed: Mapping[str, str] | None = None
    """for secure aggregation: the other sites' shares for this site, as hexadecimal text"""
    changes: Mapping[str, VectorChanges] = field(default_factory=dict)
    """vectors of the download that are sent as compressed changes; the server's own copy of an
    order has them in `download` as well"""

    @property
    def down_bytes(self) -> dict[str, int]:
        """The bytes of the download and the buffers as they are sent, by tensor."""
        changed = {name: each.bytes for name, each in self.changes.items()}
        return bytes_of(self.download) | changed | buffer_bytes(self.buffers)

    @property
    def version(self) -> int:
        """The version of the client's state after this work.

        It grows from one order of a client to the next. A resumed server uses the numbers after its
        last commit again, and the site overwrites those files. A base is always a version whose
        answer the server accepted, so it is never a leftover.
        """
        return self.turn + 1

    def encoded(self) -> bytes:
        """The order as bytes; `parse_work_order` is the inverse."""
        numbers, vectors = split(self.download)
        values = {
            "kind": WORK,
            **self.terms.values(),
            "round": self.round,
            "turn": self.turn,
            "base": self.base,
            "committed": self.committed,
            "version": self.version,
            "available": None if self.available is None else list(self.available),
            "numbers": numbers,
        }
        if self.sealed is not None:
            values[SEALED] = dict(self.sealed)
        whole = {name: value for name, value in vectors.items() if name not in self.changes}
        tensors = add_prefix("down ", whole) | add_prefix("buffers ", self.buffers)
        if self.changes:
            values[CHANGES] = {
                name: {"base": each.base, "result": each.result, "rounds": list(each.rounds)}
                for name, each in self.changes.items()
            }
            for name, each in self.changes.items():
                for number, parts in enumerate(each.parts):
                    tensors |= add_prefix(_change_prefix(name, number), parts)
        return encode(values, tensors)


@dataclass(frozen=True)
class EvaluationOrder:
    """The order to measure a model on the site's own data."""

    terms: RunTerms
    round: int
    """the round after which the model is measured; 0 for the initial model"""
    model: str
    """which of the experiment's models it is: "server", "cohort", "all", "own" or "tuned" """
    x: Tensor
    buffers: Mapping[str, Tensor]
    base: int = 0
    """the version of the client's state that belongs to the model, if the client has a model of its
    own; 0 if it has not taken part yet"""

    def encoded(self) -> bytes:
        """The order as bytes; `parse_evaluation_order` is the inverse."""
        values = {
            "kind": EVALUATE,
            **self.terms.values(),
            "round": self.round,
            "model": self.model,
            "base": self.base,
        }
        return encode(values, {"x": self.x} | add_prefix("buffers ", self.buffers))


TERMS = ("run", "label", "seed", "attempt", "rounds", "roster")
WORK_FIELDS = {"kind", *TERMS, "round", "turn", "base", "committed", "version", "available"}
WORK_FIELDS |= {"numbers"}
SEALED, CHANGES = "sealed", "changes"
EVALUATION_FIELDS = {"kind", *TERMS, "round", "model", "base"}


def parse_work_order(values: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> WorkOrder:
    """The order with these decoded values and tensors; `InvalidMessage` if it is malformed."""
    require_fields(values, WORK_FIELDS | ({SEALED, CHANGES} & values.keys()))
    numbers = values["numbers"]
    if not isinstance(numbers, dict) or not all(_is_number(each) for each in numbers.values()):
        raise InvalidMessage("The order's 'numbers' must be named numbers.")
    vectors, buffers = with_prefix("down ", tensors), with_prefix("buffers ", tensors)
    changes = _changes(values.get(CHANGES, {}), tensors)
    count = len(vectors) + len(buffers)
    count += sum(len(parts) for each in changes.values() for parts in each.parts)
    known = [*vectors, *numbers, *changes]
    if count != len(tensors) or len(set(known)) != len(known):
        raise InvalidMessage("The order has tensors that no order has.")
    order = WorkOrder(
        terms=terms_in(values),
        round=whole_in(values, "round"),
        turn=whole_in(values, "turn"),
        base=whole_in(values, "base"),
        committed=whole_in(values, "committed"),
        available=available_in(values),
        download=Download(**{n: float(v) for n, v in numbers.items()}, **vectors),
        buffers=buffers,
        sealed=_sealed(values[SEALED]) if SEALED in values else None,
        changes=changes,
    )
    if whole_in(values, "version") != order.version:
        raise InvalidMessage(f"The order's 'version' must be {order.version}, its turn plus one.")
    if not order.committed <= order.base < order.version:
        raise InvalidMessage("The order's versions must be 'committed' <= 'base' < 'version'.")
    return order


def parse_evaluation_order(
    values: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> EvaluationOrder:
    """The order with these decoded values and tensors; `InvalidMessage` if it is malformed."""
    require_fields(values, EVALUATION_FIELDS)
    buffers = with_prefix("buffers ", tensors)
    if "x" not in tensors or len(buffers) + 1 != len(tensors):
        raise InvalidMessage("The order must have the model 'x' and its buffers, and no more.")
    return EvaluationOrder(
        terms=terms_in(values),
        round=whole_in(values, "round"),
        model=text_in(values, "model"),
        x=tensors["x"],
        buffers=buffers,
        base=whole_in(values, "base"),
    )


def available_in(values: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The sites among which the cohort of an order was drawn; None for all of them."""
    found = values["available"]
    if found is None:
        return None
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise InvalidMessage("The order's 'available' must be a list of sites or null.")
    return tuple(found)


def _change_prefix(name: str, number: int) -> str:
    """Beginning of the names of the tensors of a vector's change."""
    return f"change {number} {name} "


def _changes(value: Any, tensors: Mapping[str, Tensor]) -> dict[str, VectorChanges]:
    """The compressed changes of an order, in the increasing order of their rounds."""
    if not isinstance(value, dict):
        raise InvalidMessage("The order's 'changes' must be a table.")
    found = {}
    for name, each in value.items():
        if not isinstance(each, dict) or each.keys() != {"base", "result", "rounds"}:
            raise InvalidMessage("A change of the order must have a base, a result and rounds.")
        rounds = each["rounds"]
        if not isinstance(rounds, list) or len(rounds) > MAX_CHANGES:
            raise InvalidMessage(f"A change of the order must have at most {MAX_CHANGES} rounds.")
        whole = [whole_in({"rounds": round}, "rounds") for round in rounds]
        if sorted(set(whole)) != whole:
            raise InvalidMessage("The rounds of a change must increase.")
        parts = (with_prefix(_change_prefix(name, at), tensors) for at in range(len(rounds)))
        found[name] = VectorChanges(
            text_in(each, "base"), text_in(each, "result"), tuple(whole), tuple(parts)
        )
    return found


def _sealed(value: Any) -> Mapping[str, str]:
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise InvalidMessage("The order's 'sealed' must be texts by site.")
    return value


def terms_in(values: Mapping[str, Any]) -> RunTerms:
    """The run that an order belongs to."""
    rows = values["roster"]
    if not isinstance(rows, dict) or not all(_is_row(row) for row in rows.values()):
        raise InvalidMessage(
            "The order's 'roster' must have the number of samples, a whole number above 0, and "
            "the weight, in (0, 1], of every site."
        )
    return RunTerms(
        run=text_in(values, "run"),
        label=text_in(values, "label"),
        seed=whole_in(values, "seed", (1 << 64) - 1),
        attempt=whole_in(values, "attempt"),
        rounds=whole_in(values, "rounds"),
        roster={site: (row[0], row[1]) for site, row in rows.items()},
    )


def require_fields(values: Mapping[str, Any], wanted: set[str]) -> None:
    """Refuse an order unless it has exactly these fields."""
    missing, more = wanted - values.keys(), values.keys() - wanted
    if missing:
        raise InvalidMessage(f"The order has no {min(missing)!r}.")
    if more:
        raise InvalidMessage(
            f"The order has {min(more)[:40]!r}, which a site does not take from its server."
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_row(row: Any) -> bool:
    if not (isinstance(row, list) and len(row) == 2 and all(_is_number(each) for each in row)):
        return False
    samples, weight = row
    whole = 0 < samples <= MAX_NUMBER and samples == int(samples)
    return whole and math.isfinite(weight) and 0 < weight <= 1


def whole_in(values: Mapping[str, Any], name: str, most: int = MAX_NUMBER) -> int:
    """An integer of an order, from 0 to `most`."""
    found = values[name]
    if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found <= most:
        raise InvalidMessage(f"The order's {name!r} must be an integer in [0, {most}].")
    return found


def text_in(values: Mapping[str, Any], name: str) -> str:
    """A text of an order."""
    found = values[name]
    if not isinstance(found, str) or not 0 < len(found) <= MAX_CHARACTERS:
        raise InvalidMessage(
            f"The order's {name!r} must be a text of at most {MAX_CHARACTERS} characters."
        )
    return found


def split(named: Named) -> tuple[dict[str, float], dict[str, Tensor]]:
    """The numbers and the vectors among named values."""
    numbers, vectors = {}, {}
    for name, value in named.items():
        if isinstance(value, Tensor) and value.dim():
            vectors[name] = value
        elif value is None:
            raise UndriftError(f"{type(named).__name__}.{name} is None and cannot be sent.")
        else:
            numbers[name] = float(value)
    return numbers, vectors


def add_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors by their names with the prefix."""
    return {prefix + name: value for name, value in tensors.items()}


def with_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names start with the prefix, by their names without it."""
    return {n.removeprefix(prefix): v for n, v in tensors.items() if n.startswith(prefix)}
