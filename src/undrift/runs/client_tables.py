"""Writes the table of results per client of a run: `clients.csv`, and parquet with pyarrow."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from undrift.runs.folder import CLIENTS
from undrift.utils.files import written_whole


def write_clients(rows: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Write a row per client and model into the folder of a run.

    `clients.parquet` has the same rows, if pyarrow is installed.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    with (
        written_whole(folder / CLIENTS) as partial,
        partial.open("w", encoding="utf-8", newline="") as file,
    ):
        writer = csv.DictWriter(file, names, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    try:
        from pyarrow import Table, parquet
    except ImportError:
        return
    # A column has one type, but ids may be numbers and words.
    plain = [{**row, "client": str(row["client"])} for row in rows]
    columns = {name: [row.get(name) for row in plain] for name in names}
    with written_whole((folder / CLIENTS).with_suffix(".parquet")) as partial:
        parquet.write_table(Table.from_pydict(columns), partial)
