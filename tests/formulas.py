"""A reader of the formulas of `undrift.experiments.method_rows`, as one reads them on paper.

Letters side by side are multiplied, ⟨a, b⟩ is a scalar product, and Σ_S takes the term behind it,
for every client of S.
"""

import re

FUNCTIONS = {"min", "prox_{ηg}"}


class Reader:
    """Evaluates one formula; `server` holds its letters, `clients` those of each client."""

    def __init__(self, formula, server, clients=(), functions=None):
        letters = {*server, *(name for own in clients for name in own), *FUNCTIONS, "Σ_S"}
        longest_first = sorted(map(re.escape, letters), key=len, reverse=True)
        pattern = re.compile(r"\s*(" + "|".join([*longest_first, r"\d+", r"[-+−/(),⟨⟩]"]) + ")")
        self.tokens, at = [], 0
        while at < len(formula.rstrip()):
            found = pattern.match(formula, at)
            assert found, f"{formula!r} has an unknown letter at {formula[at:]!r}"
            self.tokens.append(found[1])
            at = found.end()
        self.clients, self.functions, self.at, self.here = clients, functions or {}, 0, server

    def value(self):
        result = self._sum()
        assert self.at == len(self.tokens), f"{self.tokens[self.at :]} is left over"
        return result

    def _next(self):
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def _take(self, *expected):
        token = self._next()
        assert not expected or token in expected, f"{token!r} where {expected} should be"
        self.at += 1
        return token

    def _sum(self):
        result = self._term()
        while self._next() in ("+", "−"):
            result = result + self._term() if self._take() == "+" else result - self._term()
        return result

    def _term(self):
        result = self._factor()
        while self._next() not in ("", "+", "−", ")", ",", "⟩"):
            if self._next() == "/":
                self._take()
                result = result / self._factor()
            else:
                result = result * self._factor()
        return result

    def _factor(self):
        token = self._take()
        if token == "−":
            return -self._factor()
        if token == "Σ_S":
            return self._over_clients()
        if token == "(":
            result = self._sum()
            self._take(")")
            return result
        if token == "⟨":
            left = self._sum()
            self._take(",")
            right = self._sum()
            self._take("⟩")
            return (left * right).sum()
        if token in FUNCTIONS:
            self._take("(")
            arguments = [self._sum()]
            while self._take(",", ")") == ",":
                arguments.append(self._sum())
            return self.functions[token](*arguments)
        return float(token) if token.isdigit() else self.here[token]

    def _over_clients(self):
        start, outside, terms = self.at, self.here, []
        for own in self.clients:
            self.at, self.here = start, {**outside, **own}
            terms.append(self._term())
        self.here = outside
        return sum(terms)
