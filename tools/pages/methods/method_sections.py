"""The blocks of a page that are generated from the method itself, as lines of Markdown."""

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
from undrift.experiments.teaching import (
    default,
    documentation_of,
    example,
    meanings,
    shown_parameters,
)
from undrift.methods import METHODS, FedNova, Method
from undrift.methods.formulas import LaterProblem, MethodRow, row_of, steps_of
from undrift.methods.traffic import traffic_of
from undrift.verify import FACTS, Fact, Subject, named

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
    "FedADMM": "2204.03529",
    "FedVARP": "2207.14130",
    "MIFA": "2106.04159",
    "Scaffnew": "2202.09357",
    "FedCM": "2106.10874",
    "FedACG": "2201.03172",
    "FedExP": "2301.09604",
    "MimeLite": "2008.03606",
    "FedSAM": "2206.02618",
    "FedSpeed": "2302.10429",
    "FedLGA": "2112.11989",
    "Ditto": "2012.04221",
    "PFedMe": "2006.08848",
    "AsyncFedDR": "2103.03452",
    "FedAsync": "1903.03934",
    "FedBuff": "2106.06639",
}
MOST_COLUMNS = 3
"""More variants than this share one column of a table."""
NO_BREAK = "\u00a0"
TERMS = ("scale s", "linear v", "centre z", "weight r")
"""The columns of a local problem's terms."""
Lines = Iterator[str]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Lines:
    """Yield a table in Markdown."""
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


def variants(name: str) -> dict[str, Method]:
    """Return a method; of FedNova also the variant with variance reduction."""
    own: dict[str, Method] = {name: METHODS[name]()}
    if name == "FedNova":
        own["FedNova(variance_reduction=True)"] = FedNova(variance_reduction=True)
    return own


def problem(name: str) -> Lines:
    """Yield the row of the local problem, the client's work, and the fold."""
    own = {label: formulas(method) for label, method in variants(name).items()}
    one = len(own) == 1
    head = ("start", *TERMS, "local work", "uploads")
    rows = (
        (*(() if one else (f"`{label}`",)), *each)
        for label, row in own.items()
        for each in cells(row)
    )
    yield from table(head if one else ("", *head), rows)
    for label, row in own.items():
        yield ""
        if not one:
            yield from (f"`{label}`:", "")
        yield "```formula"
        yield from steps_of(row)
        yield "```"
    symbols = {letters: words for row in own.values() for letters, words in row.words.items()}
    if symbols:
        yield ""
        yield from (f"- {formula(letters)}: {words}" for letters, words in symbols.items())


def cells(row: MethodRow) -> Iterator[tuple[str, ...]]:
    """Yield each local problem of a round as the cells of a table."""
    uploads = ", ".join(map(formula, row.uploads))
    yield (*_terms(row), plain(row.work), uploads)
    if row.later is not None:
        often = "the same again" if row.later.times == "1" else f"the same, {row.later.times} times"
        yield (*_terms(row.later), often, "–")


def _terms(problem: MethodRow | LaterProblem) -> Iterator[str]:
    terms = (problem.start, problem.scale, problem.linear, problem.center, problem.weight)
    return map(formula, terms)


def formula(text: str) -> str:
    """Return a formula within a line, which the site typesets and does not break."""
    return text if text in ("–", "0", "1") else f"$`{text.replace(' ', NO_BREAK)}`$"


def formulas(method: Method) -> MethodRow:
    """Return the formulas of one of our methods."""
    found = row_of(method)
    assert found is not None
    return found


def traffic(name: str) -> Lines:
    """Yield how many vectors of the model's size are sent and kept."""
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
    """Return vectors down and up per client and round, kept by a client and by the server."""
    found = traffic_of(method)
    held = method.init(torch.zeros(2))
    on_server = sum(isinstance(value, torch.Tensor) for _, value in held.items())
    counts = (sum(found.down.values()), sum(found.up.values()), found.kept_vectors, on_server)
    return tuple(map(str, counts))  # type: ignore[return-value]


def _kept(method: Method) -> str:
    first = {INITIAL: "starts at x⁰", NUMBER: "a number"}
    kept = [f"`{n}` ({first.get(kind, 'starts at 0')})" for n, kind in method.kept().items()]
    numbers = [f"`{n}`" for n, is_vector in traffic_of(method).up.items() if not is_vector]
    besides = f" It also uploads the numbers {' and '.join(numbers)}." if numbers else ""
    return f"A client keeps {', '.join(kept) or 'nothing'}.{besides}"


def _takes_part(method: Method) -> str:
    if method.needs_all:
        return "Every client must take part in every round."
    if method.meant_asynchronous:
        return "The server uses replies as they arrive."
    if method.draws_by_weight:
        return "Clients are drawn with probability q_k, `ud.Weighted(K)`, or all weights are equal."
    also = ' It can also run asynchronously, `pace = {kind = "asynchronous"}`.'
    return "Any cohort may take part." + (also if method.asynchronous else "")


def options(name: str) -> Lines:
    """Yield every option with its default and meaning; of all server optimisers in turn."""
    if name == "servers":
        for number, (server, build) in enumerate(SERVERS.items()):
            if number:
                yield ""
            yield from (f"`{server}`: {plain(documentation_of(build).first)}", "")
            own = shown_parameters("servers", build)
            yield from table(("option", "default"), ((f"`{p.name}`", _default(p)) for p in own))
        return
    own = shown_parameters("methods", METHODS[name])
    if not own:
        yield "None."
        return
    explained = meanings(METHODS[name])
    rows = ((f"`{p.name}`", _default(p), plain(explained.get(p.name, ""))) for p in own)
    yield from table(("option", "default", "meaning"), rows)


def _default(parameter: Parameter) -> str:
    return f"`{default(parameter)}`"


def plain(words: str) -> str:
    """Return text of a docstring with the special characters of Markdown escaped."""
    return words.replace("*", "\\*").replace("_", "\\_")


def paper(name: str) -> Lines:
    """Yield the reference to the paper."""
    number = ARXIV[name]
    yield f"{METHODS[name].paper}: [arXiv:{number}](https://arxiv.org/abs/{number})."


def verified(name: str, found: dict[str, dict[str, Cell]]) -> Lines:
    """Yield the method's results of `undrift verify`, and the facts that are not claimed."""
    subjects = named(name)
    yield f"    undrift verify {name}"
    yield ""
    measured = [found[subject.label][fact.name] for subject in subjects for fact in FACTS]
    claimed = [cell for cell in measured if cell.error is not None]
    held = sum(cell.holds for cell in claimed)
    yield f"{held} of {len(claimed)} facts hold. The table shows the measured errors."
    yield ""
    shown = [[subject] for subject in subjects]
    heads = [f"`{subject.method!r}`" for subject in subjects]
    if len(subjects) > MOST_COLUMNS:
        shown, heads = [list(subjects)], [f"largest error of {len(subjects)} variants"]
    rows = (
        (
            fact.name,
            f"{fact.allowed:.0e}" if fact.allowed else "0",
            *(str(_largest(found, fact, column)) for column in shown),
        )
        for fact in FACTS
    )
    yield from table(("fact", "allowed error", *heads), rows)
    if len(subjects) > MOST_COLUMNS:
        yield ""
        yield f"The variants: {', '.join(f'`{subject.method!r}`' for subject in subjects)}."
    yield ""
    yield "[The overview](index.md#what-is-verified) explains each fact."
    if METHODS[name].meant_asynchronous:
        yield "They are measured in synchronous rounds, without delays."
    not_claimed = reasons(name, found)
    if not_claimed:
        yield "A dot marks a fact that is not claimed:"
        yield ""
        yield from (f"- {fact}: {words}." for fact, words in not_claimed)


def _largest(found: dict[str, dict[str, Cell]], fact: Fact, subjects: Sequence[Subject]) -> Cell:
    """Return the result with the largest error; one that is not claimed only if none is."""
    results = [found[subject.label][fact.name] for subject in subjects]
    claimed = [cell for cell in results if cell.error is not None]
    return max(claimed, key=lambda cell: cell.error or 0.0) if claimed else results[0]


@lru_cache
def walks(name: str) -> tuple[Walked, ...]:
    """Return the runs of a page."""
    return tuple(walked(walk) for walk in WALKS[name])


def _prediction(each: Walked) -> str:
    """Return the limit, or the point that a run without a limit stays around."""
    point = _point(each.goal)
    return point if each.walk.settles else f"no limit, models around {point}"


def ends(name: str) -> Lines:
    """Yield where the runs of a page end, and where theory predicts."""
    found = walks(name)
    asynchronous = bool(found[0].arrivals)
    what = "FedAvg with each of them" if name == "servers" else name
    yield f"![Where {what} converges, on two clients]({name.lower()}.png)"
    yield ""
    head = ("run", "ends at", "theory predicts", "distance from the optimum")
    rows = (
        (each.walk.label, _point(each.end), _prediction(each), _distance(each)) for each in found
    )
    yield from table(head, rows)
    yield ""
    first = found[0].walk
    work = f"Full gradients, η = {LR:g}"
    if asynchronous:
        yield (
            f"{work}, {plural(first.planned[0])} for each client, client 2 twice as fast. Every "
            f"mark is a reply; the end of a run is the mean over its last {PERIOD} marks."
        )
    else:
        yield f"{work}. Every mark is a round. {_steps(found)}"
    if found[0].own:
        yield ""
        yield "The clients' own models end at:"
        yield ""
        heads = [f"client {k + 1}" for k in range(len(found[0].own))]
        ends = ((each.walk.label, *map(_point, each.own)) for each in found)
        yield from table(("run", *heads), ends)


def _steps(found: Sequence[Walked]) -> str:
    done = {tuple(each.walk.done) for each in found}
    if len(done) > 1:
        return "The label states the steps of clients 1 and 2 per round."
    first, second = done.pop()
    return f"Per round, client 1 does {plural(first)} and client 2 does {second}."


def _point(x: torch.Tensor) -> str:
    rounded = x.round(decimals=3) + 0.0  # avoid −0
    return f"({', '.join(f'{v:.3f}'.replace('-', '−') for v in rounded.tolist())})"


def _distance(found: Walked) -> str:
    return f"{float((found.end - found.optimum).norm()):.3f}"


def file(name: str) -> Lines:
    """Yield the method in an experiment file, with its defaults."""
    yield "```toml"
    if name == "servers":
        yield example("servers", "Momentum").rstrip()
    else:
        yield example("methods", name).rstrip()
    yield "```"
