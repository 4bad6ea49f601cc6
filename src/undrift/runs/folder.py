"""Run folders: the names of their files, statuses of runs, and the lock of a folder."""

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

# In the run folder.
EXPERIMENT, ABOUT, DATA, PICTURE = "experiment.toml", "about.json", "data.json", "data.svg"
ARGUMENTS = "arguments.toml"
"""Describes the arguments of `ud.train` or `ud.compare`, in place of an experiment file."""
# In the subfolder of each run.
RUN, RECORDS, MODEL, STORE = "run.json", "records.jsonl", "model.safetensors", "store"

RUNNING, INTERRUPTED = "running", "interrupted"
FINISHED, STOPPED, DIVERGED = "finished", "stopped", "diverged"
DONE = (FINISHED, STOPPED, DIVERGED)
"""The statuses of a run that has ended."""


def run_folder(folder: Path, label: str, seed: int) -> Path:
    """The subfolder of the run of a method and a seed."""
    return folder / slug(label) / f"seed-{seed}"


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Lock a folder for a block; an error if another process has locked it.

    The operating system releases the lock of a killed process.
    """
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
    """Write a JSON file atomically."""
    with written_whole(path) as partial:
        text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
        partial.write_text(text, encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; an `UndriftError` if it cannot be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UndriftError(f"{path} cannot be read: {first_line(error)}.") from error
    require(isinstance(found, dict), f"{path} must contain a JSON object.")
    return found


def about() -> dict[str, Any]:
    """The versions and the machine that a run is made with."""
    names = ("undrift", "torch", "numpy", "safetensors", "lmdb")
    return {
        **{name: version(name) for name in names},
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def has_runs(folder: Path) -> bool:
    """Whether a run of the folder has begun; until then its description may be replaced."""
    return any(folder.glob("*/seed-*/run.json"))


def refuse_other_rounds(folder: Path, before: int, wanted: int, extend: bool) -> None:
    """Raise if a folder's runs have another number of rounds.

    With `extend`, more rounds than before are allowed.
    """
    require(
        wanted == before or (extend and wanted > before),
        f"The runs of {folder} have {before} rounds, not {wanted}: "
        + (
            "they can be extended, not shortened."
            if wanted < before
            else f"extend them by ud.resume(…, rounds={wanted})."
            if (folder / ARGUMENTS).is_file()
            else f"extend them by undrift resume {folder} --rounds {wanted}."
        ),
    )
