"""The application that every command joins, and what commands share."""

from __future__ import annotations

import ast
import tomllib
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
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
    warnings.showwarning = _note


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
