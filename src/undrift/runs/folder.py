"""The folder of a run: what is where, and who may write to it."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from undrift.utils.errors import UndriftError, first_line, require
from undrift.utils.files import slug, written_whole

EXPERIMENT, ABOUT, DATA, PICTURE = "experiment.toml", "about.json", "data.json", "data.svg"
RUN, RECORDS, MODEL, STORE = "run.json", "records.jsonl", "model.safetensors", "store"
ARGUMENTS = "arguments.toml"
"""Describes the arguments of `ud.train` or `ud.compare`, in the place of an experiment file."""
RUNNING, INTERRUPTED = "running", "interrupted"
FINISHED, STOPPED, DIVERGED = "finished", "stopped", "diverged"
DONE = (FINISHED, STOPPED, DIVERGED)
"""The states of a run that is over."""


def run_folder(folder: Path, label: str, seed: int) -> Path:
    """Where the files of a method and seed are."""
    return folder / slug(label) / f"seed-{seed}"


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Hold the folder: a second process is refused. A killed process lets go of it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock")
        lock.acquire(timeout=0)
    except Timeout:
        raise UndriftError(
            f"Another process is running in {folder}: wait for it, or stop it first."
        ) from None
    except OSError as error:
        raise UndriftError(f"The folder {folder} cannot be used: {first_line(error)}.") from error
    try:
        yield
    finally:
        lock.release()


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Write a JSON file whole."""
    with written_whole(path) as partial:
        text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
        partial.write_text(text, encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON file; what is wrong with it is said in a sentence."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UndriftError(f"{path} cannot be read: {first_line(error)}.") from error
    require(isinstance(found, dict), f"{path} must hold an object.")
    return found


def about() -> dict[str, Any]:
    """What the run was made with."""
    names = ("undrift", "torch", "numpy", "safetensors", "lmdb")
    return {
        **{name: version(name) for name in names},
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def refuse_other_rounds(folder: Path, before: int, wanted: int, extend: bool) -> None:
    """Runs may only be extended, and only when that is asked for."""
    require(
        wanted == before or (extend and wanted > before),
        f"The runs of {folder} have {before} rounds, not {wanted}: "
        + (
            "they can be extended, not shortened."
            if wanted < before
            else f"extend them by undrift resume {folder} --rounds {wanted}, or by ud.resume."
        ),
    )
