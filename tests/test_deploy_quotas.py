"""What reaches a SuperLink and what it stores is bounded, before and after authentication."""

import asyncio
from base64 import b64encode
from contextlib import ExitStack, suppress
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from undrift.deploy.flower.environment import configure_flower

pytest.importorskip("flwr", reason="the extra flower is not installed")
configure_flower()

from flwr.proto.fleet_pb2 import PushMessagesRequest, PushMessagesResponse  # noqa: E402
from flwr.proto.message_pb2 import (  # noqa: E402
    ConfirmMessageReceivedRequest,
    Message,
    Metadata,
    ObjectTree,
    PushObjectRequest,
)
from flwr.proto.node_pb2 import Node  # noqa: E402
from flwr.proto.runtime_pb2 import PushAppMessagesRequest  # noqa: E402
from flwr.supercore.error import FlowerError  # noqa: E402
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message  # noqa: E402

from undrift.deploy.flower.answers import EXTRA_PARTS, FRAME_BYTES  # noqa: E402
from undrift.deploy.flower.certificates import make_certificates  # noqa: E402
from undrift.deploy.flower.superlink_side import guard  # noqa: E402
from undrift.deploy.flower.superlink_side.guard import (  # noqa: E402
    MAX_REQUEST_BYTES,
    MAX_SERVER_REQUEST_BYTES,
    Guard,
    InFlight,
    Limits,
    Refused,
    RegisteredKeys,
)
from undrift.deploy.flower.superlink_side.orders import (  # noqa: E402
    KEPT_SECONDS,
    Ledger,
    NotOrdered,
    guard_uploads,
)
from undrift.deploy.signing.keys import _private_key  # noqa: E402

TOKEN = "the token of the server"
FLEET = "/v1/fleet/push-object"
MEGABYTE = 2**20


class App:
    """Stands for Flower: reads the body, and answers when it may."""

    def __init__(self):
        self.bodies = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def __call__(self, scope, receive, send):
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        self.bodies.append(body)
        await self.may_answer.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


class Request:
    """A request as an ASGI server hands it over; `taken` counts the bytes that were asked for."""

    def __init__(self, path=FLEET, headers=(), pieces=(b"",), complete=True, peer="10.0.0.1"):
        self.scope = {
            "type": "http",
            "path": path,
            "headers": [(name.encode(), value) for name, value in dict(headers).items()],
            "client": (peer, 1234),
        }
        self._pieces = iter(pieces)
        self._next = next(self._pieces, None)
        self._complete = complete
        self.taken = 0
        self.status = None
        self.headers = ()

    async def receive(self):
        piece, self._next = self._next, next(self._pieces, None)
        if piece is None:
            await asyncio.Event().wait()  # the sender sends nothing more
        self.taken += len(piece)
        more = self._next is not None or not self._complete
        return {"type": "http.request", "body": piece, "more_body": more}

    async def send(self, message):
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], message["headers"]

    async def through(self, guarded):
        await guarded(self.scope, self.receive, self.send)
        return self.status


def guarded(keys=None, limits=None):
    app = App()
    return Guard(app, TOKEN, keys, limits or Limits()), app


def run(*calls):
    async def gather():
        return await asyncio.wait_for(asyncio.gather(*calls), 20)

    return asyncio.run(gather())


def signed(key, stamp=b"2026-01-01T00:00:00+00:00", **changed):
    """The headers by which Flower's SuperNode proves that it has a key."""
    found = {
        "flwr-public-key": b64encode(public_key_to_bytes(key.public_key())),
        "flwr-timestamp": stamp,
        "flwr-signature": b64encode(sign_message(key, stamp)),
    }
    return found | changed


@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("quotas"), [], ["a", "b"])


@pytest.fixture(scope="module")
def keys(certs):
    return {name: _private_key(certs.site(name) / "key") for name in ("a", "b")}


# Before authentication


def test_who_has_no_key_is_refused_before_a_byte_is_read(certs, keys):
    other = _private_key(certs.ca_key)
    forged = signed(keys["a"], **{"flwr-signature": b64encode(sign_message(other, b"now"))})
    whole = Guard(App(), TOKEN, RegisteredKeys(certs.server / "sites"), Limits())
    attempts = [
        {},
        signed(other),
        forged,
        {**signed(keys["a"]), "flwr-timestamp": b"2027-01-01T00:00:00+00:00"},
        {**signed(keys["a"]), "flwr-public-key": b"&"},
    ]
    for headers in attempts:
        request = Request(headers=headers, pieces=[b"x" * MEGABYTE] * 60, complete=False)
        assert run(request.through(whole)) == [412]
        assert request.taken == 0
        assert (b"connection", b"close") in request.headers
    assert whole.in_flight.total_bytes == 0
    assert run(Request(headers=signed(keys["a"])).through(whole)) == [200]


def test_a_key_counts_from_when_it_is_registered_until_it_is_deleted(tmp_path):
    made = make_certificates(tmp_path, [], ["a"])
    seconds = 0.0
    whole, _ = guarded(RegisteredKeys(made.server / "sites", lambda: seconds))
    headers = signed(_private_key(made.site("a") / "key"))
    file = made.public_key("a")
    content = file.read_bytes()
    for exists, status in ((True, 200), (False, 412), (True, 200)):
        file.write_bytes(content) if exists else file.unlink()
        (tmp_path / "server/sites/broken.pub").write_text("nonsense")
        seconds += 2.0
        assert run(Request(headers=headers).through(whole)) == [status]


@pytest.mark.parametrize(
    "path", ["/v1/control/start-run", "/v1/runtime/acquire-task", "/docs", "/"]
)
def test_only_the_server_reaches_what_is_not_for_sites(path):
    whole, app = guarded()
    assert run(Request(path).through(whole)) == [404]
    assert not app.bodies
    for token, status in ((TOKEN, 200), (TOKEN[:-1], 404), ("", 404)):
        headers = {"x-undrift-token": token.encode()}
        assert run(Request(path, headers).through(whole)) == [status]


def test_other_protocols_are_not_passed_on():
    whole, app = guarded()

    async def open_socket():
        await whole({"type": "websocket", "path": FLEET}, None, None)

    run(open_socket())
    assert not app.bodies


def test_the_servers_own_requests_are_not_counted_but_bounded():
    whole, app = guarded(limits=Limits(1, 10, 10))
    headers = {"x-undrift-token": TOKEN.encode(), "content-length": b"1000"}
    assert run(Request(headers=headers, pieces=[b"x" * 1000]).through(whole)) == [200]
    assert len(app.bodies[0]) == 1000
    headers["content-length"] = str(MAX_SERVER_REQUEST_BYTES + 1).encode()
    assert run(Request(headers=headers).through(whole)) == [413]


# Sizes


@pytest.mark.parametrize("length", [b"0", b"5000", None])
def test_a_body_arrives_as_it_was_sent(length):
    whole, app = guarded()
    headers = {} if length is None else {"content-length": length}
    pieces = [b"a" * 2000, b"", b"b" * 3000]
    assert run(Request(headers=headers, pieces=pieces).through(whole)) == [200]
    assert app.bodies == [b"".join(pieces)]
    assert whole.in_flight.total_bytes == 0


@pytest.mark.parametrize("length", [str(MAX_REQUEST_BYTES + 1).encode(), b"-1", b"x", b"9" * 30])
def test_an_announced_length_that_is_too_large_is_refused_at_once(length):
    whole, app = guarded()
    request = Request(headers={"content-length": length}, pieces=[b"x" * 1000] * 3)
    assert run(request.through(whole)) == [413]
    assert request.taken == 0 and not app.bodies


def test_a_body_that_grows_too_large_is_not_read_further():
    whole, app = guarded()
    request = Request(pieces=[b"x" * MEGABYTE] * 60)
    assert run(request.through(whole)) == [413]
    assert request.taken <= MAX_REQUEST_BYTES + MEGABYTE
    assert not app.bodies and whole.in_flight.total_bytes == 0


@pytest.mark.parametrize("announced", [True, False])
def test_forty_unfinished_requests_of_sixty_megabytes_take_little_memory(monkeypatch, announced):
    """Without a key, 2.4 GB of memory were taken for good."""
    monkeypatch.setattr(guard, "IDLE_SECONDS", 0.2)
    whole, app = guarded()
    length = {"content-length": str(60 * MEGABYTE).encode()} if announced else {}
    requests = [
        Request(headers=length, pieces=[b"x" * MEGABYTE] * 60, complete=False) for _ in range(40)
    ]
    statuses = run(*(request.through(whole) for request in requests))
    assert set(statuses) <= {408, 413, 503}
    limit = 0 if announced else Limits().bytes_each + 40 * MEGABYTE  # the piece that is refused
    assert sum(request.taken for request in requests) <= limit
    assert not app.bodies and whole.in_flight.total_bytes == 0


def test_a_site_that_takes_all_it_may_leaves_the_others_theirs(certs, keys):
    whole, app = guarded(RegisteredKeys(certs.server / "sites"), Limits(2, 10_000, 100_000))

    def request(name, size=100):
        return Request(headers=signed(keys[name]), pieces=[b"x" * size])

    async def flood():
        app.may_answer.clear()
        first = [asyncio.create_task(request("a").through(whole)) for _ in range(2)]
        await asyncio.sleep(0.05)
        assert len(app.bodies) == 2 and whole.in_flight.total_bytes == 200
        assert await request("a").through(whole) == 503  # Flower's SuperNode tries it again
        other = asyncio.create_task(request("b").through(whole))
        await asyncio.sleep(0.05)
        assert len(app.bodies) == 3
        app.may_answer.set()
        assert await asyncio.gather(*first, other) == [200] * 3
        assert await request("a").through(whole) == 200
        assert await request("a", 10_001).through(whole) == 503

    run(flood())
    assert not whole.in_flight._requests and not whole.in_flight._bytes


def test_addresses_are_told_apart_when_there_are_no_keys():
    whole, app = guarded(limits=Limits(1, 1000, 1500))

    async def flood():
        app.may_answer.clear()
        one, two = (
            asyncio.create_task(Request(pieces=[b"x" * 700], peer=peer).through(whole))
            for peer in ("10.0.0.1", "10.0.0.2")
        )
        await asyncio.sleep(0.05)
        assert await Request(peer="10.0.0.1").through(whole) == 503
        assert await Request(peer="10.0.0.3", pieces=[b"x" * 200]).through(whole) == 503
        app.may_answer.set()
        assert await asyncio.gather(one, two) == [200, 200]

    run(flood())


def test_sites_of_one_machine_share_its_limits():
    each, three = Limits(), Limits.on_one_machine(3)
    assert three.requests_each == 3 * each.requests_each
    assert three.bytes_each == 3 * each.bytes_each
    assert three.bytes_in_all == each.bytes_in_all


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3000)), max_size=40))
def test_no_order_of_requests_exceeds_a_limit(sizes):
    limits = Limits(3, 5000, 9000)
    in_flight = InFlight(limits)
    with ExitStack() as stack:
        for sender, size in sizes:
            with suppress(Refused):
                stack.enter_context(in_flight.request(sender))(size)
            assert max(in_flight._requests.values(), default=0) <= limits.requests_each
            assert max(in_flight._bytes.values(), default=0) <= limits.bytes_each
            assert in_flight.total_bytes <= limits.bytes_in_all
    assert in_flight.total_bytes == 0 and not in_flight._requests


# Slowness


def test_a_sender_that_stops_in_the_middle_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(guard, "IDLE_SECONDS", 0.05)
    whole, app = guarded()
    request = Request(pieces=[b"x" * 100], complete=False)
    assert run(request.through(whole)) == [408]
    assert not app.bodies and whole.in_flight.total_bytes == 0


def test_a_sender_that_trickles_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.1)
    whole, _ = guarded()
    request = Request(pieces=[b"x"] * 10_000, complete=False)
    plain = request.receive

    async def slowly():
        await asyncio.sleep(0.01)
        return await plain()

    request.receive = slowly
    assert run(request.through(whole)) == [408]
    assert request.taken < 100


def test_a_sender_that_leaves_is_forgotten():
    whole, app = guarded()
    request = Request()

    async def gone():
        return {"type": "http.disconnect"}

    request.receive = gone
    run(request.through(whole))
    assert not app.bodies and not whole.in_flight._requests


# What sites may store


class Handlers:
    """Stands for Flower's handlers: counts what would be stored."""

    def __init__(self):
        self.stored, self.messages, self.deleted = 0, [], []
        self.object_store = SimpleNamespace(delete=self.deleted.append)
        self.sessions = 0

    def push_object(self, request, state):
        self.stored += len(request.object_content)

    def confirm_message_received(self, request, state, task):
        pass


@pytest.fixture
def link():
    """A SuperLink's handlers with a ledger, and a clock that the test sets."""
    site, server = Handlers(), Handlers()
    clock = SimpleNamespace(now=0.0)

    def push_messages(request, state):
        site.messages.append(request)
        site.sessions += 1
        return PushMessagesResponse(session_id=f"session {site.sessions}")

    site.push_messages = push_messages
    server.push_messages = lambda request, state, task: server.messages.append(request)
    ledger = Ledger(lambda: clock.now)
    guard_uploads(ledger, site, server)

    def ask(id, node, most=1000, seconds=60.0):
        about = Metadata(message_id=id, dst_node_id=node, group_id=str(most), ttl=seconds)
        server.push_messages(
            PushAppMessagesRequest(messages_list=[Message(metadata=about)]), server, None
        )

    def reply(node, to, id="answer", source=None, parts=3, number=1):
        about = Metadata(
            message_id=id, src_node_id=node if source is None else source, reply_to_message_id=to
        )
        tree = ObjectTree(
            object_id=id, children=[ObjectTree(object_id=str(n)) for n in range(parts - 1)]
        )
        request = PushMessagesRequest(
            node=Node(node_id=node),
            messages_list=[Message(metadata=about)] * number,
            message_object_trees=[tree] * number,
        )
        return site.push_messages(request=request, state=site).session_id

    def upload(node, session, number):
        request = PushObjectRequest(
            node=Node(node_id=node), session_id=session, object_content=b"x" * number
        )
        site.push_object(request=request, state=site)

    def fetch(id):
        request = ConfirmMessageReceivedRequest(message_object_id=id)
        server.confirm_message_received(request, server, None)

    return SimpleNamespace(
        ask=ask, reply=reply, upload=upload, fetch=fetch, site=site, server=server, ledger=ledger,
        clock=clock,
    )  # fmt: skip


def test_an_answer_that_was_asked_for_is_stored(link):
    link.ask("order", 7)
    session = link.reply(7, "order")
    link.upload(7, session, 600)
    link.upload(7, session, 400)
    assert link.site.stored == 1000
    link.fetch("answer")
    assert len(link.ledger) == 0


@pytest.mark.parametrize(
    ("attempt", "why"),
    [
        (dict(node=8, to="order"), "a request to another node"),
        (dict(node=8, to="order", source=7), "a request to another node"),
        (dict(node=7, to="order", source=8), "a request to another node"),
        (dict(node=7, to=""), "no open request"),
        (dict(node=7, to="other"), "no open request"),
        (dict(node=7, to="order", parts=EXTRA_PARTS + 2), "too many parts"),
        (dict(node=7, to="order", number=2), "not one message"),
        (dict(node=7, to="order", number=0), "not one message"),
    ],
)
def test_nothing_else_is_stored(link, attempt, why):
    """In particular no instruction to another site, and no answer in another site's name."""
    link.ask("order", 7)
    with pytest.raises(FlowerError, match=why):
        link.reply(**attempt)
    assert not link.site.messages


def test_a_second_answer_is_refused_but_not_the_first_one_again(link):
    link.ask("order", 7)
    link.reply(7, "order", "first")
    link.reply(7, "order", "first")  # after a lost connection
    with pytest.raises(FlowerError, match="a second answer"):
        link.reply(7, "order", "second")
    assert len(link.site.messages) == 2


def test_a_site_cannot_fill_the_disk(link):
    """360 MB were stored for a model of 336 bytes."""
    link.ask("order", 7, most=336)
    session = link.reply(7, "order")
    for _ in range(1000):
        with suppress(FlowerError):
            link.upload(7, session, 50_000)
    assert 0 < link.site.stored <= 2 * (336 + FRAME_BYTES)
    again = link.reply(7, "order")  # announced once more, it gets no more
    with pytest.raises(FlowerError, match="larger than was asked for"):
        link.upload(7, again, FRAME_BYTES)
    for session in ("", "unknown"):
        with pytest.raises(FlowerError, match="no answer was announced"):
            link.upload(7, session, 1)
    with pytest.raises(FlowerError, match="no answer was announced"):
        link.upload(8, again, 1)


def test_answers_that_nobody_fetches_are_deleted(link):
    link.ask("order", 7, seconds=10)
    session = link.reply(7, "order", "late")
    link.clock.now = 11.0 + KEPT_SECONDS
    link.ask("next", 7)
    assert link.server.deleted == ["late"]
    assert len(link.ledger) == 1
    with pytest.raises(FlowerError, match="no answer was announced"):
        link.upload(7, session, 1)
    with pytest.raises(FlowerError, match="no open request"):
        link.reply(7, "order", "late")


def test_a_request_that_states_no_size_allows_little(link):
    about = Metadata(message_id="order", dst_node_id=7, group_id="-1", ttl=60.0)
    request = PushAppMessagesRequest(messages_list=[Message(metadata=about)])
    link.server.push_messages(request, link.server, None)
    session = link.reply(7, "order")
    with pytest.raises(FlowerError, match="larger"):
        link.upload(7, session, 2 * FRAME_BYTES + 1)


def test_a_ledger_says_what_is_wrong():
    ledger = Ledger()
    with pytest.raises(NotOrdered, match="answers no open request"):
        ledger.announce(1, 1, "order", "answer", 1)
    ledger.fetched("answer")
    ledger.begin("order", "session")
    with pytest.raises(NotOrdered, match="no answer was announced"):
        ledger.upload(1, "session", 1)
