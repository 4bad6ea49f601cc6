"""The command line."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from undrift import __version__
from undrift.errors import UndriftError

app = typer.Typer(
    name="undrift",
    help="Federated learning over heterogeneous clients, with the answer the papers promise.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"undrift {__version__}")
        raise typer.Exit()


@app.callback()
def _undrift(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Federated learning over heterogeneous clients, with the answer the papers promise."""


@app.command()
def verify(
    method: Annotated[
        str | None,
        typer.Argument(
            help="Your own method, as file.py:Class or module:Class (a class or an instance), or "
            "the name of one of ours. Left out: every method of undrift.",
            show_default=False,
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="A parameter of your class; may be repeated."
        ),
    ] = None,
    json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print a list of {method, fact, expected, measured, error, holds}."
        ),
    ] = False,
) -> None:
    """Check methods against facts: closed forms, equivalences and invariances.

    Each cell of the table is the measured error; the allowed one stands under the name of the fact.
    A dot means that the fact says nothing about the method. The exit status is 1 if any fact fails.

    The verification problems are small quadratics with curvature between 0.5 and 1.5: give
    your method parameters that suit them, e.g. --set alpha=1.
    """
    from undrift.verify import FACTS, as_json, explanations, load, named, ours, tables
    from undrift.verify import verify as check

    if method is None and settings:
        raise UndriftError("--set gives parameters to your own method: name it first.")
    subjects = ours() if method is None else named(method)
    subjects = subjects or [load(str(method), _parsed(settings or []))]
    outcomes = []
    hints = Console(stderr=True)
    bar = Progress(
        TextColumn("verifying {task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        console=hints,
        transient=True,
        disable=not hints.is_terminal,
    )
    with bar:
        task = bar.add_task("", total=len(subjects) * len(FACTS))
        for outcome in check(subjects):
            outcomes.append(outcome)
            bar.update(task, advance=1, description=f"{outcome.method}: {outcome.fact.name}")
    failed = explanations(outcomes)
    if json:
        typer.echo(as_json(outcomes))
    else:
        console = Console(highlight=False)
        measured = [outcome for outcome in outcomes if outcome.finding is not None]
        held = sum(outcome.holds for outcome in measured)
        if held:
            for table in tables(outcomes):
                console.print(table)
                console.print()
            console.print(_hanging({f"[bold]{f.name}[/]": f.meaning for f in FACTS}.items()))
            console.print()
        if failed:
            console.print(_hanging(("[bold red]✗[/]", line) for line in failed))
        if held:
            console.print(f"{held} of {len(measured)} facts hold.")
    if failed:
        raise typer.Exit(1)


@app.command()
def demo(
    rounds: Annotated[int, typer.Option(min=1, help="Communication rounds.")] = 30,
    cohort: Annotated[
        int | None,
        typer.Option(
            min=1, max=30, help="Clients per round; left out, all 30.", show_default=False
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Every draw is a function of it.")] = 0,
    picture: Annotated[
        Path, typer.Option(help="Where the picture goes (.png, .svg, .pdf).")
    ] = Path("undrift-demo.png"),
) -> None:
    """Train every method on synthetic(1,1) with 30 clients: a live table, then a picture.

    All methods see the same cohorts and the same batches, and the same clients run out of time
    before they have done their steps.
    """
    from undrift.demo import run_demo

    console = Console()
    _require_picture(picture)
    results = run_demo(console, rounds, cohort, seed, picture)
    for result in results:
        if result.stopped:
            console.print(f"{result.label} stopped: {result.stopped}", highlight=False)
    console.print(f"The picture is in {picture}", highlight=False)


@app.command()
def inspect(
    source: Annotated[
        str,
        typer.Argument(
            help="The name of a data set (`undrift inspect --list`), or a folder with one file "
            "per client: npz, csv, parquet, or LEAF json.",
            show_default=False,
        ),
    ] = "",
    partition: Annotated[
        str | None,
        typer.Option(
            help="Who gets which samples: iid, dirichlet:0.3, dirichlet-per-class:0.1, classes:2 "
            "or natural.",
            show_default=False,
        ),
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option(
            help="How many: balanced, balanced:500, lognormal:0.3 or power-law:0.73.",
            show_default=False,
        ),
    ] = None,
    clients: Annotated[
        int | None, typer.Option(min=1, help="Their number.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Every draw is a function of it.")] = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A parameter of the data set, e.g. alpha=0 of synthetic, or target=outcome of a "
            "folder of csv files; may be repeated.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Compare the clients' gradients at this model's initial weights: logistic, "
            "mlp:200-100, cifar_cnn, …",
            show_default=False,
        ),
    ] = None,
    gamma: Annotated[
        bool,
        typer.Option(
            "--gamma",
            help="Also find Γ = F* − Σ q_k F_k*, by minimising every client's loss: seconds for "
            "synthetic data, many minutes for 60 000 images.",
        ),
    ] = False,
    picture: Annotated[
        Path | None,
        typer.Option(
            help="Draw clients × classes and sizes (.png, .svg, .pdf).", show_default=False
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print all numbers as JSON.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="Name the data sets and stop.")] = False,
) -> None:
    """Show how the clients of a federated data set differ.

    Sizes, labels per client, how many classes make up 40, 60 and 80 % of a client's data (Figure 3
    of FedDyn), and the total-variation distance of its labels to everyone's; with a model, the
    dissimilarity of gradients (B², σ_g²) and Γ.

    Examples: `undrift inspect synthetic --set alpha=0 --set beta=0`; `undrift inspect mnist
    --partition dirichlet:0.3 --clients 100 --picture mnist.png`; `undrift inspect my-folder`.
    """
    from undrift.data.inspection import chosen_data, chosen_model, sources

    console = Console(highlight=False)
    if listed or not source:
        console.print(_hanging((f"[bold]{name}[/]", about) for name, about in sources()))
        return
    if picture is not None:
        _require_picture(picture)
    data = chosen_data(source, seed, _parsed(settings or []), partition, sizes, clients)
    described = data.describe(None if model is None else chosen_model(model, data), gamma)
    if json:
        typer.echo(described.to_json())
    else:
        console.print(described.table())
    if picture is not None:
        described.plot(picture)
        Console(stderr=True, highlight=False).print(f"The picture is in {picture}")


def _require_picture(path: Path) -> None:
    """Refuse before the work what could not be written after it."""
    if not path.parent.is_dir():
        raise UndriftError(f"There is no folder {path.parent} for the picture.")
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise UndriftError(f"The picture {path} must end in .png, .svg or .pdf.")


def _hanging(lines: Iterable[tuple[str, str]]) -> Table:
    """Sentences that wrap beside the word they belong to."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column()
    for word, sentence in lines:
        grid.add_row(word, escape(sentence))
    return grid


def _parsed(settings: list[str]) -> dict[str, object]:
    """NAME=VALUE pairs; a value is a number, True, False, None, or else a word."""
    found: dict[str, object] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name.isidentifier():
            raise UndriftError(f"--set takes NAME=VALUE, not {setting!r}.")
        try:
            found[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            found[name] = value
    return found


def main() -> None:
    """Run the command line; an error of the user's is one sentence."""
    try:
        app()
    except UndriftError as error:
        Console(stderr=True).print(f"[bold red]error:[/] {escape(str(error))}", highlight=False)
        sys.exit(2)
    except KeyboardInterrupt:
        Console(stderr=True).print("interrupted")
        sys.exit(130)
