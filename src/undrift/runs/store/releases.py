"""The server's memory of what a private deployment released, which a crash cannot take away.

A round is entered here before its noise is drawn, and so are noisy metrics. A server that is
resumed does not carry out such a round again: the model may have left with the noise of then, and
the same contributions under other noise would reveal more than was accounted for. Metrics may be
released again; every release counts.
"""

from __future__ import annotations

from pathlib import Path

from undrift.runs.folder import read_json, write_json
from undrift.utils.shapes import require_shapes

RELEASES = "releases.json"
"""The name of the file in a run folder."""
METRICS = ", noisy metrics"
"""Ends the name of a run in the file, for its noisy metrics. The name of a run ends in a seed."""


class ReleaseLedger:
    """The rounds of one run whose noisy sums, and whose noisy metrics, were released.

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

    @property
    def evaluations(self) -> list[int]:
        """The numbers of rounds done before each release of noisy metrics, as often as released."""
        return self._read().get(self._run + METRICS, [])

    def add(self, round: int) -> None:
        """Enter a round; it is on disk when this returns."""
        self._append(self._run, [round])

    def add_evaluations(self, done: int, times: int = 1) -> None:
        """Enter releases of noisy metrics after `done` rounds; on disk when this returns."""
        self._append(self._run + METRICS, [done] * times)

    def _append(self, name: str, entries: list[int]) -> None:
        known = self._read()
        write_json(self._path, known | {name: [*known.get(name, []), *entries]})

    def _read(self) -> dict[str, list[int]]:
        if not self._path.is_file():
            return {}
        found = read_json(self._path)
        require_shapes(self._path, found, {run: [int] for run in found})
        return found


def ledger_of(folder: Path, label: str, seed: int) -> ReleaseLedger:
    """The ledger of a method with a seed in a run folder."""
    return ReleaseLedger(folder, f"{label} seed {seed}")
