"""Strangers who connect to a SuperLink and send no whole request use up nothing of it."""

import socket
import threading
import time
from contextlib import contextmanager

import pytest

uvicorn = pytest.importorskip("uvicorn", reason="Flower is not installed")
from undrift.deploy.flower.superlink_side.connections import bounded_protocol  # noqa: E402

MOST = 5
REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def answering(scope, receive, send):
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
    )
    await send({"type": "http.response.body", "body": b"ok"})


@contextmanager
def server(seconds):
    """A web server whose connections are bounded; yields the way to connect to it."""
    protocol = bounded_protocol(MOST, seconds)
    config = uvicorn.Config(
        answering, port=0, http=protocol, ws="none", lifespan="off", log_level="critical"
    )
    one = uvicorn.Server(config)
    thread = threading.Thread(target=one.run, daemon=True)
    thread.start()
    while not one.started:
        time.sleep(0.01)
    port = one.servers[0].sockets[0].getsockname()[1]
    opened = []

    def connect(data=b""):
        opened.append(socket.create_connection(("127.0.0.1", port), 10))
        opened[-1].sendall(data)
        return opened[-1]

    try:
        yield connect
    finally:
        for each in opened:
            each.close()
        one.should_exit = True
        thread.join()


def is_closed(connection, seconds=0.0):
    """Whether the server closes a connection within some seconds."""
    connection.settimeout(max(seconds, 0.001))
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True
    except TimeoutError:
        return False


def answer(connection):
    connection.settimeout(10)
    return connection.recv(1000).split(b"\r\n")[0]


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nX-Junk: "])
def test_the_oldest_connections_without_a_request_make_room(sent):
    with server(seconds=60) as connect:
        strangers = [connect(sent) for _ in range(3 * MOST)]
        site = connect()
        assert all(is_closed(each, 10) for each in strangers[: 2 * MOST + 1])
        assert not any(is_closed(each) for each in strangers[2 * MOST + 1 :])
        site.sendall(REQUEST)
        assert answer(site) == b"HTTP/1.1 200 OK"


def test_a_head_that_does_not_end_is_not_waited_for():
    with server(seconds=0.3) as connect:
        assert is_closed(connect(b"GET / HTTP/1.1\r\nX-Junk: "), 10)
        second = connect(REQUEST)
        assert answer(second) == b"HTTP/1.1 200 OK"
        second.sendall(b"GET / HT")  # the head of a second request counts as well
        assert is_closed(second, 10)


def test_a_connection_answers_one_request_after_the_other():
    with server(seconds=60) as connect:
        site = connect()
        for _ in range(3 * MOST):
            site.sendall(REQUEST)
            assert answer(site) == b"HTTP/1.1 200 OK"
