"""`undrift init`, `list`, `show`, `schema`: what an experiment file can contain; `privacy`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from undrift.cli import completion
from undrift.cli.app import app, print_next
from undrift.utils.display import print_wrapped
from undrift.utils.errors import UndriftError, require


@app.command()
def init(
    path: Annotated[Path, typer.Argument(help="File to write.")] = Path("experiment.toml"),
) -> None:
    """Write a commented experiment file that runs as it is."""
    from undrift.experiments.teaching import starter
    from undrift.utils.files import written_whole

    if path.exists():
        raise UndriftError(f"{path} exists already: choose another file name.")
    with written_whole(path) as partial:
        partial.write_text(starter(path.name))
    console = Console(highlight=False, markup=False)
    print_next(console, f"Wrote {path}. Run it with:", f"undrift run {path}")


@app.command(name="list")
def list_(
    what: Annotated[
        str | None,
        typer.Argument(
            help="What to list: methods, data, models, partitions, samplers, solvers, devices, "
            "paces, laws, amounts, systems, papers, … Default: everything except papers.",
            show_default=False,
            autocompletion=completion.choices(completion.NAMES, ["papers"]),
        ),
    ] = None,
) -> None:
    """List the methods, data sets, models, … that an experiment file can use."""
    if what == "papers":
        from undrift.reproduce.findings_terminal import listing as reproductions
        from undrift.reproduce.registry import papers

        Console(highlight=False).print(reproductions(papers()))
        return
    from undrift.experiments.teaching import listing

    Console(highlight=False).print(listing(what))


@app.command()
def show(
    kind: Annotated[
        str,
        typer.Argument(
            help="Kind of thing: method, data, model, solver, device, pace, system, …",
            autocompletion=completion.choices(completion.KINDS),
        ),
    ],
    name: Annotated[
        str,
        typer.Argument(
            help="Name, as `undrift list` prints it; or your own method, as mine.py:Mine.",
            autocompletion=completion.names_of_kind,
        ),
    ],
) -> None:
    """Explain one method, data set, model, …: formula, paper, parameters, example."""
    from undrift.experiments.teaching import showing

    Console(highlight=False).print(showing(kind, name))


@app.command()
def schema() -> None:
    """Print the JSON schema of experiment files, for editors that complete and check."""
    from undrift.experiments.schema import text

    typer.echo(text(), nl=False)


@app.command()
def privacy(
    clients: Annotated[int, typer.Option(min=1, help="Number of all clients, N.")],
    epsilon: Annotated[
        float | None, typer.Option(help="ε of the guarantee.", show_default=False)
    ] = None,
    noise: Annotated[
        float | None,
        typer.Option(
            help="Noise multiplier: the standard deviation of the noise in the sum of the clients' "
            "uploads, in units of the clipping norm.",
            show_default=False,
        ),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Number of rounds.", show_default=False)
    ] = None,
    probability: Annotated[
        float | None,
        typer.Option(
            help="Probability of each client to take part in a round (Bernoulli sampling).",
            show_default=False,
        ),
    ] = None,
    cohort: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of clients in a round, if it is fixed. Default, without --probability: "
            "all clients.",
            show_default=False,
        ),
    ] = None,
    stateful: Annotated[
        bool,
        typer.Option(
            "--stateful",
            help="Clients keep state (SCAFFOLD, FedDyn, …): cohorts of a fixed size then do not "
            "amplify.",
        ),
    ] = False,
    delta: Annotated[
        float | None,
        typer.Option(help="δ of the guarantee. Default: min(1e-5, 1/(10 N)).", show_default=False),
    ] = None,
    accountant: Annotated[
        str,
        typer.Option(
            help="How ε is computed: pld (tight) or rdp.",
            autocompletion=completion.choices(["pld", "rdp"]),
        ),
    ] = "pld",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the numbers as one JSON object.")
    ] = False,
) -> None:
    """Compute ε, the noise or the number of rounds of a private run from the other two.

    Give two of --epsilon, --noise and --rounds. The guarantee is client-level differential privacy
    of `[privacy]` in an experiment file, or of ud.privacy.Gaussian in Python.
    """
    from undrift import privacy as calibration
    from undrift.privacy.accountant import default_delta
    from undrift.privacy.calibration import law_from
    from undrift.privacy.mechanism import Guarantee

    given = [each is not None for each in (epsilon, noise, rounds)]
    require(
        sum(given) == 2,
        "Give two of --epsilon, --noise and --rounds; the third is computed from them.",
    )
    delta = default_delta(clients) if delta is None else delta
    known: dict[str, Any] = {
        "clients": clients,
        "probability": probability,
        "cohort": cohort,
        "stateful": stateful,
        "delta": delta,
        "accountant": accountant,
    }
    if noise is None:
        assert epsilon is not None
        assert rounds is not None
        noise = calibration.noise(epsilon=epsilon, rounds=rounds, **known)
    if rounds is None:
        assert epsilon is not None
        rounds = calibration.rounds(epsilon=epsilon, noise=noise, **known)
    law = law_from(clients, probability, cohort, stateful)
    guarantee = Guarantee(noise, law, delta, accountant)
    spent = calibration.epsilon(noise=noise, rounds=rounds, **known)
    if as_json:
        found = {
            "epsilon": spent,
            "delta": delta,
            "noise": noise,
            "rounds": rounds,
            "neighbours": law.relation,
            "sampling": law.assumption,
        }
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
        return
    console = Console(highlight=False, markup=False)
    if rounds == 0:
        console.print(f"A single round with noise multiplier {noise:.4g} exceeds ε = {epsilon:g}.")
        return
    print_wrapped(console, guarantee.sentence(rounds))
