"""Foreign implementations behind adapters: in this process, or in another environment's Python."""

from __future__ import annotations

import json
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from undrift.audit import worker
from undrift.audit.task import Task, as_numbers
from undrift.core.method import Method
from undrift.methods import METHODS
from undrift.utils.errors import UndriftError, require, require_choice
from undrift.utils.user_code import user_module

Round = Callable[[Sequence[int]], Any]
"""Runs one round of the clients of a cohort and returns the server's next model."""
Adapter = Callable[[Task], Round]
"""Makes the server and the clients of a task in another library."""


class Unsupported(UndriftError):
    """An adapter says that its library cannot do what a task asks for."""


class Host(ABC):
    """Runs an adapter: `begin` makes a new federation, `round` runs one of its rounds."""

    @abstractmethod
    def begin(self, task: Task) -> None:
        """Make the server and the clients of a task."""

    @abstractmethod
    def round(self, cohort: Sequence[int]) -> list[float]:
        """Run one round and return the server's model."""

    def close(self) -> None:
        """Release what the host holds; `begin` may be called again."""


@dataclass
class Here(Host):
    """An adapter in this process."""

    adapter: Adapter
    file: str = ""
    _round: Round = field(default=lambda cohort: None, repr=False)

    def begin(self, task: Task) -> None:
        self._round = self._tried(lambda: self.adapter(task))

    def round(self, cohort: Sequence[int]) -> list[float]:
        return self._tried(lambda: as_numbers(self._round(list(cohort))))

    def _tried(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except NotImplementedError as error:
            raise Unsupported(str(error)) from None
        except UndriftError:
            raise
        except Exception as error:
            raise UndriftError(worker.told(error, self.file)) from error


class Elsewhere(Host):
    """The adapters of a file, in a process of another Python, which starts when it is needed."""

    def __init__(self, python: str, file: str, name: str = ""):
        self.name = name
        self._command = [python, str(Path(worker.__file__)), file]
        self._process: subprocess.Popen[str] | None = None
        self._errors: IO[str] | None = None

    def adapters(self) -> tuple[dict[str, dict[str, Any]], list[str]]:
        """What the adapters of the file declare, by name, and all names of the file."""
        answer = self._ask({"list": True})
        return answer["adapters"], answer["names"]

    def begin(self, task: Task) -> None:
        self._ask({"adapter": self.name, "task": task.as_dict()})

    def round(self, cohort: Sequence[int]) -> list[float]:
        numbers: list[float] = self._ask({"cohort": list(cohort)})["x"]
        return numbers

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()  # closes its input, so that it ends
            self._process = None
        if self._errors is not None:
            self._errors.close()
            self._errors = None

    def _start(self) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in close()
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                encoding="utf-8",
            )
        except OSError as error:
            self.close()
            raise UndriftError(f"{self._command[0]} cannot be started: {error.strerror}.") from None
        self._answer()

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        if self._process is None:
            self._start()
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            assert self._errors is not None
            self._errors.seek(0)
            last = (self._errors.read().strip().splitlines() or ["it wrote nothing"])[-1]
            self.close()
            raise UndriftError(f"The process of the adapter ended: {last}.")
        answer: dict[str, Any] = json.loads(line)
        if "unsupported" in answer:
            raise Unsupported(answer["unsupported"])
        if "error" in answer:
            raise UndriftError(answer["error"])
        return answer


@dataclass(frozen=True)
class Implementation:
    """An implementation of a method by another library.

    `reference` is undrift's method with the same parameters, whose round equals its formulas, and
    `objective` says which F it minimises: q_k = n_k/n ("samples") or 1/N ("clients").
    """

    label: str
    host: Host
    reference: Method
    objective: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def path(self, task: Task, cohorts: Sequence[Sequence[int]]) -> Tensor:
        """The server's models after rounds of these cohorts, `[rounds, P]`."""
        self.host.begin(task)
        models = [self.host.round(cohort) for cohort in cohorts]
        wanted = len(task.start)
        for model in models:
            require(
                len(model) == wanted,
                f"The adapter {self.label} returned a model of {len(model)} numbers; the task's "
                f"model has {wanted}.",
            )
        return torch.tensor(models, dtype=torch.float64)


def implementation(
    adapter: Adapter,
    method: str | Method | None = None,
    parameters: Mapping[str, Any] | None = None,
    objective: str | None = None,
    label: str | None = None,
) -> Implementation:
    """An adapter function and what it claims to implement, from the arguments or its attributes."""
    code = getattr(adapter, "__code__", None)
    host = Here(adapter, code.co_filename if code else "")
    name = label or str(getattr(adapter, "__name__", "adapter"))
    return _claimed(name, host, worker.declared(adapter), method, parameters, objective)


def _claimed(
    label: str,
    host: Host,
    declared: Mapping[str, Any],
    method: str | Method | None,
    parameters: Mapping[str, Any] | None,
    objective: str | None,
) -> Implementation:
    method = method or declared.get("method")
    require(
        method is not None,
        f"The adapter {label} does not say which method it implements: set {label}.method = "
        f"'FedAvg' or another of {', '.join(METHODS)}, or use --as.",
    )
    objective = objective or declared.get("objective", "samples")
    require_choice(f"The objective of {label}", objective, ("samples", "clients"))
    parameters = {**declared.get("parameters", {}), **(parameters or {})}
    if isinstance(method, str):
        require_choice(f"The method of {label}", method, METHODS)
        try:
            method = METHODS[method](**parameters)
        except TypeError as error:
            raise UndriftError(f"The parameters of {label} do not fit {method}: {error}.") from None
    assert isinstance(method, Method)
    require(
        not method.meant_asynchronous,
        f"{method.name} folds single replies as they arrive; an audit runs synchronous rounds.",
    )
    return Implementation(label, host, method, str(objective), parameters)


def load(
    where: str,
    python: str | None = None,
    method: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    objective: str | None = None,
) -> list[Implementation]:
    """The implementations behind "file.py:adapter", or behind all adapters of "file.py"."""
    file, _, name = where.rpartition(":") if ".py:" in where else (where, "", "")
    require(
        file.endswith(".py"),
        f"{where!r} does not name an adapter: write file.py:function, or file.py for all that "
        f"declare a method.",
    )
    require(Path(file).is_file(), f"There is no file {file}.")
    claims = (method, parameters, objective)
    if python is None:
        module = user_module(file)
        found = worker.adapters_of(module)
        hosts = {each: Here(adapter, str(module.__file__)) for each, adapter in found.items()}
        declared = {each: worker.declared(adapter) for each, adapter in found.items()}
        if name and name not in found and callable(getattr(module, name, None)):
            hosts, declared = {name: Here(getattr(module, name), str(module.__file__))}, {name: {}}
        chosen = _chosen(file, name, list(hosts))
        return [_claimed(each, hosts[each], declared[each], *claims) for each in chosen]
    other = Elsewhere(python, file)
    try:
        declared, names = other.adapters()
    finally:
        other.close()
    if name and name in names:
        declared.setdefault(name, {})
    chosen = _chosen(file, name, list(declared))
    return [
        _claimed(each, Elsewhere(python, file, each), declared[each], *claims) for each in chosen
    ]


def _chosen(file: str, name: str, found: Sequence[str]) -> list[str]:
    """The named adapter, or all."""
    if name:
        hint = f"; it has {', '.join(found)}" if found else ""
        require(name in found, f"{file} has no function {name!r}{hint}.")
        return [name]
    require(bool(found), f"{file} has no adapter: a function with an attribute `method`.")
    return list(found)
