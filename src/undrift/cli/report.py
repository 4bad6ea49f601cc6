"""`undrift report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from undrift.cli import completion
from undrift.cli.app import Open, app, open_page


@app.command()
def report(
    folders: Annotated[
        list[Path],
        typer.Argument(help="One or more run folders.", autocompletion=completion.run_folders),
    ],
    out: Annotated[Path, typer.Option(help="HTML file to write.")] = Path("report.html"),
    targets: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            metavar="METRIC=VALUE",
            help="Report what each run needed to reach this value, e.g. test_accuracy=0.9. "
            "Repeatable.",
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            help="Label of the method that savings are computed against.", show_default=False
        ),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(
            help="Also write the figures to this folder, as SVG, PNG and PDF.", show_default=False
        ),
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(
            help="Also write tables and records to this folder, as CSV.", show_default=False
        ),
    ] = None,
    latex: Annotated[
        Path | None,
        typer.Option(
            help="Also write the tables to this folder, as LaTeX (booktabs).", show_default=False
        ),
    ] = None,
    open_: Open = False,
) -> None:
    """Make one HTML page of runs: curves, tables, savings, the partition, diagnostics.

    The page is one self-contained file: it needs no network and no other files.
    """
    from undrift.report import write_csv, write_figures, write_latex, write_report
    from undrift.report.tables import as_target

    wanted = [as_target(target) for target in targets or ()]
    replaced = ", in place of the file that was there" if out.exists() else ""
    path = write_report(folders, out, wanted or None, baseline)
    console = Console(highlight=False, markup=False)
    console.print(f"The report is in {path}{replaced}", soft_wrap=True)
    if figures is not None:
        made = write_figures(folders, figures)
        console.print(f"{len(made)} figures are in {figures}", soft_wrap=True)
    if csv is not None:
        written = write_csv(folders, csv, wanted or None, baseline)
        console.print(f"{len(written)} tables are in {csv}", soft_wrap=True)
    if latex is not None:
        written = write_latex(folders, latex, wanted or None, baseline)
        console.print(f"{len(written)} LaTeX tables are in {latex}", soft_wrap=True)
    if open_:
        open_page(path)
