"""`undrift reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from undrift.cli import completion
from undrift.cli.app import Open, app, open_page
from undrift.utils.display import print_wrapped
from undrift.utils.errors import UndriftError

if TYPE_CHECKING:
    from undrift.reproduce.reproduction import Reproduction


@app.command()
def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name of the reproduction; --list shows all names.",
            show_default=False,
            autocompletion=completion.choices(completion.REPRODUCTIONS),
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of seeds. Default: the reproduction's own, or 1 with --quick. A later "
            "call with more seeds adds them to the folder.",
            show_default=False,
        ),
    ] = None,
    part: Annotated[
        list[str] | None,
        typer.Option(
            help="Run only this part, such as one row or panel. Repeatable. A later call adds "
            "parts to the folder; a wrong name prints the list of parts.",
            show_default=False,
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="Run a reduced version that checks the same claims in about a minute."
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder to write. Default: reproductions/NAME.", show_default=False),
    ] = None,
    show: Annotated[
        bool,
        typer.Option(
            "--show",
            help="Print the stored result without running anything: that of the folder, or else "
            "the project's own full run.",
        ),
    ] = False,
    all_: Annotated[
        bool, typer.Option("--list", help="List all reproductions with their cost, and exit.")
    ] = False,
    open_: Open = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not show progress.")] = False,
) -> None:
    """Reproduce a figure or table of a paper and compare it with the published numbers.

    The command prints which of the paper's claims hold, draws the figure and writes a report. All
    results are stored in the folder: after Ctrl-C or a kill, the same command continues.
    """
    from undrift.reproduce.findings_page import REPORT
    from undrift.reproduce.findings_terminal import listing, summary
    from undrift.reproduce.lab import Interrupted
    from undrift.reproduce.registry import find, papers
    from undrift.reproduce.reproducing import default_folder
    from undrift.reproduce.reproducing import reproduce as do

    console = Console(highlight=False, markup=False)
    if all_:
        console.print(listing(papers()))
        return
    if name is None:
        raise UndriftError("NAME is missing: undrift reproduce --list shows the names.")
    reproduction = find(name)
    folder = out or default_folder(name, quick)
    if show:
        _show(console, reproduction, folder)
        return
    messages = Console(stderr=True, highlight=False, markup=False, quiet=quiet)
    try:
        found = do(name, folder, quick, seeds, part or (), messages)
    except Interrupted as interrupted:
        messages.print(str(interrupted))
        raise typer.Exit(130) from None
    console.print(f"{name}: {reproduction.shows}" + (" (quick)" if quick else ""), style="bold")
    if quick:
        console.print(f"Quick: {reproduction.quick_is}")
    console.print()
    console.print(summary(reproduction, found))
    console.print(f"\nThe report is {folder / REPORT}.", soft_wrap=True)
    if open_:
        open_page(folder / REPORT)


def _show(console: Console, reproduction: Reproduction, folder: Path) -> None:
    """Print the stored findings of a reproduction."""
    from undrift.reproduce.findings import Findings
    from undrift.reproduce.findings_page import STALE, command, parts_not_run
    from undrift.reproduce.findings_terminal import summary
    from undrift.reproduce.stored_findings import stored_findings
    from undrift.utils.formatting import duration

    saved, path = stored_findings(reproduction.name, folder)
    quick = " (quick)" if saved["quick"] else ""
    console.print(f"{reproduction.name}: {reproduction.shows}{quick}", style="bold")
    print_wrapped(console, f"{saved['made']}, {duration(saved['seconds'])}, stored in {path}")
    console.print(command(reproduction, saved), soft_wrap=True)
    if reproduction.is_stale(saved):
        console.print(STALE)
    left_out = parts_not_run(reproduction, saved)
    if left_out:
        console.print(f"Not run: {'; '.join(left_out)}.")
    console.print()
    console.print(summary(reproduction, Findings.from_dict(saved)))
