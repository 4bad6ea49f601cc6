"""Loading of users' own code, written as "file.py:name" or "package.module:name".

Experiment files and the command line name users' methods, models and data this way.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from undrift.utils.errors import UndriftError, first_line, require


def user_object(where: str, what: str) -> Any:
    """The object that "file.py:name" or "module:name" stands for.

    `what` completes the error "… does not name" if the text has another form.
    """
    source, _, name = where.rpartition(":")
    require(bool(source and name), f"{where!r} does not name {what}.")
    found = getattr(user_module(source), name, None)
    require(found is not None, f"{source} has no {name!r}.")
    return found


def user_module(source: str) -> ModuleType:
    """The module of a file ("folder/mine.py") or of a module name ("package.mine").

    A file is run anew at every call; a module is imported from the current folder or sys.path.
    """
    return _run_file(source) if source.endswith(".py") else _import_module(source)


def _import_module(name: str) -> ModuleType:
    with _first_on_path(Path.cwd()):
        try:
            return importlib.import_module(name)
        except ImportError as error:
            raise UndriftError(f"The module {name!r} cannot be imported: {error}.") from None


def _run_file(source: str) -> ModuleType:
    path = Path(source)
    require(path.is_file(), f"There is no file {source}.")
    name = f"_undrift_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and typing look a class's module up there
    with _first_on_path(path.parent.resolve()):  # imports its neighbours, as `python file.py` does
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            raise UndriftError(f"{source} cannot be run: {first_line(error)}.") from None
    return module


@contextmanager
def _first_on_path(folder: Path) -> Iterator[None]:
    """Let imports look in `folder` first, for the block."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.pop(0)
