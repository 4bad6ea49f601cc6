"""The application that every command joins, and what commands share."""

from __future__ import annotations

import ast
import tomllib
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import click
import typer
from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table
from typer.core import TyperCommand, TyperGroup

from undrift import __version__
from undrift.utils.errors import UndriftError

FIRST = {
    "demo": ("", "every method on made-up data, and a report"),
    "init": ("", "write experiment.toml, every line explained"),
    "advise": ("experiment.toml", "which methods suit these clients, and why"),
    "run": ("experiment.toml", "run it; undrift resume goes on with it"),
    "report": ("RUN_FOLDER", "one page of what came of it"),
}
"""What `undrift` alone shows: the commands of a first hour, with what follows them."""
PANELS = {
    "Start": ("demo", "init", "advise", "run", "report"),
    "Experiments": ("compare", "resume", "sweep", "reproduce"),
    "Understand": ("inspect", "list", "show", "schema", "verify"),
    "Speed and deployment": ("bench", "deploy"),
}
"""The commands as `undrift --help` shows them."""
PANEL = {name: panel for panel, names in PANELS.items() for name in names}


class Commands(TyperGroup):
    """Commands in the order of `PANELS`, each under the head of its panel."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        order = list(PANEL)
        return sorted(self.commands, key=lambda name: order.index(name) if name in order else 99)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = super().get_command(ctx, cmd_name)
        if isinstance(command, TyperCommand | TyperGroup) and cmd_name in PANEL:
            command.rich_help_panel = PANEL[cmd_name]
        return command


app = typer.Typer(
    name="undrift",
    cls=Commands,
    help="Federated learning over heterogeneous clients, with the answer the papers promise.",
    invoke_without_command=True,
    rich_markup_mode="markdown",
    add_completion=True,
    pretty_exceptions_enable=False,
    suggest_commands=not hasattr(click, "NoSuchCommand"),  # newer clicks have their own suggestion
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"undrift {__version__}")
        raise typer.Exit()


@app.callback()
def _undrift(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Federated learning over heterogeneous clients, with the answer the papers promise."""
    warnings.showwarning = _note
    if ctx.invoked_subcommand is None:
        Console(highlight=False).print(_welcome())


def _welcome() -> Group:
    """The commands of a first hour, and where to read on."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column()
    for name, (argument, what) in FIRST.items():
        grid.add_row(f"  [bold]undrift {name}[/] {argument}".rstrip(), what)
    return Group(
        f"[bold]undrift {__version__}[/]: federated learning over clients that differ.\n",
        grid,
        "\nAll commands: undrift --help. More about one: undrift run --help.\n"
        "What a file can name: undrift list. Completion: undrift --install-completion.",
    )


Open = Annotated[bool, typer.Option("--open", help="Open the page in a browser.")]


def show_page(page: Path) -> None:
    """Open a page in the user's browser, or say why that cannot be done."""
    import webbrowser

    try:
        shown = webbrowser.open(page.resolve().as_uri())
    except (webbrowser.Error, OSError):
        shown = False
    if not shown:
        said = f"There is no browser to open here: look at {page} on a machine that has one."
        Console(stderr=True, highlight=False, markup=False).print(said, soft_wrap=True)


def _note(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
    """A warning as a sentence, without the place in the code."""
    typer.echo(f"Note: {message}", err=True)


def require_picture(path: Path) -> None:
    """Refuse before the work what could not be written after it."""
    if not path.parent.is_dir():
        raise UndriftError(f"There is no folder {path.parent} for the picture.")
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise UndriftError(f"The picture {path} must end in .png, .svg or .pdf.")


def hanging(lines: Iterable[tuple[str, str]]) -> Table:
    """Sentences that wrap beside the word they belong to."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column()
    for word, sentence in lines:
        grid.add_row(word, escape(sentence))
    return grid


def parsed(settings: list[str]) -> dict[str, object]:
    """NAME=VALUE pairs; a value is as in a file or as in Python, or else a word."""
    found: dict[str, object] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name:
            raise UndriftError(f"--set takes NAME=VALUE, not {setting!r}.")
        found[name] = _value(value)
    return found


def _value(text: str) -> object:
    """A number, a list, a table or a truth value of TOML or Python; or else the word itself."""
    try:
        found = tomllib.loads(f"value = {text}")
        if [*found] == ["value"] and isinstance(found["value"], bool | int | float | list | dict):
            return found["value"]
    except tomllib.TOMLDecodeError:
        pass
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
