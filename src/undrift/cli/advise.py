"""`undrift advise`."""

from __future__ import annotations

from contextlib import nullcontext
from json import dumps
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from undrift.cli.app import app, parse_settings, print_next
from undrift.utils.display import print_wrapped
from undrift.utils.errors import UndriftError

DEFAULT_FILE = "advised.toml"


@app.command()
def advise(
    experiment: Annotated[
        Path,
        typer.Argument(
            help="Experiment file (TOML). It may leave out methods and the learning rate."
        ),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Override a key of the file, e.g. sampling.cohort=5. Repeatable.",
        ),
    ] = None,
    stateless: Annotated[
        bool,
        typer.Option(
            "--stateless", help="Exclude methods whose clients keep state between rounds."
        ),
    ] = False,
    regularizer: Annotated[
        str | None,
        typer.Option(
            metavar="WORDS",
            help="Regularizer g of the objective, e.g. L1:0.001 or L2:0.01. Default: the g that "
            "the file's methods set, if any.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Experiment file to write. Default: advised.toml beside EXPERIMENT.",
            show_default=False,
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite the output file if it exists.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print all results as JSON.")] = False,
) -> None:
    """Recommend methods for an experiment, with settings, reasons and cost.

    Nothing is trained. The command measures:

    - how the clients' labels, sizes and gradients differ (B², σ_g², smoothness L);

    - how many steps each client does under its device, deadline or limit, and the weights w_k
      that plain averaging then gives to the clients (χ², τ_eff);

    - how many clients take part in a round.

    It explains these numbers, compares the methods' traffic, client state and gradient work, and
    writes an experiment file with the one or two methods that it recommends.

    Examples:

    - `undrift advise experiment.toml`

    - `undrift advise experiment.toml --stateless`

    - `undrift advise experiment.toml --set sampling.cohort=5 --out few.toml`
    """
    from undrift.advice.advising import advise_on
    from undrift.advice.files import read
    from undrift.experiments.catalogue import REGULARIZERS
    from undrift.experiments.components import from_words

    target = out or experiment.with_name(DEFAULT_FILE)
    if out is not None and out.exists() and not force:
        raise UndriftError(f"{out} exists already: choose another file with --out, or use --force.")
    g = None if regularizer is None else from_words(regularizer, "--regularizer", REGULARIZERS)
    messages = Console(stderr=True, highlight=False, markup=False)
    shows_status = messages.is_terminal and not json
    with messages.status("measuring the federation") if shows_status else nullcontext():
        asked = read(experiment, parse_settings(settings or []), g, stateless)
        advice = advise_on(asked.federation, asked)
    kept_existing = out is None and target.exists() and not force
    writes = bool(advice.chosen) and not kept_existing
    if writes:
        advice.write(target, force)
    if json:
        found = advice.as_dict() | {"file": str(target) if writes else None}
        typer.echo(dumps(found, indent=2, allow_nan=False, ensure_ascii=False))
    else:
        Console(highlight=False, markup=False).print(advice.table())
    if not advice.chosen:
        raise UndriftError(f"No experiment file was written: {advice.nothing()}.")
    if kept_existing:
        print_wrapped(
            messages,
            f"{target} exists already and was not changed: use --force to overwrite it, or --out "
            "to write another file.",
        )
    else:
        print_next(messages, f"Wrote {target}. Run it with:", f"undrift run {target}")
