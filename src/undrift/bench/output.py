"""What was measured, as tables of 80 columns and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from undrift.bench.comparison import RoundTiming
from undrift.bench.instrumentation import PARTS
from undrift.bench.profile import Profile
from undrift.bench.scaling import ALLOWED, START, ScalingPoint
from undrift.bench.unequal_steps import UnequalTiming

WIDTHS = {"": 2, "method": 8, "engine": 10, "met": 3}
"""Of columns of words, so that rows look like one table though they come one by one."""
NUMBER = 7
"""Of columns of numbers, at least."""


class Measurement(Protocol):
    """Anything that was measured."""

    def as_dict(self) -> dict[str, object]:
        """For JSON."""


def as_json(found: Iterable[Measurement]) -> str:
    """A list, one object for each."""
    return json.dumps([each.as_dict() for each in found], indent=2, ensure_ascii=False)


def renderables(found: Sequence[Measurement], first: bool = True) -> Iterator[RenderableType]:
    """What is printed of a piece of work as soon as it is done.

    The `first` piece comes with the heads of the columns.
    """
    said = ""
    for each in found:
        if isinstance(each, RoundTiming | UnequalTiming):
            cells = _of_row(each) if isinstance(each, RoundTiming) else _of_pair(each)
            yield _line(cells, heads=first)
            if each.strategy != said:
                yield Padding(Text(each.strategy, style="dim"), (0, 0, 0, WIDTHS[""] + 1))
            said, first = each.strategy, False
        elif isinstance(each, Profile):
            yield _title(each, first)
            yield profile_table(each)
    sizes = [each for each in found if isinstance(each, ScalingPoint)]
    if sizes:
        yield _title(sizes[-1], first)
        yield scaling_table(sizes)


def notes(found: Sequence[Measurement]) -> Iterator[str]:
    """How the numbers are meant."""
    rows = [each for each in found if isinstance(each, RoundTiming)]
    if rows:
        yield comparison_notes(rows)
    if any(isinstance(each, UnequalTiming) for each in found):
        yield (
            "Equal: 30 steps for every client. Unequal: 1 to 96 of them, with the time scaled to "
            "the same total."
        )
    if any(isinstance(each, ScalingPoint) for each in found):
        yield (
            f"A step is a client's; relative to the smallest size. A larger population may cost "
            f"{ALLOWED:g} times as much, and {START:g} s to start."
        )


def _of_row(row: RoundTiming) -> dict[str, str | Text]:
    """undrift against the bare loop."""
    kept = {} if row.committed_seconds is None else {"kept ms": milliseconds(row.committed_seconds)}
    return {
        "": row.workload,
        "method": row.method,
        "engine": row.engine,
        "bare ms": milliseconds(row.bare_seconds),
        "ours ms": milliseconds(row.our_seconds),
        **kept,
        "ratio": f"{row.ratio:.2f}",
        "target": "·" if row.target is None else f"{row.target:.3g}",
        "met": _verdict(row.met),
    }


def _of_pair(pair: UnequalTiming) -> dict[str, str | Text]:
    """Unequal against equal numbers of steps."""
    return {
        "": pair.workload,
        "method": pair.method,
        "engine": pair.engine,
        "equal ms": milliseconds(pair.equal_seconds),
        "unequal ms": milliseconds(pair.unequal_seconds),
        "ratio": f"{pair.ratio:.2f}",
        "allowed": f"{pair.target:g}",
        "met": _verdict(pair.met),
    }


def _line(cells: Mapping[str, str | Text], heads: bool) -> Table:
    """A row of a table that grows."""
    table = Table(
        box=None, pad_edge=False, collapse_padding=True, header_style="bold", show_header=heads
    )
    for head in cells:
        if head in WIDTHS:
            table.add_column(head, no_wrap=True, width=WIDTHS[head])
        else:
            width = max(NUMBER, len(head))
            table.add_column(head, justify="right", no_wrap=True, width=width)
    table.add_row(*cells.values())
    return table


def _title(each: ScalingPoint | Profile, first: bool) -> Text:
    said = Text("" if first else "\n").append(
        f"{each.workload}, {each.method}, {each.engine} engine", style="bold"
    )
    return said.append(f" ({each.strategy})")


def comparison_notes(rows: Sequence[RoundTiming]) -> str:
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


def scaling_table(sizes: Sequence[ScalingPoint]) -> Table:
    """Costs as the cohort and the population grow."""
    numbers = ("cohort", "population", "start s", "round ms", "step µs", "relative")
    table = _table(numbers, ("grows",), verdict=True)
    for size in sizes:
        table.add_row(
            size.grows,
            f"{size.cohort}",
            f"{size.population}",
            f"{size.start_seconds:.2f}",
            milliseconds(size.seconds),
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
        share = seconds / profile.busy_seconds
        table.add_row(part, milliseconds(seconds), f"{share:.1%}", PARTS[part])
    table.add_row()
    several = profile.threads > 1
    fastest = "the fastest round, with clocks"
    together = f"{profile.threads} threads together" if several else fastest
    table.add_row("busy", milliseconds(profile.busy_seconds), "100.0%", together)
    if several:
        table.add_row(
            "threads idle", milliseconds(profile.idle_seconds), "", "the time in which they wait"
        )
        table.add_row("wall", milliseconds(profile.clocked_seconds), "", fastest)
    table.add_row(
        "no clocks", milliseconds(profile.round_seconds), "", "the fastest round, without"
    )
    table.add_row()
    table.add_row(
        "evaluation",
        milliseconds(profile.evaluation_seconds),
        "",
        "of the server's model, by itself",
    )
    return table


def _table(numbers: Iterable[str], words: Iterable[str], verdict: bool = False) -> Table:
    """Columns of words, of numbers, and at last whether what was wanted is so."""
    table = Table(box=None, pad_edge=False, collapse_padding=True, header_style="bold")
    for word in words:
        table.add_column(word, no_wrap=True)
    for number in numbers:
        table.add_column(number, justify="right", no_wrap=True)
    if verdict:
        table.add_column("met", no_wrap=True)
    return table


def _verdict(met: bool | None) -> Text:
    if met is None:
        return Text("·", style="dim")
    return Text("yes", style="green") if met else Text("no", style="bold red")


def milliseconds(seconds: float) -> str:
    """A time in milliseconds, in three or more digits."""
    ms = 1e3 * seconds
    return f"{ms:.0f}" if ms >= 100 else f"{ms:.1f}" if ms >= 10 else f"{ms:.2f}"
