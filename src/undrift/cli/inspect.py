"""`undrift inspect`."""

from __future__ import annotations

import warnings
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from undrift.cli import completion
from undrift.cli.app import app, hanging_table, parse_settings, require_picture
from undrift.utils.display import print_wrapped
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
            help="Name of a data set (see --list), experiment file (.toml), or folder with one "
            "file per client: npz, csv, parquet or LEAF json.",
            show_default=False,
            autocompletion=completion.sources,
        ),
    ] = "",
    partition: Annotated[
        str | None,
        typer.Option(
            help="How samples are divided among clients: iid, dirichlet:0.3, "
            "dirichlet-per-class:0.1, classes:2 or natural.",
            show_default=False,
            autocompletion=completion.choices(completion.NAMES["partitions"]),
        ),
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option(
            help="Number of samples per client: balanced, balanced:500, lognormal:0.3, "
            "power-law:0.73 or dirichlet:0.5. Needs --partition.",
            show_default=False,
            autocompletion=completion.choices(completion.NAMES["sizes"]),
        ),
    ] = None,
    clients: Annotated[
        int | None, typer.Option(min=1, help="Number of clients.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random numbers.")] = 0,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Set a parameter of the data set, e.g. alpha=0 for synthetic or target=outcome "
            "for a folder of csv files; for an experiment file, override a key. Repeatable.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Also compare the clients' gradients at the initial weights of this model: "
            "logistic, mlp:200-100, cifar_cnn, … Default: the experiment file's model, if any.",
            show_default=False,
            autocompletion=completion.choices(completion.NAMES["models"]),
        ),
    ] = None,
    gamma: Annotated[
        bool,
        typer.Option(
            "--gamma",
            help="Also compute Γ = F* − Σ q_k F_k* by minimising every client's loss. This takes "
            "seconds for synthetic data, many minutes for 60,000 images.",
        ),
    ] = False,
    picture: Annotated[
        Path | None,
        typer.Option(
            help="Write a picture of classes and sizes per client (.png, .svg or .pdf).",
            show_default=False,
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print all numbers as JSON.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="List the data sets and exit.")] = False,
) -> None:
    """Show how the clients of a federated data set differ.

    The table has the number of samples and classes per client, how many classes make up 40, 60 and
    80 % of a client's data (Figure 3 of FedDyn), and the total-variation distance between a
    client's labels and those of all clients. With a model, it adds the dissimilarity of gradients
    (B², σ_g²), and Γ if asked; for an experiment file, also its devices.

    Examples:

    - `undrift inspect synthetic --set alpha=0 --set beta=0`

    - `undrift inspect mnist --partition dirichlet:0.3 --clients 100 --picture mnist.png`

    - `undrift inspect my-folder --set target=outcome`
    """
    from undrift.cli.inspect_arguments import list_sources, load_data, make_model
    from undrift.experiments.building import build_data
    from undrift.experiments.experiment import Experiment
    from undrift.experiments.fleet_summary import summary

    console = Console(highlight=False)
    if listed or not source:
        console.print(hanging_table((f"[bold]{name}[/]", about) for name, about in list_sources()))
        return
    if picture is not None:
        require_picture(picture)
    if source.endswith(".toml"):
        given = {"--partition": partition, "--sizes": sizes, "--clients": clients}
        for option in [name for name, value in given.items() if value is not None]:
            raise UndriftError(
                f"{option} is not for experiment files: use --set data.KEY=VALUE instead."
            )
        experiment = Experiment.load(source, parse_settings(settings or []))
        data = build_data(experiment)
        devices = summary(experiment, data)
        objective, module = experiment.objective, None
        if model is None:
            module = _own_model(experiment, data, source, asked=gamma)
    else:
        devices = module = None
        objective = "samples"
        data = load_data(source, seed, parse_settings(settings or []), partition, sizes, clients)
    if model is not None:
        module = make_model(model, data)
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
    """The model of an experiment file; None if it fails or is slow and `--gamma` was not given."""
    from undrift.advice.gradients import OPERATIONS, operations
    from undrift.experiments.building import build_model
    from undrift.nets.module_losses import ModuleLosses

    messages = Console(stderr=True, highlight=False, markup=False)
    if (
        experiment.loss is not None or experiment.step is not None
    ):  # the figures of a description are those of default losses
        print_wrapped(
            messages, "B² and σ_g² are left out: they are computed for the default losses only."
        )
        return None
    try:
        module = build_model(experiment, data, experiment.seeds[0])
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", message="The model has buffers"
            )  # no model is trained here
            work = operations(ModuleLosses(module, data)) * len(data.train)
    except UndriftError as error:
        if asked:
            raise
        print_wrapped(messages, f"B² and σ_g² were not computed: {error}")
        return None
    if work > OPERATIONS and not asked:
        print_wrapped(
            messages,
            f"B² and σ_g² were not computed, because they take long for this model; undrift advise "
            f"{source} estimates them.",
        )
        return None
    return module
