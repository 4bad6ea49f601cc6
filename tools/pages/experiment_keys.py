"""The guide's page of every table and key of an experiment file.

    python -m tools.pages.experiment_keys docs/experiment-keys.md

writes it from the declarations by which files are read, so that it says what is really allowed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from undrift.core.targets import PARTS
from undrift.data import FederatedData
from undrift.experiments.catalogue import DERIVED, GROUPS
from undrift.experiments.experiment import METRICS, Experiment
from undrift.experiments.schema import Schema, json_schema
from undrift.experiments.teaching import (
    USER_CODE,
    default,
    example,
    inline,
    lesson,
    meanings,
    shown_parameters,
)
from undrift.utils.files import written_whole

HEAD = """# Every key of an experiment file

Made by `python -m tools.pages.experiment_keys docs/experiment-keys.md` from the declarations by
which files are read. [Experiment files](experiments.md) explains how they are used; `undrift show`
tells the same as this page, one part at a time, with an example. Editors that know TOML
schemas complete and check all of it: the schema is
[experiment.schema.json](experiment.schema.json), and `undrift schema` prints it.

A key without a default is left out unless you give it. The word `"none"` stands for Python's None
where a parameter may be that.
"""

TABLES: tuple[tuple[str, str, str], ...] = (
    ("data", "DataTable", "data"),
    ("model", "ModelTable", "models"),
    ("metrics", "", ""),
    ("local", "LocalTable", "solvers"),
    ("sampling", "SamplingTable", "samplers"),
    ("devices", "DevicesTable", "devices"),
    ("pace", "", "paces"),
    ("limit", "LimitTable", ""),
    ("method", "MethodTable", "methods"),
    ("evaluation", "EvaluationTable", ""),
    ("target", "", ""),
    ("engine", "EngineTable", ""),
    ("deploy", "DeployTable", ""),
    ("output", "OutputTable", ""),
    ("sweep", "", ""),
)
"""The tables of a file, each with its definition in the schema and the parts that it can name."""

IN_PLACE: tuple[tuple[str, str, str], ...] = (
    ("partitions", "Partitions", "In `[data]`, as `partition`."),
    ("sizes", "Sizes", "In a partition, as `sizes`."),
    ("augmentations", "Augmentations", "In `[data]`, as `augment`."),
    ("amounts", "Drawn amounts of work", "In `[local]`, as `epochs` or `steps`."),
    ("schedules", "Schedules of the learning rate", "In `[local]`, as `lr`."),
    ("servers", "Server optimisers", "In `[[method]]`, as `server`."),
    ("regularizers", "Regularisers", "In `[[method]]`, as `g` of FedDR and AsyncFedDR."),
    ("staleness", "Staleness", "In `[[method]]`, as `staleness` of FedAsync and FedBuff."),
    ("laws", "Laws of devices", "In `[devices]`, as `speed` and every other quantity."),
    ("availabilities", "Availability", "In `[devices]`, as `availability`."),
    ("systems", "Systems", "At the top of the file, as `system`."),
)
"""The parts that stand in the place of a value."""

OWN: dict[str, dict[str, Callable[..., Any]]] = {
    "data": {
        "A folder of client files": FederatedData.from_folder,
        "A function, file.py:function": FederatedData.from_function,
    }
}
"""What the user brings, besides the parts that have names."""

KEYED = ("data", "models", "solvers", "methods")
"""The parts whose keys stand in the table itself, so that no example is needed."""

OTHERS = [metric for metric in METRICS if metric.partition("_")[0] not in PARTS]
MEASURES = [metric.removeprefix("test_") for metric in METRICS if metric.startswith("test_")]


def _listed(words: Iterable[str]) -> str:
    *first, last = (f"`{word}`" for word in words)
    return f"{', '.join(first)} or {last}"


MORE = {
    "data": "The keys of a source stand beside these.",
    "model": "The keys of a model stand beside these. The sizes of inputs and outputs follow from "
    "the data.",
    "metrics": "A metric is measured on the samples of each part at once: `auc` is `train_auc`, "
    "`validation_auc` and `test_auc` in records.",
    "local": "The keys of a solver stand beside `solver`.",
    "pace": "A table, or `pace = {…}` in a `[[method]]`.",
    "method": "One table for each method, with the parameters of the method beside these keys. "
    "Give the same method twice with two labels.",
    "target": f"A metric is {_listed(OTHERS)}, or {_listed(f'{part}_' for part in PARTS)} followed "
    f"by {_listed(MEASURES)}; that of another model than the server's begins with its name, as in "
    "`all/test_loss`. Losses and errors must fall to the value and accuracies rise to it; "
    '`["below", 0.1]` says it. A metric of your own, such as `test_auc`, needs that direction.',
    "sweep": 'A key is the dotted path of another, `"local.lr"` or `"method.FedDyn.alpha"`, and '
    "has a list of values, or an interval `{low = 1e-3, high = 1, log = true}`. See "
    "[Tuning](tuning.md).",
}
"""What is not in the declarations."""

Row = tuple[str, str, str]


def page() -> str:
    """The page as text."""
    schema = json_schema()
    return "\n".join([HEAD, *_top(schema), *_tables(schema), *_in_place()]).rstrip() + "\n"


def _top(schema: Schema) -> Iterator[str]:
    named = {name for name, _, _ in TABLES}
    own = {name: each for name, each in schema["properties"].items() if name not in named}
    yield "## At the top of the file\n"
    yield from _rows(_key(name, each) for name, each in own.items())


def _tables(schema: Schema) -> Iterator[str]:
    for name, definition, group in TABLES:
        head = f"[[{name}]]" if name == "method" else f"[{name}]"
        yield f"## {head}\n"
        yield f"{Experiment.model_fields[name].description} {MORE.get(name, '')}".strip() + "\n"
        if definition:
            own = schema["definitions"][definition]["properties"]
            yield from _rows(_key(key, each) for key, each in own.items())
        if group:
            yield from _parts(group)


def _in_place() -> Iterator[str]:
    for group, title, where in IN_PLACE:
        yield f"## {title}\n"
        yield f"{where}\n"
        yield from _parts(group)


def _parts(group: str) -> Iterator[str]:
    """Every part of a group: what it is, its parameters, and how to write it."""
    before: dict[str, list[Row]] = {}
    for name, build in {**GROUPS[group], **OWN.get(group, {})}.items():
        yield f"### {name}\n"
        yield f"{cell(lesson(build).first)}\n"
        if group == "systems":
            yield f"`undrift show system {name}` prints the tables that it stands for.\n"
            continue
        # A sampler's one parameter is called cohort in a file.
        rows = [] if group == "samplers" else list(_parameters(group, build))
        like = _contained(rows, before)
        if like:
            further = [row for row in rows if row not in before[like]]
            yield f"Its keys are those of {like}{', and:' if further else '.'}\n"
            yield from _rows(further)
        else:
            yield from _rows(rows)
        before[name] = rows
        if group not in KEYED:
            yield f"```toml\n{example(group, name).rstrip()}\n```\n"
    if group in USER_CODE and group not in OWN:
        where, about = USER_CODE[group]
        yield f"### {where}\n"
        yield f"{cell(about)}\n"


def _contained(rows: list[Row], before: dict[str, list[Row]]) -> str | None:
    """The earlier part with the most keys that has no others than these."""
    fits = [name for name, own in before.items() if len(own) > 1 and all(r in rows for r in own)]
    return max(fits, key=lambda name: len(before[name]), default=None)


def _parameters(group: str, build: Callable[..., Any]) -> Iterator[Row]:
    told = meanings(build)
    hidden = {"models": DERIVED, "data": ("seed", "function")}.get(group, ())
    hidden = (*hidden, "folder") if build is FederatedData.from_folder else hidden
    for each in shown_parameters(group, build):
        if each.name not in hidden:
            yield each.name, default(each), told.get(each.name, "")


def _key(name: str, each: Schema) -> Row:
    """A key of a table: its default and its meaning, with the words that are allowed."""
    value = inline(each["default"]) if "default" in each and not _is_table(each) else ""
    meaning = each.get("description", "")
    words = each.get("enum") or each.get("items", {}).get("enum")
    if words and not all(str(word) in meaning for word in words):
        meaning += f" One of {', '.join(str(word) for word in words)}."
    return name, value, meaning


def _is_table(each: Schema) -> bool:
    return isinstance(each.get("default"), dict)


def _rows(rows: Iterable[Row]) -> Iterator[str]:
    found = list(rows)
    if not found:
        return
    # Where a formula says it all, nothing is said of the single keys.
    told = any(meaning for _, _, meaning in found)
    yield "| key | default | meaning |" if told else "| key | default |"
    yield "|---|---|---|" if told else "|---|---|"
    for name, value, meaning in found:
        shown = "" if not value else value if value == "required" else f"`{cell(value)}`"
        yield f"| `{name}` | {shown} |" + (f" {cell(meaning)} |" if told else "")
    yield ""


def cell(text: str) -> str:
    """Text that ends no cell of a table and is no HTML."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    with written_whole(Path(sys.argv[1])) as partial:
        partial.write_text(page(), encoding="utf-8")
