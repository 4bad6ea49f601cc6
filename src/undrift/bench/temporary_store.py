"""A store in a temporary folder, to time what committing every round costs."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from undrift.core.records import Record
from undrift.loops import Loop
from undrift.runs.folder import RECORDS, STORE
from undrift.runs.states import StoredStates
from undrift.runs.storage import BYTES_PER_MB, FolderStorage, commit
from undrift.runs.store import Store


class TemporaryStore:
    """Commits rounds as `undrift run` does, with its default durability and memory."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="undrift-bench-")
        folder = Path(self._folder.name)
        keeping = FolderStorage(folder)
        self._store = Store(folder / STORE, {}, keeping.durability)
        self._memory = int(keeping.memory * BYTES_PER_MB)
        self._lines = (folder / RECORDS).open("a", encoding="utf-8")

    def states(self, kinds: Mapping[str, str | Tensor], x0: Tensor) -> StoredStates:
        """Return the client states of a run, kept in this store."""
        return StoredStates(kinds, x0, self._store, self._memory)

    def commit(self, run: Loop, record: Record) -> None:
        """Commit a round and append its record to the file of records."""
        commit(run, self._store, record)
        self._lines.write(record.to_json() + "\n")
        self._lines.flush()

    def close(self) -> None:
        """Close the store and remove its folder."""
        self._lines.close()
        self._store.close()
        self._folder.cleanup()
