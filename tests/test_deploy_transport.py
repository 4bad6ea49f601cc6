"""The transport over Flower: sizes, lost connections, folders in use, and error messages."""

import http.server
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from commands import called
from deployments import app
from undrift.deploy.flower.environment import configure_flower, environment
from undrift.deploy.flower.processes import PARENT, free_port, last_error, last_lines, log_lines
from undrift.runs.folder import is_deployed, locked_folder
from undrift.utils.errors import UndriftError

pytest.importorskip("flwr", reason="the extra flower is not installed")
configure_flower()

import httpx  # noqa: E402
from flwr.app.message import array  # noqa: E402
from flwr.common.serde import message_to_proto  # noqa: E402
from flwr.proto.message_pb2 import PullObjectResponse  # noqa: E402
from flwr.proto.node_pb2 import Node as Whom  # noqa: E402
from flwr.proto.runtime_pb2 import PullAppMessagesResponse  # noqa: E402
from flwr.supercore.inflatable.inflatable_object import (  # noqa: E402
    get_all_nested_objects,
    get_object_tree,
)
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402

from undrift.deploy import launch  # noqa: E402
from undrift.deploy.flower import answers, heartbeats, messages, supernode, transport  # noqa: E402
from undrift.deploy.flower.certificates import make_certificates  # noqa: E402
from undrift.deploy.flower.messages import answer_message, request_message  # noqa: E402
from undrift.deploy.flower.superlink import SuperLink  # noqa: E402
from undrift.deploy.flower.transport import FlowerTransport  # noqa: E402
from undrift.deploy.wire_format import encode  # noqa: E402


class Runtime:
    """A SuperLink as its clients see it, with one node that answers with the given bytes."""

    def __init__(self, data=b"hello"):
        self.data = data
        self.node = Whom(node_id=1)
        self._run = SimpleNamespace(run_id=7)
        self._runtime_client = self
        self.there = [SimpleNamespace(node_id=2, public_key=b"k", name="a", last_activated_at="")]
        self.pulled = 0
        self.dropped = []

    def get_nodes(self):
        return self.there

    def push_messages(self, messages):
        (self.request,) = messages
        self.request.metadata.__dict__["_message_id"] = self.request.object_id
        return [self.request.object_id]

    def PullMessages(self, request):
        answer = answer_message(self.data, self.request)
        answer.metadata.__dict__["_message_id"] = answer.object_id
        self.contents = {
            name: part.deflate() for name, part in get_all_nested_objects(answer).items()
        }
        plain = SimpleNamespace(metadata=answer.metadata)
        plain.has_content, plain.has_error = (lambda: False), (lambda: False)
        return PullAppMessagesResponse(
            messages_list=[message_to_proto(plain)], message_object_trees=[get_object_tree(answer)]
        )

    def PullObject(self, request):
        content = self.contents[request.object_id]
        self.pulled += len(content)
        return PullObjectResponse(
            object_found=True, object_available=True, object_content=bytes(content)
        )

    def ConfirmMessageReceived(self, request):
        self.dropped.append(request.message_object_id)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(transport, "POLL_SECONDS", 0.01)
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 7, raising=False)


def answered(runtime, most):
    with FlowerTransport(runtime) as carrier:
        ticket = carrier.send("a", b"?", 10, most)
        answer = carrier.next(10)
        assert answer.ticket == ticket
        assert not carrier._open
        return answer


def in_pieces(monkeypatch, size):
    """Have answers sent as an array in pieces of so many bytes."""
    monkeypatch.setattr(messages, "MAX_RECORD_BYTES", 0)
    monkeypatch.setattr(array, "FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE", size)


@pytest.mark.parametrize("length", [0, 5, 1_000_000, messages.MAX_RECORD_BYTES + 1])
def test_an_answer_of_the_size_that_was_asked_for_arrives(length):
    runtime = Runtime(os.urandom(length))
    assert answered(runtime, length).data == runtime.data
    assert len(runtime.dropped) == 1


def test_a_large_answer_is_refused_before_it_is_there(monkeypatch):
    monkeypatch.setattr(answers, "FRAME_BYTES", 2000)
    in_pieces(monkeypatch, 10_000)
    runtime = Runtime(os.urandom(500_000))
    answer = answered(runtime, 30_000)
    assert answer.failure == "refused: the answer is larger than 30000 bytes"
    assert runtime.pulled < 60_000
    assert len(runtime.dropped) == 1  # the SuperLink need not keep it


def test_a_piece_that_is_repeated_counts_each_time(monkeypatch):
    """Flower stores chunks by content: a small upload may be assembled into a huge answer."""
    monkeypatch.setattr(answers, "FRAME_BYTES", 2000)
    in_pieces(monkeypatch, 10_000)
    opened = []
    monkeypatch.setattr(answers, "_assemble", lambda *arguments: opened.append(arguments))
    runtime = Runtime(os.urandom(10_000) * 50)
    assert "refused" in answered(runtime, 30_000).failure
    assert runtime.pulled < 20_000  # so it cannot be told by what was fetched
    assert not opened


def test_a_tree_of_very_many_parts_is_not_fetched(monkeypatch):
    in_pieces(monkeypatch, 100)
    runtime = Runtime(os.urandom(10_000))
    assert "refused" in answered(runtime, 30_000).failure
    assert runtime.pulled == 0


def test_what_is_over_is_not_kept(monkeypatch):
    """Neither tickets of finished requests nor nodes that disconnected are kept."""
    runtime = Runtime()
    with FlowerTransport(runtime) as carrier:
        forgotten = carrier.send("a", b"?", 10, 100)
        carrier.forget(forgotten)
        assert carrier.next(0.1) is None
        carrier.send("nobody", b"?", 10, 100)
        assert carrier.next(1).failure == "away"
        assert not carrier._open
        runtime.there = []
        monkeypatch.setattr(transport, "FORGET_NODE_SECONDS", -1.0)
        carrier._fetch_nodes()
        assert not carrier._nodes


LOST = r"The connection to the SuperLink is lost \(.*\); undrift resume continues"


@pytest.mark.parametrize("where", ["get_nodes", "push_messages", "PullMessages"])
@pytest.mark.parametrize("error", [httpx.ConnectError("refused"), ConnectionError("401")])
def test_a_superlink_that_is_gone_is_said_in_a_sentence(where, error):
    def fails(*_):
        raise error

    runtime = Runtime()
    setattr(runtime, where, fails)
    with pytest.raises(UndriftError, match=LOST):
        answered(runtime, 100)


def test_a_superlink_that_ended_is_not_waited_for(tmp_path):
    link = SuperLink(tmp_path, "127.0.0.1", 1)
    link._process = SimpleNamespace(poll=lambda: -9)
    with pytest.raises(ConnectionError, match="its process has ended"):
        link._gives_up(httpx.ConnectError("refused"))


# Heartbeats


def test_a_beat_that_fails_disturbs_nobody(monkeypatch):
    """Flower's own heartbeats interrupt the process when its task is over."""
    monkeypatch.setattr(heartbeats, "HEARTBEAT_SECONDS", 0.01)
    beats, raised = [], []
    monkeypatch.setattr(signal, "raise_signal", raised.append)

    def beat(request):
        beats.append(request)
        if len(beats) > 2:
            raise httpx.ConnectError("gone")
        return SimpleNamespace(success=False)

    with heartbeats.heartbeats(SimpleNamespace(SendTaskHeartbeat=beat)):
        while len(beats) < 5:
            time.sleep(0.01)
    number = len(beats)
    time.sleep(0.05)
    assert len(beats) == number and not raised


def test_a_site_beats_no_more_when_it_closes_its_task(tmp_path, monkeypatch):
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.supernode.runtime import run_clientapp

    order = []

    @contextmanager
    def beat(client):
        order.append("beats")
        yield
        order.append("no more")

    monkeypatch.setattr(heartbeats, "heartbeats", beat)
    monkeypatch.setattr(
        RuntimeHttpClient, "from_server_address", lambda *_, **__: SimpleNamespace(close=int)
    )
    message = request_message(b"?", 1, 10.0, 100)
    monkeypatch.setattr(run_clientapp, "pull_task_input", lambda _: (message, None, None, None))
    monkeypatch.setattr(run_clientapp, "push_message", lambda *_: order.append("answers"))
    monkeypatch.setattr(run_clientapp, "push_task_output", lambda *_: order.append("closes"))
    site = SimpleNamespace(answer=lambda data: encode({}, {}))
    supernode.SuperNode(site, "127.0.0.1:1", tmp_path)._answer("token")
    assert order == ["beats", "answers", "no more", "closes"]


# Run folders


@pytest.fixture
def silent(monkeypatch):
    """Starts no SuperLink; lists the arguments with which `_serve` was called."""
    served = []
    monkeypatch.setattr(launch, "_serve", lambda *arguments: served.append(arguments) or [])
    return served


def test_a_second_server_in_a_folder_is_refused(tmp_path, silent):
    file = app(tmp_path / "app")
    experiment = launch.Experiment.load(file)
    out = tmp_path / "out"
    launch.run_server(experiment, out, "127.0.0.1", 8000)
    before = (out / "connection.json").read_text()
    with locked_folder(out / "flower"):  # as the first one has it
        for again in (
            lambda: launch.resume_server(experiment, out),
            lambda: launch.run_server(experiment, out, "127.0.0.1", 8001),
            lambda: launch.run_local(file, None, out),
        ):
            with pytest.raises(UndriftError, match="Another process is running in"):
                again()
    assert len(silent) == 1
    assert (out / "connection.json").read_text() == before
    assert not (out / "app.toml").exists()


def test_a_folder_is_held_while_its_server_lives(tmp_path, monkeypatch):
    def serve(experiment, folder, *_):
        with (
            pytest.raises(UndriftError, match="Another process is running in"),
            locked_folder(folder / "flower"),
        ):
            pass
        return []

    monkeypatch.setattr(launch, "_serve", serve)
    experiment = launch.Experiment.load(app(tmp_path / "app"))
    launch.run_server(experiment, tmp_path / "out", "127.0.0.1", 8000)


def test_the_folder_of_a_simulation_stays_one(tmp_path, silent):
    file = app(tmp_path / "app")
    file.write_text(file.read_text().replace("rounds = 5", "rounds = 1"))
    out = tmp_path / "sim"
    assert called("run", str(file), "--out", str(out), "--quiet", cwd=tmp_path).returncode == 0
    other = app(tmp_path / "other", ["SCAFFOLD"])
    for each, why in ((other, "another experiment"), (file, "the runs of a simulation")):
        with pytest.raises(UndriftError, match=why):
            launch.run_server(launch.Experiment.load(each), out, "127.0.0.1", 8000)
        assert not is_deployed(out)
    assert not silent


def test_a_local_deployment_goes_on_with_its_sites(tmp_path, silent, monkeypatch):
    started = []

    def start(file, name, superlink, folder, certs=None):
        started.append((name, superlink))
        return SimpleNamespace(poll=lambda: 0)

    monkeypatch.setattr(launch, "start_site", start)
    out = tmp_path / "out"
    launch.run_local(app(tmp_path / "app"), 2, out)
    assert json.loads((out / "connection.json").read_text())["sites"] == ["a", "b"]
    began, started[:] = list(started), []
    launch.resume_server(launch.Experiment.load(out / "experiment.toml"), out)
    assert [name for name, _ in started] == [name for name, _ in began] == ["a", "b"]
    served_at = silent[-1][3]
    assert {where for _, where in started} == {f"127.0.0.1:{served_at}"}
    (out / "flower" / "superlink.json").write_text('{"port": 50123}')  # it was killed
    launch.resume_server(launch.Experiment.load(out / "experiment.toml"), out)
    assert silent[-1][3] == 50123


def test_resuming_extends_a_deployment_to_more_rounds(tmp_path, silent):
    file, out = app(tmp_path / "app"), tmp_path / "out"
    launch.run_server(launch.Experiment.load(file), out, "127.0.0.1", 8000)
    begun = out / "SCAFFOLD" / "seed-0"
    begun.mkdir(parents=True)
    (begun / "run.json").write_text("{}")
    longer = launch.Experiment.load(out / "experiment.toml", {"rounds": 9})
    with pytest.raises(UndriftError, match="have 5 rounds, not 9"):
        launch.run_server(longer, out, "127.0.0.1", 8000)
    launch.resume_server(longer, out)
    assert len(silent) == 2 and silent[-1][0].rounds == 9
    with pytest.raises(UndriftError, match="extended, not shortened"):
        launch.resume_server(launch.Experiment.load(file, {"rounds": 3}), out)


def test_a_site_that_ends_is_said_with_its_reason(tmp_path, monkeypatch):
    def start(file, name, superlink, folder, certs=None):
        (folder / name).mkdir(parents=True)
        (folder / name / "site.log").write_text(words)
        return SimpleNamespace(poll=lambda: 1)

    monkeypatch.setattr(launch, "start_site", start)
    monkeypatch.setattr(launch, "_serve", lambda *arguments: arguments[6](["a"]))
    file = app(tmp_path / "app")
    words = "Site 'a' waits.\nerror: The data cannot be read: no\n/data/x.npz.\n"
    with pytest.raises(UndriftError, match=r"ended: error: The data cannot be read: no /data/x"):
        launch.run_local(file, None, tmp_path / "one")
    words = " \n\n"
    with pytest.raises(UndriftError, match="ended: it gave no reason"):
        launch.run_local(file, None, tmp_path / "two")


def test_names_that_are_no_names_are_refused_before_anything_is_written(tmp_path, silent):
    file = app(tmp_path / "app")
    file.write_text(file.read_text().replace('"c"]', '"../../c"]'))
    experiment, out = launch.Experiment.load(file), tmp_path / "out"
    good = launch.Experiment.load(app(tmp_path / "good"))
    for run in (
        lambda: launch.run_server(experiment, out, "127.0.0.1", 8000),
        lambda: launch.run_local(file, None, out),
        lambda: launch.run_site(good, "../c", "127.0.0.1:8000", out, None, None, None),
    ):
        with pytest.raises(UndriftError, match="The site's name is"):
            run()
    assert not out.exists() and not silent


@pytest.mark.parametrize("port", ["0", "65536", "x", "²", ""])
def test_a_port_that_is_none_is_refused(tmp_path, port):
    experiment = launch.Experiment.load(app(tmp_path / "app"))
    with pytest.raises(UndriftError, match="with a port from 1 to 65535"):
        launch.run_site(experiment, "a", f"127.0.0.1:{port}", tmp_path, None, None, None)


# Addresses


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("0.0.0.0", "127.0.0.1:80"),
        ("::", "[::1]:80"),
        ("[::1]", "[::1]:80"),
        ("localhost", "localhost:80"),
    ],
)
def test_where_a_server_finds_its_superlink(tmp_path, host, address):
    assert SuperLink(tmp_path, host, 80).address == address


def test_a_port_in_use_and_a_foreign_address_are_said_at_once(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with (
            pytest.raises(UndriftError, match=f"port {port} .*in use.*another --port"),
            SuperLink(tmp_path, "127.0.0.1", port),
        ):
            pass
    with (
        pytest.raises(UndriftError, match=r"cannot listen on 203\.0\.113\.9"),
        SuperLink(tmp_path, "203.0.113.9", port),
    ):
        pass


def test_a_superlink_whose_files_are_gone_is_left(tmp_path):
    link = SuperLink(tmp_path / "flower", "127.0.0.1", 1)
    link.__exit__()


@pytest.fixture
def answering():
    """Starts HTTP servers that answer every GET request, with TLS if given certificates."""
    servers = []

    class Healthy(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    def start(certs=None, host="127.0.0.1"):
        server = http.server.ThreadingHTTPServer((host, 0), Healthy)
        if certs is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certs / "server.pem", certs / "server.key")
            server.socket = context.wrap_socket(server.socket, server_side=True)
        server.handle_error = lambda *_: None
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return server.server_address[1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_certificate_for_another_host_is_said_at_once(tmp_path, answering):
    make_certificates(tmp_path, ["fl.example.org"], ["a"])
    certs = tmp_path / "server"
    link = SuperLink(tmp_path / "flower", "127.0.0.2", answering(certs, "127.0.0.2"), certs)
    link._process = SimpleNamespace(poll=lambda: None)
    with pytest.raises(UndriftError, match=r"is not valid for 127\.0\.0\.2 .*--host 127\.0\.0\.2"):
        link._wait_until_ready()


def test_what_is_here_is_spoken_to_without_a_proxy(tmp_path, monkeypatch, answering):
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("NO_PROXY", "example.org")
    port = answering()
    link = SuperLink(tmp_path, "127.0.0.1", port)
    link._process = SimpleNamespace(poll=lambda: None)
    link._wait_until_ready()
    configure_flower()
    for name in ("NO_PROXY", "no_proxy"):
        hosts = os.environ[name].split(",")
        assert hosts[0] == "example.org" and {"127.0.0.1", "localhost", "::1"} < set(hosts)
    assert httpx.get(f"http://127.0.0.1:{port}/").status_code == 200
    assert environment(tmp_path)["no_proxy"] == os.environ["no_proxy"]


# Logs


def test_the_end_of_a_log_is_read_without_the_rest(tmp_path):
    log = tmp_path / "log"
    log.write_text("x" * 50 + "\n" + "INFO:     Shutting down\n\n\x1b[91mERROR \x1b[0m: why\n")
    assert last_lines(log, 1) == "ERROR : why"
    assert last_error(log) == "ERROR : why"
    assert log_lines(log, since=log.stat().st_size) == []
    assert log_lines(tmp_path / "none") == [] and last_error(tmp_path / "none") == ""
    with log.open("ab") as file:
        file.truncate(10**9)  # sparse
        file.seek(0, os.SEEK_END)
        file.write(b"\nthe end\n")
    began = time.monotonic()
    assert last_lines(log, 1) == "the end"
    assert time.monotonic() - began < 1


CLOSING = "INFO:     Waiting for application shutdown.\nINFO:     Finished server process [1]\n"


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: unable", "this site's CA"),
        (
            "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: IP address mismatch, "
            "certificate is not valid for '127.0.0.2'.",
            "not valid for the name or address",
        ),
        ("[code: 2004] Failed to activate SuperNode.", "does not know this site's key"),
        ("something else", "something else"),
        ("", "it gave no reason"),
    ],
)
def test_a_site_says_why_its_supernode_ended(tmp_path, monkeypatch, words, cause):
    def start(module, arguments, log, variables):
        with log.open("a") as file:
            file.write(f"{words}\n{CLOSING}")
        return SimpleNamespace(poll=lambda: 1)

    monkeypatch.setattr(supernode, "start", start)
    monkeypatch.setattr(supernode, "RESTART_SECONDS", 0.0)
    heard = []
    own = supernode.SuperNode(None, "127.0.0.1:8000", tmp_path, say=heard.append)
    supernode.write_secret(own._secret)
    own._log.write_text("[code: 2004] of long ago\n")
    own._keep_running()
    own._keep_running()
    assert cause in heard[0] and "INFO" not in heard[0]


def test_a_site_says_once_that_its_server_cannot_be_reached(tmp_path, monkeypatch):
    monkeypatch.setattr(supernode, "UNREACHABLE_SECONDS", 0.0)
    heard = []
    own = supernode.SuperNode(None, f"127.0.0.1:{free_port()}", tmp_path, say=heard.append)
    own._process = SimpleNamespace(poll=lambda: None)
    for _ in range(3):
        with own._log.open("a") as file:
            file.write("WARNING :   Connection attempt failed, retrying in 0.99 seconds\n")
        own._keep_running()
    (only,) = heard
    assert f"cannot be reached at {own._superlink} (Connection refused)" in only


@pytest.mark.skipif(sys.platform != "linux", reason="only there")
def test_a_process_whose_parent_is_gone_already_ends(tmp_path):
    code = "from undrift.deploy.flower.processes import die_with_parent as d; d(); print('on')"

    def on(parent):
        variables = {**os.environ, PARENT: str(parent)}
        done = subprocess.run(
            [sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=False
        )
        return done.stdout.strip() == "on"

    assert on(os.getpid())
    assert not on(os.getppid())
