"""The command line."""

import sys

from rich.console import Console
from rich.markup import escape

from undrift.cli import (  # noqa: F401  (each adds its command)
    advise,
    bench,
    demo,
    deploy,
    inspect,
    learn,
    report,
    reproduce,
    run,
    sweep,
    verify,
)
from undrift.cli.app import app
from undrift.utils.errors import UndriftError


def main() -> None:
    """Run the command line; an error of the user's is one sentence."""
    try:
        app(prog_name="undrift")  # also as python -m undrift
    except UndriftError as error:
        Console(stderr=True).print(f"[bold red]error:[/] {escape(str(error))}", highlight=False)
        sys.exit(2)
    except KeyboardInterrupt:
        Console(stderr=True).print("interrupted")
        sys.exit(130)
