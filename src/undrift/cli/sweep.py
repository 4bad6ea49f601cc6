"""`undrift sweep`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from undrift.cli import completing
from undrift.cli.app import Open, app, parsed, show_page


@app.command()
def sweep(
    experiment: Annotated[
        Path,
        typer.Argument(
            help="An experiment file with a [sweep] table.", autocompletion=completing.experiments
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="The folder; otherwise the experiment's, with -sweep after it.", show_default=False
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Points that run at the same time.")] = 1,
    metric: Annotated[
        str, typer.Option(help="What points are judged by, on the validation part.")
    ] = "validation_accuracy",
    trials: Annotated[
        int | None,
        typer.Option(min=1, help="How many points of a range to try per method (Optuna)."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the file."),
    ] = None,
    open_: Open = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Tune every method on its own grid or by a search, judged on the validation part.

    In the file: `[sweep]`, then `"local.lr" = [0.1, 0.01]`, `"method.FedDyn.alpha" = [0.1, 1]`, or
    a range `{ low = 1e-3, high = 1, log = true }`. Finished points are never run twice: a sweep
    that was stopped goes on where it was.
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
            settings=parsed(settings or []),
            progress=not quiet,
        )
    except KeyboardInterrupt:
        Console(stderr=True).print("Interrupted; the same command goes on where it was.")
        raise typer.Exit(130) from None
    console.print(found.table())
    for verdict in found.failed():
        said = f"{verdict.point.label}: {verdict.reason}"
        console.print(said, soft_wrap=True, markup=False)
    folders = list(found.folders().values())
    if folders:
        page = write_report(folders, found.folder / "report.html")
        console.print(f"The best of every method are in {page}", soft_wrap=True, markup=False)
        if open_:
            show_page(page)
    for file in found.files:
        console.print(f"Run them with: undrift run {file}", soft_wrap=True, markup=False)
    if found.failed():
        raise typer.Exit(1)
