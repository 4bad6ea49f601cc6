"""Downloads from a local HTTP server that misbehaves in the ways real servers do."""

import hashlib
import io
import signal
import socket
import struct
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from undrift import UndriftError
from undrift.data import downloads
from undrift.data.downloads import StandardFile, data_folder, fetch, unpack

CONTENT = np.random.default_rng(0).bytes(100_000)
SHA256 = "sha256:" + hashlib.sha256(CONTENT).hexdigest()
MD5 = "md5:" + hashlib.md5(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        asked = self.headers["Range"]
        server.ranges.append(asked)
        start = 0
        if server.missing:
            return self.send_error(404)
        if asked and not server.ignores_ranges:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if start >= len(server.content):
                return self.send_error(416)
            self.send_response(206)
            end = len(server.content)
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{end}")
        else:
            self.send_response(200)
        body = server.content[start:]
        if server.tells_length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if not server.stops_after:
            self.wfile.write(body)
            return None
        stop = server.stops_after.pop(0)
        self.wfile.write(body[:stop])
        server.stopped.set()
        if server.how == "wait":
            server.go_on.wait(server.patience)
            self.wfile.write(body[stop:])
        elif server.how == "reset":
            time.sleep(0.2)  # gives the client time to read what was sent
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.connection.close()
        return None

    def log_message(self, *_):
        pass


class FlakyServer(ThreadingHTTPServer):
    """Serves `content`; request i is interrupted after `stops_after[i]` bytes."""

    def __init__(self, content=CONTENT, stops_after=(), how="drop", **habits):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.stops_after, self.how = content, list(stops_after), how
        self.missing = self.ignores_ranges = False
        self.tells_length, self.patience = True, 60
        vars(self).update(habits)
        self.ranges = []
        self.stopped, self.go_on = threading.Event(), threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}/file.bin"
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def handle_error(self, *_):
        pass


@pytest.fixture
def serve():
    servers = []

    def start(*args, **habits):
        servers.append(FlakyServer(*args, **habits))
        return servers[-1]

    yield start
    for server in servers:
        server.go_on.set()
        server.shutdown()
        server.server_close()


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(downloads, "_RETRY_SECONDS", (0.0, 0.0, 0.0))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def published(*urls, checksum=SHA256, size=len(CONTENT)):
    return StandardFile("set/file.bin", urls, checksum, size)


def left(folder):
    """The names of the files in a folder, without locks."""
    return sorted(path.name for path in folder.rglob("*") if path.suffix != ".lock")


def refused(call, *args, **options):
    """The message of the error that a call raises."""
    with pytest.raises(UndriftError) as error:
        call(*args, **options)
    message = str(error.value)
    assert message.endswith(".") and ". " not in message and "\n" not in message
    return message


def nobody():
    """A URL at which no server listens."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{unused.getsockname()[1]}/file.bin"


def test_the_data_folder_is_the_users_choice_or_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("UNDRIFT_DATA", str(tmp_path))
    assert data_folder() == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.setenv("UNDRIFT_DATA", "~/mine")
    assert data_folder() == tmp_path / "mine"
    monkeypatch.setenv("UNDRIFT_DATA", "")
    default = data_folder()
    assert default.is_absolute() and default.name == "data" and "undrift" in default.parts
    monkeypatch.delenv("UNDRIFT_DATA")
    assert data_folder() == default


@pytest.mark.parametrize("checksum", [SHA256, MD5, SHA256[:7] + SHA256[7:].upper()])
def test_a_file_is_downloaded_once(serve, tmp_path, monkeypatch, checksum):
    monkeypatch.setenv("UNDRIFT_DATA", str(tmp_path / "new" / "folder"))
    server = serve()
    for _ in range(2):
        path = fetch(published(server.url, checksum=checksum))
        assert path == tmp_path / "new" / "folder" / "set" / "file.bin"
        assert path.read_bytes() == CONTENT
    assert server.ranges == [None]
    assert left(path.parent) == ["file.bin"]


def test_a_dropped_connection_is_continued_where_it_stopped(serve, tmp_path):
    server = serve(stops_after=[1000, 500, 0])
    assert fetch(published(server.url), tmp_path).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=1000-", "bytes=1500-", "bytes=1500-"]
    assert left(tmp_path / "set") == ["file.bin"]


@pytest.mark.parametrize("how", ["wait", "reset"])
def test_a_stalled_or_reset_connection_is_continued(serve, tmp_path, monkeypatch, how):
    monkeypatch.setattr(downloads, "_TIMEOUT_SECONDS", 0.5)
    server = serve(stops_after=[1000], how=how, patience=5)
    assert fetch(published(server.url), tmp_path).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=1000-"]


def test_a_server_that_does_not_tell_the_length_is_continued_too(serve, tmp_path):
    server = serve(stops_after=[1000], tells_length=False)
    assert fetch(published(server.url), tmp_path).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=1000-"]


def test_a_partial_download_is_kept_for_the_next_call(serve, tmp_path):
    server = serve(stops_after=[100] * 4)
    message = refused(fetch, published(server.url), tmp_path)
    assert "dropped after 400 of 100000 bytes" in message and server.url in message
    assert len(server.ranges) == 4
    assert left(tmp_path / "set") == [".file.bin.part"]
    assert fetch(published(server.url), tmp_path).read_bytes() == CONTENT
    assert server.ranges[-1] == "bytes=400-"


def test_a_server_without_ranges_starts_again(serve, tmp_path):
    server = serve(stops_after=[1000], ignores_ranges=True)
    assert fetch(published(server.url), tmp_path).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=1000-"]


def leave_part(folder, content):
    (folder / "set").mkdir()
    (folder / "set" / ".file.bin.part").write_bytes(content)


def test_a_part_that_is_too_long_is_dropped_and_a_whole_one_is_used(serve, tmp_path):
    server = serve()
    leave_part(tmp_path, CONTENT + b"more")
    assert fetch(published(server.url), tmp_path).read_bytes() == CONTENT
    assert server.ranges == ["bytes=100004-", None]
    (tmp_path / "set" / "file.bin").rename(tmp_path / "set" / ".file.bin.part")
    assert fetch(published(server.url), tmp_path).read_bytes() == CONTENT
    assert server.ranges[2:] == ["bytes=100000-"]


def test_a_stale_part_is_replaced(serve, tmp_path):
    server = serve()
    leave_part(tmp_path, b"of another version")
    assert fetch(published(server.url), tmp_path).read_bytes() == CONTENT
    assert server.ranges == ["bytes=18-", None]


@pytest.mark.parametrize("part", [None, b"of another version"])
def test_wrong_bytes_are_refused_and_leave_nothing(serve, tmp_path, part):
    server = serve(content=CONTENT[::-1])
    if part:
        leave_part(tmp_path, part)
    message = refused(fetch, published(server.url), tmp_path)
    assert "set/file.bin" in message and server.url in message and SHA256 in message
    assert hashlib.sha256(CONTENT[::-1]).hexdigest() in message
    assert left(tmp_path / "set") == []
    assert len(server.ranges) == (2 if part else 1)


@pytest.mark.parametrize("habits", [{"missing": True}, {"content": b"Please log in"}, None])
def test_the_next_url_is_tried(serve, tmp_path, habits):
    good = serve()
    first = nobody() if habits is None else serve(**habits).url
    assert fetch(published(first, good.url), tmp_path).read_bytes() == CONTENT
    assert good.ranges == [None]


def test_the_next_url_continues_what_the_first_began(serve, tmp_path):
    bad, good = serve(stops_after=[100] * 4), serve()
    assert fetch(published(bad.url, good.url), tmp_path).read_bytes() == CONTENT
    assert good.ranges == ["bytes=400-"]


def test_a_wrong_file_in_the_folder_is_refused_unless_it_is_trusted(serve, tmp_path):
    server = serve()
    path = tmp_path / "set" / "file.bin"
    path.parent.mkdir()
    path.write_bytes(CONTENT[::-1])
    message = refused(fetch, published(server.url), tmp_path)
    assert str(path) in message and SHA256 in message and "delete it" in message
    assert hashlib.sha256(CONTENT[::-1]).hexdigest() in message
    path.write_bytes(CONTENT[:-1])
    assert f"{path} is truncated to 99999 of 100000 bytes" in refused(
        fetch, published(server.url), tmp_path
    )
    assert fetch(published(server.url), tmp_path, verify=False) == path
    assert path.read_bytes() == CONTENT[:-1]
    assert server.ranges == []


def test_without_a_network_the_error_says_how_to_get_the_file(tmp_path):
    url, other = nobody(), nobody()
    message = refused(fetch, published(url, other), tmp_path)
    for part in ("set/file.bin", str(tmp_path / "set"), url, other, "UNDRIFT_DATA", "refused"):
        assert part in message
    assert left(tmp_path / "set") == []


@pytest.mark.parametrize(
    "url", ["at least one URL", "http://127.0.0.1:1x/", "http://[/", "gopher://a/"]
)
def test_a_malformed_url_raises_a_clear_error(tmp_path, url):
    assert "cannot be downloaded" in refused(fetch, published(url), tmp_path)


def test_a_server_that_does_not_have_the_file_is_named_with_its_answer(serve, tmp_path):
    server = serve(missing=True)
    message = refused(fetch, published(server.url), tmp_path)
    assert f"{server.url}: HTTP 404" in message
    assert server.ranges == [None]
    assert list(tmp_path.iterdir()) == []  # neither an empty folder nor a lock is left


def test_a_read_only_folder_raises_a_clear_error(serve, tmp_path):
    server = serve()
    (tmp_path / "set").write_text("a file where the folder should be")
    message = refused(fetch, published(server.url), tmp_path)
    assert f"cannot be written to {tmp_path / 'set'}" in message
    assert "UNDRIFT_DATA" in message
    (tmp_path / "set").unlink()
    (tmp_path / "set" / ".file.bin.part").mkdir(parents=True)
    assert "cannot be written" in refused(fetch, published(server.url), tmp_path)


def test_a_standard_file_needs_a_url_and_a_known_checksum():
    assert "at least one URL" in refused(published)
    assert "'sha1:0'" in refused(published, "http://a", checksum="sha1:0")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_bar_is_shown_on_a_terminal_only(serve, tmp_path, monkeypatch, capsys):
    server = serve()
    fetch(published(server.url), tmp_path / "a")
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    fetch(published(server.url), tmp_path / "b")
    assert "set/file.bin" in sys.stderr.getvalue() and "kB" in sys.stderr.getvalue()
    assert capsys.readouterr().out == ""


SCRIPT = """
import sys
from pathlib import Path
from undrift.data.downloads import StandardFile, fetch
url, checksum, folder = sys.argv[1:]
print("ready", flush=True)
print(fetch(StandardFile("set/file.bin", (url,), checksum), Path(folder)))
"""


def start_process(server, folder):
    command = [sys.executable, "-c", SCRIPT, server.url, SHA256, str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_a_killed_download_is_continued(serve, tmp_path):
    server = serve(stops_after=[1000], how="wait")
    part = tmp_path / "set" / ".file.bin.part"
    with start_process(server, tmp_path) as process:
        assert server.stopped.wait(60)
        for _ in range(500):
            if part.exists() and part.stat().st_size == 1000:
                break
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert left(tmp_path / "set") == [".file.bin.part"]
    assert fetch(published(server.url), tmp_path).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=1000-"]
    assert left(tmp_path / "set") == ["file.bin"]


def test_two_processes_at_once_download_once(serve, tmp_path):
    server = serve(stops_after=[len(CONTENT) - 1], how="wait")
    with start_process(server, tmp_path) as one, start_process(server, tmp_path) as two:
        for process in (one, two):
            assert process.stdout.readline() == "ready\n"
        assert server.stopped.wait(60)
        time.sleep(0.5)  # by then the other process is inside its call too
        assert not (tmp_path / "set" / "file.bin").exists()
        server.go_on.set()
        results = [process.communicate()[0].strip() for process in (one, two)]
    assert results == [str(tmp_path / "set" / "file.bin")] * 2
    assert server.ranges == [None]


MEMBERS = {"top/a.txt": b"first", "top/deep/b.txt": b"second", "top/c.html": b"third"}


def pack(path, members=MEMBERS):
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, content)
    else:
        with tarfile.open(path, "w:gz") as archive:
            for name, content in members.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return path


both = pytest.mark.parametrize("name", ["archive.tar.gz", "archive.zip"])


@both
def test_an_archive_is_unpacked_whole_or_in_part(tmp_path, name):
    archive = pack(tmp_path / name)
    into = unpack(archive, tmp_path / "new" / "all")
    assert into == tmp_path / "new" / "all"
    found = {str(p.relative_to(into)): p.read_bytes() for p in into.rglob("*") if p.is_file()}
    assert found == MEMBERS
    texts = unpack(archive, tmp_path / "texts", lambda name: name.endswith(".txt"))
    assert left(texts) == ["a.txt", "b.txt", "deep", "top"]
    assert left(tmp_path / "new") == ["a.txt", "all", "b.txt", "c.html", "deep", "top"]


@both
def test_an_unpacked_folder_is_kept_and_a_partial_one_is_removed(tmp_path, name):
    archive = pack(tmp_path / name)
    stale = tmp_path / ".into.part"
    stale.mkdir()
    (stale / "half").write_text("ha")
    into = unpack(archive, tmp_path / "into")
    assert not stale.exists() and not (into / "half").exists()
    (into / "top" / "a.txt").write_text("mine")
    archive.unlink()  # not needed after unpacking
    assert (unpack(archive, into) / "top" / "a.txt").read_text() == "mine"


@both
@pytest.mark.parametrize("damage", ["cut", "overwritten", "empty", "text"])
def test_a_damaged_archive_raises_a_clear_error_and_leaves_nothing(tmp_path, name, damage):
    big = {"first": b"fine", "second": CONTENT}
    archive = pack(tmp_path / name, big)
    whole = archive.read_bytes()
    middle = len(whole) // 2
    archive.write_bytes(
        {
            "cut": whole[:middle],
            "overwritten": whole[: middle - 50] + bytes(100) + whole[middle + 50 :],
            "empty": b"",
            "text": b"<html>not found</html>",
        }[damage]
    )
    assert f"{archive} is damaged" in refused(unpack, archive, tmp_path / "into")
    assert left(tmp_path) == [name]


@both
@pytest.mark.parametrize("bad", ["../outside", "/outside", "a/../../outside"])
def test_an_archive_may_not_write_outside(tmp_path, name, bad):
    (tmp_path / "in").mkdir()
    outside = str(tmp_path / "outside") if bad == "/outside" else bad
    archive = pack(tmp_path / name, {"fine": b"fine", outside: b"harm"})
    if bad == "/outside" and name == "archive.tar.gz":
        # tarfile removes the leading slash, so the member stays inside.
        unpack(archive, tmp_path / "in" / "into")
    else:
        assert "outside" in refused(unpack, archive, tmp_path / "in" / "into")
        assert left(tmp_path / "in") == []
    assert not (tmp_path / "outside").exists()


def test_an_archive_must_exist_and_have_a_known_type(tmp_path):
    assert "no archive" in refused(unpack, tmp_path / "absent.zip", tmp_path / "into")
    (tmp_path / "a.rar").write_text("")
    assert ".tar.gz or a .zip" in refused(unpack, tmp_path / "a.rar", tmp_path / "into")
    (tmp_path / "file").write_text("")
    message = refused(unpack, pack(tmp_path / "a.zip"), tmp_path / "file" / "into")
    assert "cannot be unpacked" in message
