"""Who is verified: our methods with parameters that suit the verification problems, or the
user's own class."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from undrift import methods as m
from undrift.core.method import Method
from undrift.core.regularizers import L1
from undrift.utils.errors import UndriftError, first_line, nearest, require


@dataclass(frozen=True)
class Subject:
    """A method to verify.

    `equal_steps` is for methods that are exact only when all clients take equally many steps.
    """

    label: str
    method: Method
    equal_steps: bool = False

    @property
    def exact(self) -> bool:
        """Whether its clients can solve their problems exactly: no step is counted."""
        return self.method.converges_to == "optimum" and not self.method.needs_steps


def ours() -> list[Subject]:
    """Every method of the library, some with several options."""
    return [
        Subject("DistributedSGD", m.DistributedSGD()),
        Subject("FedAvg", m.FedAvg()),
        Subject("FedAvgMin", m.FedAvgMin()),
        Subject("FedProx", m.FedProx(mu=0.5)),
        Subject("SCAFFOLD", m.SCAFFOLD()),
        Subject("SCAFFOLD I", m.SCAFFOLD("I")),
        Subject("VRLSGD", m.VRLSGD(), equal_steps=True),
        Subject("FedNova", m.FedNova()),
        Subject("FedNova prox", m.FedNova(mu=0.5)),
        Subject("FedNova VR", m.FedNova(variance_reduction=True)),
        Subject("FedDyn", m.FedDyn(alpha=1.0)),
        Subject("FedPD", m.FedPD(eta=1.0)),
        Subject("FedSplit", m.FedSplit(eta=1.0)),
        Subject("FedDR", m.FedDR(eta=1.0, alpha=1.0)),
        Subject("FedDR l1", m.FedDR(eta=1.0, alpha=1.0, g=L1(0.2))),
        Subject("FedLGA", m.FedLGA()),
        Subject("AsyncFedDR", m.AsyncFedDR(eta=1.0, alpha=1.0)),
        Subject("FedAsync", m.FedAsync(alpha=0.3)),
        Subject("FedBuff", m.FedBuff()),
    ]


def named(name: str) -> list[Subject]:
    """Our own method of a name, with the options it is verified with."""
    return [subject for subject in ours() if subject.method.name == name]


def load(where: str, settings: Mapping[str, object] | None = None) -> Subject:
    """The user's method: "mine.py:MyMethod" or "package.module:MyMethod", class or instance."""
    source, colon, name = where.rpartition(":")
    near = nearest(where, m.METHODS)
    require(
        bool(colon and source and name),
        f"{where!r} does not name a method: write file.py:Class, module:Class, or one of "
        f"{', '.join(m.METHODS)}" + (f"; did you mean {near!r}?" if near else "."),
    )
    module = module_of(source)
    found = getattr(module, name, None)
    if found is None:
        known = [n for n, v in vars(module).items() if _is_method(v, module.__name__)]
        hint = f"; it defines {', '.join(known)}" if known else ""
        raise UndriftError(f"{source} has no {name!r}{hint}.")
    if isinstance(found, Method):
        require(not settings, f"{name} is an instance: its parameters are set in {source}.")
        return Subject(name, found)
    require(_is_method(found), f"{source}:{name} is not a subclass of undrift.Method.")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise UndriftError(f"{name} does not say what a method must: it has no {missing}.")
    try:
        method = found(**(settings or {}))
    except UndriftError:
        raise
    except Exception as error:
        raise UndriftError(
            f"{name} cannot be made: {error}; give its parameters with --set name=value."
        ) from None
    method.hyperparameters()
    return Subject(name, method)


def module_of(source: str) -> ModuleType:
    """The module of a file or of a name, as a user writes it before the colon."""
    if not source.endswith(".py"):
        sys.path.insert(0, str(Path.cwd()))
        try:
            return importlib.import_module(source)
        except ImportError as error:
            raise UndriftError(f"The module {source!r} cannot be imported: {error}.") from None
        finally:
            sys.path.pop(0)
    path = Path(source)
    require(path.is_file(), f"There is no file {source}.")
    name = f"_undrift_verified_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent.resolve()))  # its neighbours, as for `python file.py`
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UndriftError(f"{source} cannot be run: {first_line(error)}.") from None
    finally:
        sys.path.pop(0)
    return module


def _is_method(value: object, of: str | None = None) -> bool:
    """Whether a value is a method's class, defined in a module if one is named."""
    return (
        inspect.isclass(value)
        and issubclass(value, Method)
        and (of is None or value.__module__ == of)
    )
