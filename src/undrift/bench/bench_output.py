"""Prints measurements of `undrift bench` as tables of 80 columns and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from undrift.bench.bare_comparison import RoundTiming
from undrift.bench.default_run import DefaultTiming
from undrift.bench.memory import MemoryPeak
from undrift.bench.precision import PrecisionTiming
from undrift.bench.profiling.instrumentation import PARTS
from undrift.bench.profiling.profile import Profile
from undrift.bench.scaling import (
    MAX_LARGE_RELATIVE,
    MAX_LARGE_START_SECONDS,
    MAX_RELATIVE,
    MAX_START_SECONDS,
    ScalingPoint,
)
from undrift.bench.strategy_table import ALLOWED, StrategyTiming
from undrift.bench.unequal_steps import UnequalTiming

Row = RoundTiming | UnequalTiming | DefaultTiming | MemoryPeak | PrecisionTiming
"""The measurements that are one row of a table."""
TEXT_WIDTHS = {"": 3, "method": 8, "engine": 10, "met": 3}
"""Widths of text columns: rows are printed one by one and must still line up."""
NUMBER_WIDTH = 7
"""The least width of columns of numbers."""


class Measurement(Protocol):
    """What the measurements have in common."""

    def as_dict(self) -> dict[str, object]:
        """Return the fields that `--json` prints."""


def as_json(found: Iterable[Measurement]) -> str:
    """Return a JSON list with one object per measurement."""
    return json.dumps([each.as_dict() for each in found], indent=2, ensure_ascii=False)


def renderables(found: Sequence[Measurement], first: bool = True) -> Iterator[RenderableType]:
    """Yield what is printed when a piece of work is done.

    The `first` piece comes with the headings of the columns.
    """
    printed_strategy = ""
    for each in found:
        if isinstance(each, Row):
            yield _line(_cells(each), heads=first)
            if each.strategy != printed_strategy:
                yield Padding(Text(each.strategy, style="dim"), (0, 0, 0, TEXT_WIDTHS[""] + 1))
            printed_strategy, first = each.strategy, False
        elif isinstance(each, Profile):
            yield _title(each, first)
            yield profile_table(each)
    strategies = [each for each in found if isinstance(each, StrategyTiming)]
    if strategies:
        bare = milliseconds(strategies[0].bare_seconds)
        yield Text("" if first else "\n").append(
            f"{strategies[0].workload}, bare loop {bare} ms", style="bold"
        )
        yield strategy_table(strategies)
    sizes = [each for each in found if isinstance(each, ScalingPoint)]
    if sizes:
        yield _title(sizes[-1], first)
        yield scaling_table(sizes)


def notes(found: Sequence[Measurement]) -> Iterator[str]:
    """Yield the sentences that explain the numbers."""
    rows = [each for each in found if isinstance(each, RoundTiming)]
    if rows:
        yield comparison_notes(rows)
    if any(isinstance(each, UnequalTiming) for each in found):
        yield (
            "Equal: 30 steps for every client. Unequal: 1 to 96 steps per client, 30 on average; "
            "times are scaled to the same total number of steps."
        )
    if any(isinstance(each, DefaultTiming) for each in found):
        yield (
            "Plain: a round without evaluation and commit. Run: a round of a run with defaults, "
            "averaged over the rounds from one evaluation to the next; every: how many these are. "
            "Ratio: run / plain. Of 100: the ratio of a run of 100 rounds with its start and its "
            "last evaluation, on all samples. Each is the fastest of rounds timed in turn."
        )
    if any(isinstance(each, StrategyTiming) for each in found):
        yield (
            f"Expected: by the rule that chooses (▸), which reads no clock. Its choice is good if "
            f"it takes at most {ALLOWED:g} times as long as the fastest strategy, and no longer "
            "than the bare loop. Ratio: bare / ours."
        )
    if any(isinstance(each, MemoryPeak) for each in found):
        yield (
            "Peak memory of a process with Python, torch and the data, each in a new process. "
            "+bare and +ours: the part that came after the data were in memory."
        )
    if any(isinstance(each, PrecisionTiming) for each in found):
        yield (
            "Rounds timed in turn; ratio: fp32 / bf16. Loss: training loss after the last round of "
            "a short run on learnable data, in both precisions. Gap: the largest distance of the "
            "two curves, as a share of what the loss fell."
        )
    if any(isinstance(each, ScalingPoint) for each in found):
        yield (
            "Step: time per step of one client, relative to the smallest size. With a larger "
            f"population it may take {MAX_RELATIVE:g} times as long, with a million clients "
            f"{MAX_LARGE_RELATIVE:g} times. Start: data, model, roster and devices, at most "
            f"{MAX_START_SECONDS:g} s, {MAX_LARGE_START_SECONDS:g} s for a million; split: a "
            f"partition by Dirichlet(0.3), with the same limits. On clock: with devices that come "
            f"and go on the virtual clock."
        )


def _of_row(row: RoundTiming) -> dict[str, str | Text]:
    """Return the cells of a round against the bare loop."""
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


def _cells(each: Row) -> dict[str, str | Text]:
    """Return the cells of a measurement that is one row."""
    if isinstance(each, RoundTiming):
        return _of_row(each)
    if isinstance(each, UnequalTiming):
        return _of_pair(each)
    if isinstance(each, MemoryPeak):
        return _of_memory(each)
    return _of_default(each) if isinstance(each, DefaultTiming) else _of_precision(each)


def _of_memory(peak: MemoryPeak) -> dict[str, str | Text]:
    """Return the cells of a measurement of memory."""
    return {
        "": peak.workload,
        "method": peak.method,
        "bare MB": f"{peak.bare_mb:.0f}",
        "ours MB": f"{peak.our_mb:.0f}",
        "+bare": f"{peak.bare_work_mb:.0f}",
        "+ours": f"{peak.our_work_mb:.0f}",
        "ratio": f"{peak.ratio:.2f}",
        "allowed": f"{peak.target:g}",
        "met": _verdict(peak.met),
    }


def _of_precision(each: PrecisionTiming) -> dict[str, str | Text]:
    """Return the cells of float32 against mixed precision."""
    return {
        "": each.workload,
        "method": each.method,
        "fp32 ms": milliseconds(each.fp32_seconds),
        "bf16 ms": milliseconds(each.bf16_seconds),
        "ratio": f"{each.ratio:.2f}",
        "loss": f"{each.fp32_losses[-1]:.3f}",
        "bf16 loss": f"{each.bf16_losses[-1]:.3f}",
        "gap": f"{each.gap:.1%}",
    }


def _of_default(run: DefaultTiming) -> dict[str, str | Text]:
    """Return the cells of a run with all defaults."""
    return {
        "": run.workload,
        "engine": run.engine,
        "every": str(run.every),
        "start s": f"{run.start_seconds:.1f}",
        "plain ms": milliseconds(run.plain_seconds),
        "run ms": milliseconds(run.ratio * run.plain_seconds),
        "ratio": f"{run.ratio:.2f}",
        "of 100": f"{run.ratio_of(100):.2f}",
        "allowed": f"{run.target:g}",
        "met": _verdict(run.met),
    }


def _of_pair(pair: UnequalTiming) -> dict[str, str | Text]:
    """Return the cells of unequal against equal numbers of steps."""
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
    """Return one row of the table, with the headings above it if asked."""
    table = Table(
        box=None, pad_edge=False, collapse_padding=True, header_style="bold", show_header=heads
    )
    for head in cells:
        if head in TEXT_WIDTHS:
            table.add_column(head, no_wrap=True, width=TEXT_WIDTHS[head])
        else:
            width = max(NUMBER_WIDTH, len(head))
            table.add_column(head, justify="right", no_wrap=True, width=width)
    table.add_row(*cells.values())
    return table


def _title(each: ScalingPoint | Profile, first: bool) -> Text:
    title = Text("" if first else "\n").append(
        f"{each.workload}, {each.method}, {each.engine} engine", style="bold"
    )
    return title.append(f" ({each.strategy})")


def comparison_notes(rows: Sequence[RoundTiming]) -> str:
    """Return the sentences that explain the table of rounds."""
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
    note = (
        f"Random data of the right shapes. Ratio: bare / ours, each the fastest of rounds timed in "
        f"turn; the bare loop with its best number of threads ({threads})."
    )
    if any(row.committed_seconds is not None for row in rows):
        note += " Kept: with every round committed to a store, as undrift run does."
    if any(row.method != "FedAvg" and row.target is not None for row in rows):
        note += " The targets of other methods follow from FedAvg's ratio."
    return note if peak is None else f"{note} Peak memory {peak:.0f} MB."


def scaling_table(sizes: Sequence[ScalingPoint]) -> Table:
    """Return the table of costs by cohort size and population."""
    numbers = ("cohort", "population", "split s", "start s", "round ms", "step µs", "relative")
    table = _table(numbers, ("grows",), verdict=True)
    for size in sizes:
        table.add_row(
            size.grows,
            f"{size.cohort}",
            f"{size.population}",
            "·" if size.partition_seconds is None else f"{size.partition_seconds:.2f}",
            f"{size.start_seconds:.2f}",
            milliseconds(size.seconds),
            f"{1e6 * size.step_seconds:.1f}",
            f"{size.relative:.2f}",
            _verdict(size.met),
        )
    return table


def strategy_table(timings: Sequence[StrategyTiming]) -> Table:
    """Return the table of a workload's strategies, in the order of the rule."""
    table = _table(("ms", "expected", "ratio"), ("", "strategy"), verdict=True)
    for each in timings:
        table.add_row(
            "▸" if each.chosen else "",
            each.strategy,
            milliseconds(each.seconds),
            milliseconds(each.expected_seconds),
            f"{each.ratio:.2f}",
            _verdict(each.met),
        )
    return table


def profile_table(profile: Profile) -> Table:
    """Return the table of a round's time by part."""
    table = _table(("ms", "share"), ("part",))
    table.add_column("what it does")
    for part, seconds in profile.seconds.items():
        share = seconds / profile.busy_seconds
        table.add_row(part, milliseconds(seconds), f"{share:.1%}", PARTS[part])
    table.add_row()
    several = profile.threads > 1
    fastest = "fastest round, with clocks"
    together = f"{profile.threads} threads together" if several else fastest
    table.add_row("busy", milliseconds(profile.busy_seconds), "100.0%", together)
    if several:
        table.add_row(
            "threads idle", milliseconds(profile.idle_seconds), "", "time the threads wait"
        )
        table.add_row("wall", milliseconds(profile.clocked_seconds), "", fastest)
    table.add_row(
        "no clocks", milliseconds(profile.round_seconds), "", "fastest round, without clocks"
    )
    table.add_row()
    table.add_row(
        "evaluation",
        milliseconds(profile.evaluation_seconds),
        "",
        "one evaluation of the server's model",
    )
    table.add_row()
    reached = f"{profile.gigaflop:.3g} GFLOP, {profile.gigaflop / profile.round_seconds:.3g} GF/s"
    share = profile.kernel_seconds / profile.busy_seconds
    shown = milliseconds(profile.kernel_seconds)
    table.add_row("torch kernels", shown, f"{share:.1%}", "products, convolutions, attention, LSTM")
    table.add_row("of the peak", "", f"{profile.share_of_peak:.1%}", reached)
    table.add_row("", "", "", f"the fastest kernel: {profile.peak_gigaflops:.3g} GF/s")
    return table


def _table(numbers: Iterable[str], words: Iterable[str], verdict: bool = False) -> Table:
    """Return an empty table: text columns, number columns, and whether the target is met."""
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
    """Format a time in milliseconds, with at least three digits."""
    ms = 1e3 * seconds
    return f"{ms:.0f}" if ms >= 100 else f"{ms:.1f}" if ms >= 10 else f"{ms:.2f}"
