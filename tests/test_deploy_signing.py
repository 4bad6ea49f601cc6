"""Answers count only if the site that was asked gave them to this very request."""

import json
import logging
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deployments import InProcess, app
from test_deploy import assert_same, deployed, records

pytest.importorskip("cryptography", reason="cryptography is not installed")
from undrift.deploy.flower import certificates
from undrift.deploy.flower.certificates import make_certificates
from undrift.deploy.protocol import IDENTIFY
from undrift.deploy.server import serve
from undrift.deploy.signing import server as server_side
from undrift.deploy.signing import site as site_side
from undrift.deploy.signing.envelopes import (
    ANSWER,
    ENVELOPE_BYTES,
    NONCE_BYTES,
    REQUEST,
    Envelope,
    NotAnEnvelope,
    digest,
    signed_content,
    unpacked,
)
from undrift.deploy.signing.keys import ServerTrust, SigningKey, SiteKeys
from undrift.deploy.signing.server import SignedTransport
from undrift.deploy.signing.site import SignedSite
from undrift.deploy.site import Site
from undrift.deploy.transport import Answer, Transport
from undrift.deploy.wire_format import decode, encode
from undrift.experiments.experiment import Experiment
from undrift.utils.errors import UndriftError

SITES = ("a", "b", "c")
QUESTION = b"a request of round 3 of some run"


@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("signing"), ["localhost"], SITES)


def signing(certs):
    """The server's key and the sites' public keys."""
    key = SigningKey(certs.server / "server.key", certs.server / "server.pem")
    return key, SiteKeys(certs.server / "sites")


class Wire(Transport):
    """A transport that anybody may write to: it delivers the answers that a test puts into it."""

    def __init__(self):
        self.sent = []
        self.answers = []
        self.forgotten = []

    def sites(self):
        return SITES

    def send(self, site, request, seconds, max_bytes):
        self.sent.append(request)
        self.max_bytes = max_bytes
        return f"ticket {len(self.sent)}"

    def next(self, seconds):
        return self.answers.pop(0) if self.answers else None

    def forget(self, ticket):
        self.forgotten.append(ticket)


def site(certs, name, said=None):
    """A site that answers every request with its name and the request."""

    def answer(request):
        asked.append(request)
        return name.encode() + b" answers " + request

    asked = []
    own = SimpleNamespace(name=name, answer=answer, log_refusal=lambda sentence: True)
    say = [].append if said is None else said.append
    return SignedSite(own, None if certs is None else certs.site(name), say), asked


def asked(wire, certs, name="b"):
    """A server that has asked a site, and the ticket."""
    key, keys = signing(certs) if certs is not None else (None, None)
    carrier = SignedTransport(wire, key, keys)
    return carrier, carrier.send(name, QUESTION, 10, 100)


def delivered(wire, carrier, ticket, data):
    wire.answers.append(Answer(ticket, data))
    found = carrier.next(1)
    assert found.ticket == ticket
    return found


# Envelopes


@given(st.binary(max_size=300), st.binary(max_size=200), st.binary(max_size=50))
def test_an_envelope_is_read_as_it_was_written(payload, signature, certificate):
    sealed = Envelope(ANSWER, b"o" * NONCE_BYTES, payload, signature, certificate)
    data = sealed.packed()
    assert unpacked(data, ANSWER) == sealed
    assert len(data) <= len(payload) + ENVELOPE_BYTES
    with pytest.raises(NotAnEnvelope):
        unpacked(data, REQUEST)


@given(st.binary(max_size=400))
def test_any_other_bytes_are_no_envelope_or_a_whole_one(data):
    for kind in (REQUEST, ANSWER):
        try:
            found = unpacked(kind + data, kind)
        except NotAnEnvelope:
            continue
        assert len(found.nonce) == NONCE_BYTES and found.packed() == kind + data


def test_what_is_signed_differs_when_any_part_differs():
    base = (ANSWER, b"1" * NONCE_BYTES, "a", digest(b"q"), digest(b"r"))
    others = [
        (REQUEST, *base[1:]),
        (ANSWER, b"2" * NONCE_BYTES, *base[2:]),
        (*base[:2], "b", *base[3:]),
        (*base[:3], digest(b"x"), base[4]),
        (*base[:4], digest(b"x")),
        (*base[:3], base[4], base[3]),
        base[:4],
    ]
    assert len({signed_content(*each) for each in [base, *others]}) == len(others) + 1


# Answers


@pytest.mark.parametrize("encrypted", [True, False])
def test_an_honest_answer_arrives_unchanged(certs, encrypted):
    wire, own = Wire(), certs if encrypted else None
    carrier, ticket = asked(wire, own)
    assert wire.max_bytes == 100 + ENVELOPE_BYTES
    honest, _ = site(own, "b")
    found = delivered(wire, carrier, ticket, honest.answer(wire.sent[0]))
    assert found.failure is None and found.data == b"b answers " + QUESTION


def forged(certs, request, name, signer):
    """An answer in a site's name with another one's key, as who knows the order could write it."""
    order = unpacked(request, REQUEST)
    payload = b"a forged update"
    content = signed_content(ANSWER, order.nonce, name, digest(order.payload), digest(payload))
    return Envelope(ANSWER, order.nonce, payload, SigningKey(signer).sign(content)).packed()


def test_another_sites_key_and_the_order_do_not_make_an_answer(certs):
    """The order's number is no secret to whoever reads the SuperLink's database."""
    wire = Wire()
    carrier, ticket = asked(wire, certs)
    data = forged(certs, wire.sent[0], "b", certs.site("c") / "key")
    found = delivered(wire, carrier, ticket, data)
    assert found.failure == "refused: it is not signed with the key of site 'b'"
    assert found.data == b""
    # With the right key the same bytes would be an answer.
    carrier, ticket = asked(wire, certs)
    data = forged(certs, wire.sent[1], "b", certs.site("b") / "key")
    assert delivered(wire, carrier, ticket, data).data == b"a forged update"


def test_a_site_cannot_answer_in_anothers_name_even_if_it_is_asked_too(certs):
    wire = Wire()
    key, keys = signing(certs)
    carrier = SignedTransport(wire, key, keys)
    to_b, to_c = (carrier.send(name, QUESTION, 10, 100) for name in ("b", "c"))
    answer = site(certs, "c")[0].answer(wire.sent[1])
    assert "another request than that to site 'b'" in delivered(wire, carrier, to_b, answer).failure
    assert delivered(wire, carrier, to_c, answer).data == b"c answers " + QUESTION


@pytest.mark.parametrize("encrypted", [True, False])
def test_an_answer_to_an_earlier_request_is_refused(certs, encrypted):
    """Also if both requests are the same, byte by byte."""
    wire, own = Wire(), certs if encrypted else None
    carrier, first = asked(wire, own)
    old = site(own, "b")[0].answer(wire.sent[0])
    assert delivered(wire, carrier, first, old).failure is None
    second = carrier.send("b", QUESTION, 10, 100)
    found = delivered(wire, carrier, second, old)
    assert found.failure == "refused: it answers another request than that to site 'b'"


def test_the_signature_covers_the_request_and_the_answer(certs):
    """A server that asks twice under one order number would notice; so does one whose answer
    was changed on the way."""
    wire = Wire()
    carrier, ticket = asked(wire, certs)
    data = site(certs, "b")[0].answer(wire.sent[0])
    changed = data[:-1] + bytes([data[-1] ^ 1])
    assert "not signed" in delivered(wire, carrier, ticket, changed).failure
    order = unpacked(wire.sent[0], REQUEST)
    content = signed_content(ANSWER, order.nonce, "b", digest(b"other"), digest(b"x"))
    signature = SigningKey(certs.site("b") / "key").sign(content)
    carrier, ticket = asked(wire, certs)
    other = Envelope(ANSWER, unpacked(wire.sent[1], REQUEST).nonce, b"x", signature).packed()
    assert "not signed" in delivered(wire, carrier, ticket, other).failure


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 255))
def test_no_changed_byte_of_an_answer_is_accepted(certs, at, change):
    wire = Wire()
    carrier, ticket = asked(wire, certs)
    answer = bytearray(site(certs, "b")[0].answer(wire.sent[0]))
    answer[at % len(answer)] ^= change
    found = delivered(wire, carrier, ticket, bytes(answer))
    assert found.failure is not None and found.failure.startswith("refused: ")


@pytest.mark.parametrize("data", [b"", b"nothing", encode({"site": "b"}, {}), ANSWER])
def test_an_answer_without_an_envelope_is_refused(certs, data):
    for own in (certs, None):
        wire = Wire()
        carrier, ticket = asked(wire, own)
        found = delivered(wire, carrier, ticket, data)
        assert "refused: it does not say which request site 'b' answers" in found.failure


def test_second_and_late_answers_are_refused_and_named(certs, caplog):
    wire = Wire()
    carrier, first = asked(wire, certs)
    data = site(certs, "b")[0].answer(wire.sent[0])
    late = carrier.send("c", QUESTION, 10, 100)
    carrier.forget(late)
    assert wire.forgotten == [late]
    wire.answers = [Answer(first, data), Answer(first, data), Answer(late, data), Answer("?", b"")]
    assert carrier.next(1).data
    with caplog.at_level(logging.WARNING, "undrift.deploy"):
        assert carrier.next(1) is None
    assert [record.getMessage() for record in caplog.records] == [
        "An answer is refused: the request to site 'b' was answered or given up before.",
        "An answer is refused: the request to site 'c' was answered or given up before.",
        "An answer is refused: it belongs to no request of this server.",
    ]


def test_a_failure_of_the_transport_passes_through(certs):
    wire = Wire()
    carrier, ticket = asked(wire, certs)
    wire.answers.append(Answer(ticket, failure="gone"))
    assert carrier.next(1) == Answer(ticket, failure="gone")
    assert not carrier._open


def test_finished_requests_are_forgotten_in_the_end(certs, monkeypatch):
    monkeypatch.setattr(server_side, "REMEMBERED_NONCES", 2)
    carrier, _ = asked(Wire(), None)
    for _ in range(4):
        carrier.forget(carrier.send("b", QUESTION, 10, 100))
    assert len(carrier._finished) == 2 and len(carrier._open) == 1


def test_deleting_a_key_revokes_it_at_once(tmp_path):
    own = make_certificates(tmp_path, [], ["b"])
    wire = Wire()
    carrier, ticket = asked(wire, own)
    data = site(own, "b")[0].answer(wire.sent[0])
    own.public_key("b").unlink()
    found = delivered(wire, carrier, ticket, data)
    assert found.failure == "refused: no public key of site 'b' is known here"


# Requests


def test_a_site_does_nothing_for_a_request_that_its_server_did_not_sign(certs):
    """Through Flower, every site can push an instruction to another one."""
    order = b"o" * NONCE_BYTES
    digested = signed_content(REQUEST, order, "b", digest(QUESTION))
    with_a_sites_key = SigningKey(certs.site("c") / "key").sign(digested)
    server, _ = signing(certs)
    wire = Wire()
    asked(wire, certs, "c")  # a genuine request, to another site
    genuine = unpacked(wire.sent[0], REQUEST)
    attempts = [
        QUESTION,
        encode({"kind": IDENTIFY}, {}),
        Envelope(REQUEST, order, QUESTION).packed(),
        Envelope(REQUEST, order, QUESTION, with_a_sites_key).packed(),
        Envelope(REQUEST, order, QUESTION, with_a_sites_key, server.certificate).packed(),
        genuine.packed(),
        Envelope(REQUEST, genuine.nonce, b"other", genuine.signature, server.certificate).packed(),
    ]
    said = []
    own, reached = site(certs, "b", said)
    for number, attempt in enumerate(attempts):
        answer = own.answer(attempt)
        payload = unpacked(answer, ANSWER).payload if attempt.startswith(REQUEST) else answer
        values, _ = decode(payload, 10_000)
        assert "The site 'b' refused the request" in values["error"], number
        assert len(said) == number + 1 and said[-1].startswith("A request was refused: it")
    assert not reached


def test_a_request_is_done_once_and_its_repetition_gets_no_signature(certs):
    """A signed refusal would be a valid answer to the order that was repeated."""
    wire = Wire()
    carrier, ticket = asked(wire, certs)
    own, reached = site(certs, "b")
    first, again = (own.answer(wire.sent[0]) for _ in range(2))
    assert reached == [QUESTION]
    assert unpacked(again, ANSWER).signature == b""
    assert "not signed" in delivered(wire, carrier, ticket, again).failure
    carrier, ticket = asked(wire, certs)
    assert delivered(wire, carrier, ticket, own.answer(wire.sent[1])).data
    assert first


def test_a_site_forgets_the_oldest_orders_only(certs, monkeypatch):
    monkeypatch.setattr(site_side, "REMEMBERED_NONCES", 2)
    wire = Wire()
    own, reached = site(None, "b")
    carrier, _ = asked(wire, None)
    for _ in range(3):
        carrier.send("b", QUESTION, 10, 100)
    for each in wire.sent:
        own.answer(each)
    assert len(reached) == 4 and len(own._seen) == 2
    own.answer(wire.sent[-1])
    assert len(reached) == 4


def test_a_renewed_server_certificate_is_trusted_without_a_new_file(tmp_path):
    own = make_certificates(tmp_path, ["localhost"], ["b"])
    (own.server / "server.pem").unlink()
    make_certificates(tmp_path, ["localhost"], [])
    wire = Wire()
    carrier, ticket = asked(wire, own)
    honest, _ = site(own, "b")
    assert delivered(wire, carrier, ticket, honest.answer(wire.sent[0])).failure is None


def test_a_certificate_that_is_not_the_servers_is_refused(certs, tmp_path, monkeypatch):
    trust = ServerTrust(certs.site("b") / "ca.crt")
    alien = make_certificates(tmp_path / "alien", ["localhost"], ["b"])
    theirs = SigningKey(alien.server / "server.key", alien.server / "server.pem")
    assert "this site's CA" in trust.verify(theirs.certificate, b"x", theirs.sign(b"x"))
    # A CA's own certificate is no server's, although it is issued by the CA.
    ca = SigningKey(certs.ca_key, certs.server / "ca.crt")
    assert "this site's CA" in trust.verify(ca.certificate, b"x", ca.sign(b"x"))
    mine, _ = signing(certs)
    assert trust.verify(mine.certificate, b"x", mine.sign(b"x")) is None
    assert trust.verify(b"\0", b"x", mine.sign(b"x")) is not None
    assert trust.verify(mine.certificate, b"x", b"\0") == "it is not signed by the server"

    class Later(datetime):
        @classmethod
        def now(cls, zone):
            return datetime.now(UTC) + timedelta(days=400)

    monkeypatch.setattr("undrift.deploy.signing.keys.datetime", Later)
    assert "has expired" in trust.verify(mine.certificate, b"x", mine.sign(b"x"))


def test_without_certificates_a_site_says_its_name_and_nothing_else(certs):
    own, reached = site(None, "b")
    own.answer(QUESTION)
    assert not reached
    own.answer(encode({"kind": IDENTIFY}, {}))
    assert len(reached) == 1


def test_a_key_that_cannot_be_read_is_a_sentence(tmp_path):
    (tmp_path / "key").write_text("nonsense")
    with pytest.raises(UndriftError, match="is not a readable key"):
        SigningKey(tmp_path / "key")
    (tmp_path / "other").write_bytes(_edwards())
    with pytest.raises(UndriftError, match="is not an ECDSA key"):
        SigningKey(tmp_path / "other")


def _edwards():
    from cryptography.hazmat.primitives.asymmetric import ed25519

    key = ed25519.Ed25519PrivateKey.generate()
    return key.private_bytes(
        certificates.pem.Encoding.PEM,
        certificates.pem.PrivateFormat.PKCS8,
        certificates.pem.NoEncryption(),
    )


# Whole runs


class SignedSites(InProcess):
    """Sites in this process that sign; `spoil` changes what they send."""

    def __init__(self, file, state, certs):
        super().__init__(file, state)
        self._certs = certs

    def send(self, site, request, seconds, max_bytes):
        if site not in self._made:
            own = Site(self.experiment, site, self.state / site)
            self._made[site] = SignedSite(own, self._certs and self._certs.site(site))
        return super().send(site, request, seconds, max_bytes)


@pytest.mark.parametrize("encrypted", [True, False])
def test_a_signed_run_computes_what_an_unsigned_one_computes(tmp_path, certs, encrypted):
    file, own = app(tmp_path / "app", ["SCAFFOLD"]), certs if encrypted else None
    key, keys = signing(certs) if encrypted else (None, None)
    deployed(file, tmp_path / "plain", InProcess(file, tmp_path / "state"))
    inner = SignedSites(file, tmp_path / "signed-state", own)
    serve(Experiment.load(file), tmp_path / "signed", SignedTransport(inner, key, keys))
    assert_same(tmp_path / "plain", tmp_path / "signed", "SCAFFOLD", tolerance=0)


def test_requests_that_are_refused_unread_stand_in_the_audit_log(tmp_path, certs):
    """Also a flood of them: it is counted, and fills neither the log nor the terminal."""
    file, said = app(tmp_path / "app"), []
    own = Site(Experiment.load(file), "a", tmp_path / "state")
    signed = SignedSite(own, certs.site("a"), said.append)
    wire = Wire()
    SignedTransport(wire, *signing(certs)).send("b", QUESTION, 10, 100)
    for request in (QUESTION, wire.sent[0]):
        assert b"refused the request" in signed.answer(request)
    lines = [json.loads(line) for line in own.audit.path.read_text().splitlines()]
    assert [(line["kind"], line["decision"]) for line in lines] == [("unverified", "refused")] * 2
    assert [line["reason"] for line in lines] == said
    assert "not signed" in said[0] and "not signed by the server" in said[1]
    for _ in range(500):
        signed.answer(QUESTION)
    assert own.audit.counts() == {"unverified refused": 502}
    assert len(said) == 200


def test_a_forged_update_is_recorded_as_refused_with_its_site(tmp_path, certs):
    file = app(tmp_path / "app")
    inner = SignedSites(file, tmp_path / "state", certs)

    def spoil(site, request, answer):
        # After its description and the first evaluation comes its work.
        if site == "b" and inner.asked.count("b") == 3:
            return forged(certs, request, "b", certs.site("c") / "key")
        return answer

    inner.spoil = spoil
    serve(Experiment.load(file), tmp_path / "out", SignedTransport(inner, *signing(certs)))
    rejected = [
        each for record in records(tmp_path / "out", "FedAvg") for each in record["rejected"]
    ]
    reasons = [why for name, why in rejected if name == "b"]
    assert len(rejected) == len(reasons) == 1
    assert "refused: it is not signed with the key of site 'b'" in reasons[0]
