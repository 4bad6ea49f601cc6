"""Takes runs back to an earlier round, so that resuming continues from there.

A run that diverged, or was ruined by a bad update, need not begin again: its store keeps the states
of the last few rounds. What came after the round is not lost: its records move to a side file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from undrift.core.records import Record
from undrift.runs.folder import (
    INTERRUPTED,
    MODEL,
    RECORDS,
    RUN,
    STORE,
    locked_folder,
    read_json,
    run_folder,
    write_json,
)
from undrift.runs.store import Store
from undrift.utils.errors import UndriftError, first_line, require, require_choice, require_whole
from undrift.utils.files import written_whole

DROPPED_RECORDS, DROPPED_MODEL = "records-dropped.jsonl", "model-dropped.safetensors"
"""Where the records and the last model of a run go that is taken back."""


def go_back(
    folder: Path,
    labels: Sequence[str],
    seeds: Sequence[int],
    round: int,
    only: str | None = None,
    seed: int | None = None,
) -> None:
    """Take the runs of a folder back to a round: all that have begun, or none.

    Parameters
    ----------
    folder
        the run folder
    labels, seeds
        the labels and seeds of its runs
    round
        the round to continue after
    only, seed
        the label and the seed of the runs to take back; None for all
    """
    require_whole("from_round", round, at_least=0)
    if only is not None:
        require_choice("The method", only, labels)
    require(seed is None or seed in seeds, f"{folder} has no runs with the seed {seed}.")
    wanted = [
        run_folder(folder, label, each)
        for label in ([only] if only is not None else labels)
        for each in ([seed] if seed is not None else seeds)
    ]
    with locked_folder(folder), ExitStack() as opened:
        begun = [run for run in wanted if (run / STORE / "data.mdb").is_file()]
        require(bool(begun), f"No run of {folder} has begun, so none can go back.")
        stores = [opened.enter_context(closing(Store(run / STORE, {}))) for run in begun]
        for store in stores:  # all of them, before anything is changed
            store.require_round(round)
        for run, store in zip(begun, stores, strict=True):
            if store.round != round or (run / MODEL).is_file():
                _take_back(run, store, round)


def _take_back(run: Path, store: Store, round: int) -> None:
    """Take one run back; if this process is killed on the way, it can be done again."""
    lines = list(store.records())
    _append(run / DROPPED_RECORDS, [line for line in lines if _round_of(line) > round])
    reason = f"taken back from round {store.round} to round {round}"
    # The status first: a run that is listed as ended is not continued.
    write_json(run / RUN, {**_facts(run, store), "status": INTERRUPTED, "reason": reason})
    store.go_back(round)
    with written_whole(run / RECORDS) as whole:
        whole.write_text("".join(f"{line}\n" for line in store.records()), "utf-8")
    if (run / MODEL).is_file():
        (run / MODEL).replace(run / DROPPED_MODEL)


def _round_of(line: str) -> int:
    return Record.from_json(line).round


def _append(path: Path, lines: Sequence[str]) -> None:
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise UndriftError(f"{path} cannot be written: {first_line(error)}.") from error


def _facts(run: Path, store: Store) -> Mapping[str, Any]:
    """What run.json says, or else the store."""
    try:
        return read_json(run / RUN)
    except UndriftError:
        return {name: value for name, value in store.meta.items() if name != "format"}
