"""Examines run folders: which files are intact, which are damaged, and what can be saved."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from undrift.experiments.experiment import Experiment
from undrift.runs.arguments import read_arguments
from undrift.runs.folder import (
    ABOUT,
    ARGUMENTS,
    DATA,
    DONE,
    EXPERIMENT,
    MODEL,
    RECORDS,
    RUN,
    STORE,
    file_checksum,
    locked_folder,
    read_json,
    read_run,
    require_as_written,
)
from undrift.runs.store.contents import UNCHECKED_FORMAT, Contents, examine
from undrift.runs.store.keys import record_round
from undrift.runs.store.pages import Damage
from undrift.utils.errors import UndriftError, first_line

OTHER_FILES = (ABOUT, DATA, "deployment.json", "connection.json")
MAX_NAMED = 3
"""The most damaged places of a store that are named."""


@dataclass(frozen=True)
class Finding:
    """What was found out about one file."""

    path: Path
    intact: bool
    text: str
    """what it holds; or what is damaged, what is intact and what can be done"""


def is_run(folder: Path) -> bool:
    """Whether a folder is that of a single run."""
    return (folder / RUN).is_file() or (folder / STORE).is_dir()


def is_run_folder(folder: Path) -> bool:
    """Whether a folder holds runs, or the description of runs."""
    described = any((folder / name).is_file() for name in (EXPERIMENT, ARGUMENTS))
    return described or any(is_run(run) for run in folder.glob("*/seed-*"))


def check_runs(folder: Path) -> list[Finding]:
    """Examine a run folder, or the folder of one run in it; nothing is changed."""
    whole = folder.parent.parent if is_run(folder) else folder
    with locked_folder(whole if is_run_folder(whole) else folder):
        if is_run(folder):
            return list(_check_run(folder))
        found = list(_check_descriptions(folder))
        for run in sorted(each for each in folder.glob("*/seed-*") if is_run(each)):
            found += _check_run(run)
        return found


def _check_descriptions(folder: Path) -> Iterator[Finding]:
    path = folder / (ARGUMENTS if (folder / ARGUMENTS).is_file() else EXPERIMENT)
    try:
        require_as_written(path)
        described = read_arguments(folder) if path.name == ARGUMENTS else Experiment.load(path)
        rounds = described["rounds"] if isinstance(described, dict) else described.rounds
        yield Finding(path, True, f"describes runs of {rounds} rounds")
    except KeyError:
        yield Finding(path, False, "does not say how many rounds the runs have")
    except UndriftError as error:
        sentence = " ".join(str(error).split())
        yield Finding(path, False, f"{sentence} The runs cannot continue without it.")
    for name in OTHER_FILES:
        if (folder / name).is_file():
            yield _check_json(folder / name)


def _check_json(path: Path) -> Finding:
    try:
        read_json(path)
        return Finding(path, True, "is a JSON object")
    except UndriftError as error:
        return Finding(path, False, str(error))


def _check_run(run: Path) -> Iterator[Finding]:
    damages: list[Damage] = []
    records: dict[int, str] = {}

    def keep(key: bytes, content: bytes | memoryview) -> None:
        round = record_round(key)
        if round is not None:
            records[round] = bytes(content).decode(errors="replace")

    contents = Contents()
    if (run / STORE / "data.mdb").is_file():
        contents = examine(run / STORE / "data.mdb", damages.append, keep)
    yield _store_finding(run, contents, damages, records)
    yield _check_records(run, contents, records)
    status, finding = _check_status(run, contents)
    yield finding
    if status.get("status") in DONE or (run / MODEL).is_file():
        yield _check_model(run / MODEL, status)


def _store_finding(
    run: Path, contents: Contents, damages: Sequence[Damage], records: Mapping[int, str]
) -> Finding:
    path = run / STORE
    if not damages and contents.round is None:
        return Finding(path, not records, "holds no round: resuming begins the run")
    if not damages:
        text = f"all values of rounds 0 to {contents.round} are intact"
        if contents.format == UNCHECKED_FORMAT:
            text = f"holds rounds 0 to {contents.round}; this older format has no checksums"
        elif contents.oldest != contents.round:
            text += f"; the run can go back to round {contents.oldest} or later"
        return Finding(path, True, text)
    named = "; ".join(str(each) for each in damages[:MAX_NAMED])
    more = f"; and {len(damages) - MAX_NAMED} more" if len(damages) > MAX_NAMED else ""
    until = _contiguous(records)
    saved = "no record" if until is None else f"the records of rounds 0 to {until}"
    models = _listed(contents.models)
    saved += f" and the server's model of {models}" if models else ""
    return Finding(
        path,
        False,
        f"damaged ({named}{more}); intact in it: {saved}. The run cannot continue: put a copy of "
        f"the store back, or move {run} away to begin the run again.",
    )


def _contiguous(records: Mapping[int, str]) -> int | None:
    """The last round such that it and all before it have a record."""
    last = None
    while (0 if last is None else last + 1) in records:
        last = 0 if last is None else last + 1
    return last


def _listed(rounds: Sequence[int]) -> str:
    return ", ".join(f"round {each}" for each in sorted(rounds))


def _check_records(run: Path, contents: Contents, stored: Mapping[int, str]) -> Finding:
    """Compare the records of the file with those of the store."""
    path = run / RECORDS
    try:
        lines = path.read_bytes().decode(errors="replace").split("\n") if path.is_file() else []
    except OSError as error:
        return Finding(path, False, f"cannot be read: {first_line(error)}.")
    lines = lines[:-1] if lines and not lines[-1] else lines
    again = "continuing the run writes the file again from the store"
    for number, line in enumerate(lines):
        if number in stored and line != stored[number] and number < len(lines) - 1:
            return Finding(
                path,
                False,
                f"line {number + 1} differs from the store's record of round {number}; intact: the "
                f"{number} lines before it. {_rewriting(run, contents)}",
            )
        if number not in stored and not _is_json(line):
            return Finding(
                path,
                False,
                f"line {number + 1} is damaged; intact: the {number} lines before it.",
            )
    if lines and len(lines) - 1 in stored and lines[-1] != stored[len(lines) - 1]:
        return Finding(path, False, f"the last line is incomplete. {_rewriting(run, contents)}")
    if contents.round is not None and len(lines) != contents.round + 1:
        behind = contents.round + 1 - len(lines)
        text = f"has {len(lines)} records, the store {contents.round + 1}; {again}"
        return Finding(path, 0 < behind <= 1, text)
    return Finding(path, True, f"{len(lines)} records are intact")


def _rewriting(run: Path, contents: Contents) -> str:
    folder = run.parent.parent
    return f"undrift resume {folder} --from-round {contents.round} writes it again from the store."


def _is_json(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _check_status(run: Path, contents: Contents) -> tuple[dict[str, Any], Finding]:
    """Check run.json by itself and against the facts in the store."""
    path = run / RUN
    try:
        found = read_run(path)
    except UndriftError as error:
        text = f"{error} Resuming writes it again from the store."
        return {}, Finding(path, False, text)
    for name, value in (contents.meta or {}).items():
        if name != "format" and found.get(name) != value:
            text = f"its {name} is {found.get(name)!r}, but the store's is {value!r}"
            return found, Finding(path, False, text)
    reason = f": {found['reason']}" if found.get("reason") else ""
    return found, Finding(path, True, f"the run is {found['status']}{reason}")


def _check_model(path: Path, status: Mapping[str, Any]) -> Finding:
    if not path.is_file():
        return Finding(path, False, "is missing: resuming writes the model again from the store.")
    try:
        with safe_open(path, framework="pt") as file:
            count = len(file.keys())
        known = status.get("model_checksum")
        if known is not None and known != file_checksum(path):
            return Finding(path, False, "is not as undrift wrote it: its checksum does not fit.")
    except (SafetensorError, OSError, UndriftError) as error:
        return Finding(path, False, f"is damaged: {first_line(error)}.")
    return Finding(path, True, f"the final model of {count} tensors is intact")
