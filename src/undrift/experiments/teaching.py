"""The texts of `undrift init`, `undrift list` and `undrift show`.

They are made from the docstrings, signatures and declarations of the components themselves.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import tomlkit
from rich.console import Group, RenderableType
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from undrift.core.method import INITIAL, NUMBER, Method
from undrift.devices import Between, Normal
from undrift.experiments.catalogue import DERIVED, GROUPS, NONE, REQUIRED, Parameter, parameters
from undrift.experiments.components import completed, table_of
from undrift.experiments.systems import System
from undrift.local.adaptive import TorchOptimizer
from undrift.local.amounts import NormalAmount, UniformAmount
from undrift.methods.formulas import row_of, steps_of
from undrift.methods.user_methods import load_method
from undrift.utils.errors import require_choice
from undrift.utils.user_code import user_object

STARTER_NAME = "experiment.toml"
"""The name that the comments of starter.toml use for the file itself."""
SINGULAR = {
    "method": "methods",
    "data": "data",
    "model": "models",
    "metric": "metrics",
    "partition": "partitions",
    "sizes": "sizes",
    "sampler": "samplers",
    "solver": "solvers",
    "schedule": "schedules",
    "server": "servers",
    "regularizer": "regularizers",
    "staleness": "staleness",
    "augmentation": "augmentations",
    "amount": "amounts",
    "system": "systems",
    "device": "devices",
    "law": "laws",
    "availability": "availabilities",
    "pace": "paces",
    "compressor": "compressors",
    "statistic": "statistics",
    "attack": "attacks",
    "privacy": "privacy",
}
"""The kinds that `undrift show` accepts, with the group of each."""

WHERE = {
    "methods": "[[method]]",
    "data": "[data] source",
    "models": "[model] name",
    "metrics": "[metrics]",
    "partitions": "[data] partition",
    "sizes": "[data] partition.sizes",
    "samplers": "[sampling] kind",
    "solvers": "[local] solver",
    "schedules": "[local] lr",
    "servers": "[[method]] server",
    "regularizers": "[[method]] g, for FedDR",
    "staleness": "[[method]] staleness, for FedAsync and FedBuff",
    "augmentations": "[data] augment",
    "amounts": "[local] epochs or steps",
    "systems": "system",
    "devices": "[devices] kind",
    "laws": "[devices] speed and other quantities",
    "availabilities": "[devices] availability",
    "paces": "[pace] kind, or [[method]] pace",
    "compressors": "[compression] up and down",
    "statistics": "[robust] statistic",
    "attacks": "[attack] name",
    "privacy": "[privacy], [privacy.adaptive_clip] and [privacy.noisy_metrics]",
}
"""The key of an experiment file that takes the names of a group."""


USER_CODE = {
    "methods": ("file.py:Class", "Your own method, a subclass of undrift.Method."),
    "data": ("file.py:function", "Your own function of a site's name that returns its data."),
    "models": ("file.py:function", "Your own function that returns a torch nn.Module."),
    "metrics": (
        "file.py:function",
        "Your own function of (outputs, targets) that returns a number, or an object with update, "
        "compute and reset.",
    ),
    "partitions": (
        "file.py:function",
        "Your own function of (targets, clients, rng) that returns a list with the row numbers of "
        "each client, or your own class derived from undrift.data.Partition.",
    ),
    "samplers": (
        "file.py:Class",
        "Your own sampler, derived from undrift.Sampler; further keys of [sampling] "
        "are its parameters.",
    ),
    "schedules": (
        "file.py:function",
        "Your own function of the round (counted from 0) that returns the rate, or your own class "
        "derived from undrift.Schedule.",
    ),
    "augmentations": (
        "file.py:Class",
        "Your own augmentation, derived from undrift.data.Augmentation.",
    ),
    "compressors": (
        "file.py:Class",
        "Your own compressor, derived from undrift.compression.Compressor.",
    ),
    "statistics": ("file.py:Class", "Your own statistic, derived from undrift.robust.Statistic."),
    "attacks": ("file.py:Class", "Your own attack, derived from undrift.attacks.Attack."),
}
"""How a file names the user's own member of a group, and what it may be."""

CRITERION = {
    "loss": "Your own loss of (outputs, targets): file.py:function, file.py:Class, or a table "
    'such as {name = "torch.nn:CrossEntropyLoss", label_smoothing = 0.1}.',
    "step": "Your own way from a batch to its loss, in place of a loss: file.py:function of "
    "(model, batch).",
    "[metrics]": 'Further metrics by name: auc = "auc", or your own: margin = "file.py:margin".',
    "weights": "The initial weights: model.safetensors, or the folder of a finished run.",
}
"""The keys of the loss, the step, the metrics and the initial weights, which belong to no group."""


@dataclass(frozen=True)
class Documentation:
    """A docstring in pieces: its first paragraph, the rest, and the meanings of parameters."""

    first: str
    rest: str
    meanings: dict[str, str]


def starter(name: str = STARTER_NAME) -> str:
    """The commented experiment file that `undrift init` writes under this name."""
    text = files("undrift.experiments").joinpath("starter.toml").read_text(encoding="utf-8")
    return text.replace(STARTER_NAME, name)


def listing(group: str | None = None) -> RenderableType:
    """The names of a group with a line each; without a group, those of all groups."""
    if group is None:
        parts: list[RenderableType] = []
        for each in GROUPS:
            parts += [Text(f"{each}: {WHERE[each]}", style="bold"), _names(each), Text("")]
        yours = Text("loss, metrics and initial weights: at the top of the file", style="bold")
        return Group(*parts, yours, _grid(CRITERION.items()))
    group = SINGULAR.get(group, group)
    require_choice("The list", group, GROUPS)
    return _names(group)


def names(group: str) -> list[tuple[str, str]]:
    """Every name of a group with the first paragraph of its docstring."""
    return [(name, documentation_of(build).first) for name, build in GROUPS[group].items()]


def showing(kind: str, name: str) -> RenderableType:
    """One component in full: description, formulas, paper, parameters, traffic and an example.

    A method may be the user's own, "mine.py:Mine".
    """
    require_choice("The kind of part", kind, [*SINGULAR, *GROUPS])
    group = SINGULAR.get(kind, kind)
    name = name.replace("_", "-") if group == "data" else name
    own_method = _own_method(name) if group == "methods" and ":" in name else None
    if own_method is None:
        require_choice(f"The {kind}", name, GROUPS[group])
        build = GROUPS[group][name]
    else:
        build = type(own_method)
    if isinstance(build, System):
        return _system(name, build)
    text = documentation_of(build)
    parts: list[RenderableType] = [Text(name, style="bold"), Text(text.first)]
    if text.rest:
        parts += [Text(""), Text(text.rest)]
    method = own_method
    if method is None and isinstance(build, type) and issubclass(build, Method):
        method = build()
    if method is not None:
        lines = formulas(method)
        parts += [Text(""), *(Text(line) for line in lines)] if lines else []
        parts += [Text(""), Text(f"Paper: {method.paper}")] if method.paper else []
    own = shown_parameters(group, build)
    if own:
        parts += [Text(""), _table(own, meanings(build))]
    if method is not None:
        parts += [Text(""), *(Text(line) for line in traffic(method))]
    parts += [Text(""), Syntax(example(group, name, build), "toml", background_color="default")]
    if group in USER_CODE and own_method is None:
        where, about = USER_CODE[group]
        parts += [Text(f"{where} in its place: {about}")]
    return Group(*parts)


def _own_method(where: str) -> Method:
    """The user's method of "mine.py:Mine", with example values for parameters without a default."""
    found = user_object(where, "a method: write file.py:Class")
    needed = _needed(found) if isinstance(found, type) else {}
    return load_method(where, needed)


def _needed(build: Callable[..., Any]) -> dict[str, Any]:
    """Example values of the parameters that have no default."""
    return {n: EXAMPLES.get(n, 0.1) for n, p in parameters(build).items() if p.required}


def _system(name: str, system: System) -> RenderableType:
    """A system: its description, how to name it, and the tables that it sets."""
    toml = (
        Syntax(text, "toml", background_color="default")
        for text in (example("systems", name), _tables(system.tables))
    )
    stands = Text("It sets these tables, except where the file sets them otherwise:")
    head = [Text(name, style="bold"), Text(system.about), Text("")]
    return Group(*head, next(toml), stands, Text(""), next(toml))


def _tables(tables: Mapping[str, Mapping[str, Any]]) -> str:
    return "\n".join(_lines(f"[{name}]", dict(table)) for name, table in tables.items())


def documentation_of(build: Callable[..., Any]) -> Documentation:
    """The docstring of a component in pieces, or the description of a system."""
    if isinstance(build, System):
        return Documentation(build.about, "", {})
    text = inspect.cleandoc(build.__doc__ or "")
    before, _, after = text.partition("\nParameters\n----------\n")
    first, _, rest = before.strip().partition("\n\n")
    return Documentation(" ".join(first.split()), _reflowed(rest.rstrip()), _meanings(after))


def meanings(build: Callable[..., Any]) -> dict[str, str]:
    """The meaning of each parameter, from the docstring or those it inherits or refers to."""
    found: dict[str, str] = {}
    related = list(build.__mro__[1:]) if isinstance(build, type) else []
    text = build.__doc__ or ""
    for other in re.findall(r"parameters are those of\s+`(\w+)`", text):
        related += [each for group in GROUPS.values() for n, each in group.items() if n == other]
    for each in related:
        found = (
            meanings(each) if not isinstance(build, type) else documentation_of(each).meanings
        ) | found
    own = documentation_of(build).meanings
    return (
        found
        | {name: words for name, words in own.items() if not words.startswith("as for ")}
        | {name: words for name, words in own.items() if name not in found}
    )


def shown_parameters(group: str, build: Callable[..., Any]) -> list[Parameter]:
    """The parameters that a file may set."""
    own = parameters(build)
    hidden = {"models": ("features", "classes", "channels", "side", "characters")}.get(group, ())
    return [each for each in own.values() if each.name not in hidden]


def traffic(method: Method) -> list[str]:
    """Sentences on what a method sends and what its clients keep."""
    first = {INITIAL: "starts at x⁰", NUMBER: "a number"}
    kept = [f"{n} ({first.get(kind, 'starts at 0')})" for n, kind in method.kept().items()]
    lines = [
        f"Sent down: {', '.join(method.sends)}.  Sent up: {', '.join(method.uploads)}.",
        f"A client keeps: {', '.join(kept) or 'nothing'}.",
    ]
    if method.converges_to is not None:
        where = {
            "optimum": "the optimum of F",
            "sharpness-aware gradients": "the point where the mean sharpness-aware gradient is 0",
        }
        point = where.get(method.converges_to, f"the fixed point of {method.converges_to}")
        lines.append(f"Converges to {point}.")
    if method.meant_asynchronous:
        lines.append("Runs asynchronously, unless the file sets another pace.")
    elif method.asynchronous:
        lines.append('Can run asynchronously: pace = {kind = "asynchronous"}.')
    if method.needs_all:
        lines.append("Every client must take part in every round.")
    return lines


def formulas(method: Method) -> list[str]:
    """The local problem and the formulas of a round, for a method of the library."""
    row = row_of(method)
    if row is None:
        return []
    later = () if row.later is None else (("then", row.later),)
    return [
        "A client minimises f_k(x) + ⟨v, x⟩ + (r/2)|x − z|²:",
        *(
            f"  {when} {each.start},  v = {each.linear},  z = {each.center},  r = {each.weight}"
            for when, each in (("start", row), *later)
        ),
        f"  {row.work}; uploads {', '.join(row.uploads)}",
        *(f"  {line}" for line in steps_of(row)),
        *(f"  {letters}: {words}" for letters, words in row.words.items()),
    ]


def example(group: str, name: str, build: Callable[..., Any] | None = None) -> str:
    """A piece of an experiment file that names the component, with its defaults.

    `build` is by default the member of the group with this name.
    """
    build = GROUPS[group][name] if build is None else build
    if group == "systems":
        return f"system = {inline(name)}\n"
    if (group, name) == ("devices", "classes"):
        rows = {"phone": {"share": 0.8, "speed": 10.0}, "laptop": {"share": 0.2, "speed": 50.0}}
        return _tables(
            {"devices": {"kind": name}, **{f"devices.classes.{n}": t for n, t in rows.items()}}
        )
    values = completed(build, _needed(build) | OWN.get(build, {}))
    if group == "methods":
        return _lines("[[method]]", {"name": name, **values})
    if group == "data":
        return _lines("[data]", {"source": name, **values})
    if group == "models":
        own = {"hidden": [200, 100]} if name == "mlp" else {}
        own = {n: v for n, v in (values | own).items() if n not in DERIVED}
        return _lines("[model]", {"name": name, **own})
    if group == "metrics":
        return _lines("[metrics]", {name: {"name": name, **values} if values else name})
    if group == "solvers":
        work = {"epochs": 1} if "epochs" in parameters(build) else {}
        return _lines("[local]", {"solver": name, **values, **work})
    if group == "samplers":
        cohorts = {"uniform": 10, "weighted": 10, "bernoulli": 0.1, "fixed": [0, 1, 2]}
        cohort = {"cohort": cohorts[name]} if name in cohorts else {}
        return _lines("[sampling]", {"kind": name, **cohort})
    if group == "partitions":
        return _lines("[data]", {"partition": {"kind": name, **values}})
    if group == "sizes":
        return _lines("[data]", {"partition": {"kind": "iid", "sizes": {"kind": name, **values}}})
    if group == "schedules":
        return _lines("[local]", {"lr": {"schedule": name, **values}})
    if group == "servers":
        return _lines("[[method]]", {"name": "FedAvg", "server": {"name": name, **values}})
    if group == "regularizers":
        return _lines("[[method]]", {"name": "FedDR", "g": {"name": name, **values}})
    if group == "staleness":
        return _lines("[[method]]", {"name": "FedAsync", "staleness": {"name": name, **values}})
    if group == "amounts":
        return _lines("[local]", {"epochs": {"amount": name, **values}})
    if group == "devices":
        return _lines("[devices]", {"kind": name, **values})
    if group == "laws":
        return _lines("[devices]", {"speed": {"law": name, **values}})
    if group == "availabilities":
        return _lines("[devices]", {"availability": {"kind": name, **values}})
    if group == "paces":
        return _pace(name, values)
    if group == "compressors":
        values |= {"ratio": 0.01} if "ratio" in parameters(build) else {}
        return _lines("[compression]", {"up": {"name": name, **values}})
    if group == "statistics":
        return _lines("[robust]", {"statistic": {"name": name, **values}})
    if group == "attacks":
        return _lines("[attack]", {"name": name, **values})
    if group == "privacy":
        if name == "gaussian":
            return _lines("[privacy]", {"noise": 1.0, "clip": 0.5})
        if name == "adaptive_clip":
            return _tables({"privacy": {"noise": 1.0}, "privacy.adaptive_clip": values})
        own = values | {"noise": 5.0, "every": 10}
        return _tables({"privacy": {"noise": 1.0, "clip": 0.5}, "privacy.noisy_metrics": own})
    return _lines("[data]", {"augment": [f"{name}:{next(iter(values.values()))}"]})


def _pace(name: str, values: dict[str, Any]) -> str:
    """An example of a pace with what it needs: devices, or a method that runs asynchronously."""
    if name == "asynchronous":
        return _lines("[[method]]", {"name": "FedBuff", "pace": {"kind": name, **values}})
    return _tables({"devices": {"speed": 100.0}, "pace": {"kind": name, **values}})


def _lines(head: str, table: dict[str, Any]) -> str:
    return "\n".join([head, *(f"{key} = {inline(value)}" for key, value in table.items()), ""])


def inline(value: Any) -> str:
    """A value as TOML on one line."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {inline(each)}' for key, each in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(inline, value))}]"
    return str(tomlkit.item(value).as_string())


EXAMPLES: dict[str, Any] = {
    "milestones": [50, 80],
    "gamma": 0.998,
    "rounds": 100,
    "f": 1,
    "mu": 0.1,
    "L": 1.0,
    "E": 10,
    "strength": 0.001,
    "low": -1.0,
    "high": 1.0,
    "K": 10,
    "cohorts": [0, 1, 2],
    "slowest": 50.0,
    "fastest": 100.0,
    "median": 50.0,
    "sigma": 0.5,
    "value": 100.0,
    "period": 86400.0,
    "share": 0.3,
    "seconds": 10.0,
    "replies": 10,
    "path": "devices.csv",
}
"""Values of parameters without a default, for the examples."""

OWN: dict[Any, dict[str, Any]] = {
    Between: {"low": 10.0, "high": 100.0},
    Normal: {"mean": 30.0, "std": 20.0, "low": 1.0, "high": 96.0},
    UniformAmount: {"low": 2, "high": 5},
    NormalAmount: {"mean": 30.0, "std": 20.0, "low": 1, "high": 96},
    TorchOptimizer: {"name": "Adagrad"},
}
"""Values for components that `EXAMPLES` does not suit."""


def _names(group: str) -> Table:
    return _grid([*names(group), *([USER_CODE[group]] if group in USER_CODE else [])])


def _grid(rows: Iterable[tuple[str, str]]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column()
    for name, about in rows:
        grid.add_row(Text(name, style="bold"), Text(about))
    return grid


def _table(own: list[Parameter], told: dict[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    columns = ("parameter", "default", "meaning") if told else ("parameter", "default")
    for column in columns:
        table.add_column(column, no_wrap=column == "parameter", overflow="fold")
    for each in own:
        cells = [Text(each.name, style="bold"), Text(default(each)), Text(told.get(each.name, ""))]
        table.add_row(*cells[: len(columns)])
    return table


def default(parameter: Parameter) -> str:
    """The default of a parameter as a file writes it."""
    value = parameter.default
    if value is REQUIRED:
        return "required"
    if value is None:
        return NONE
    table = table_of(value)
    return inline(value if table is None else table)


def _reflowed(text: str) -> str:
    """Paragraphs on one line each, to be wrapped at any width; indented formulas stay."""
    paragraphs = text.split("\n\n")
    return "\n\n".join(
        each if each.startswith(" ") else " ".join(each.split()) for each in paragraphs
    )


def _meanings(text: str) -> dict[str, str]:
    """The meanings of parameters by name, from a numpydoc section."""
    found: dict[str, str] = {}
    current: list[str] = []
    for line in text.splitlines():
        if line and not line.startswith(" "):
            if not re.fullmatch(r"[\w, ]+", line):
                break
            current = [name.strip() for name in line.split(",")]
            found |= dict.fromkeys(current, "")
        else:
            for name in current:
                found[name] = f"{found[name]} {line.strip()}".strip()
    return found
