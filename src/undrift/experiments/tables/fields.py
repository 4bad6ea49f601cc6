"""Types of values in tables with their checks, and the base classes of all tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo

from undrift.experiments.catalogue import NONE
from undrift.experiments.components import pace_from, table_of
from undrift.utils.errors import require, require_choice, require_range, require_type, require_whole

OBJECTIVES = ("samples", "clients")

Plain = dict[str, Any]


def _at_least(least: int) -> Callable[[Any, ValidationInfo], int]:
    return lambda value, info: require_whole(str(info.field_name), value, least)


def _within(**limits: float) -> Callable[[Any, ValidationInfo], Any]:
    def check(value: Any, info: ValidationInfo) -> Any:
        require_range(str(info.field_name), value, **limits)
        return value

    return check


def one_of(words: Iterable[str]) -> Callable[[Any, ValidationInfo], Any]:
    """A validator that a value is one of some words."""
    allowed = list(words)

    def check(value: Any, info: ValidationInfo) -> Any:
        require_choice(str(info.field_name), value, allowed)
        return value

    return check


def some_of(words: Iterable[str], least: int) -> Callable[[Any, ValidationInfo], Any]:
    """A validator that a value is a list of some words, or a single one of them."""
    allowed = list(words)

    def check(value: Any, info: ValidationInfo) -> Any:
        name = str(info.field_name)
        value = [value] if isinstance(value, str) else value
        require_type(name, value, list, f"a list of {', '.join(map(repr, allowed))}")
        require(len(value) >= least, f"{name} is empty, but must have at least {least} word.")
        for each in value:
            require_choice(f"One of {name}", each, allowed)
        require(len({*value}) == len(value), f"{name} has the same word twice.")
        return value

    return check


def allowed_words(words: Iterable[str]) -> Any:
    """The schema of a value that must be one of some words."""
    return Field(json_schema_extra={"enum": [*words]})


def allowed_lists(words: Iterable[str]) -> Any:
    """The schema of a list of such words."""
    return Field(json_schema_extra={"items": {"type": "string", "enum": [*words]}})


def _text(value: Any, info: ValidationInfo) -> Any:
    name = str(info.field_name)
    require_type(name, value, str, "a text")
    require(value.isprintable() and bool(value.strip()), f"{name} must be a text on one line.")
    return value


def or_none(value: Any) -> Any:
    """The value, or None for the word "none"."""
    return None if isinstance(value, str) and value == NONE else value


def named(value: Any) -> Any:
    """The table that a name alone stands for."""
    return {"name": value} if isinstance(value, str) else value


def _pace(value: Any) -> Any:
    """The table of a pace with all defaults."""
    value = or_none(value)
    return None if value is None else table_of(pace_from(value))


Text = Annotated[str, BeforeValidator(_text)]
Natural = Annotated[int, Field(ge=0), BeforeValidator(_at_least(0))]
Counting = Annotated[int, Field(ge=1), BeforeValidator(_at_least(1))]
Positive = Annotated[float, Field(gt=0), BeforeValidator(_within(above=0))]
NotNegative = Annotated[float, Field(ge=0), BeforeValidator(_within(at_least=0))]
Fraction = Annotated[float, Field(gt=0, lt=1), BeforeValidator(_within(above=0, below=1))]
Share = Annotated[float, Field(ge=0, le=1), BeforeValidator(_within(at_least=0, at_most=1))]
Objective = Annotated[str, BeforeValidator(one_of(OBJECTIVES)), allowed_words(OBJECTIVES)]
Paced = Annotated[Plain | None, BeforeValidator(_pace)]


class ClosedTable(BaseModel):
    """A table of the file, which accepts no other keys than its own."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=())


class OpenTable(ClosedTable):
    """A table whose other keys are the parameters of the component that it names."""

    model_config = ConfigDict(extra="allow", strict=True, protected_namespaces=())

    @property
    def parameters(self) -> Plain:
        """The parameters of the component."""
        return dict(self.__pydantic_extra__ or {})


def base_folder(info: ValidationInfo) -> Path:
    """The folder that relative paths of the file are relative to."""
    return Path((info.context or {}).get("folder", "."))
