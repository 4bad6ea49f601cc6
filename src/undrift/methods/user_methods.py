"""Loading of users' own methods, for experiment files and `undrift verify`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

from undrift.core.method import Method
from undrift.methods import METHODS
from undrift.utils.errors import UndriftError, nearest, require
from undrift.utils.user_code import user_module


def load_method(where: str, settings: Mapping[str, object] | None = None) -> Method:
    """The user's method of "mine.py:MyMethod" or "package.module:MyMethod".

    It may be a class, which is made with `settings` as its parameters, or an instance.
    """
    source, _, name = where.rpartition(":")
    near = nearest(where, METHODS)
    require(
        bool(source and name),
        f"{where!r} does not name a method: write file.py:Class, module:Class, or one of "
        f"{', '.join(METHODS)}" + (f"; did you mean {near!r}?" if near else "."),
    )
    module = user_module(source)
    found = getattr(module, name, None)
    if found is None:
        own = [n for n, v in vars(module).items() if _is_method(v, module.__name__)]
        hint = f"; it defines {', '.join(own)}" if own else ""
        raise UndriftError(f"{source} has no {name!r}{hint}.")
    if isinstance(found, Method):
        require(not settings, f"{name} is an instance: set its parameters in {source}.")
        return found
    require(_is_method(found), f"{source}:{name} is not a subclass of undrift.Method.")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise UndriftError(f"{name} is not a complete method: it has no {missing}.")
    try:
        method: Method = found(**(settings or {}))
    except UndriftError:
        raise
    except Exception as error:
        raise UndriftError(
            f"{name} cannot be made: {error}; give its parameters with --set name=value."
        ) from None
    method.hyperparameters()  # raises if the constructor does not store its arguments
    return method


def _is_method(value: object, module: str | None = None) -> bool:
    """Whether a value is a method's class, defined in `module` if that is given."""
    return (
        inspect.isclass(value)
        and issubclass(value, Method)
        and (module is None or value.__module__ == module)
    )
