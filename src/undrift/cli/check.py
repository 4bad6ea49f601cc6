"""`undrift check`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from undrift.cli import completion
from undrift.cli.app import app, hanging_table
from undrift.utils.errors import UndriftError

if TYPE_CHECKING:
    from undrift.runs.checking import Finding


@app.command()
def check(
    folder: Annotated[
        Path,
        typer.Argument(
            help="Run folder, the folder of one run in it (FOLDER/METHOD/seed-0), or the folder of "
            "a site's states.",
            autocompletion=completion.run_folders,
        ),
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the findings as one JSON object.")
    ] = False,
) -> None:
    """Examine the files of a run folder: what is intact, what is damaged, what can be saved.

    Every value in a run's store has a checksum, and each commit writes a digest of all of them.
    This command reads everything, compares records, status and model with the store, and changes
    nothing. Use it after a disk error or a power loss, or when `undrift resume` refuses a folder.
    The exit status is 0 if everything is intact, and 1 if something is damaged.
    """
    found = _findings(folder)
    intact = all(each.intact for each in found)
    if as_json:
        files = [
            {"path": str(each.path), "intact": each.intact, "text": each.text} for each in found
        ]
        typer.echo(json.dumps({"folder": str(folder), "intact": intact, "files": files}, indent=2))
    else:
        rows = [
            ("[green]intact[/] " if each.intact else "[red]damaged[/]", _line(folder, each))
            for each in found
        ]
        console = Console(highlight=False)
        console.print(hanging_table(rows))
        damaged = sum(not each.intact for each in found)
        console.print(
            f"All {len(found)} files are intact."
            if intact
            else f"{damaged} of {len(found)} files are damaged."
        )
    if not intact:
        raise typer.Exit(1)


def _line(folder: Path, found: Finding) -> str:
    inside = found.path.is_relative_to(folder) and found.path != folder
    return f"{found.path.relative_to(folder) if inside else found.path}: {found.text}"


def _findings(folder: Path) -> list[Finding]:
    from undrift.deploy.state_files import check_state_files, has_state_files
    from undrift.runs.checking import check_runs, is_run, is_run_folder

    if is_run(folder) or is_run_folder(folder):
        return check_runs(folder)
    if has_state_files(folder):
        return check_state_files(folder)
    raise UndriftError(f"{folder} is neither a run folder nor the folder of a site's states.")
