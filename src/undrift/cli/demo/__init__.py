"""`undrift demo`: the command. `demo_run` has the body, which imports torch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from undrift.cli.app import Open, app, open_page, require_picture
from undrift.utils.errors import UndriftError


@app.command()
def demo(
    rounds: Annotated[int, typer.Option(min=1, help="Number of rounds.")] = 100,
    cohort: Annotated[
        int | None,
        typer.Option(
            min=1, max=30, help="Number of clients per round. Default: all 30.", show_default=False
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of all random numbers.")] = 0,
    report: Annotated[Path, typer.Option(help="HTML file to write the report to.")] = Path(
        "undrift-demo.html"
    ),
    picture: Annotated[
        Path | None,
        typer.Option(
            help="Also write a picture of the curves (.png, .svg or .pdf).", show_default=False
        ),
    ] = None,
    open_: Open = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="Also print how the command spent its time.")
    ] = False,
) -> None:
    """Compare the papers' methods on synthetic data of 30 clients, and write a report.

    All methods train on the same data, synthetic(1,1), with the same cohorts and batches, each with
    settings that suit it, which the table states. The devices have different speeds, so that the
    slow ones do not finish their steps in a round.
    """
    from undrift.bench.stopwatch import Stopwatch, seconds_since_start
    from undrift.cli.demo.demo_run import PARTS, run_demo
    from undrift.report.html.html_page import require_page

    console = Console()
    if not report.parent.is_dir():
        raise UndriftError(f"There is no folder {report.parent} to write the report to.")
    require_page(report)
    if picture is not None:
        require_picture(picture)
    watch = Stopwatch()
    results = run_demo(console, rounds, cohort, seed, picture, report, watch)
    for result in results:
        if result.stopped:
            console.print(f"{result.label} stopped: {result.stopped}", highlight=False)
    hint = "" if open_ else "; open it in a browser, or use --open"
    console.print(f"The report is in {report}{hint}", highlight=False)
    if picture is not None:
        console.print(f"The picture is in {picture}", highlight=False)
    if profile:
        seconds, total = watch.lap(), seconds_since_start()
        console.print(_profile({part: seconds[part] for part in PARTS}, total))
    if open_:
        open_page(report)


def _profile(seconds: dict[str, float], total: float) -> Table:
    """A table of the seconds spent in each part since the process started."""
    seconds = {**seconds, "start-up": total - sum(seconds.values()), "total": total}
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for head in ("seconds", "share"):
        table.add_column(head, justify="right")
    for part, spent in seconds.items():
        table.add_row(part, f"{spent:.2f}", f"{spent / total:.1%}")
    return table
