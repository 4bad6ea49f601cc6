"""The JSON schema of experiment files, with which editors complete and check them.

Pydantic gives the schema of the tables; parameters of components come from their signatures.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from undrift.data.partitions import PARTITIONS
from undrift.data.sizes import SIZES
from undrift.data.sources import SOURCES
from undrift.devices import KINDS, Devices
from undrift.engines import ENGINES
from undrift.experiments.catalogue import (
    AUGMENTATIONS,
    DERIVED,
    FAMILIES,
    NONE,
    SAMPLERS,
    SOLVERS,
    Family,
    Parameter,
    parameters,
    type_in_words,
    type_members,
)
from undrift.experiments.experiment import METRICS, Experiment
from undrift.experiments.systems import SYSTEMS
from undrift.experiments.teaching import documentation_of, meanings
from undrift.methods import METHODS
from undrift.nets.metrics import METRICS as LIBRARY_METRICS
from undrift.nets.models import MODELS

Schema = dict[str, Any]

USER_CODE = {"$ref": "#/definitions/user-code"}
TYPES = {
    "true or false": {"type": "boolean"},
    "a whole number": {"type": "integer"},
    "a number": {"type": "number"},
    "a word": {"type": "string"},
    "a path": {"type": "string"},
    "a table": {"type": "object"},
}


def json_schema() -> Schema:
    """The JSON schema of an experiment file."""
    schema = Experiment.model_json_schema()
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        **_moved(schema),
        "title": "An experiment of undrift",
    }
    tables = schema["definitions"]
    tables["user-code"] = {
        "type": "string",
        "description": "Your own code: file.py:name, or module:name.",
        "pattern": r":[A-Za-z_]\w*$",
    }
    for family in FAMILIES:
        tables[family.what.replace(" ", "-")] = {"anyOf": _family(family)}
    schema["properties"]["target"]["properties"] = {m: _target(m) for m in METRICS}
    names = {"type": "array", "items": {"type": "string"}}
    forms = {
        "loss": _user_code("name"),
        "step": _user_code("name"),
        "weights": [{"type": "string"}],
        "personal": [names, {"type": "string"}, {"type": "object"}],
    }
    for key, kinds in forms.items():
        described = schema["properties"][key]["description"]
        schema["properties"][key] = {"description": described, "anyOf": kinds}
    schema["properties"]["metrics"] = {
        "description": schema["properties"]["metrics"]["description"],
        "type": "object",
        "additionalProperties": {"anyOf": [{"enum": [*LIBRARY_METRICS]}, *_user_code("name")]},
    }
    tables["DataTable"]["properties"]["augment"]["items"] = {"$ref": "#/definitions/augmentation"}
    schema["properties"]["sweep"]["additionalProperties"] = {"type": ["array", "object"]}
    _by_name(tables["DataTable"], "source", SOURCES, other="a folder of client files")
    _by_name(tables["ModelTable"], "name", MODELS, other="file.py:function")
    _by_name(tables["LocalTable"], "solver", SOLVERS, other=None)
    _by_name(tables["MethodTable"], "name", METHODS, other="file.py:Class")
    _by_name(tables["DevicesTable"], "kind", KINDS, other=None)
    for table in ("LocalTable", "MethodTable", "DataTable", "ModelTable", "DevicesTable"):
        tables[table]["type"] = "object"
    tables["MethodTable"]["properties"]["local"] = {
        "type": "object",
        "description": "Changes to [local] for this method.",
        "properties": _all_parameters(SOLVERS) | {"solver": {"enum": [*SOLVERS]}},
        "additionalProperties": False,
    }
    _describe_time(schema["properties"], tables)
    _describe_uploads(schema["properties"], tables)
    for name in ("test", "validation"):
        held = tables["DataTable"]["properties"][name]
        share = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}
        held["anyOf"] = [{"$ref": "#/definitions/HoldOut"}, share]
        held.pop("default", None)
    words = [{"const": name, "description": what} for name, what in ENGINES.items()]
    engine = schema["properties"]["engine"]
    schema["properties"]["engine"] = {
        "anyOf": [{"$ref": engine.pop("$ref")}, {"oneOf": words}],
        **engine,
    }
    _describe_sampling(tables["SamplingTable"])
    for table in tables.values():
        for each in table.get("properties", {}).values():
            if each.get("default", 0) is None:
                each.pop("default")
    return schema


def _user_code(word: str) -> list[Schema]:
    """The user's own code: its name alone, or a table with its name and parameters."""
    table = {"type": "object", "properties": {word: USER_CODE}, "required": [word]}
    return [dict(USER_CODE), table]


def _describe_sampling(table: Schema) -> None:
    """Complete the schema of [sampling], in which only a user's own sampler has other keys."""
    own = table["properties"]
    own["kind"]["anyOf"] = [{"enum": [*SAMPLERS]}, dict(USER_CODE)]
    ours = {"properties": {"kind": {"enum": [*SAMPLERS]}}}
    closed = {"properties": dict.fromkeys(own, True), "additionalProperties": False}
    table["allOf"] = [{"if": ours, "then": closed}]


def _describe_time(own: Schema, tables: Schema) -> None:
    """Complete the schema of `system`, [devices], [pace] and [limit]."""
    words = [{"const": name, "description": each.about} for name, each in SYSTEMS.items()]
    own["system"] = {"description": own["system"]["description"], "oneOf": words}
    for place in (own, tables["MethodTable"]["properties"]):
        pace = place["pace"]
        place["pace"] = {
            "description": pace["description"],
            "anyOf": [{"$ref": "#/definitions/pace"}, {"const": NONE}],
        }
    for key in ("devices", "limit"):
        own[key]["anyOf"] = [each for each in own[key]["anyOf"] if "$ref" in each]
        own[key]["anyOf"].append({"const": NONE})
        own[key].pop("default", None)
    share = {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
    one = {
        "type": "object",
        "description": "A class of devices.",
        "properties": {
            "share": {**share, "description": "Its share of the clients."},
            **_parameters(Devices),
        },
        "required": ["share"],
        "additionalProperties": False,
    }
    for rule in tables["DevicesTable"]["allOf"]:
        if "classes" in rule["then"]["properties"]:
            rule["then"]["properties"]["classes"] = {
                "type": "object",
                "description": "The classes by name, each with its share and its devices.",
                "minProperties": 1,
                "additionalProperties": one,
            }


def _describe_uploads(own: Schema, tables: Schema) -> None:
    """Complete the schema of [attack], [compression] and [robust], which name components."""
    places = (
        (own, "attack", "attack"),
        (tables["CompressionTable"]["properties"], "up", "compressor"),
        (tables["CompressionTable"]["properties"], "down", "compressor"),
        (tables["RobustTable"]["properties"], "statistic", "robust-statistic"),
    )
    for place, key, definition in places:
        place[key] = {
            "description": place[key]["description"],
            "anyOf": [{"$ref": f"#/definitions/{definition}"}, {"const": NONE}],
        }


def text() -> str:
    """The schema as the text of its file."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


def _moved(value: Any) -> Any:
    """The schema in draft 7, which editors support best: `definitions` instead of `$defs`."""
    if isinstance(value, dict):
        named = isinstance(value.get("title"), str)  # "title" may also be the name of a key
        kept = {k: v for k, v in value.items() if k != "title" or not named}
        found = {("definitions" if k == "$defs" else k): _moved(v) for k, v in kept.items()}
        if "$ref" in found:
            found["$ref"] = found["$ref"].replace("$defs", "definitions")
        return found
    return [_moved(each) for each in value] if isinstance(value, list) else value


def _by_name(
    table: Schema,
    key: str,
    known: Mapping[str, Callable[..., Any]],
    other: str | None,
) -> None:
    """Let the allowed parameters of a table depend on the name in it.

    `other` describes names that are not known, such as file.py:function; None if there are none.
    """
    own = table["properties"]
    described = own[key].get("description", "")
    words: Schema = {
        "oneOf": [
            {"const": name, "description": documentation_of(b).first} for name, b in known.items()
        ]
    }
    if other is not None:
        spelt = {"type": "string", "not": {"enum": [*known]}, "description": other}
        words["oneOf"].append(spelt)
    default = {"default": own[key]["default"]} if "default" in own[key] else {}
    own[key] = {"description": described, **default, **words}
    rules = []
    for name, build in known.items():
        options = {n: s for n, s in _parameters(build).items() if n not in own}
        required = [
            p.name for p in parameters(build).values() if p.required and p.name not in DERIVED
        ]
        given = {"properties": {key: {"const": name}}}
        if default.get("default") != name:
            given["required"] = [key]  # type: ignore[assignment]
        known_keys = {**dict.fromkeys(own, True), **options}
        then: Schema = {"properties": known_keys, "additionalProperties": False}
        if required:
            then["required"] = required
        rules.append({"if": given, "then": then})
    table["allOf"] = rules
    table["additionalProperties"] = True


def _all_parameters(known: Mapping[str, Callable[..., Any]]) -> Schema:
    found: Schema = {}
    for build in known.values():
        found = _parameters(build) | found
    return found


def _parameters(build: Callable[..., Any]) -> Schema:
    told = meanings(build)
    return {name: _parameter(each, told.get(name, "")) for name, each in parameters(build).items()}


def _parameter(each: Parameter, meaning: str) -> Schema:
    choices: list[Schema] = []
    for kind in type_members(each.hint):
        words = type_in_words(kind) if kind is not None else ""
        if words.startswith("a list"):
            choices.append({"type": "array"})
        elif words == "a table" and each.family is not None:
            # A table that names a member of the family must be complete.
            choices.append({"type": "object", "not": {"required": [each.family.word]}})
        elif words:
            choices.append(dict(TYPES[words]))
    if each.family is not None:
        choices.append({"$ref": f"#/definitions/{each.family.what.replace(' ', '-')}"})
    if each.optional and {"type": "string"} not in choices:
        choices.append({"const": NONE})
    found: Schema = choices[0] if len(choices) == 1 else {"anyOf": choices} if choices else {}
    if meaning:
        found = {**found, "description": meaning}
    if isinstance(each.default, bool | int | float | str):
        found = {**found, "default": each.default}
    return found


def _family(family: Family) -> list[Schema]:
    """The forms of a family's member: a table, a short form, or the user's own code."""
    tables: list[Schema] = []
    for name, build in family.members.items():
        tables.append(
            {
                "type": "object",
                "description": documentation_of(build).first,
                "properties": {family.word: {"const": name}, **_parameters(build)},
                "required": [family.word, *_needs(build)],
                "additionalProperties": False,
            }
        )
    if family.user is not None:
        tables += _user_code(family.word)
    words = {
        "partition": [*PARTITIONS],
        "law of sizes": [*SIZES],
        "augmentation": [*AUGMENTATIONS],
    }.get(family.what)
    if words is not None:
        pattern = f"^({'|'.join(words)})(:[0-9.eE+-]+)?$"
        tables.append({"type": "string", "pattern": pattern})
        if family.what == "law of sizes":
            tables.append({"type": "array", "items": {"type": "integer", "minimum": 1}})
    elif family.word in ("name", "kind"):
        alone = [n for n, b in family.members.items() if not _needs(b) or family.word == "name"]
        tables.append({"enum": alone})
    return tables


def _needs(build: Callable[..., Any]) -> list[str]:
    return [each.name for each in parameters(build).values() if each.required]


def _target(metric: str) -> Schema:
    return {
        "anyOf": [
            {"type": "number"},
            {"type": "array", "items": [{"enum": ["below", "above"]}, {"type": "number"}]},
        ],
        "description": f"Stop a run once {metric} reaches this value.",
    }


if __name__ == "__main__":
    import sys
    from pathlib import Path

    Path(sys.argv[1]).write_text(text(), encoding="utf-8")
