"""`undrift init`, `list`, `show` and `schema`: learn what an experiment file can contain."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from undrift.cli import completion
from undrift.cli.app import app
from undrift.utils.errors import UndriftError


@app.command()
def init(
    path: Annotated[Path, typer.Argument(help="File to write.")] = Path("experiment.toml"),
) -> None:
    """Write a commented experiment file that runs as it is."""
    from undrift.experiments.teaching import starter
    from undrift.utils.files import written_whole

    if path.exists():
        raise UndriftError(f"{path} exists already: choose another file name.")
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
            help="What to list: methods, data, models, partitions, samplers, solvers, devices, "
            "paces, laws, amounts, systems, papers, … Default: everything except papers.",
            show_default=False,
            autocompletion=completion.choices(completion.NAMES, ["papers"]),
        ),
    ] = None,
) -> None:
    """List the methods, data sets, models, … that an experiment file can use."""
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
            help="Kind of thing: method, data, model, solver, device, pace, system, …",
            autocompletion=completion.choices(completion.KINDS),
        ),
    ],
    name: Annotated[
        str,
        typer.Argument(
            help="Name, as `undrift list` prints it.",
            autocompletion=completion.names_of_kind,
        ),
    ],
) -> None:
    """Explain one method, data set, model, …: formula, paper, parameters, example."""
    from undrift.experiments.teaching import showing

    Console(highlight=False).print(showing(kind, name))


@app.command()
def schema() -> None:
    """Print the JSON schema of experiment files, for editors that complete and check."""
    from undrift.experiments.schema import text

    typer.echo(text(), nl=False)
