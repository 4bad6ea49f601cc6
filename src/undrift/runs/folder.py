"""Run folders: the names of their files, statuses of runs, and the lock of a folder."""

from __future__ import annotations

import json
import platform
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import blake2b, file_digest
from importlib.metadata import version
from pathlib import Path
from types import NoneType
from typing import Any

from filelock import FileLock, Timeout

from undrift.utils.errors import UndriftError, first_line, require, require_choice
from undrift.utils.files import slug, written_whole
from undrift.utils.shapes import require_shapes

# In the run folder.
EXPERIMENT, ABOUT, DATA, PICTURE = "experiment.toml", "about.json", "data.json", "data.svg"
ARGUMENTS = "arguments.toml"
"""Describes the arguments of `ud.train` or `ud.compare`, in place of an experiment file."""
DEPLOYMENT = "deployment.json"
"""What the sites of a deployment told about themselves, and what counts of it."""
CONNECTION = "connection.json"
"""The file of a run folder that says where its server listens, and which sites it starts itself."""
EXPELLED = "expelled.json"
"""The sites that the operator of a deployment expelled: {name: when}."""
# In the subfolder of each run.
RUN, RECORDS, MODEL, STORE = "run.json", "records.jsonl", "model.safetensors", "store"
CLIENTS = "clients.csv"

DESCRIPTION_HEAD = "# Written by undrift, checksum {}; the runs in this folder depend on it.\n"
DESCRIPTION_CHECKSUM = re.compile("# Written by undrift, checksum ([0-9a-f]*)")

RUNNING, INTERRUPTED = "running", "interrupted"
FINISHED, STOPPED, DIVERGED = "finished", "stopped", "diverged"
DONE = (FINISHED, STOPPED, DIVERGED)
"""The statuses of a run that has ended."""
STATUSES = (RUNNING, INTERRUPTED, *DONE)
OPTIONAL_TEXT, OPTIONAL_WHOLE = (str, NoneType), (int, NoneType)
ARCHIVED = "archived"
"""The key of run.json that is true if only the records of a run were kept, and not its model."""
RUN_SHAPES = {
    "label": str,
    "seed": int,
    "status": str,
    "reason": OPTIONAL_TEXT,
    "method": OPTIONAL_TEXT,
    "name": OPTIONAL_TEXT,
    "paper": OPTIONAL_TEXT,
    "rounds": OPTIONAL_WHOLE,
    "parameters": OPTIONAL_WHOLE,
    "model_checksum": OPTIONAL_TEXT,
    ARCHIVED: (bool, NoneType),
}
"""The values of run.json; older versions wrote fewer."""
LOCK_SECONDS = 1.0
"""How long a command waits for the lock of a folder."""


def is_deployed(folder: Path) -> bool:
    """Whether a run folder belongs to a deployment."""
    return (folder / CONNECTION).is_file()


def run_folder(folder: Path, label: str, seed: int) -> Path:
    """The subfolder of the run of a method and a seed."""
    return folder / slug(label) / f"seed-{seed}"


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Lock a folder for a block; an error if another process has locked it.

    The operating system releases the lock of a killed process. If that process was just starting
    another one, the new process holds the lock until it has loaded its program: wait for that.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock")
        lock.acquire(timeout=LOCK_SECONDS)
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
    except OSError as error:
        raise UndriftError(f"{path} cannot be read: {first_line(error)}.") from error
    except (ValueError, RecursionError) as error:
        raise UndriftError(f"{path} is damaged and cannot be read: {first_line(error)}.") from error
    require(isinstance(found, dict), f"{path} must contain a JSON object.")
    return found


def file_checksum(path: Path) -> str:
    """A hash of the content of a file."""
    try:
        with path.open("rb") as file:
            return file_digest(file, lambda: blake2b(digest_size=16)).hexdigest()
    except OSError as error:
        raise UndriftError(f"{path} cannot be read: {first_line(error)}.") from error


def read_run(path: Path) -> dict[str, Any]:
    """What run.json says about a run; an `UndriftError` if a value has a wrong type."""
    found = read_json(path)
    require_shapes(path, found, RUN_SHAPES)
    for name in ("seed", "rounds", "parameters"):
        require(
            (found.get(name) or 0) >= 0,
            f"{path} is damaged: its {name!r} is {found.get(name)}, but must be at least 0.",
        )
    require_choice(f"{path} is damaged: its status", found["status"], STATUSES)
    return found


def write_description(path: Path, text: str) -> None:
    """Write experiment.toml or arguments.toml into a run folder, with a checksum in a comment.

    The checksum is in the first line, so that a file that was cut off still has it.
    """
    with written_whole(path) as partial:
        partial.write_text(description(text), encoding="utf-8")


def description(text: str) -> str:
    """Return the content of experiment.toml or arguments.toml: a line with a checksum, the text."""
    return DESCRIPTION_HEAD.format(_checksum(text)) + text


def require_as_written(path: Path) -> None:
    """Raise if the description of a run folder has a checksum that does not fit.

    A changed setting would continue the runs with other results.
    """
    try:
        head, _, text = path.read_text(encoding="utf-8").partition("\n")
    except (OSError, ValueError) as error:
        raise UndriftError(f"{path} cannot be read: {first_line(error)}.") from error
    found = DESCRIPTION_CHECKSUM.match(head)  # older versions wrote none
    require(
        found is None or found[1] == _checksum(text),
        f"{path} is not as undrift wrote it: put the original back or, if you changed it on "
        f"purpose, remove its first line.",
    )


def _checksum(text: str) -> str:
    return blake2b(text.encode(), digest_size=8).hexdigest()


def about() -> dict[str, Any]:
    """The versions and the machine that a run is made with."""
    from undrift import __version__

    names = ("torch", "numpy", "safetensors", "lmdb")
    return {
        # The code's own version: that of an editable installation may be older than the code.
        "undrift": __version__,
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
