"""`undrift sweep`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from undrift.cli import completion
from undrift.cli.app import Open, app, open_page, parse_settings, print_next
from undrift.utils.display import print_wrapped


@app.command()
def sweep(
    experiment: Annotated[
        Path,
        typer.Argument(
            help="Experiment file with a [sweep] table. It can name Python files, which are "
            "executed: trust it like code.",
            autocompletion=completion.experiments,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder to write. Default: the file's output.folder plus -sweep.",
            show_default=False,
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Number of points to run in parallel.")] = 1,
    metric: Annotated[
        str,
        typer.Option(help="Metric of the validation part that points are compared by."),
    ] = "validation_accuracy",
    trials: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of points to try per method when the table has ranges (needs Optuna).",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Override a key of the file, e.g. rounds=10. Repeatable.",
        ),
    ] = None,
    open_: Open = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not show progress.")] = False,
) -> None:
    """Tune every method by a grid or a search, compared on the validation part.

    The file's `[sweep]` table lists what to try, e.g. `"local.lr" = [0.1, 0.01]` or
    `"method.FedDyn.alpha" = [0.1, 1]`, or gives a range, `{ low = 1e-3, high = 1, log = true }`.
    Finished points are not run again: after an interruption, the same command continues.
    """
    from undrift.report import write_report
    from undrift.runs.sweeps.sweep import run_sweep

    console = Console(highlight=False, quiet=quiet)
    try:
        found = run_sweep(
            experiment,
            out,
            jobs=jobs,
            metric=metric,
            trials=trials,
            settings=parse_settings(settings or []),
            progress=not quiet,
        )
    except KeyboardInterrupt:
        Console(stderr=True).print("Interrupted; the same command continues the sweep.")
        raise typer.Exit(130) from None
    console.print(found.table())
    plain = Console(highlight=False, markup=False, quiet=quiet)
    for verdict in found.failed():
        message = f"{verdict.point.label}: {verdict.reason}"
        print_wrapped(plain, message)
    for remark in found.at_the_edge():
        print_wrapped(plain, remark)
    folders = list(found.folders().values())
    if folders:
        page = write_report(folders, found.folder / "report.html")
        print_wrapped(plain, f"The report on the best run of every method is in {page}")
        if open_:
            open_page(page)
    for file in found.files:
        print_next(plain, "Run the best settings with:", f"undrift run {file}")
    if found.failed():
        raise typer.Exit(1)
