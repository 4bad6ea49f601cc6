"""Keep the records of finished reproductions in small archives, so that a study can continue.

    python -m tools.run_archives pack reproductions docs/reproductions/runs
    python -m tools.run_archives unpack docs/reproductions/runs reproductions

`pack` writes NAME.tar.xz for every folder of reproductions: settings, records and computed values,
without models, stores and times of single clients, of the seeds that all methods of an experiment
have finished. `unpack` puts back what a folder lacks.
`undrift reproduce` then reads the archived runs, and executes only what is missing: more parts or
more seeds. The same runs give the same archive, byte by byte.
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from undrift.experiments.experiment import Experiment
from undrift.reproduce.lab import DONE, KEPT, RUNS, TIMES
from undrift.reproduce.registry import NAMES
from undrift.runs.folder import (
    ABOUT,
    ARCHIVED,
    DATA,
    EXPERIMENT,
    RECORDS,
    RUN,
    description,
    read_run,
    run_folder,
)
from undrift.runs.storage import ended
from undrift.utils.errors import UndriftError, require
from undrift.utils.files import written_whole

SUFFIX = ".tar.xz"
LISTS = ("spans", "staleness")
"""Fields of records with times of single clients, which take most of the space."""
USAGE = "usage: python -m tools.run_archives pack|unpack FROM TO"


def pack(folder: Path, archive: Path) -> int:
    """Write the archive of a reproduction's folder, and return its number of finished runs."""
    entries = sorted(_entries(folder))
    archive.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(archive) as partial, tarfile.open(partial, "w:xz", preset=9) as out:
        for name, content in entries:
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o644
            out.addfile(info, io.BytesIO(content))
    return sum(PurePosixPath(name).name == RUN for name, _ in entries)


def _entries(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the files of the archive: their names, relative to the folder, and contents."""
    for path in (folder / DONE, folder / TIMES, *(folder / KEPT).glob("*.json")):
        if path.is_file():
            yield _name(path, folder), path.read_bytes()
    for cell in (folder / RUNS).glob("*"):
        experiment = Experiment.load(cell / EXPERIMENT)
        complete = [seed for seed in experiment.seeds if _has_ended(experiment, cell, seed)]
        for run in (run_folder(cell, label, s) for label in experiment.labels for s in complete):
            told = {**read_run(run / RUN), ARCHIVED: True}
            text = json.dumps(told, indent=2, ensure_ascii=False) + "\n"
            yield _name(run / RUN, folder), text.encode()
            yield _name(run / RECORDS, folder), _slimmed((run / RECORDS).read_text("utf-8"))
        if complete:
            kept = Experiment.from_dict({**experiment.resolved(), "seeds": complete})
            yield _name(cell / EXPERIMENT, folder), description(kept.to_toml()).encode()
            for path in (cell / ABOUT, cell / DATA):
                yield _name(path, folder), path.read_bytes()


def _has_ended(experiment: Experiment, cell: Path, seed: int) -> bool:
    """Whether a seed's runs of all methods have ended, so that they can be compared."""
    runs = (run_folder(cell, label, seed) for label in experiment.labels)
    return all(ended(run, experiment.rounds) for run in runs)


def _slimmed(records: str) -> bytes:
    """Records without `LISTS`."""
    lines = (json.loads(line) for line in records.splitlines())
    slim = ({**line, **{name: [] for name in LISTS if name in line}} for line in lines)
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in slim).encode()


def _name(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()


def unpack(archive: Path, folder: Path) -> int:
    """Put back the files that a folder lacks, and return their number."""
    written = 0
    with tarfile.open(archive, "r:xz") as entries:
        for info in entries:
            place = PurePosixPath(info.name)
            content = entries.extractfile(info)
            require(
                content is not None and not place.is_absolute() and ".." not in place.parts,
                f"{archive} has an entry {info.name!r} that is not a file of a reproduction.",
            )
            path = folder / place
            if content is None or path.exists():
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            with written_whole(path) as partial:
                partial.write_bytes(content.read())
            written += 1
    return written


def main(arguments: list[str]) -> None:
    """Pack or unpack all reproductions of a folder."""
    require(len(arguments) == 3 and arguments[0] in ("pack", "unpack"), USAGE)
    source, target = map(Path, arguments[1:])
    for name in NAMES:
        if arguments[0] == "pack" and (source / name / DONE).is_file():
            runs = pack(source / name, target / f"{name}{SUFFIX}")
            size = (target / f"{name}{SUFFIX}").stat().st_size
            print(f"{name}: {runs} finished runs, {size / 1000:.0f} kB")
        elif arguments[0] == "unpack" and (source / f"{name}{SUFFIX}").is_file():
            print(f"{name}: {unpack(source / f'{name}{SUFFIX}', target / name)} files")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UndriftError as error:
        sys.exit(f"error: {error}")
