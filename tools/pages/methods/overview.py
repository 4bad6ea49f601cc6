"""The generated blocks of the overview, and of the pages on schemes and server optimisers."""

from __future__ import annotations

from pathlib import Path

import torch

from tools.pages.methods.method_sections import (
    NO_BREAK,
    TERMS,
    Lines,
    cells,
    formula,
    formulas,
    table,
    variants,
    vectors,
)
from undrift.experiments.catalogue import SERVERS
from undrift.methods import METHODS
from undrift.methods.common.schemes import SCHEMES
from undrift.verify import FACTS, named

ENDS = {
    "optimum": "the optimum of F",
    "averaging": "the fixed point of averaging",
    "normalised averaging": "the fixed point of normalised averaging",
    "sharpness-aware gradients": "where the mean sharpness-aware gradient is zero",
}


def overview() -> Lines:
    """Yield the table of all local problems."""
    rows = []
    for name in METHODS:
        for label, method in variants(name).items():
            rows += [(_link(name, label), *each) for each in cells(formulas(method))]
    head = ("method", "start", *TERMS, "local work", "uploads")
    yield from table(head, rows)


def costs() -> Lines:
    """Yield the table of traffic, state and limit of all methods."""
    head = ("method", "down", "up", "client", "server", "participation", "converges to")
    rows = []
    for name in METHODS:
        for label, method in variants(name).items():
            part = "all" if method.needs_all else "any"
            part = "as they arrive" if method.meant_asynchronous else part
            ends = ENDS.get(method.converges_to or "", "–")
            if any(subject.equal_steps for subject in named(name)):
                ends += ", with equal steps"
            rows.append((_link(name, label), *vectors(method), part, ends))
    yield from table(head, rows)


def _link(name: str, label: str) -> str:
    short = label.replace("(variance_reduction=True)", " VR")
    return f"[{short}]({name.lower()}.md)".replace(" ", NO_BREAK)


def purposes(folder: Path) -> Lines:
    """Yield what each method is for: the first paragraph of its page."""
    for name in METHODS:
        text = (folder / f"{name.lower()}.md").read_text(encoding="utf-8")
        words = " ".join(text.split("\n\n")[1].split())
        yield f"- **[{name}]({name.lower()}.md)**: {words}"


def facts() -> Lines:
    """Yield the facts that `undrift verify` measures."""
    rows = ((f.name, f.meaning, f"{f.allowed:.0e}" if f.allowed else "0") for f in FACTS)
    yield from table(("fact", "meaning", "allowed error"), rows)


def schemes() -> Lines:
    """Yield the ways to average a cohort."""
    rows = (
        (f"`{s.name}`", formula(s.formula.partition(": ")[0]), s.formula.partition(": ")[2])
        for s in SCHEMES.values()
    )
    yield from table(("scheme", "what it computes", "remark"), rows)


def servers() -> Lines:
    """Yield what each server optimiser keeps."""
    rows = []
    for name, build in SERVERS.items():
        kept = build().start(torch.zeros(2))  # type: ignore[call-arg]
        shown = ", ".join(f"`{each}`" for each in kept) or "nothing"
        rows.append((f"`{name}`", shown, str(len(kept))))
    yield from table(("optimiser", "additional server state", "vectors"), rows)
