"""Build components from tables of a file, and tables from components.

A component is an object that a table describes: `{name = "Momentum", beta = 0.9}` is the server
optimiser `Momentum(beta=0.9)`. Building it checks it: its own error sentence is reported with the
keys that lead to the invalid value.
"""

from __future__ import annotations

import inspect
import re
import weakref
from collections.abc import Callable, Container, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from undrift.data.partitions import Partition, as_partition
from undrift.data.sizes import SIZES, Given, Sizes, as_sizes
from undrift.experiments.catalogue import (
    FAMILIES,
    NONE,
    PACE,
    Family,
    Parameter,
    UserCode,
    parameters,
    takes_anything,
)
from undrift.loops.paces import Pace
from undrift.methods import METHODS, Method
from undrift.methods.user_methods import load_method
from undrift.utils.errors import (
    UndriftError,
    first_line,
    require,
    require_choice,
    require_parameter,
)
from undrift.utils.user_code import user_module, user_object

LONGEST_REPR = 60
"""The most characters of a value that an error sentence quotes."""
_USER_TABLES: dict[int, dict[str, Any]] = {}
"""The tables of users' own components by `id(component)`, as long as the component exists."""


class InvalidValue(UndriftError):
    """An invalid value in a table, with the keys that lead to it."""

    def __init__(self, sentence: str, *keys: str):
        super().__init__(" ".join(sentence.split()))
        self.keys = keys

    def under(self, *keys: str) -> InvalidValue:
        """The same error for a table that lies under `keys` in another table."""
        return InvalidValue(str(self), *keys, *self.keys)


def shown(value: object) -> str:
    """A value as error sentences quote it: on one line, or only its type if it is long."""
    text = "true" if value is True else "false" if value is False else repr(value)
    short = len(text) <= LONGEST_REPR and text.isprintable()
    return text if short else f"a {type(value).__name__}"


def arguments(build: Callable[..., Any], given: Mapping[str, Any], what: str) -> dict[str, Any]:
    """The arguments of a component: tables become components, and the word "none" becomes None.

    Parameters
    ----------
    build
        the class or function that makes the component
    given
        its parameters as the file gives them
    what
        what error sentences call it
    """
    known = parameters(build)
    found = {}
    for name, value in given.items():
        if name in known:
            found[name] = _value(known[name], value)
        elif takes_anything(build):
            found[name] = value
        elif not known:
            raise InvalidValue(f"{what} takes no parameters, but {name!r} is given.", name)
        else:
            try:
                require_parameter(what, name, known)
            except UndriftError as error:
                raise InvalidValue(str(error), name) from None
    return found


def make(build: Callable[..., Any], given: Mapping[str, Any], what: str) -> Any:
    """Build a component from its parameters as a file gives them."""
    values = arguments(build, given, what)
    known = parameters(build)
    for name, each in known.items():
        if each.required and name not in values:
            raise InvalidValue(f"{what} needs its parameter {name!r}, which is missing.", name)
    failure: Exception | None = None
    component = None
    try:
        component = build(**values)
    except UndriftError as error:
        raise InvalidValue(str(error), *parameter_at_fault(str(error), values)) from None
    except Exception as error:
        failure = error
    # A wrong type is the likely cause of any other exception, and makes the clearer sentence.
    require_types(known, values, what)
    if failure is not None:
        raise InvalidValue(f"{what} cannot be made: {first_line(failure)}.")
    return component


def require_types(known: Mapping[str, Parameter], values: Mapping[str, Any], what: str) -> None:
    """Raise an error for a value that does not have its parameter's type."""
    for name, value in values.items():
        wanted = known[name].refuses(value) if name in known else None
        if wanted is not None:
            raise InvalidValue(f"{what}'s {name} is {shown(value)}, but must be {wanted}.", name)


def parameter_at_fault(sentence: str, names: Mapping[str, Any]) -> tuple[str, ...]:
    """The name of the parameter that an error sentence is about; empty if no name is in it."""
    said = [name for name in names if re.search(rf"\b{re.escape(name)} is\b", sentence)]
    said += [name for name in names if re.search(rf"'s {re.escape(name)}\b", sentence)]
    return tuple(said[:1])


def completed(build: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a component with all defaults, as values that TOML can hold."""
    found = {}
    for name, each in parameters(build).items():
        value = values.get(name, each.default)
        plain = None if each.required and name not in values else _plain(value)
        if value is None and each.default is not None:
            plain = NONE
        if plain is not None:
            found[name] = plain
    return found | {n: v for n, v in values.items() if n not in found and _plain(v) is not None}


def member(family: Family, table: Mapping[str, Any]) -> Any:
    """Build the component that a table names, for example {schedule = "Inverse", lr = 0.1}."""
    if family.word not in table:
        words = ", ".join(map(repr, family.members))
        raise InvalidValue(f"A {family.what} needs its {family.word}, one of {words}.", family.word)
    name = table[family.word]
    given = {key: value for key, value in table.items() if key != family.word}
    if family.user is not None and isinstance(name, str) and is_user_code(name, family.members):
        return user_component(family, family.user, name, given)
    _require_member(family, name)
    return make(family.members[name], given, name)


def user_component(family: Family, user: UserCode, where: str, given: Mapping[str, Any]) -> Any:
    """Build a component from the user's own code; `table_of` finds its table again."""
    name = where.rpartition(":")[2]
    try:
        component, complete = user_object_of(where, given, user, f"a {family.what}")
        if not isinstance(component, family.base) and callable(component) and user.wrap is not None:
            component = user.wrap(component)
        require(
            isinstance(component, family.base),
            f"{name} gives {shown(component)}, but must give a {family.what}: an object of "
            f"undrift's class {family.base.__name__}.",
        )
        user.check(component)
    except InvalidValue as error:
        raise error if error.keys else InvalidValue(str(error), family.word) from None
    except UndriftError as error:
        raise InvalidValue(str(error), family.word) from None
    # Not an attribute of the component: attributes may be in its repr, which is part of the
    # fingerprint of the data, and a fingerprint must not depend on where a file is.
    _USER_TABLES[id(component)] = {family.word: where, **complete}
    weakref.finalize(component, _USER_TABLES.pop, id(component), None)
    return component


def user_object_of(
    where: str, given: Mapping[str, Any], user: UserCode, what: str
) -> tuple[Any, dict[str, Any]]:
    """The object that "file.py:name" stands for, and its parameters with all defaults.

    A class is instantiated with the parameters. A function that accepts `user.arguments` is the
    object itself, with the parameters as further keyword arguments. Any other function is a factory
    that is called with the parameters. Other objects are used unchanged.
    """
    found = user_object(where, f"{what}: write file.py:name")
    name = where.rpartition(":")[2]
    if not inspect.isclass(found) and not inspect.isroutine(found):
        if given:
            raise InvalidValue(
                f"{name} is an object, not a class or a function, so it takes no parameters.",
                next(iter(given)),
            )
        return found, {}
    function = not inspect.isclass(found)
    if function and user.arguments and _can_take(found, len(user.arguments), given):
        first = [*parameters(found)][: len(user.arguments)]
        values = arguments(found, given, name)
        require_types(parameters(found), values, name)
        complete = {k: v for k, v in completed(found, values).items() if k not in first}
        return (partial(found, **values) if values else found), complete
    if function and user.arguments and not _can_take(found, 0, given):
        raise InvalidValue(
            f"{name} must be a function of ({', '.join(user.arguments)}), or a function without "
            f"other required arguments that makes one."
        )
    return make(found, given, name), completed(found, arguments(found, given, name))


def _can_take(function: Callable[..., Any], positional: int, given: Mapping[str, Any]) -> bool:
    """Whether a function accepts `positional` positional arguments and the given parameters."""
    try:
        inspect.signature(function).bind(*[None] * positional, **given)
    except TypeError:
        # `arguments` reports unknown parameters by name, so they do not decide this question.
        known = {name: value for name, value in given.items() if name in parameters(function)}
        return known.keys() != given.keys() and _can_take(function, positional, known)
    except ValueError:  # written in C, without a signature
        return positional > 0
    return True


def is_user_code(text: str, known: Container[str] = ()) -> bool:
    """Whether a text is "file.py:name" or "module:name", and not a short form such as "crop:4".

    `known` are the words that short forms begin with.
    """
    source, _, attribute = text.rpartition(":")
    return bool(source) and attribute.isidentifier() and source not in known


def pace_from(value: Any) -> Pace:
    """Build a pace from a table, or from its name alone if it needs no parameters."""
    if not isinstance(value, dict | str):
        example = '{kind = "deadline", seconds = 10}'
        raise InvalidValue(f"It is {shown(value)}, but must be a table such as {example}.")
    pace: Pace = member(PACE, {PACE.word: value} if isinstance(value, str) else value)
    return pace


def table_of(component: object) -> dict[str, Any] | list[Any] | None:
    """The table that describes a component; None for an object of no known family."""
    if id(component) in _USER_TABLES:
        return dict(_USER_TABLES[id(component)])
    if isinstance(component, Given):
        return list(component.sizes)
    for family in FAMILIES:
        for name, kind in family.members.items():
            if type(component) is kind:
                own = {each: getattr(component, each) for each in parameters(kind)}
                return {family.word: name, **completed(kind, own)}
    return None


def from_words(text: str, what: str, known: Mapping[str, type]) -> Any:
    """Build a component from a short form: "lognormal:0.3", "crop:4" or "flip"."""
    word, colon, number = text.partition(":")
    require_choice(what, word, known)
    kind = known[word]
    takes = list(parameters(kind).values())
    require(not colon or bool(takes), f"{what} {word!r} takes no number, but {text!r} gives one.")
    if not colon:
        return kind()
    try:
        value: float = float(number)
    except ValueError:
        raise UndriftError(f"{what} {text!r} must give a number after the colon.") from None
    return kind(int(value) if value.is_integer() and "int" in str(takes[0].hint) else value)


def method_of(name: str, given: Mapping[str, Any]) -> tuple[Method, dict[str, Any]]:
    """The method of a name or of "file.py:Class", and its parameters with all defaults."""
    kind: Any = METHODS.get(name)
    if kind is None and ":" not in name:
        try:
            require_choice("The method", name, METHODS)
        except UndriftError as error:
            raise InvalidValue(str(error), "name") from None
    if kind is None:
        source, _, attribute = name.rpartition(":")
        try:
            found = getattr(user_module(source), attribute, None) if source and attribute else None
            own = inspect.isclass(found) and issubclass(found, Method)
            if not own or inspect.isabstract(found):
                return load_method(name, dict(given)), {}
        except UndriftError as error:
            raise InvalidValue(str(error), "name") from None
        kind = found
    what = kind.__name__
    method = make(kind, given, what)
    method.hyperparameters()
    return method, completed(kind, arguments(kind, given, what))


def anchored(value: Any, folder: Path, *keys: str) -> Any:
    """The tables of a file with an absolute path in every "file.py:name" and in `weights`.

    Paths are relative to `folder`, which is that of the file. The experiment's name and the labels
    of methods are not changed. `keys` lead to the value, for the recursion.
    """
    if isinstance(value, dict):
        return {key: anchored(each, folder, *keys, key) for key, each in value.items()}
    if isinstance(value, list):
        return [anchored(each, folder, *keys) for each in value]
    if not isinstance(value, str) or "\0" in value or keys == ("name",) or keys[-1:] == ("label",):
        return value
    source, _, attribute = value.rpartition(":")
    if source.endswith(".py") and attribute.isidentifier():
        return f"{absolute(source, folder)}:{attribute}"
    if keys in (("weights",), ("sweep", "weights")) and value != NONE:
        return absolute(value, folder)
    return value


def absolute(path: str, folder: Path) -> str:
    """A path relative to `folder`, as an absolute path."""
    return str((folder / Path(path).expanduser()).resolve())


def _value(parameter: Parameter, value: Any) -> Any:
    """The argument that a value of a table stands for."""
    if isinstance(value, str) and value == NONE and parameter.optional:
        return None
    family = parameter.family
    if family is None:
        return value
    try:
        if isinstance(value, dict):
            return member(family, value)
        if issubclass(family.base, Sizes) and isinstance(value, str):
            return from_words(value, "sizes", SIZES)
        if issubclass(family.base, Sizes) and isinstance(value, list):
            return as_sizes(value)
        own = isinstance(value, str) and is_user_code(value, family.members)
        if own and family.user is not None:
            return member(family, {family.word: value})
        if issubclass(family.base, Partition) and isinstance(value, str):
            return as_partition(value)
        if isinstance(value, str) and family.word in ("kind", "name"):
            return member(family, {family.word: value})
    except InvalidValue as error:
        raise error.under(parameter.name) from None
    except UndriftError as error:
        raise InvalidValue(str(error), parameter.name) from None
    return value


def _require_member(family: Family, name: object) -> None:
    try:
        require_choice(f"The {family.what}", name, family.members)
    except UndriftError as error:
        raise InvalidValue(str(error), family.word) from None


def _plain(value: Any) -> Any:
    """A value that TOML can hold; None if there is none."""
    if isinstance(value, bool | int | float | str | dict):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, list | tuple):
        return list(value)
    return table_of(value)
