"""Reads the formulas of `undrift.methods.formulas` as one reads them on paper.

Letters side by side are multiplied, ⟨a, b⟩ is a scalar product, u² and √u are taken by component,
and Σ_S adds up the term behind it over the clients of S.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from undrift.utils.errors import UndriftError

Letters = Mapping[str, Any]
"""The value of every letter."""


def _tensor(value: Any) -> torch.Tensor:
    return torch.as_tensor(value, dtype=torch.float64)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": lambda a, b: torch.minimum(_tensor(a), _tensor(b)),
    "max": lambda a, b: torch.maximum(_tensor(a), _tensor(b)),
    "sign": lambda a: torch.sign(_tensor(a)),
    "pow": lambda a, b: _tensor(a) ** _tensor(b),
    "ln": lambda a: torch.log(_tensor(a)),
}
"""What a formula may call besides a method's own prox."""
OPERATORS = r"[-+−/(),⟨⟩²√⌊⌋]"
ENDS = ("", "+", "−", ")", ",", "⟩", "⌋")
"""Tokens that end a product."""


class Reader:
    """Evaluates one formula.

    Parameters
    ----------
    formula
        the text
    letters
        the values of the letters
    clients
        the values of the letters that belong to a client, one mapping per term of Σ_S
    functions
        more functions, by name
    """

    def __init__(
        self,
        formula: str,
        letters: Letters,
        clients: Sequence[Letters] = (),
        functions: Mapping[str, Callable[..., Any]] | None = None,
    ):
        self._formula = formula
        self._functions = FUNCTIONS | dict(functions or {})
        names = {*letters, *(name for own in clients for name in own), *self._functions, "Σ_S"}
        longest_first = sorted(map(re.escape, names), key=len, reverse=True)
        pattern = re.compile(r"\s*(" + "|".join([*longest_first, r"\d+", OPERATORS]) + ")")
        self._tokens: list[str] = []
        place, text = 0, formula.rstrip()
        while place < len(text):
            found = pattern.match(text, place)
            if found is None:
                raise UndriftError(f"The formula {formula!r} has an unknown letter: {text[place:]}")
            self._tokens.append(found[1])
            place = found.end()
        self._clients = clients
        self._here = letters
        self._at = 0

    def value(self) -> Any:
        """The value of the formula."""
        result = self._sum()
        if self._at != len(self._tokens):
            raise UndriftError(f"The formula {self._formula!r} does not end where it should.")
        return result

    def _next(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self, *expected: str) -> str:
        token = self._next()
        if expected and token not in expected:
            raise UndriftError(f"The formula {self._formula!r} lacks {' or '.join(expected)}.")
        self._at += 1
        return token

    def _sum(self) -> Any:
        result = self._product()
        while self._next() in ("+", "−"):
            minus = self._take() == "−"
            term = self._product()
            result = result - term if minus else result + term
        return result

    def _product(self) -> Any:
        result = self._power()
        while self._next() not in ENDS:
            if self._next() == "/":
                self._take()
                result = result / self._power()
            else:
                result = result * self._power()
        return result

    def _power(self) -> Any:
        result = self._factor()
        while self._next() == "²":
            self._take()
            result = result * result
        return result

    def _factor(self) -> Any:
        token = self._take()
        if token == "−":
            return -self._factor()
        if token == "√":
            return _tensor(self._factor()).sqrt()
        if token == "Σ_S":
            return self._over_clients()
        if token == "(":
            return self._until(")")
        if token == "⌊":
            return _tensor(self._until("⌋")).floor()
        if token == "⟨":
            left = self._until(",")
            return (left * self._until("⟩")).sum()
        if token in self._functions:
            self._take("(")
            arguments = [self._sum()]
            while self._take(",", ")") == ",":
                arguments.append(self._sum())
            return self._functions[token](*arguments)
        if token.isdigit():
            return float(token)
        if token not in self._here:
            raise UndriftError(f"The formula {self._formula!r} lacks a term.")
        return self._here[token]

    def _until(self, end: str) -> Any:
        result = self._sum()
        self._take(end)
        return result

    def _over_clients(self) -> Any:
        """The sum of the product that follows, over the clients."""
        start, outside, terms = self._at, self._here, []
        for own in self._clients:
            self._at, self._here = start, {**outside, **own}
            terms.append(self._product())
        self._here = outside
        return sum(terms)
