"""`undrift verify`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

from undrift.cli import completion
from undrift.cli.app import app, hanging_table, parse_settings
from undrift.utils.display import progress
from undrift.utils.errors import UndriftError


@app.command()
def verify(
    method: Annotated[
        str | None,
        typer.Argument(
            help="Method to verify: the name of one of undrift's, or your own as file.py:Class or "
            "module:Class (a class or an instance). Default: all methods of undrift.",
            show_default=False,
            autocompletion=completion.methods,
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Set a parameter of your own method, e.g. alpha=1. Repeatable.",
        ),
    ] = None,
    json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print a JSON list of {method, fact, expected, measured, error, holds}.",
        ),
    ] = False,
) -> None:
    """Check methods against proven facts: closed forms, equivalences, invariances.

    Each cell of the table is a measured error; the largest allowed error is in the table's head. A
    dot means that the fact does not apply to the method. The exit status is 1 if any fact fails.

    The verification problems are small quadratics with curvature between 0.5 and 1.5: give
    your method parameters that suit them, e.g. --set alpha=1.
    """
    from undrift.verify import FACTS, as_json, explanations, load, named, ours, tables
    from undrift.verify import verify as check

    if method is None and settings:
        raise UndriftError("--set needs a method: undrift verify METHOD --set NAME=VALUE.")
    subjects = ours() if method is None else named(method)
    subjects = subjects or [load(str(method), parse_settings(settings or []))]
    verdicts = []
    bar = progress(
        TextColumn("verifying {task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        transient=True,
    )
    with bar:
        task = bar.add_task("", total=len(subjects) * len(FACTS))
        for verdict in check(subjects):
            verdicts.append(verdict)
            bar.update(task, advance=1, description=f"{verdict.method}: {verdict.fact.name}")
    failed = explanations(verdicts)
    if json:
        typer.echo(as_json(verdicts))
    else:
        console = Console(highlight=False)
        measured = [verdict for verdict in verdicts if verdict.finding is not None]
        held = sum(verdict.holds for verdict in measured)
        if held:
            for table in tables(verdicts):
                console.print(table)
                console.print()
            console.print(hanging_table({f"[bold]{f.name}[/]": f.meaning for f in FACTS}.items()))
            console.print()
        if failed:
            console.print(hanging_table(("[bold red]✗[/]", line) for line in failed))
        if held:
            console.print(f"{held} of {len(measured)} facts hold.")
    if failed:
        raise typer.Exit(1)
