"""The guide's page of every command.

    python -m tools.pages.commands docs/commands.md

writes it from the declarations of the commands, so that it says what `--help` says.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from typer.models import ParameterInfo

from tools.pages.experiment_keys import cell
from undrift.cli import app
from undrift.utils.files import written_whole

HEAD = """# Commands

Made by `python -m tools.pages.commands docs/commands.md` from the commands themselves;
`undrift COMMAND --help` says the same. The exit status is 0 when all went well, 1 when something
was found not to hold (`verify`, `sweep`), 2 for a mistake in what was asked, with a sentence about
it, and 130 after Ctrl-C.
"""


def page() -> str:
    """The page as text."""
    group: Any = typer.main.get_command(app)
    return "\n".join([HEAD, *_commands(group, "undrift", 2)]).rstrip() + "\n"


def _commands(group: Any, path: str, level: int) -> Iterator[str]:
    """The commands of a group, in the order of its help."""
    before: dict[str, str] = {}
    for name, command in group.commands.items():
        if command.hidden:
            continue
        full = f"{path} {name}"
        yield f"{'#' * level} {full}\n"
        yield f"{inspect.cleandoc(command.help or '')}\n"
        if hasattr(command, "commands"):
            yield from _commands(command, full, level + 1)
            continue
        yield f"```text\n{_usage(command, full)}\n```\n"
        told = _told(command.callback)
        rows = "\n".join(_row(each, told.get(each.name, "")) for each in command.params)
        if rows and rows in before:
            yield f"Arguments and options are those of `{before[rows]}`.\n"
        elif rows:
            yield f"| argument or option | default | meaning |\n|---|---|---|\n{rows}\n"
        before.setdefault(rows, full)


def _usage(command: Any, path: str) -> str:
    """How the command is called, with its arguments."""
    arguments = []
    for each in command.params:
        if each.param_type_name == "argument":
            several = each.nargs == -1 and not each.metavar
            shown = _name(each) + (" …" if several else "")
            arguments.append(shown if each.required else f"[{shown}]")
    return " ".join([path, "[OPTIONS]", *arguments])


def _row(each: Any, meaning: str) -> str:
    given = each.default
    plain = isinstance(given, int | float | str | Path) and not isinstance(given, bool)
    default = f"`{given}`" if plain and str(given) else ""
    return f"| `{_name(each)}` | {'required' if each.required else default} | {cell(meaning)} |"


def _name(each: Any) -> str:
    """An argument in capitals, or an option with what it takes."""
    if each.param_type_name == "argument":
        return str(each.metavar or each.name.upper())
    takes = "" if each.is_flag else f" {each.metavar or each.type.name.split()[0].upper()}"
    return ", ".join(each.opts) + takes


def _told(function: Any) -> dict[str, str]:
    """What each parameter of a command's function is said to mean.

    Read where it is declared: some versions of click drop the help of arguments that typer gives.
    """
    hints = typing.get_type_hints(function, include_extras=True)
    return {
        name: info.help or ""
        for name, hint in hints.items()
        for info in getattr(hint, "__metadata__", ())
        if isinstance(info, ParameterInfo)
    }


if __name__ == "__main__":
    with written_whole(Path(sys.argv[1])) as partial:
        partial.write_text(page(), encoding="utf-8")
