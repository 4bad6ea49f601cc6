"""`undrift verify` and `undrift audit`: facts about methods, ours and other libraries'."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from json import dumps
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

from undrift.cli import completion
from undrift.cli.app import app, hanging_table, parse_settings
from undrift.utils.display import progress
from undrift.utils.errors import UndriftError

if TYPE_CHECKING:
    from undrift.audit import Implementation
    from undrift.verify import Subject, Verdict

LEGEND = (
    "A cell is a measured error, with the largest allowed one in the head; · means that the fact "
    "does not apply. What the facts mean: undrift verify --explain"
)


@app.command()
def verify(
    method: Annotated[
        str | None,
        typer.Argument(
            help="Method to verify: the name of one of undrift's, or your own as file.py:Class or "
            "module:Class (a class or an instance); or your own upload transform. Default: all "
            "methods of undrift. Compressors and robust statistics, ours or your own, can be "
            "verified, too.",
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
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Print what each fact means and, for each fact that fails: the algebra behind it, "
            "the numbers, and the likely cause, found by changing the method in one place and "
            "measuring again.",
        ),
    ] = False,
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
    from undrift.verify import FACTS, as_json, explanations, load, named, ours, remarks, tables
    from undrift.verify import verify as check
    from undrift.verify.uploads.transforms import TRANSFORM_FACTS, load_transform

    if method is None and settings:
        raise UndriftError("--set needs a method: undrift verify METHOD --set NAME=VALUE.")
    if method is not None and _verify_part(method, settings or [], json):
        return
    subjects: Sequence[Any] = ours() if method is None else named(method)
    facts = FACTS
    if not subjects:
        given = parse_settings(settings or [])
        transform = load_transform(str(method), given)
        facts = FACTS if transform is None else TRANSFORM_FACTS
        subjects = [load(str(method), given) if transform is None else transform]
    verdicts = _followed(check(subjects, facts), len(subjects) * len(facts), "verifying")
    failed = explanations(verdicts)
    if json:
        typer.echo(as_json(verdicts))
    else:
        console = Console(highlight=False)
        measured = [verdict for verdict in verdicts if verdict.finding is not None]
        held = sum(verdict.holds for verdict in measured)
        if held:
            for table in tables(verdicts, facts):
                console.print(table)
                console.print()
            if explain:
                meanings = {f"[bold]{fact.name}[/]": fact.meaning for fact in facts}
                console.print(hanging_table(meanings.items()))
            else:
                console.print(LEGEND)
            console.print()
        if failed:
            console.print(hanging_table(("[bold red]✗[/]", line) for line in failed))
        noticed = remarks(verdicts)
        if noticed:
            console.print(hanging_table(("[bold yellow]![/]", line) for line in noticed))
        if failed and explain and facts is FACTS:
            _explain(console, verdicts, subjects)
        if held:
            console.print(f"{held} of {len(measured)} facts hold.")
    if failed:
        raise typer.Exit(1)


def _followed(verdicts: Iterable[Verdict], total: int, doing: str) -> list[Verdict]:
    """The verdicts, under a bar that names the fact measured last: a slow machine takes minutes."""
    found = []
    bar = progress(
        TextColumn(f"{doing} {{task.description}}"),
        BarColumn(),
        MofNCompleteColumn(),
        transient=True,
    )
    with bar:
        task = bar.add_task("", total=total)
        for verdict in verdicts:
            found.append(verdict)
            bar.update(task, advance=1, description=f"{verdict.method}: {verdict.fact.name}")
    return found


def _verify_part(name: str, settings: Sequence[str], json: bool) -> bool:
    """Verify a compressor or a robust statistic; False if the name is something else's."""
    from undrift.verify.uploads.parts import part_named, verify_part

    part = part_named(name, parse_settings(list(settings)))
    if part is None:
        return False
    facts = verify_part(part)
    if json:
        rows = [{**fact._asdict(), "holds": fact.holds, "part": repr(part)} for fact in facts]
        typer.echo(dumps(rows, indent=1))
    else:
        console = Console(highlight=False)
        lines = (
            (
                f"[bold]{fact.name}[/]" if fact.holds else f"[bold red]✗ {fact.name}[/]",
                f"{fact.error:.2g} (allowed: {fact.allowed:.3g}). {fact.meaning}",
            )
            for fact in facts
        )
        console.print(hanging_table(lines))
        console.print(f"{sum(fact.holds for fact in facts)} of {len(facts)} facts hold.")
    if not all(fact.holds for fact in facts):
        raise typer.Exit(1)
    return True


def _explain(console: Console, verdicts: Sequence[Verdict], subjects: Sequence[Subject]) -> None:
    """Print what is known about every fact that failed."""
    from undrift.verify.explain import explained

    by_label = {subject.label: subject for subject in subjects}
    for verdict in verdicts:
        if not verdict.holds:
            console.print(f"\n[bold]{verdict.method}, {verdict.fact.name}[/]")
            console.print(hanging_table(explained(verdict, by_label[verdict.method])))


@app.command()
def audit(
    adapter: Annotated[
        str,
        typer.Argument(
            help="Adapter of another library's implementation: file.py:function, or file.py for "
            "all functions of the file that declare a method.",
            show_default=False,
        ),
    ],
    method: Annotated[
        str | None,
        typer.Option("--as", metavar="METHOD", help="Method of undrift that it implements."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Set a parameter of the method, e.g. mu=0.5. Repeatable.",
        ),
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(help="Weights of the clients: 'samples' (n_k/n) or 'clients' (1/N)."),
    ] = None,
    python: Annotated[
        str | None,
        typer.Option(help="Python of the environment in which the library is installed."),
    ] = None,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="For each fact that fails: the algebra, the numbers, and the change of undrift's "
            "method that makes it compute the same, if one is found.",
        ),
    ] = False,
    json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print a JSON list of {method, fact, expected, measured, error, holds}.",
        ),
    ] = False,
) -> None:
    """Check implementations of other libraries on the facts of `undrift verify`.

    An adapter is a function that gets a task (clients with data, a model, a loss, the local work)
    and returns a function that runs one round of a cohort and returns the server's next model. The
    models are compared with undrift's. The exit status is 1 if any fact fails.
    """
    from undrift.audit import FACTS, load
    from undrift.audit import audit as measure
    from undrift.verify import as_json, explanations, tables

    claims = (method, parse_settings(settings or []), objective)
    implementations = load(adapter, python, *claims)
    verdicts = _followed(measure(implementations), len(implementations) * len(FACTS), "auditing")
    failed = explanations(verdicts)
    if json:
        typer.echo(as_json(verdicts))
    else:
        console = Console(highlight=False)
        for table in tables(verdicts, FACTS):
            console.print(table)
            console.print()
        if failed:
            console.print(hanging_table(("[bold red]✗[/]", line) for line in failed))
        if failed and explain:
            _explain_audit(console, verdicts, implementations)
        counted = [verdict for verdict in verdicts if verdict.finding is not None]
        held = sum(verdict.holds for verdict in counted)
        console.print(f"{held} of {len(counted)} facts hold.")
    if failed:
        raise typer.Exit(1)


def _explain_audit(
    console: Console, verdicts: Sequence[Verdict], implementations: Sequence[Implementation]
) -> None:
    """Print what is known about every fact that failed."""
    from undrift.audit.explain import explained

    by_label = {each.label: each for each in implementations}
    for verdict in verdicts:
        if not verdict.holds and verdict.fact.name != "runs":
            console.print(f"\n[bold]{verdict.method}, {verdict.fact.name}[/]")
            console.print(hanging_table(explained(verdict, by_label[verdict.method])))
