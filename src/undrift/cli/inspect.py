"""`undrift inspect`."""

from __future__ import annotations

import warnings
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from undrift.cli import completing
from undrift.cli.app import app, hanging, parsed, require_picture
from undrift.utils.errors import UndriftError

if TYPE_CHECKING:
    from torch import nn

    from undrift.data.federated import FederatedData
    from undrift.experiments.experiment import Experiment


@app.command()
def inspect(
    source: Annotated[
        str,
        typer.Argument(
            help="The name of a data set (`undrift inspect --list`), an experiment file (.toml), "
            "or a folder with one file per client: npz, csv, parquet, or LEAF json.",
            show_default=False,
            autocompletion=completing.sources,
        ),
    ] = "",
    partition: Annotated[
        str | None,
        typer.Option(
            help="Who gets which samples: iid, dirichlet:0.3, dirichlet-per-class:0.1, classes:2 "
            "or natural.",
            show_default=False,
            autocompletion=completing.words(completing.WORDS["partitions"]),
        ),
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option(
            help="How many: balanced, balanced:500, lognormal:0.3 or power-law:0.73.",
            show_default=False,
            autocompletion=completing.words(completing.WORDS["sizes"]),
        ),
    ] = None,
    clients: Annotated[
        int | None, typer.Option(min=1, help="Their number.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Every draw is a function of it.")] = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A parameter of the data set, e.g. alpha=0 of synthetic, or target=outcome of a "
            "folder of csv files; may be repeated.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Compare the clients' gradients at this model's initial weights: logistic, "
            "mlp:200-100, cifar_cnn, …; otherwise the model of the experiment file.",
            show_default=False,
            autocompletion=completing.words(completing.WORDS["models"]),
        ),
    ] = None,
    gamma: Annotated[
        bool,
        typer.Option(
            "--gamma",
            help="Also find Γ = F* − Σ q_k F_k*, by minimising every client's loss: seconds for "
            "synthetic data, many minutes for 60 000 images.",
        ),
    ] = False,
    picture: Annotated[
        Path | None,
        typer.Option(
            help="Draw clients × classes and sizes (.png, .svg, .pdf).", show_default=False
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print all numbers as JSON.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="Name the data sets and stop.")] = False,
) -> None:
    """Show how the clients of a federated data set differ.

    Sizes, labels per client, how many classes make up 40, 60 and 80 % of a client's data (Figure 3
    of FedDyn), and the total-variation distance of its labels to everyone's; with a model, the
    dissimilarity of gradients (B², σ_g²) and Γ; for an experiment file, its devices too.

    Examples: `undrift inspect synthetic --set alpha=0 --set beta=0`; `undrift inspect mnist
    --partition dirichlet:0.3 --clients 100 --picture mnist.png`; `undrift inspect my-folder`.
    """
    from undrift.cli.choosing import chosen_data, chosen_model, sources
    from undrift.experiments.building import build_data
    from undrift.experiments.experiment import Experiment
    from undrift.experiments.fleets import summary

    console = Console(highlight=False)
    if listed or not source:
        console.print(hanging((f"[bold]{name}[/]", about) for name, about in sources()))
        return
    if picture is not None:
        require_picture(picture)
    if source.endswith(".toml"):
        given = {"--partition": partition, "--sizes": sizes, "--clients": clients}
        for option in [name for name, value in given.items() if value is not None]:
            raise UndriftError(f"{option} means nothing for an experiment file: use --set data.….")
        experiment = Experiment.load(source, parsed(settings or []))
        data = build_data(experiment)
        devices = summary(experiment, data)
        objective, module = experiment.objective, None
        if model is None:
            module = _own_model(experiment, data, source, asked=gamma)
    else:
        devices = module = None
        objective = "samples"
        data = chosen_data(source, seed, parsed(settings or []), partition, sizes, clients)
    if model is not None:
        module = chosen_model(model, data)
    described = data.describe(module, gamma, objective)
    if json and devices is not None:
        found = described.as_dict() | {"devices": devices.as_dict()}
        typer.echo(dumps(found, indent=2, allow_nan=False, ensure_ascii=False))
    elif json:
        typer.echo(described.to_json())
    else:
        console.print(described.table())
    if devices is not None and not json:
        console.print("", "[bold]devices[/]", devices, sep="\n")
    if picture is not None:
        described.plot(picture)
        Console(stderr=True, highlight=False).print(f"The picture is in {picture}")


def _own_model(
    experiment: Experiment, data: FederatedData, source: str, asked: bool
) -> nn.Module | None:
    """The model of a file; if it was not asked for, none where it does not fit or is slow."""
    from undrift.advice.gradients import OPERATIONS, operations
    from undrift.experiments.building import build_model
    from undrift.nets.modules import ModuleLosses

    said = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    if experiment.loss is not None:  # the figures of a description are those of default losses
        said.print("B² and σ_g² are left out: they are computed for the default losses only.")
        return None
    try:
        module = build_model(experiment, data, experiment.seeds[0])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The model has buffers")  # nothing is trained
            work = operations(ModuleLosses(module, data)) * len(data.train)
    except UndriftError as error:
        if asked:
            raise
        said.print(f"Without B² and σ_g²: {error}")
        return None
    if work > OPERATIONS and not asked:
        said.print(f"B² and σ_g² are left out, as they take long: try undrift advise {source}")
        return None
    return module
