"""What was measured, as tables of 80 columns and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Protocol

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from undrift.bench.comparison import Row
from undrift.bench.profile import PARTS, Profile
from undrift.bench.scaling import ALLOWED, START, Size
from undrift.bench.unequal import Pair


class Measured(Protocol):
    """Anything that was measured."""

    def as_dict(self) -> dict[str, object]:
        """For JSON."""


def as_json(found: Iterable[Measured]) -> str:
    """A list, one object for each."""
    return json.dumps([each.as_dict() for each in found], indent=2, ensure_ascii=False)


def shown(found: Sequence[Measured]) -> Iterator[Table | str]:
    """What is printed of measurements of one kind."""
    rows = [each for each in found if isinstance(each, Row)]
    if rows:
        yield comparison_table(rows)
        yield "\n" + comparison_notes(rows)
    pairs = [each for each in found if isinstance(each, Pair)]
    if pairs:
        yield unequal_table(pairs)
        yield (
            "\nEqual: 30 steps for every client. Unequal: 1 to 96 of them, with the time scaled to "
            "the same total."
        )
    sizes = [each for each in found if isinstance(each, Size)]
    for (workload, method, engine), group in groupby(sizes, _whose):
        own = list(group)
        yield f"[bold]{workload}, {method}, {engine} engine[/] ({escape(own[-1].strategy)})"
        yield scaling_table(own)
    if sizes:
        yield (
            f"\nA step is a client's; relative to the smallest size. A larger population may cost "
            f"{ALLOWED:g} times as much, and {START:g} s to start."
        )
    for each in found:
        if isinstance(each, Profile):
            yield f"[bold]{each.workload}, {each.method}, serial engine[/]"
            yield profile_table(each)


def comparison_table(rows: Sequence[Row]) -> Table:
    """Ours against the bare loop."""
    commits = any(row.committed_seconds is not None for row in rows)
    numbers = ("bare ms", "ours ms", *(["kept ms"] if commits else []), "ratio", "target")
    table = _table(numbers, ("", "method", "engine", "strategy"), verdict=True)
    for row in rows:
        kept = [] if row.committed_seconds is None else [_ms(row.committed_seconds)]
        table.add_row(
            row.workload,
            row.method,
            row.engine,
            row.strategy,
            _ms(row.bare_seconds),
            _ms(row.our_seconds),
            *kept,
            f"{row.ratio:.2f}",
            "·" if row.target is None else f"{row.target:.3g}",
            _verdict(row.met),
        )
    return table


def comparison_notes(rows: Sequence[Row]) -> str:
    """How the numbers of the table are meant."""
    best: dict[int, list[str]] = {}
    for row in rows:
        named = best.setdefault(row.bare_threads, [])
        if row.workload not in named:
            named.append(row.workload)
    threads = "; ".join(
        f"{number} thread{'s' * (number > 1)} for {', '.join(named)}"
        for number, named in sorted(best.items())
    )
    peak = max((row.peak_mb for row in rows if row.peak_mb is not None), default=None)
    said = (
        f"Random data of the right shapes. The ratio is bare / ours, the best of rounds that were "
        f"timed in turn; the bare loop at its best ({threads})."
    )
    if any(row.committed_seconds is not None for row in rows):
        said += " Kept: with every round committed to a store, as undrift run does."
    if any(row.method != "FedAvg" and row.target is not None for row in rows):
        said += " Other methods' targets follow from FedAvg's ratio."
    return said if peak is None else f"{said} Peak memory {peak:.0f} MB."


def unequal_table(pairs: Sequence[Pair]) -> Table:
    """Unequal against equal numbers of steps."""
    numbers = ("equal ms", "unequal ms", "ratio", "allowed")
    table = _table(numbers, ("", "method", "engine", "strategy"), verdict=True)
    for pair in pairs:
        table.add_row(
            pair.workload,
            pair.method,
            pair.engine,
            pair.strategy,
            _ms(pair.equal_seconds),
            _ms(pair.unequal_seconds),
            f"{pair.ratio:.2f}",
            f"{pair.target:g}",
            _verdict(pair.met),
        )
    return table


def scaling_table(sizes: Sequence[Size]) -> Table:
    """Costs as the cohort and the population grow."""
    numbers = ("cohort", "population", "start s", "round ms", "step µs", "relative")
    table = _table(numbers, ("grows",), verdict=True)
    for size in sizes:
        table.add_row(
            size.grows,
            f"{size.cohort}",
            f"{size.population}",
            f"{size.start_seconds:.2f}",
            _ms(size.seconds),
            f"{1e6 * size.step_seconds:.1f}",
            f"{size.relative:.2f}",
            _verdict(size.met),
        )
    return table


def profile_table(profile: Profile) -> Table:
    """Where a round's time goes."""
    table = _table(("ms", "share"), ("part",))
    table.add_column("what it is")
    for part, seconds in profile.seconds.items():
        share = seconds / profile.total
        table.add_row(part, _ms(seconds), f"{share:.1%}", PARTS[part])
    table.add_section()
    table.add_row("total", _ms(profile.total), "100.0%", "the fastest round")
    return table


def _table(numbers: Iterable[str], words: Iterable[str], verdict: bool = False) -> Table:
    """Columns of words, of numbers, and at last whether what was wanted is so."""
    table = Table(box=None, pad_edge=False, collapse_padding=True, header_style="bold")
    for word in words:
        fold = word == "strategy"
        table.add_column(word, no_wrap=not fold, min_width=8 if fold else None)
    for number in numbers:
        table.add_column(number, justify="right", no_wrap=True)
    if verdict:
        table.add_column("met", no_wrap=True)
    return table


def _whose(size: Size) -> tuple[str, str, str]:
    return size.workload, size.method, size.engine


def _verdict(met: bool | None) -> Text:
    if met is None:
        return Text("·", style="dim")
    return Text("yes", style="green") if met else Text("no", style="bold red")


def _ms(seconds: float) -> str:
    """Milliseconds in three or more digits."""
    ms = 1e3 * seconds
    return f"{ms:.0f}" if ms >= 100 else f"{ms:.1f}" if ms >= 10 else f"{ms:.2f}"
