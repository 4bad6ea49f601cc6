"""Runs the facts of `undrift verify` on mutants, each in a forked process, and keeps the verdicts.

The parent imports everything once. A child imports only the methods and the facts again, with the
mutant in the place of its module, so that a mutant that the first fact kills takes half a second.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.abc
import importlib.util
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.mutations import METHODS, SWAPPED_NAMES, Mutant, concerns

CPU_SECONDS = 240
"""How long a mutant may compute; one that takes longer counts as killed by the clock."""
BREAKS = "breaks"
"""The verdict on a mutant whose own code raises: it proves nothing about the facts."""
SURVIVES = "survives"
CLOCK = "clock"
AGAIN = ("undrift.methods", "undrift.verify")
"""The packages that a child imports again."""
CHEAP_FIRST = (
    "formula",
    "refuses",
    "stacked",
    "equals",
    "theorem",
    "still",
    "shift",
    "order",
    "weights",
)
"""Facts that are measured before the others, since they take little time."""


@dataclass(frozen=True)
class Judged:
    """The verdict on one mutant."""

    name: str
    digest: str
    verdict: str
    """the first fact that fails, or BREAKS, CLOCK or SURVIVES"""
    facts: str
    """the digest of the facts that were measured"""


def facts_digest() -> str:
    """Changes with the code of the facts and with the formulas."""
    paths = [*METHODS.glob("formulas/*.py"), *METHODS.parent.glob("verify/**/*.py")]
    texts = [path.read_bytes() for path in sorted(paths)]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:16]


def read_log(log: Path) -> dict[str, Judged]:
    """The verdicts that earlier runs have written, by the mutant's name."""
    if not log.exists():
        return {}
    lines = log.read_text(encoding="utf-8").splitlines()
    return {each.name: each for each in (Judged(**json.loads(line)) for line in lines)}


def judge(mutants: Sequence[Mutant], log: Path, processes: int) -> Iterator[Judged]:
    """The verdicts, as they come; each is appended to the log before it is given back."""
    import torch

    import undrift.verify  # noqa: F401 - imported once, before the processes fork

    torch.set_num_threads(1)
    facts, waiting = facts_digest(), list(reversed(mutants))
    at_work: dict[int, tuple[Mutant, int]] = {}
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as kept:
        while waiting or at_work:
            while waiting and len(at_work) < processes:
                mutant = waiting.pop()
                reader, child = _fork(mutant)
                at_work[child] = mutant, reader
            child, status = os.wait()
            mutant, reader = at_work.pop(child)
            with os.fdopen(reader) as answer:
                verdict = CLOCK if status else answer.read()
            judged = Judged(mutant.name, mutant.digest, verdict, facts)
            kept.write(json.dumps(asdict(judged), ensure_ascii=False) + "\n")
            kept.flush()
            yield judged


def _fork(mutant: Mutant) -> tuple[int, int]:
    """Start a process that judges a mutant; returns where its answer can be read, and its id."""
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        return reader, child
    os.close(reader)
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)  # its signal ends the process
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    os.write(writer, killer(mutant).encode())
    os._exit(0)


def killer(mutant: Mutant) -> str:
    """The first fact that fails when the mutant takes the place of its module."""
    try:
        _install(mutant)
        facts = importlib.import_module("undrift.verify.facts")
        listed = importlib.import_module("undrift.verify.subjects")
        subjects = [*listed.ours(), *listed.baselines()]
    except Exception:
        return BREAKS
    ordered = sorted(facts.FACTS, key=lambda fact: fact.name not in CHEAP_FIRST)
    subjects = [each for each in subjects if concerns(mutant.module, each.method)]
    for fact in (facts.RUNS, *ordered):
        for subject in subjects:
            if fact.name in subject.exempt:
                continue
            found = _measured(fact, subject)
            if found is not None:
                return found
    return SURVIVES


def _measured(fact: Any, subject: Any) -> str | None:
    """The name of a fact that fails, or BREAKS if the mutant's code raises; None if it holds."""
    from undrift.utils.errors import UndriftError

    try:
        finding = fact.measure(subject)
    except UndriftError:  # it diverges, or it refuses what it must accept
        return str(fact.name)
    except Exception:
        return BREAKS
    return None if finding is None or finding.error <= fact.allowed else str(fact.name)


def _install(mutant: Mutant) -> None:
    """Forget the methods and the facts; the next import loads the mutant."""
    for name in list(sys.modules):
        if name.startswith(AGAIN):
            del sys.modules[name]
    for name in AGAIN:  # "from undrift import methods" reads the attribute
        package, _, module = name.rpartition(".")
        vars(sys.modules[package]).pop(module, None)
    from undrift.core import method, replies

    # The original may not import what the mutant confuses.
    owners = {name: replies if hasattr(replies, name) else method for name in SWAPPED_NAMES}
    given = {name: getattr(owner, name) for name, owner in owners.items()}
    sys.meta_path.insert(0, Finder(mutant.module, mutant.source, given))


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads one module from a source text, with names that it finds defined."""

    def __init__(self, name: str, source: str, given: Mapping[str, Any] | None = None):
        self._name, self._source, self._given = name, source, given or {}

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        return importlib.util.spec_from_loader(name, self) if name == self._name else None

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__.update(self._given)
        exec(compile(self._source, self._name, "exec"), module.__dict__)
