"""Runs the adapters of a file for `undrift audit --python`, in a Python that may lack undrift.

Reads one JSON object per line and answers with one: {"list": true} names the adapters,
{"adapter": name, "task": {…}} begins a run, {"cohort": […]} runs a round and returns the model.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

DECLARED = ("method", "parameters", "objective", "library")
"""What an adapter declares, as attributes of the function."""


def _load(path: str, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(Path(path).resolve().parent))
    spec.loader.exec_module(module)
    return module


def declared(adapter: Any) -> dict[str, Any]:
    """What an adapter says about itself."""
    return {name: getattr(adapter, name) for name in DECLARED if hasattr(adapter, name)}


def adapters_of(module: Any) -> dict[str, Any]:
    """The functions of a module that declare which method they implement, by name."""
    return {
        name: value
        for name, value in vars(module).items()
        if callable(value) and hasattr(value, "method") and value.__name__ == name
    }


def told(error: BaseException, path: str) -> str:
    """An error as one line, with the line of the adapter's file."""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == path]
    place = f" (line {lines[-1]} of {Path(path).name})" if lines else ""
    words = str(error).strip().splitlines()
    return f"{type(error).__name__}: {words[0] if words else ''}{place}"


class _Worker:
    def __init__(self, path: str):
        self._path = path
        self._module = _load(path, "audited_adapters")
        self._task = _load(str(Path(__file__).with_name("task.py")), "audit_task")
        self._round: Callable[[list[int]], Any] = lambda cohort: None

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The answer to one request."""
        if "list" in asked:
            names = {name: declared(each) for name, each in adapters_of(self._module).items()}
            return {"adapters": names, "names": sorted(vars(self._module))}
        if "task" in asked:
            adapter = getattr(self._module, asked["adapter"])
            self._round = adapter(self._task.Task(**asked["task"]))
            return {}
        return {"x": self._task.as_numbers(self._round(asked["cohort"]))}


def main(path: str) -> None:
    """Answer requests until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints must not mix with the answers
    path = str(Path(path).resolve())

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    try:
        worker = _Worker(path)
    except BaseException as error:
        say({"error": told(error, path)})
        return
    say({})
    for line in sys.stdin:
        try:
            say(worker.answer(json.loads(line)))
        except NotImplementedError as error:
            say({"unsupported": str(error)})
        except Exception as error:
            say({"error": told(error, path)})


if __name__ == "__main__":
    main(sys.argv[1])
