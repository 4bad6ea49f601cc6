"""Attacks on a real SuperLink over loopback, by strangers and by sites that have a key."""

import os
import shutil
import socket
import ssl
import stat
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from deployments import app

pytest.importorskip("flwr", reason="Flower is not installed")
from undrift.deploy.flower.environment import configure_flower

configure_flower()

import httpx  # noqa: E402
from flwr.app import Message  # noqa: E402
from flwr.supercore.inflatable.inflatable_object import (  # noqa: E402
    get_all_nested_objects,
    get_object_tree,
)
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE  # noqa: E402
from flwr.supercore.run import RunNotRunningException  # noqa: E402
from flwr.supernode.fleet_http_connection import http_request_response  # noqa: E402

from undrift.deploy.agreement import facts  # noqa: E402
from undrift.deploy.flower import superlink  # noqa: E402
from undrift.deploy.flower.certificates import make_certificates  # noqa: E402
from undrift.deploy.flower.messages import _content, answer_message, payload  # noqa: E402
from undrift.deploy.flower.processes import free_port, stop  # noqa: E402
from undrift.deploy.flower.superlink import SuperLink  # noqa: E402
from undrift.deploy.flower.superlink_side.connections import most_waiting  # noqa: E402
from undrift.deploy.flower.transport import FlowerTransport  # noqa: E402
from undrift.deploy.launch import start_site  # noqa: E402
from undrift.deploy.private_files import OTHERS, written_privately  # noqa: E402
from undrift.deploy.protocol import DESCRIBE, OVERHEAD_BYTES  # noqa: E402
from undrift.deploy.signing.envelopes import (  # noqa: E402
    ANSWER,
    REQUEST,
    Envelope,
    digest,
    signed_content,
    unpacked,
)
from undrift.deploy.signing.keys import SigningKey, SiteKeys, _private_key  # noqa: E402
from undrift.deploy.signing.server import SignedTransport  # noqa: E402
from undrift.deploy.wire_format import decode, encode  # noqa: E402
from undrift.experiments.experiment import Experiment  # noqa: E402

pytestmark = [
    pytest.mark.deploy,
    pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of Flower's own libraries
]

MEGABYTE = 2**20
REFUSED = (httpx.HTTPStatusError, RunNotRunningException)


class Node:
    """Flower's connection of a node, used as its owner likes."""

    def __init__(self, link, callbacks):
        self.id, self.receive, self._send, *_, self._push, _ = callbacks
        self.pull = callbacks[5]

    def send(self, message):
        """Upload a message with all its parts, as a SuperNode does."""
        message.metadata.__dict__["_message_id"] = message.object_id
        wanted, session = self._send(message, get_object_tree(message), 0.0)
        for id, part in get_all_nested_objects(message).items():
            if id in wanted:
                self._push(message.metadata.run_id, session, id, part.deflate())

    def push(self, run, session, content):
        from flwr.supercore.inflatable.inflatable_object import get_object_id

        self._push(run, session, get_object_id(content), content)


@contextmanager
def node(link, certs, name):
    """A node with the key of a site."""
    key = _private_key(certs.site(name) / "key")
    with http_request_response(
        link.address,
        False,
        root_certificates=link.ca,
        authentication_keys=(key, key.public_key()),
    ) as callbacks:
        yield Node(link, callbacks)


@pytest.fixture
def certs(tmp_path):
    return make_certificates(tmp_path / "certs", ["127.0.0.1"], ["a", "b", "c"])


@pytest.fixture
def delivered(tmp_path, monkeypatch):
    """A file that the app touches which the SuperLink delivers to the sites, if it is executed."""
    touched, folder = tmp_path / "executed", tmp_path / "delivered"
    shutil.copytree(superlink.APP, folder)
    for file in (folder / "undrift_app").glob("*.py"):
        text = f"from pathlib import Path\n\nPath({str(touched)!r}).touch()\n"
        file.write_text(text + file.read_text())
    monkeypatch.setattr(superlink, "APP", folder)
    return touched


def wait(condition, seconds=60, what="it did not happen"):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.05)


def asked(carrier, name, request, most=OVERHEAD_BYTES):
    wait(lambda: name in carrier.sites(), what=f"{name} did not connect")
    return carrier.send(name, request, 60.0, most)


def resident_bytes(process):
    """The memory of a process."""
    words = Path(f"/proc/{process}/status").read_text().split()
    return int(words[words.index("VmRSS:") + 1]) * 1024


def test_neither_strangers_nor_sites_can_abuse_a_superlink(tmp_path, certs, delivered):
    file = app(tmp_path / "app")
    port = free_port()
    key = SigningKey(certs.server / "server.key", certs.server / "server.pem")
    keys = SiteKeys(certs.server / "sites")
    with written_privately():
        honest = start_site(
            file, "a", f"127.0.0.1:{port}", tmp_path / "sites", certs.folder / "sites"
        )
        try:
            with (
                SuperLink(tmp_path / "flower", "127.0.0.1", port, certs.server, 3) as link,
                link.grid() as grid,
                FlowerTransport(grid) as inner,
                node(link, certs, "b") as b,
                node(link, certs, "c") as c,
            ):
                carrier = SignedTransport(inner, key, keys)
                before = resident_bytes(link._process.pid)
                with _unfinished_requests(link):
                    assert resident_bytes(link._process.pid) - before < 100 * MEGABYTE
                idle = _idle_connections(link)
                _forged_by_another_node(carrier, b, c, certs)
                _instructions_and_uploads(grid, b, c)
                size = sum(each.stat().st_size for each in link.folder.glob("superlink.db*"))
                assert size < 20 * MEGABYTE
                _honest_site(carrier, file)
                for each in idle:
                    each.close()
        finally:
            stop([honest])
    assert not delivered.exists()  # neither at the site nor at the server
    for folder in (tmp_path / "flower", tmp_path / "sites"):
        found = [folder, *folder.rglob("*")]
        assert len(found) > 3
        assert not [each for each in found if stat.S_IMODE(each.lstat().st_mode) & OTHERS]


@contextmanager
def _unfinished_requests(link):
    """Forty requests of 60 MB without a key, of which a part is sent."""
    context = ssl.create_default_context(cadata=link.ca.decode())
    length = 60 * MEGABYTE
    head = (
        f"POST /v1/fleet/push-object HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n"
        f"Content-Type: {PROTOBUF_MEDIA_TYPE}\r\n\r\n"
    )
    left_open = []
    for _ in range(40):
        plain = socket.create_connection((link.host, link.port), 10)
        one = context.wrap_socket(plain, server_hostname=link.host)
        left_open.append(one)
        with suppress(OSError):  # the connection was closed
            one.sendall(head.encode())
            for _ in range(8):
                one.sendall(b"x" * MEGABYTE)
    yield
    for one in left_open:
        one.close()


def _idle_connections(link):
    """More connections without a request than may wait: the SuperLink closes the oldest."""
    context = ssl.create_default_context(cadata=link.ca.decode())
    most = most_waiting(3)
    idle = []
    for _ in range(most + 100):
        plain = socket.create_connection((link.host, link.port), 10)
        idle.append(context.wrap_socket(plain, server_hostname=link.host))
    files = Path(f"/proc/{link._process.pid}/fd")
    wait(lambda: len(list(files.iterdir())) < most + 60, what="idle connections were kept")
    return idle


def _received(one):
    """The request that a node receives, with its content."""
    from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree

    found = []
    wait(lambda: ((each := one.receive()) is not None and found.append(each) is None) or found)
    message, tree = found[0]
    whole = pull_and_inflate_object_from_tree(
        tree,
        lambda id: one.pull(message.metadata.run_id, id),
        lambda id: None,
        return_type=Message,
    )
    whole.metadata.__dict__["_message_id"] = tree.object_id
    return whole


def _forged(request, certs):
    """An answer in the name of b, signed with the key of c."""
    order = unpacked(payload(request), REQUEST)
    content = signed_content(ANSWER, order.nonce, "b", digest(order.payload), digest(b"forged"))
    signature = SigningKey(certs.site("c") / "key").sign(content)
    return Envelope(ANSWER, order.nonce, b"forged", signature).packed()


def _forged_by_another_node(carrier, b, c, certs):
    ticket = asked(carrier, "b", b"a request")
    request = _received(b)
    # With the number of the request and its own key, c is refused by the SuperLink,
    answer = answer_message(_forged(request, certs), request)
    with pytest.raises(REFUSED):
        c.send(answer)
    assert carrier.next(2.0) is None
    # and what reaches the server in b's place is refused by the server.
    b.send(answer_message(_forged(request, certs), request))
    found = carrier.next(30.0)
    assert found.ticket == ticket
    assert found.failure == "refused: it is not signed with the key of site 'b'"


def _instructions_and_uploads(grid, b, c):
    """A node cannot ask another one for work, nor store what nobody asked it for."""
    run = grid._run.run_id
    instruction = Message(_content(b"work for me"), b.id, "query", ttl=60.0)
    instruction.metadata.__dict__["_src_node_id"] = c.id
    with pytest.raises(REFUSED):
        c.send(instruction)
    for number in range(10):
        with pytest.raises(REFUSED):
            c.push(run, "", os.urandom(5 * MEGABYTE) + bytes([number]))
    assert b.receive() is None


def _honest_site(carrier, file):
    """After all this the real site is asked, and answers."""
    experiment = Experiment.load(file)
    ticket = asked(carrier, "a", encode({"kind": DESCRIBE, "experiment": facts(experiment)}, {}))
    found = carrier.next(60.0)
    assert found.ticket == ticket and found.failure is None
    values, _ = decode(found.data, OVERHEAD_BYTES)
    assert values["site"] == "a" and values["samples"]["train"] == 10
