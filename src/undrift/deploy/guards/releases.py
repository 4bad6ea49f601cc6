"""The server's memory of released rounds, which a crash cannot take away.

A private round is entered here before its noise is drawn. A server that is resumed does not carry
out such a round again: the model may have left with the noise of then, and the same contributions
under other noise would reveal more than was accounted for.
"""

from __future__ import annotations

from pathlib import Path

from undrift.runs.folder import read_json, write_json
from undrift.utils.shapes import require_shapes

RELEASES = "releases.json"
"""The name of the file in a run folder."""


class ReleaseLedger:
    """The rounds of one run whose noisy sums were released.

    Parameters
    ----------
    folder
        the run folder, whose runs share the file
    run
        which of its runs, such as "FedAvg seed 0"
    """

    def __init__(self, folder: Path, run: str):
        self._path = folder / RELEASES
        self._run = run

    @property
    def rounds(self) -> list[int]:
        """The released rounds, counted from 0."""
        return self._read().get(self._run, [])

    def add(self, round: int) -> None:
        """Enter a round; it is on disk when this returns."""
        known = self._read()
        write_json(self._path, known | {self._run: [*known.get(self._run, []), round]})

    def _read(self) -> dict[str, list[int]]:
        if not self._path.is_file():
            return {}
        found = read_json(self._path)
        require_shapes(self._path, found, {run: [int] for run in found})
        return found
