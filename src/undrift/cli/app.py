"""The Typer application, its overview and help panels, and helpers that commands share."""

from __future__ import annotations

import ast
import tomllib
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table
from typer.core import TyperCommand, TyperGroup
from typer.models import ParameterInfo

from undrift import __version__
from undrift.utils.display import print_wrapped
from undrift.utils.errors import UndriftError, nearest

FIRST_COMMANDS = {
    "demo": ("", "compare all methods on synthetic data"),
    "init": ("", "write experiment.toml, with comments"),
    "advise": ("experiment.toml", "recommend methods for these clients"),
    "run": ("experiment.toml", "run it; undrift resume continues it"),
    "report": ("RUN_FOLDER", "make an HTML page of the results"),
}
"""The commands that plain `undrift` shows: (argument, description) by name."""
PANELS = {
    "Start": ("demo", "init", "advise", "run", "report"),
    "Experiments": ("compare", "resume", "check", "sweep", "reproduce"),
    "Understand": ("inspect", "list", "show", "schema", "verify", "audit", "privacy"),
    "Speed and deployment": ("bench", "deploy"),
}
"""The commands by panel, in the order of `undrift --help`."""
PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names}


class CommandGroup(TyperGroup):
    """A command group that answers an unknown command with one sentence.

    Typer 0.26 and newer have their own copy of click, older ones import click. Nothing here imports
    click, so that both serve; types of click are therefore written as `Any`.
    """

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        word = args[0] if args else ""
        if word and word not in self.commands and word[0] != "-" and not ctx.resilient_parsing:
            near = nearest(word, self.list_commands(ctx))
            hint = f"did you mean {near!r}?" if near else f"see {ctx.command_path} --help."
            raise UndriftError(f"{ctx.command_path} has no command {word!r}; {hint}")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        # click 8.5 drops the help of arguments that Typer 0.25 and older declare.
        unhelpful = [each for each in getattr(command, "params", ()) if not each.help]
        if unhelpful:
            helps = help_texts(getattr(command, "callback", None))
            for each in unhelpful:
                each.help = helps.get(each.name)
        if command is not None:
            _untyped_flags(command.get_params(ctx))
        return command

    def get_params(self, ctx: Any) -> Any:
        return _untyped_flags(super().get_params(ctx))


def _untyped_flags(parameters: list[Any]) -> list[Any]:
    """Parameters whose flags have no type in the help: Typer 0.29 shows them as <bool>."""
    for each in parameters:
        if getattr(each, "is_flag", False) and each.metavar is None:
            each.metavar = ""
    return parameters


def help_texts(function: Any) -> dict[str, str]:
    """The help text of each parameter of a command's function, from its annotations."""
    hints = get_type_hints(function, include_extras=True)
    return {
        name: info.help or ""
        for name, hint in hints.items()
        for info in getattr(hint, "__metadata__", ())
        if isinstance(info, ParameterInfo)
    }


class PanelGroup(CommandGroup):
    """The top-level group, which sorts its commands into `PANELS`."""

    def list_commands(self, ctx: Any) -> list[str]:
        order = list(PANEL_OF)
        return sorted(self.commands, key=lambda name: order.index(name) if name in order else 99)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if isinstance(command, TyperCommand | TyperGroup) and cmd_name in PANEL_OF:
            command.rich_help_panel = PANEL_OF[cmd_name]
        return command


app = typer.Typer(
    name="undrift",
    cls=PanelGroup,
    invoke_without_command=True,
    rich_markup_mode="markdown",
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"undrift {__version__}")
        raise typer.Exit()


@app.callback()
def _undrift(
    ctx: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Federated learning on clients whose data, sizes and speeds differ."""
    warnings.showwarning = _print_warning
    if ctx.invoked_subcommand is None:
        Console(highlight=False).print(_welcome())


def _welcome() -> Group:
    """The text of plain `undrift`: the first commands, and where to find more."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column()
    for name, (argument, what) in FIRST_COMMANDS.items():
        grid.add_row(f"  [bold]undrift {name}[/] {argument}".rstrip(), what)
    return Group(
        f"[bold]undrift {__version__}[/]: federated learning on clients that differ\n",
        grid,
        "\nAll commands: undrift --help          Options of one: undrift run --help\n"
        "Methods, data sets, …: undrift list   Completion: undrift --install-completion",
    )


Open = Annotated[bool, typer.Option("--open", help="Open the HTML page in the default browser.")]


def open_page(page: Path) -> None:
    """Open an HTML file in the default browser; if there is none, print where the file is."""
    import webbrowser

    try:
        opened = webbrowser.open(page.resolve().as_uri())
    except (webbrowser.Error, OSError):
        opened = False
    if not opened:
        message = f"No browser was found on this machine; open {page} on another one."
        print_wrapped(Console(stderr=True, highlight=False, markup=False), message)


def _print_warning(
    message: Warning | str, category: type[Warning], *place: Any, **more: Any
) -> None:
    """Print a warning as one sentence, without the file and line that Python adds."""
    typer.echo(f"Note: {message}", err=True)


def print_next(console: Console, sentence: str, command: str) -> None:
    """Print a sentence that ends with a colon, and below it a command, whole, to be copied."""
    print_wrapped(console, sentence)
    console.print(f"  {command}", soft_wrap=True)


def require_picture(path: Path) -> None:
    """Raise if a picture cannot be written to `path`; called before the work starts."""
    if not path.parent.is_dir():
        raise UndriftError(f"There is no folder {path.parent} to write the picture to.")
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise UndriftError(f"The picture {path} must end in .png, .svg or .pdf.")


def hanging_table(lines: Iterable[tuple[str, str]]) -> Table:
    """A table of (word, sentence) whose sentences wrap in the second column."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column()
    for word, sentence in lines:
        grid.add_row(word, escape(sentence))
    return grid


def parse_settings(settings: list[str]) -> dict[str, object]:
    """The values of NAME=VALUE options, each parsed as TOML, else as Python, else kept as text."""
    found: dict[str, object] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name:
            raise UndriftError(f"--set takes NAME=VALUE, not {setting!r}.")
        found[name] = _value(value)
    return found


def _value(text: str) -> object:
    """A value written in TOML or Python; any other text is returned unchanged."""
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
