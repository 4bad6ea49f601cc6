"""Archives of reproductions: what was packed is read, and only what is missing is executed."""

import io
import json
import shutil
import tarfile
from pathlib import Path

import pytest
from tools import run_archives

from undrift.reproduce import find, lab, reproduce
from undrift.utils.errors import UndriftError

NAME = "fednova-synthetic"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("reproductions") / NAME
    reproduce(NAME, found, quick=True)
    return found


def findings(folder):
    found = json.loads((folder / "findings.json").read_text())
    return {key: value for key, value in found.items() if key not in ("made", "seconds")}


def test_archived_runs_are_not_executed_again(folder, tmp_path, monkeypatch):
    run_archives.main(["pack", str(folder.parent), str(tmp_path / "archives")])
    archive = tmp_path / "archives" / f"{NAME}.tar.xz"
    run_archives.main(["unpack", str(archive.parent), str(tmp_path / "again")])
    again = tmp_path / "again" / NAME
    assert not list(again.rglob("store")) and not list(again.rglob("*.safetensors"))

    def refuse(*_, **__):
        raise AssertionError("a finished run is executed again")

    monkeypatch.setattr(lab, "run_experiment", refuse)
    reproduce(NAME, again, quick=True)
    assert findings(again) == findings(folder)
    with pytest.raises(AssertionError, match="executed again"):
        reproduce(NAME, again, quick=True, seeds=2)


def test_more_seeds_are_added_to_archived_ones(folder, tmp_path):
    run_archives.pack(folder, tmp_path / "a.tar.xz")
    run_archives.unpack(tmp_path / "a.tar.xz", tmp_path / "again")
    archived = {path: path.read_bytes() for path in (tmp_path / "again").rglob("records.jsonl")}
    reproduce(NAME, tmp_path / "again", quick=True, seeds=2)
    assert all(path.read_bytes() == content for path, content in archived.items())
    whole = tmp_path / "whole"
    reproduce(NAME, whole, quick=True, seeds=2)
    assert findings(tmp_path / "again") == findings(whole)


def test_the_same_runs_give_the_same_archive(folder, tmp_path):
    count = run_archives.pack(folder, tmp_path / "a.tar.xz")
    assert count == len(list(folder.rglob("run.json"))) > 0
    copy = tmp_path / "copy"
    run_archives.unpack(tmp_path / "a.tar.xz", copy)
    assert run_archives.unpack(tmp_path / "a.tar.xz", copy) == 0
    run_archives.pack(copy, tmp_path / "b.tar.xz")
    assert (tmp_path / "a.tar.xz").read_bytes() == (tmp_path / "b.tar.xz").read_bytes()


def test_seeds_that_a_method_has_not_finished_are_left_out(folder, tmp_path, monkeypatch):
    more = tmp_path / "more"
    shutil.copytree(folder, more)
    reproduce(NAME, more, quick=True, seeds=2)
    for unfinished in more.rglob("seed-1/run.json"):
        told = json.loads(unfinished.read_text())
        unfinished.write_text(json.dumps({**told, "status": "interrupted"}))
        break
    cell = unfinished.parents[2]
    run_archives.pack(more, tmp_path / "part.tar.xz")
    run_archives.unpack(tmp_path / "part.tar.xz", tmp_path / "again")
    seeds = {
        path.parent.name for path in (tmp_path / "again" / "runs" / cell.name).rglob("run.json")
    }
    assert seeds == {"seed-0"}
    monkeypatch.setattr(lab, "run_experiment", lambda *_, **__: pytest.fail("a run is missing"))
    reproduce(NAME, tmp_path / "again", quick=True)


def test_an_archive_cannot_write_outside_of_its_folder(tmp_path):
    archive = tmp_path / "bad.tar.xz"
    with tarfile.open(archive, "w:xz") as out:
        info = tarfile.TarInfo("../outside.json")
        info.size = 2
        out.addfile(info, io.BytesIO(b"{}"))
    with pytest.raises(UndriftError, match="not a file of a reproduction"):
        run_archives.unpack(archive, tmp_path / "folder")
    assert not (tmp_path / "outside.json").exists()


ARCHIVES = Path(__file__).parent.parent / "docs" / "reproductions" / "runs"


@pytest.mark.parametrize("archive", sorted(ARCHIVES.glob("*.tar.xz")), ids=lambda path: path.name)
def test_the_published_findings_are_those_of_the_archived_runs(archive, tmp_path, monkeypatch):
    name = archive.name.removesuffix(".tar.xz")
    run_archives.unpack(archive, tmp_path / name)
    done = json.loads((tmp_path / name / "done.json").read_text())
    stored = json.loads((ARCHIVES.parent / f"{name}.json").read_text())
    if stored.get("revision", 1) != find(name).revision:
        pytest.skip("the published findings are of earlier settings")
    assert stored["parts"] == done["parts"]

    def refuse(*_, **__):
        raise AssertionError("a run is missing in the archive")

    monkeypatch.setattr(lab, "run_experiment", refuse)
    reproduce(name, tmp_path / name, seeds=1, parts=done["parts"])
    again = findings(tmp_path / name)
    for key in ("numbers", "claims"):
        assert again[key] == stored[key]
