"""The parts of a page that are made from the method itself, as lines of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

import torch

from tools.pages.methods.path_plot import plural
from tools.pages.methods.two_clients import LR
from tools.pages.methods.verification import Cell, reasons
from tools.pages.methods.walks import PERIOD, WALKS, Walked, walked
from undrift.core.method import INITIAL, NUMBER
from undrift.experiments.catalogue import SERVERS, Parameter
from undrift.experiments.method_rows import Row, row_of, steps_of
from undrift.experiments.teaching import default, example, lesson, meanings, shown_parameters
from undrift.methods import METHODS, FedNova, Method
from undrift.methods.traffic import traffic_of
from undrift.verify import FACTS, named

ARXIV = {
    "DistributedSGD": "1907.02189",
    "FedAvg": "1907.02189",
    "FedAvgMin": "2007.07481",
    "FedProx": "1812.06127",
    "SCAFFOLD": "1910.06378",
    "VRLSGD": "1912.12844",
    "FedNova": "2007.07481",
    "FedDyn": "2111.04263",
    "FedPD": "2005.11418",
    "FedSplit": "2005.05238",
    "FedDR": "2103.03452",
    "FedLGA": "2112.11989",
    "AsyncFedDR": "2103.03452",
    "FedAsync": "1903.03934",
    "FedBuff": "2106.06639",
}
NO_BREAK = "\u00a0"
Lines = Iterator[str]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Lines:
    """A table of Markdown."""
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


def variants(name: str) -> dict[str, Method]:
    """A method, and FedNova with variance reduction as well."""
    own: dict[str, Method] = {name: METHODS[name]()}
    if name == "FedNova":
        own["FedNova(variance_reduction=True)"] = FedNova(variance_reduction=True)
    return own


def problem(name: str) -> Lines:
    """The row of the local problem, what the client then does, and the fold."""
    own = {label: formulas(method) for label, method in variants(name).items()}
    one = len(own) == 1
    head = ("start", "linear v", "centre z", "weight r", "local work", "uploads")
    rows = ((*(() if one else (f"`{label}`",)), *cells(row)) for label, row in own.items())
    yield from table(head if one else ("", *head), rows)
    for label, row in own.items():
        yield ""
        if not one:
            yield from (f"`{label}`:", "")
        yield "```text"
        yield from steps_of(row)
        yield "```"
    told = {letters: words for row in own.values() for letters, words in row.words.items()}
    if told:
        yield ""
        yield from (f"- `{letters}`: {words}" for letters, words in told.items())


def cells(row: Row) -> tuple[str, ...]:
    """The local problem as the cells of a table."""
    terms = (row.start, row.linear, row.center, row.weight)
    return (*map(_code, terms), plain(row.work), ", ".join(map(_code, row.uploads)))


def _code(formula: str) -> str:
    """A formula in a table, where it must not be broken."""
    return formula if formula in ("–", "0") else f"`{formula.replace(' ', NO_BREAK)}`"


def formulas(method: Method) -> Row:
    """The row of one of our methods."""
    found = row_of(method)
    assert found is not None
    return found


def traffic(name: str) -> Lines:
    """How many vectors of the model's size travel and rest."""
    head = ("vectors down", "vectors up", "kept by a client", "kept by the server")
    own = variants(name)
    rows = (
        (*(() if len(own) == 1 else (f"`{label}`",)), *vectors(method))
        for label, method in own.items()
    )
    yield from table(head if len(own) == 1 else ("", *head), rows)
    for label, method in own.items():
        yield ""
        prefix = "" if len(own) == 1 else f"`{label}`: "
        yield f"{prefix}{_kept(method)} {_takes_part(method)}"


def vectors(method: Method) -> tuple[str, str, str, str]:
    """Vectors down and up per client and round, on a client and on the server."""
    found = traffic_of(method)
    held = method.init(torch.zeros(2))
    on_server = sum(isinstance(value, torch.Tensor) for _, value in held.items())
    counts = (sum(found.down.values()), sum(found.up.values()), found.kept_vectors, on_server)
    return tuple(map(str, counts))  # type: ignore[return-value]


def _kept(method: Method) -> str:
    first = {INITIAL: "starts at x⁰", NUMBER: "a number"}
    kept = [f"`{n}` ({first.get(kind, 'starts at 0')})" for n, kind in method.kept().items()]
    numbers = [f"`{n}`" for n, is_vector in traffic_of(method).up.items() if not is_vector]
    besides = f" Besides, the numbers {' and '.join(numbers)} travel up." if numbers else ""
    return f"A client keeps {', '.join(kept) or 'nothing'}.{besides}"


def _takes_part(method: Method) -> str:
    if method.needs_all:
        return "Every client must take part in every round."
    if method.meant_asynchronous:
        return "Replies are taken in as they arrive."
    if method.draws_by_weight:
        return "Clients are drawn by q_k, `ud.Weighted(K)`, or all count alike."
    also = ' It can also run asynchronously, `pace = {kind = "asynchronous"}`.'
    return "Any cohort may take part." + (also if method.asynchronous else "")


def options(name: str) -> Lines:
    """Every option with its default and meaning; of the server optimisers, one after another."""
    if name == "servers":
        for number, (server, build) in enumerate(SERVERS.items()):
            if number:
                yield ""
            yield from (f"`{server}`: {plain(lesson(build).first)}", "")
            own = shown_parameters("servers", build)
            yield from table(("option", "default"), ((f"`{p.name}`", _default(p)) for p in own))
        return
    own = shown_parameters("methods", METHODS[name])
    if not own:
        yield "None."
        return
    told = meanings(METHODS[name])
    rows = ((f"`{p.name}`", _default(p), plain(told.get(p.name, ""))) for p in own)
    yield from table(("option", "default", "meaning"), rows)


def _default(parameter: Parameter) -> str:
    return f"`{default(parameter)}`"


def plain(words: str) -> str:
    """Words of a docstring in Markdown, where asterisks and underscores mean something."""
    return words.replace("*", "\\*").replace("_", "\\_")


def paper(name: str) -> Lines:
    """Where it was published."""
    number = ARXIV[name]
    yield f"{METHODS[name].paper}: [arXiv:{number}](https://arxiv.org/abs/{number})."


def verified(name: str, found: dict[str, dict[str, Cell]]) -> Lines:
    """The method's row of `undrift verify`, as it was measured, and what is not claimed."""
    subjects = named(name)
    yield f"    undrift verify {name}"
    yield ""
    measured = [found[subject.label][fact.name] for subject in subjects for fact in FACTS]
    claimed = [cell for cell in measured if cell.error is not None]
    held = sum(cell.holds for cell in claimed)
    yield f"{held} of {len(claimed)} facts hold. The table has the errors that were measured."
    yield ""
    head = ("fact", "error allowed", *(f"`{subject.method!r}`" for subject in subjects))
    rows = (
        (
            fact.name,
            f"{fact.allowed:.0e}" if fact.allowed else "0",
            *(str(found[subject.label][fact.name]) for subject in subjects),
        )
        for fact in FACTS
    )
    yield from table(head, rows)
    yield ""
    yield "What each fact says is [in the overview](index.md#what-is-verified)."
    if METHODS[name].meant_asynchronous:
        yield "They are measured in rounds, without delays."
    told = reasons(name, found)
    if told:
        yield "A dot is a fact that is not claimed:"
        yield ""
        yield from (f"- {fact}: {words}." for fact, words in told)


@lru_cache
def walks(name: str) -> tuple[Walked, ...]:
    """The runs of a page."""
    return tuple(walked(walk) for walk in WALKS[name])


def ends(name: str) -> Lines:
    """Where the runs of a page end, and where theory says."""
    found = walks(name)
    asynchronous = bool(found[0].arrivals)
    what = "FedAvg with each of them" if name == "servers" else name
    yield f"![Where {what} converges, on two clients]({name.lower()}.png)"
    yield ""
    head = ("run", "ends at", "theory says", "from the optimum")
    rows = (
        (each.walk.label, _point(each.end), _point(each.goal), _distance(each)) for each in found
    )
    yield from table(head, rows)
    yield ""
    first = found[0].walk
    work = f"Full gradients, η = {LR:g}"
    if asynchronous:
        yield (
            f"{work}, {plural(first.planned[0])} of work for either client, client 2 twice as "
            f"fast; every mark is a reply, and a run ends at the mean over its last {PERIOD}."
        )
    else:
        yield f"{work}; every mark is a round. {_steps(found)}"


def _steps(found: Sequence[Walked]) -> str:
    done = {tuple(each.walk.done) for each in found}
    if len(done) > 1:
        return "Clients 1 and 2 do as many steps in a round as the label says."
    first, second = done.pop()
    return f"In a round client 1 does {plural(first)} and client 2 does {second}."


def _point(x: torch.Tensor) -> str:
    rounded = x.round(decimals=3) + 0.0  # there is no −0
    return f"({', '.join(f'{v:.3f}'.replace('-', '−') for v in rounded.tolist())})"


def _distance(found: Walked) -> str:
    return f"{float((found.end - found.optimum).norm()):.3f}"


def file(name: str) -> Lines:
    """The method in an experiment file, with its defaults."""
    yield "```toml"
    if name == "servers":
        yield example("servers", "Momentum").rstrip()
    else:
        yield example("methods", name).rstrip()
    yield "```"
