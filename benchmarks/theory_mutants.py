"""Mutate the closed forms, bounds and step sizes of `ud.theory`: do the tests notice?

    python -m benchmarks.theory_mutants              # every file
    python -m benchmarks.theory_mutants sharpness    # some files

A mutant is a file with one systematic mistake, as in `benchmarks.mutants`; besides, factors of a
matrix product are swapped or dropped, powers are dropped, and arguments are confused with others of
the same type. A mutant is killed if one of the tests that name its module fails. Mutants that
compute the same as the original are listed in `equivalent_mutants.toml` with the reason.
"""

from __future__ import annotations

import argparse
import ast
import os
import signal
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from benchmarks.mutant_runs import BREAKS, CLOCK, SURVIVES, Finder
from benchmarks.mutants import EQUIVALENT
from benchmarks.mutations import METHODS, SWAPPED_NAMES, Change, Mutant, Mutations, bare, mutants_of

from undrift.engines.compiled.building import OFF

THEORY = METHODS.parent / "theory"
TESTS = METHODS.parents[2] / "tests"
CPU_SECONDS = 120
"""How long the tests of a mutant may compute; one that takes longer is killed by the clock."""
KILLED = "killed"
WEIGHTS_OF_METHODS = tuple(f" → {new}" for news in SWAPPED_NAMES.values() for new in news)
"""How mutants end that confuse weights as method files name them; here q is a vector."""
TESTS_FAILED, NO_TESTS_RAN = 1, 3
"""Exit statuses of pytest: a test failed, or an internal error; all above 1 mean that no test could
run."""


def files(names: Sequence[str] = ()) -> list[Path]:
    """The files of `ud.theory` of these names; all that have formulas if none."""
    found = [path for path in sorted(THEORY.glob("*.py")) if not path.name.startswith("_")]
    return [path for path in found if not names or path.stem in names]


def mutants(path: Path) -> Iterator[Mutant]:
    """All mutants of a file of `ud.theory`."""
    found = mutants_of(path, THEORY, _confusions(ast.parse(path.read_text(encoding="utf-8"))))
    return (mutant for mutant in found if not mutant.words.endswith(WEIGHTS_OF_METHODS))


def _confusions(tree: ast.AST) -> Mutations:
    """Mistakes in products of matrices, in powers, and in the choice of an argument."""
    types = {
        (function.name, argument.arg): ast.unparse(argument.annotation)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for argument in function.args.args
        if argument.annotation is not None
    }
    counted = {
        (call.args[0].lineno, call.args[0].col_offset)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "len"
    }
    by_arguments = {
        frozenset(argument.arg for argument in function.args.args): function.name
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
    }

    def changes(node: ast.expr, names: frozenset[str]) -> Iterator[Change]:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            yield Change(node, f"{bare(node.right)} @ {bare(node.left)}")
            yield Change(node, ast.unparse(node.left))
            yield Change(node, ast.unparse(node.right))
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
            yield Change(node, ast.unparse(node.left))
        elif (node.lineno, node.col_offset) in counted:
            return  # H, b and q have one row for each client
        elif isinstance(node, ast.Name) and node.id in names:
            function = by_arguments[names]
            kind = types.get((function, node.id))
            for other in sorted(names - {node.id}):
                if kind is not None and types.get((function, other)) == kind:
                    yield Change(node, other)

    return changes


def tests_of(path: Path) -> list[Path]:
    """The test files that name a module of `ud.theory`, the one of the same name first."""
    found = [
        test
        for test in sorted(TESTS.glob("test_theory_*.py"))
        if path.stem in test.read_text(encoding="utf-8")
    ]
    return sorted(found, key=lambda test: test.stem != f"test_theory_{path.stem}")


def equivalents() -> dict[str, str]:
    """The names of mutants that compute the same as the original, and why."""
    table = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8"))
    return {name: each["why"] for each in table["theory"] for name in each["mutants"]}


def judge(path: Path, chosen: Sequence[Mutant], processes: int) -> Iterator[tuple[Mutant, str]]:
    """The verdicts on mutants of a file, as they come."""
    tests, waiting, at_work = tests_of(path), list(reversed(chosen)), {}
    while waiting or at_work:
        while waiting and len(at_work) < processes:
            mutant = waiting.pop()
            at_work[_fork(mutant, tests)] = mutant
        child, status = os.wait()
        yield at_work.pop(child), _verdict(status)


def _verdict(status: int) -> str:
    if not os.WIFEXITED(status):
        return CLOCK
    code = os.WEXITSTATUS(status)
    return SURVIVES if code == 0 else KILLED if code == TESTS_FAILED else BREAKS


def _fork(mutant: Mutant, tests: Sequence[Path]) -> int:
    """Start a process that runs the tests with the mutant in its place; returns its id."""
    child = os.fork()
    if child:
        return child
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)  # its signal ends the process
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = folder
        os.environ[OFF] = "1"  # compiling the kernel takes longer than these tests
        code = NO_TESTS_RAN
        with suppress(Exception):  # a traceback would end the process as a failed test does
            code = _tested(mutant, tests)
    os._exit(code)


def _tested(mutant: Mutant, tests: Sequence[Path]) -> int:
    import pytest

    for name in list(sys.modules):
        if name.partition(".")[0] == "undrift":
            del sys.modules[name]
    module = "undrift.theory." + mutant.file.removesuffix(".py")
    sys.meta_path.insert(0, Finder(module, mutant.source))
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    return int(pytest.main([*options, *map(str, tests)]))


def main(arguments: Sequence[str] | None = None) -> None:
    """Judge all mutants and print the score."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="files, such as sharpness; all if left out")
    parser.add_argument("--list", action="store_true", help="print the mutants and stop")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    if options.list:
        for path in files(options.names):
            for mutant in mutants(path):
                print(f"{mutant.file}:{mutant.line}: {mutant.place}: {mutant.words}")
        return
    import torch

    import undrift.theory  # noqa: F401 - what it imports is imported once, before the forks

    torch.set_num_threads(1)
    reasons, wrong = equivalents(), 0
    for path in files(options.names):
        counts: Counter[str] = Counter()
        every = list(mutants(path))
        original = replace(every[0], source=path.read_text(encoding="utf-8"))
        ((_, verdict),) = judge(path, [original], 1)
        if verdict != SURVIVES:
            raise SystemExit(f"{path.name}: its tests do not pass on the file itself: {verdict}.")
        for mutant, verdict in judge(path, every, options.processes):
            same = mutant.name in reasons
            counts["equivalent" if same and verdict == SURVIVES else verdict] += 1
            if same != (verdict == SURVIVES):
                wrong += 1
                listed = "listed as equivalent, but " if same else ""
                print(f"{listed}{verdict}: {mutant.name} (line {mutant.line})", flush=True)
        words = ", ".join(f"{name} {count}" for name, count in counts.most_common())
        print(f"{path.name:20} {words}", flush=True)
    if wrong:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
