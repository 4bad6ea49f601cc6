"""`undrift demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from undrift.cli.app import Open, app, require_picture, show_page
from undrift.utils.errors import UndriftError


@app.command()
def demo(
    rounds: Annotated[int, typer.Option(min=1, help="Communication rounds.")] = 100,
    cohort: Annotated[
        int | None,
        typer.Option(
            min=1, max=30, help="Clients per round; left out, all 30.", show_default=False
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Every draw is a function of it.")] = 0,
    report: Annotated[Path, typer.Option(help="Where the report goes (.html).")] = Path(
        "undrift-demo.html"
    ),
    picture: Annotated[
        Path | None,
        typer.Option(help="Also draw a picture (.png, .svg, .pdf).", show_default=False),
    ] = None,
    open_: Open = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="Also say where the time went, in the end.")
    ] = False,
) -> None:
    """Train every method on synthetic(1,1) with 30 clients: a live table, then a report.

    All methods see the same cohorts and the same batches, and the same clients run out of time
    before they have done their steps.
    """
    from undrift.bench.stopwatch import Stopwatch, seconds_since_start
    from undrift.cli.demonstration import PARTS, run_demo
    from undrift.report.html_page import require_page

    console = Console()
    if not report.parent.is_dir():
        raise UndriftError(f"There is no folder {report.parent} for the report.")
    require_page(report)
    if picture is not None:
        require_picture(picture)
    watch = Stopwatch()
    results = run_demo(console, rounds, cohort, seed, picture, report, watch)
    for result in results:
        if result.stopped:
            console.print(f"{result.label} stopped: {result.stopped}", highlight=False)
    hint = "" if open_ else ": open it in a browser, or say --open"
    console.print(f"The report is in {report}{hint}", highlight=False)
    if picture is not None:
        console.print(f"The picture is in {picture}", highlight=False)
    if profile:
        seconds, total = watch.lap(), seconds_since_start()
        console.print(_profile({part: seconds[part] for part in PARTS}, total))
    if open_:
        show_page(report)


def _profile(seconds: dict[str, float], total: float) -> Table:
    """Where the time went since the process began."""
    seconds = {**seconds, "start-up": total - sum(seconds.values()), "total": total}
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for head in ("seconds", "share"):
        table.add_column(head, justify="right")
    for part, spent in seconds.items():
        table.add_row(part, f"{spent:.2f}", f"{spent / total:.1%}")
    return table
