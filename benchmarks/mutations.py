"""Systematic mistakes in a method file, each a change of one expression in its text."""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

METHODS = Path(__file__).parent.parent / "src" / "undrift" / "methods"
SWAPPED_ATTRIBUTES = {
    ("replies", "clients"): ["count"],
    ("replies", "count"): ["clients"],
    ("result", "x"): ["first_gradient"],
    ("result", "a_norm"): ["steps"],
    ("result", "steps"): ["expected", "a_norm"],
    ("result", "expected"): ["steps"],
    ("client", "q"): ["scale"],
    ("client", "scale"): ["q"],
    ("replies", "sum"): ["mean"],
    ("replies", "mean"): ["sum"],
}
"""Attributes that are confused with others."""
ONES = {("replies", "rate"), ("result", "rate"), ("replies", "share"), ("client", "scale")}
"""Attributes that are forgotten: 1 takes their place."""
SWAPPED_NAMES = {
    "q": ["once", "q_draws"],
    "once": ["q", "draws"],
    "q_draws": ["q", "draws"],
    "draws": ["once", "q_draws"],
    "ZERO": ["INITIAL"],
    "INITIAL": ["ZERO"],
}
"""Weights and initial values that are confused with others."""
OPERATORS = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*"}
TURNED = {ast.Lt: ">=", ast.GtE: "<", ast.Gt: "<=", ast.LtE: ">"} | {
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
}
STALE = {
    "ServerState": "server",
    "Keep": "mine",
    "new.replace": "server",
    "server.replace": "server",
}
"""Calls that make a state, and the state that was there before."""
PROBLEMS = ("LocalProblem", "replace")
"""Calls that make a local problem; `replace` is that of dataclasses."""
SKIPPED_ATTRIBUTES = {"paper", "why_synchronous"}
SKIPPED_CALLS = ("require", "warn", "warnings", "UndriftError")
SKIPPED_METHODS = {"__repr__", "__post_init__"}


@dataclass(frozen=True)
class Mutant:
    """A method file with one mistake."""

    file: str
    """relative to its folder"""
    line: int
    place: str
    """the class and the function"""
    words: str
    """what was changed, as code"""
    source: str

    @property
    def name(self) -> str:
        """Identifies the mutant as long as its expression and its function stay the same."""
        return f"{self.file}: {self.place}: {self.words}"

    @property
    def module(self) -> str:
        """The name of the module that it replaces."""
        return "undrift.methods." + self.file.removesuffix(".py").replace("/", ".")

    @property
    def digest(self) -> str:
        """Changes with any line of the file."""
        return hashlib.sha256(self.source.encode()).hexdigest()[:16]


def mutants_of(
    path: Path, root: Path = METHODS, others: Mutations | None = None
) -> Iterator[Mutant]:
    """All mutants of a file in a folder, without repetitions; `others` adds kinds of mistakes."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    lines = text.encode().splitlines(keepends=True)
    seen = {ast.dump(tree)}
    names: Counter[tuple[str, str]] = Counter()
    for place, node in _places(tree, Scope("", frozenset())):
        changes = _mutations(node, place.names)
        for change in (*changes, *(others(node, place.names) if others else ())):
            source = _replaced(lines, change.node, change.new)
            shape = ast.dump(ast.parse(source))
            if shape in seen:
                continue
            seen.add(shape)
            words = change.words or f"{ast.unparse(change.node)} → {change.new}"
            names[place.name, words] += 1
            if names[place.name, words] > 1:
                words += f" (no. {names[place.name, words]})"
            file = str(path.relative_to(root))
            yield Mutant(file, node.lineno, place.name, words, source)


@dataclass(frozen=True)
class Scope:
    """Where an expression is: the name of its class and function, and the function's arguments."""

    name: str
    names: frozenset[str]

    def inner(self, name: str, names: frozenset[str] = frozenset()) -> Scope:
        """The scope of something defined here."""
        return Scope(f"{self.name}.{name}" if self.name else name, names)


@dataclass(frozen=True)
class Change:
    """An expression and what takes its place."""

    node: ast.expr
    new: str
    words: str = ""


def _replaced(lines: list[bytes], node: ast.expr, new: str) -> str:
    """The text of a file in which another expression takes the place of a node."""
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    before = b"".join(lines[: node.lineno - 1]) + lines[node.lineno - 1][: node.col_offset]
    after = lines[node.end_lineno - 1][node.end_col_offset :] + b"".join(lines[node.end_lineno :])
    return (before + f"({new})".encode() + after).decode()


Place = tuple[Scope, ast.expr]
Mutations = Callable[[ast.expr, frozenset[str]], Iterator[Change]]
"""The mistakes that can be made in an expression, in a function with these arguments."""


def _places(tree: ast.AST, inside: Scope) -> Iterator[Place]:
    """The expressions of a file that may be mutated, each with its scope."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from _places(node, inside.inner(node.name))
        elif isinstance(node, ast.FunctionDef) and node.name not in SKIPPED_METHODS:
            scope = inside.inner(node.name, frozenset(each.arg for each in node.args.args))
            for statement in node.body:
                for each in _in_statement(statement):
                    yield scope, each
        elif isinstance(node, ast.AnnAssign) and _is_default(tree, node):
            continue
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [ast.unparse(target) for target in targets]
            if not set(names) & SKIPPED_ATTRIBUTES:
                for each in _expressions(node.value):
                    yield inside.inner(names[0]), each


def _is_default(owner: ast.AST, node: ast.AnnAssign) -> bool:
    """Whether this is the default of an option: the formulas hold for any value of it."""
    decorators = owner.decorator_list if isinstance(owner, ast.ClassDef) else []
    value = node.value.value if isinstance(node.value, ast.Constant) else None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and any("dataclass" in ast.unparse(each) for each in decorators)


def _in_statement(statement: ast.stmt) -> Iterator[ast.expr]:
    if isinstance(statement, ast.FunctionDef):
        for inner in statement.body:
            yield from _in_statement(inner)
        return
    if isinstance(statement, ast.Expr | ast.Raise | ast.Assert):  # docstrings, calls of require
        return
    for name, value in ast.iter_fields(statement):
        if name == "annotation":
            continue
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, ast.expr):
                yield from _expressions(each)
            elif isinstance(each, ast.stmt):
                yield from _in_statement(each)


def _expressions(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.Call) and ast.unparse(node.func).startswith(SKIPPED_CALLS):
        return
    if isinstance(node, ast.JoinedStr):
        return
    if not isinstance(getattr(node, "ctx", None), ast.Store):
        yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield from _expressions(child)
        elif isinstance(child, ast.keyword):
            yield from _expressions(child.value)


def _mutations(node: ast.expr, names: frozenset[str]) -> Iterator[Change]:
    """The mistakes that can be made in an expression, in a function with these arguments."""
    for new in _expression_mutations(node):
        yield Change(node, new)
    if isinstance(node, ast.Call):
        yield from _of_call(node, names)


def _expression_mutations(node: ast.expr) -> Iterator[str]:
    """What can be made of an expression, as code."""
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        yield f"{bare(node.left)} {OPERATORS[type(node.op)]} {bare(node.right)}"
        yield ast.unparse(node.left)
        if not isinstance(node.op, ast.Sub | ast.Div):
            yield ast.unparse(node.right)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not):
        yield ast.unparse(node.operand)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield str(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield repr(node.value + 1)
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in TURNED and len(node.ops) == 1:
        turned = TURNED[type(node.ops[0])]
        yield f"{ast.unparse(node.left)} {turned} {ast.unparse(node.comparators[0])}"
    elif isinstance(node, ast.BoolOp):
        yield ast.unparse(node.values[0])
        yield ast.unparse(node.values[-1])
    elif isinstance(node, ast.IfExp):
        yield ast.unparse(node.body)
        yield ast.unparse(node.orelse)
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        yield from _of_attribute(node.value.id, node.attr)
    elif isinstance(node, ast.Name):
        yield from SWAPPED_NAMES.get(node.id, [])


def bare(node: ast.expr) -> str:
    """An operand as code, in parentheses if it is an operation itself."""
    text = ast.unparse(node)
    return f"({text})" if isinstance(node, ast.BinOp | ast.UnaryOp | ast.IfExp) else text


def _of_attribute(owner: str, name: str) -> Iterator[str]:
    for wrong in SWAPPED_ATTRIBUTES.get((owner, name), []):
        yield f"{owner}.{wrong}"
    if (owner, name) in ONES:
        yield "1.0"
    if owner in ("down", "mine", "server", "keep"):
        yield f"0 * {owner}.{name}"


def _of_call(node: ast.Call, names: frozenset[str]) -> Iterator[Change]:
    """A state that is not updated, a doubled value, a dropped or wrong part of a local problem."""
    called = ast.unparse(node.func)
    if called == "Keep":
        for old in {"mine", "keep"} & names:
            yield Change(node, old)
    if called == "ascent_of":
        for value in node.args:
            for factor in (2, 0):
                yield Change(value, f"{factor} * {bare(value)}")
    if called not in (*STALE, *PROBLEMS, "Upload", "upload.replace"):
        return
    for keyword in node.keywords:
        if keyword.arg is None:
            continue
        name, value = keyword.arg, keyword.value
        news = []
        if _is_number(value) and name != "ascent":
            news.append(f"2 * ({ast.unparse(value)})")
        if STALE.get(called) in names:
            news.append(f"{STALE[called]}.{name}")
        if name == "center":
            news.append(f"0 * ({ast.unparse(value)})")
        for new in news:
            yield Change(value, new, f"{name}={ast.unparse(value)} → {name}={new}")
        if called in PROBLEMS and name != "start":
            yield Change(node, _without(node, keyword), f"{name}={ast.unparse(value)} → nothing")


def _is_number(value: ast.expr) -> bool:
    other = ast.Constant | ast.Tuple | ast.Compare | ast.BoolOp | ast.Dict
    return not isinstance(value, other) and "zeros" not in ast.unparse(value)


def _without(node: ast.Call, dropped: ast.keyword) -> str:
    """A call without one of its keywords."""
    kept = [keyword for keyword in node.keywords if keyword is not dropped]
    return ast.unparse(ast.Call(node.func, node.args, kept))


def concerns(module: str, method: Any) -> bool:
    """Whether a method uses a module."""
    used = {kind.__module__ for kind in type(method).__mro__}
    used |= {type(value).__module__ for value in method.hyperparameters().values()}
    if module.endswith("common.schemes"):
        options = method.hyperparameters()
        return "scheme" in options or "weights" in options or _AVERAGING in used
    return module in used


_AVERAGING = "undrift.methods.common.averaging"
