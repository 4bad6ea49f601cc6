"""The command line: `main` runs it, and each module here adds one command or a few.

Internal: names may change; the public ones are in `undrift.__all__` and the API reference.
"""

import sys

from rich.console import Console
from rich.markup import escape

from undrift.cli import (  # noqa: F401  (importing a module registers its commands)
    advise,
    bench,
    check,
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
    """Run the command line; print an `UndriftError` as one sentence and exit with status 2."""
    try:
        app(prog_name="undrift")  # the same name under python -m undrift
    except UndriftError as error:
        Console(stderr=True).print(f"[bold red]error:[/] {escape(str(error))}", highlight=False)
        sys.exit(2)
    except KeyboardInterrupt:
        Console(stderr=True).print("interrupted")
        sys.exit(130)
