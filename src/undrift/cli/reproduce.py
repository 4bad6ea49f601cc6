"""`undrift reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from undrift.cli import completing
from undrift.cli.app import Open, app, show_page
from undrift.utils.errors import UndriftError


@app.command()
def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Which; --list names all, with what they cost.",
            show_default=False,
            autocompletion=completing.words(completing.REPRODUCTIONS),
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="How many seeds; more may be added to a folder later, to all of its parts.",
            show_default=False,
        ),
    ] = None,
    part: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this part, such as a row or a panel; may be repeated. Parts may be added "
            "to a folder later; a wrong one is answered with the list of them.",
            show_default=False,
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="A reduced version, in about a minute, with the same claims."),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="The folder (default: reproductions/NAME).", show_default=False),
    ] = None,
    all_: Annotated[
        bool, typer.Option("--list", help="Name all, with what they show and cost.")
    ] = False,
    open_: Open = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Reproduce a figure or table of a paper, next to the published numbers.

    Prints which of the paper's claims hold here, draws the figure and writes a report. Everything
    is kept in the folder: after Ctrl-C or a kill, the same command goes on.
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
        raise UndriftError("Name what to reproduce; undrift reproduce --list names all.")
    reproduction = find(name)
    folder = out or default_folder(name, quick)
    said = Console(stderr=True, highlight=False, markup=False, quiet=quiet)
    try:
        found = do(name, folder, quick, seeds, part or (), said)
    except Interrupted as interrupted:
        said.print(str(interrupted))
        raise typer.Exit(130) from None
    console.print(f"{name}: {reproduction.shows}" + (" (quick)" if quick else ""), style="bold")
    if quick:
        console.print(f"Quick: {reproduction.quick_is}")
    console.print()
    console.print(summary(reproduction, found))
    console.print(f"\nThe report is {folder / REPORT}.", soft_wrap=True)
    if open_:
        show_page(folder / REPORT)
