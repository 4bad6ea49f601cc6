"""`undrift advise`."""

from __future__ import annotations

from contextlib import nullcontext
from json import dumps
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from undrift.cli.app import app, parsed
from undrift.utils.errors import UndriftError

DEFAULT = "advised.toml"


@app.command()
def advise(
    experiment: Annotated[
        Path,
        typer.Argument(
            help="An experiment file (TOML); it needs neither a method nor a learning rate."
        ),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a key of the file, e.g. sampling.cohort=5; may be repeated.",
        ),
    ] = None,
    stateless: Annotated[
        bool,
        typer.Option("--stateless", help="Clients keep nothing from one round to another."),
    ] = False,
    regularizer: Annotated[
        str | None,
        typer.Option(
            metavar="WORDS",
            help="g of the objective, such as L1:0.001 or L2:0.01; otherwise the g of the file's "
            "methods.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The experiment file to write; otherwise advised.toml beside the file.",
            show_default=False,
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite the file to write, if it is there.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Say which method suits an experiment, with what settings, and what it will cost.

    Nothing is trained. It measures how labels, sizes and gradients differ (B², σ_g², the smoothness
    L), the steps each client will really do under its device, deadline or limit, the weights w_k
    that plain averaging would then use (χ², τ_eff), and who takes part; says what that means;
    compares the methods' traffic, client state and work; and writes an experiment file with the
    one or two it recommends.

    Examples: `undrift advise experiment.toml`; `undrift advise experiment.toml --stateless`;
    `undrift advise experiment.toml --set sampling.cohort=5 --out few.toml`.
    """
    from undrift.advice.advising import advise_on
    from undrift.advice.files import read
    from undrift.experiments.catalogue import REGULARIZERS
    from undrift.experiments.parts import from_words

    target = out or experiment.with_name(DEFAULT)
    if out is not None and out.exists() and not force:
        raise UndriftError(f"{out} exists already: name another file, or use --force.")
    g = None if regularizer is None else from_words(regularizer, "--regularizer", REGULARIZERS)
    said = Console(stderr=True, highlight=False, markup=False)
    shown = said.is_terminal and not json
    with said.status("measuring the federation") if shown else nullcontext():
        asked = read(experiment, parsed(settings or []), g, stateless)
        advice = advise_on(asked.federation, asked)
    left_alone = out is None and target.exists() and not force
    writes = bool(advice.chosen) and not left_alone
    if writes:
        advice.write(target, force)
    if json:
        found = advice.as_dict() | {"file": str(target) if writes else None}
        typer.echo(dumps(found, indent=2, allow_nan=False, ensure_ascii=False))
    else:
        Console(highlight=False, markup=False).print(advice.table())
    if not advice.chosen:
        raise UndriftError(f"There is nothing to write: {advice.nothing()}.")
    if left_alone:
        said.print(
            f"{target} is there already and stays as it is: --force overwrites it, --out names "
            f"another file.",
            soft_wrap=True,
        )
    else:
        said.print(f"Wrote {target}; run it with: undrift run {target}", soft_wrap=True)
