"""`undrift init`, `undrift list` and `undrift show`: what there is, and how to begin."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from undrift.cli import completing
from undrift.cli.app import app
from undrift.utils.errors import UndriftError


@app.command()
def init(
    path: Annotated[Path, typer.Argument(help="The file to write.")] = Path("experiment.toml"),
) -> None:
    """Write a commented experiment file to start from."""
    from undrift.experiments.teaching import starter
    from undrift.utils.files import written_whole

    if path.exists():
        raise UndriftError(f"{path} exists already: name another file.")
    with written_whole(path) as partial:
        partial.write_text(starter())
    Console(highlight=False, markup=False).print(
        f"Wrote {path}; run it with: undrift run {path}", soft_wrap=True
    )


@app.command(name="list")
def list_(
    what: Annotated[
        str | None,
        typer.Argument(
            help="methods, data, models, partitions, samplers, solvers, devices, paces, laws, "
            "amounts, systems, papers, …; left out: all but the papers.",
            show_default=False,
            autocompletion=completing.words(completing.WORDS, ["papers"]),
        ),
    ] = None,
) -> None:
    """Name what an experiment file can use, with a line about each."""
    if what == "papers":
        from undrift.reproduce.findings_terminal import listing as reproductions
        from undrift.reproduce.registry import papers

        Console(highlight=False).print(reproductions(papers()))
        return
    from undrift.experiments.teaching import listing

    Console(highlight=False).print(listing(what))


@app.command()
def show(
    kind: Annotated[
        str,
        typer.Argument(
            help="method, data, model, solver, device, pace, system, …",
            autocompletion=completing.words(completing.KINDS),
        ),
    ],
    name: Annotated[
        str,
        typer.Argument(
            help="Its name, as `undrift list` gives it.", autocompletion=completing.names
        ),
    ],
) -> None:
    """Explain one of them: formula, paper, parameters with defaults, and how to write it."""
    from undrift.experiments.teaching import showing

    Console(highlight=False).print(showing(kind, name))


@app.command()
def schema() -> None:
    """Print the JSON schema of experiment files, for completion in editors."""
    from undrift.experiments.schema import text

    typer.echo(text(), nl=False)
