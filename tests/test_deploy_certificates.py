"""TLS accepts the certificates of a deployment, and no call overwrites or exposes them."""

import importlib
import os
import shlex
import socket
import ssl
import stat
import sys
import threading
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest

import undrift as ud

pytest.importorskip("cryptography", reason="cryptography is not installed")
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from undrift.deploy.flower import certificates
from undrift.deploy.flower.certificates import commands
from undrift.deploy.flower.certificates import make_certificates as make

SITES = ("site-1", "site-2")
PRIVATE = {"ca.key", "server.key", "secret", "key"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Certificates that tests only read."""
    return make(tmp_path_factory.mktemp("made") / "certs", ["fl.example.org", "10.0.0.5"], SITES)


def files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def contents(folder):
    return {name: (folder / name).read_bytes() for name in files(folder)}


def certificate(path):
    return x509.load_pem_x509_certificate(path.read_bytes())


# Files and certificates


def test_everyone_has_what_is_its_own_and_nothing_else(made):
    server = {
        "ca.crt",
        "server.pem",
        "server.key",
        "secret",
        "sites/site-1.pub",
        "sites/site-2.pub",
    }
    assert files(made.server) == server
    for site in SITES:
        peers = {f"peers/{each}.pub" for each in SITES}
        assert files(made.site(site)) == {"ca.crt", "key", "key.pub", "secret", *peers}
    assert {path.name for path in made.folder.iterdir()} == {"ca.key", "server", "sites"}
    assert {path.name for path in (made.folder / "sites").iterdir()} == set(SITES)
    assert {str(path.relative_to(made.folder)) for path in made.written} == files(made.folder)
    assert made.sites == SITES and made.warning is None
    secrets = [made.server / "secret", *(made.site(site) / "secret" for site in SITES)]
    assert [len(path.read_bytes()) for path in secrets] == [32, 32, 32]
    assert len({path.read_bytes() for path in secrets}) == 3


def test_private_files_are_closed_to_others_and_so_are_the_folders(made):
    for path in made.written:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == 0o600 if path.name in PRIVATE else mode & 0o600 == 0o600
    for folder in (made.folder, made.server, *map(made.site, SITES)):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_private_files_are_closed_from_the_moment_they_are_created(tmp_path, monkeypatch):
    opened, create = {}, os.open

    def watched(path, flags, mode=0o777, **more):
        descriptor = create(path, flags, mode, **more)
        if flags & os.O_CREAT:
            opened[Path(path).name] = stat.S_IMODE(os.fstat(descriptor).st_mode)
        return descriptor

    monkeypatch.setattr(os, "open", watched)
    before = os.umask(0)
    try:
        make(tmp_path / "certs", [], ["a"])
    finally:
        os.umask(before)
    partial = {".ca.partial.key", ".server.partial.key", ".secret.partial", ".key.partial"}
    assert {name for name, mode in opened.items() if mode == 0o600} == partial
    assert {mode for name, mode in opened.items() if name not in partial} == {0o644}


def test_what_a_killed_process_left_open_to_all_is_not_written_into(tmp_path):
    (tmp_path / ".ca.partial.key").write_text("half")
    (tmp_path / ".ca.partial.key").chmod(0o666)
    made = make(tmp_path, [], [])
    assert stat.S_IMODE(made.ca_key.stat().st_mode) == 0o600
    assert not [name for name in files(tmp_path) if "partial" in name]


def test_the_server_is_signed_by_the_ca_which_signs_nothing_but_certificates(made):
    ca, server = certificate(made.server / "ca.crt"), certificate(made.server / "server.pem")
    ca.verify_directly_issued_by(ca)
    server.verify_directly_issued_by(ca)
    with pytest.raises((InvalidSignature, ValueError)):
        ca.verify_directly_issued_by(server)
    basic = [
        each.extensions.get_extension_for_class(x509.BasicConstraints) for each in (ca, server)
    ]
    assert [(each.critical, each.value.ca) for each in basic] == [(True, True), (True, False)]
    assert basic[0].value.path_length == 0
    usage = ca.extensions.get_extension_for_class(x509.KeyUsage).value
    assert usage.key_cert_sign and not usage.digital_signature
    purposes = server.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(purposes) == [x509.ExtendedKeyUsageOID.SERVER_AUTH]
    for site in SITES:
        assert (made.site(site) / "ca.crt").read_bytes() == (made.server / "ca.crt").read_bytes()


def test_a_strict_verifier_accepts_the_servers_names_and_no_others(made):
    store = x509.verification.Store([certificate(made.server / "ca.crt")])
    leaf = certificate(made.server / "server.pem")

    def verify(subject):
        builder = x509.verification.PolicyBuilder().store(store)
        return builder.build_server_verifier(subject).verify(leaf, [])

    for host in ("fl.example.org", "localhost"):
        assert len(verify(x509.DNSName(host))) == 2
    for host in ("10.0.0.5", "127.0.0.1", "::1"):
        assert len(verify(x509.IPAddress(ip_address(host)))) == 2
    for host in ("example.org", "other.example.org"):
        with pytest.raises(x509.verification.VerificationError):
            verify(x509.DNSName(host))
    with pytest.raises(x509.verification.VerificationError):
        verify(x509.IPAddress(ip_address("10.0.0.6")))


def test_names_are_names_and_addresses_are_addresses(made):
    found = certificate(made.server / "server.pem").extensions
    names = found.get_extension_for_class(x509.SubjectAlternativeName).value
    assert set(names.get_values_for_type(x509.DNSName)) == {"fl.example.org", "localhost"}
    addresses = {str(each) for each in names.get_values_for_type(x509.IPAddress)}
    assert addresses == {"10.0.0.5", "127.0.0.1", "::1"}
    assert made.hosts[:2] == ("fl.example.org", "10.0.0.5") and len(made.hosts) == 5


def test_the_keys_of_sites_are_pairs_of_their_own(made):
    lines = set()
    for site in SITES:
        text = (made.site(site) / "key").read_bytes()
        assert text.startswith(b"-----BEGIN OPENSSH PRIVATE KEY-----")
        key = serialization.load_ssh_private_key(text, None)
        assert isinstance(key.curve, ec.SECP384R1)
        line = (made.site(site) / "key.pub").read_bytes()
        assert serialization.load_ssh_public_key(line) == key.public_key()
        assert made.public_key(site).read_bytes() == line
        assert line.startswith(b"ecdsa-sha2-nistp384 ") and line.count(b"\n") == 1
        lines.add(line)
    assert len(lines) == len(SITES)


def test_validity_is_as_long_as_asked_for(made, tmp_path):
    now = datetime.now(UTC)
    assert abs(made.expires - now - timedelta(days=365)) < timedelta(minutes=5)
    server = certificate(made.server / "server.pem")
    assert server.not_valid_after_utc == made.expires
    assert server.not_valid_before_utc < now - timedelta(minutes=50)
    long = make(tmp_path, [], [], days=5000)
    assert certificate(long.server / "ca.crt").not_valid_after_utc >= long.expires
    assert long.expires - now > timedelta(days=4999)


# TLS


def handshake(server, trusted, name):
    """Whether a TLS client that trusts a CA accepts the server by this name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server / "server.pem", server / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)

        def serve():
            connection, _ = listener.accept()
            connection.settimeout(10)
            try:
                with context.wrap_socket(connection, server_side=True) as safe:
                    safe.sendall(safe.recv(4))
            except OSError:  # the client refused
                connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        client = ssl.create_default_context(cafile=str(trusted))
        client.verify_flags |= ssl.VERIFY_X509_STRICT
        try:
            with (
                socket.create_connection(listener.getsockname(), timeout=10) as plain,
                client.wrap_socket(plain, server_hostname=name) as safe,
            ):
                safe.sendall(b"ping")
                return safe.recv(4) == b"ping"
        finally:
            thread.join()


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "fl.example.org"])
def test_a_site_accepts_the_server(made, name):
    assert handshake(made.server, made.site("site-1") / "ca.crt", name)


def test_a_site_refuses_another_name_and_another_ca(made, tmp_path):
    with pytest.raises(ssl.SSLCertVerificationError, match="not valid for"):
        handshake(made.server, made.site("site-1") / "ca.crt", "other.example.org")
    other = make(tmp_path, ["fl.example.org"], ["site-1"])
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(made.server, other.site("site-1") / "ca.crt", "127.0.0.1")


# Called again


def test_further_sites_change_nothing_for_those_that_are_there(tmp_path):
    first = make(tmp_path, ["fl.example.org"], ["b"])
    before = contents(tmp_path)
    again = make(tmp_path, ["fl.example.org"], ["c", "a"])
    after = contents(tmp_path)
    assert before.items() <= after.items()
    assert again.sites == ("c", "a", "b")
    written = {str(path.relative_to(tmp_path)) for path in again.written}
    assert written == after.keys() - before.keys()
    assert again.expires == first.expires and again.hosts == first.hosts


@pytest.mark.parametrize("hosts", [[], ["fl.example.org"], ["FL.Example.Org", "127.0.0.1", "::1"]])
def test_the_same_hosts_or_none_keep_everything(tmp_path, hosts):
    make(tmp_path, ["fl.example.org"], ["a"])
    before = contents(tmp_path)
    again = make(tmp_path, hosts, ["a"])
    assert again.written == [] and "fl.example.org" in again.hosts and again.sites == ("a",)
    assert contents(tmp_path) == before


def test_another_host_is_refused_until_the_certificate_is_deleted(tmp_path):
    first = make(tmp_path, ["fl.example.org"], ["a"])
    before = contents(tmp_path)
    with pytest.raises(ud.UndriftError, match=r"but not for other\.example\.org: delete it"):
        make(tmp_path, ["other.example.org"], ["a"])
    assert contents(tmp_path) == before
    (first.server / "server.pem").unlink()
    again = make(tmp_path, ["other.example.org"], ["a"])
    assert {path.name for path in again.written} == {"server.pem", "server.key"}
    assert "fl.example.org" not in again.hosts
    assert handshake(again.server, first.site("a") / "ca.crt", "other.example.org")


@pytest.mark.parametrize("lost", ["server.key", "server.pem"])
def test_a_certificate_without_its_key_or_a_key_without_it_is_issued_again(tmp_path, lost):
    made = make(tmp_path, ["fl.example.org"], ["a"])
    (made.server / lost).unlink()
    again = make(tmp_path, ["fl.example.org"], ["a"])
    assert {path.name for path in again.written} == {"server.pem", "server.key"}
    assert handshake(again.server, made.site("a") / "ca.crt", "fl.example.org")


def test_a_certificate_that_expires_soon_is_reported_with_the_remedy(tmp_path):
    soon = make(tmp_path, ["fl.example.org"], ["a"], days=29)
    assert f"expires on {soon.expires:%Y-%m-%d}: delete {soon.server}/server.pem" in soon.warning
    assert make(tmp_path, [], ["a"], days=31).warning == soon.warning
    (soon.server / "server.pem").unlink()
    assert make(tmp_path, ["fl.example.org"], ["a"], days=31).warning is None
    soon.expires = datetime.now(UTC) - timedelta(days=1)
    assert "certificate expired on" in soon.warning


def test_a_certificate_does_not_outlive_its_ca(tmp_path):
    made = make(tmp_path, [], [])
    ca = certificate(made.server / "ca.crt")
    (made.server / "server.pem").unlink()
    assert make(tmp_path, [], [], days=20_000).expires == ca.not_valid_after_utc


def test_a_site_whose_folder_was_moved_away_keeps_its_key(tmp_path):
    made = make(tmp_path, [], ["a"])
    line = made.public_key("a").read_bytes()
    made.site("a").rename(tmp_path / "elsewhere")
    again = make(tmp_path, [], ["a"])
    assert again.sites == ("a",) and again.written == []
    assert made.public_key("a").read_bytes() == line and not made.site("a").exists()


def test_the_key_of_a_site_that_the_server_does_not_know_is_not_overwritten(tmp_path):
    made = make(tmp_path, [], ["a"])
    made.public_key("a").unlink()
    before = contents(tmp_path)
    with pytest.raises(ud.UndriftError, match="a key that the server does not know: delete"):
        make(tmp_path, [], ["a"])
    assert contents(tmp_path) == before


def test_a_ca_without_its_key_or_with_anothers_is_not_replaced(tmp_path):
    made = make(tmp_path / "certs", [], ["a"])
    other = make(tmp_path / "other", [], [])
    made.ca_key.write_bytes(other.ca_key.read_bytes())
    with pytest.raises(ud.UndriftError, match=r"does not belong to .*ca\.key"):
        make(tmp_path / "certs", [], ["b"])
    made.ca_key.unlink()
    with pytest.raises(ud.UndriftError, match="put the key back"):
        make(tmp_path / "certs", [], ["b"])
    assert not made.site("b").exists()


@pytest.mark.parametrize("name", ["ca.key", "server/ca.crt", "server/server.pem"])
def test_files_that_cannot_be_read_are_named(tmp_path, name):
    make(tmp_path, [], ["a"])
    (tmp_path / name).write_bytes(b"nonsense")
    with pytest.raises(ud.UndriftError, match=f"{name} is not a readable (key|certificate)"):
        make(tmp_path, [], ["a"])


# Invalid arguments


@pytest.mark.parametrize(
    "site",
    ["", ".", "..", ".a", "a/b", "../a", "a\\b", "a b", "a\n", "ä", "a\0", "a" * 61, "a;ls", "$x"],
)
def test_hostile_names_of_sites_are_refused_before_anything_is_written(tmp_path, site):
    with pytest.raises(ud.UndriftError, match="must have 1 to 60 of the characters"):
        make(tmp_path / "certs", [], ["fine", site])
    assert list(tmp_path.iterdir()) == []


def test_unusual_names_of_sites_are_fine(tmp_path):
    sites = ["a.b", "a.pub", "-x", "_", "9", "a..", "key", "b" * 60]
    assert make(tmp_path, [], sites).sites == tuple(sites)
    assert set(make(tmp_path, [], []).sites) == set(sites)


def test_sites_that_differ_in_case_only_are_refused(tmp_path):
    make(tmp_path, [], ["Basel"])
    with pytest.raises(ud.UndriftError, match="basel and Basel differ only"):
        make(tmp_path, [], ["basel"])


@pytest.mark.parametrize(
    "host",
    ["", "fl.example.org:8000", "https://fl.example.org", "a b", "-a.org", "a..b", "*.example.org",
     "1.2.3", "300.1.1.1", "fe80::1%eth0", "[::1]", "ä.org", "a" * 64, "a\n"],
)  # fmt: skip
def test_what_is_no_host_is_refused(tmp_path, host):
    with pytest.raises(ud.UndriftError, match="must be an IP address or a name"):
        make(tmp_path / "certs", [host], [])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_an_address_to_listen_at_is_no_host(tmp_path, host):
    with pytest.raises(ud.UndriftError, match="all addresses of a machine"):
        make(tmp_path, [host], [])


@pytest.mark.parametrize("days", [0, -1, 1.5, True, 10**9])
def test_days_are_a_number_of_days(tmp_path, days):
    with pytest.raises(ud.UndriftError, match="days is"):
        make(tmp_path, [], [], days=days)


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ud.UndriftError, match="cannot be created"):
        make(tmp_path / "file", [], [])


def test_without_cryptography_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(ud.UndriftError, match=r"pip install 'undrift\[flower\]'"):
        importlib.reload(certificates)


# Commands


def test_the_commands_name_everyones_own_folder(made):
    lines = dict(commands(made, "fl.example.org", 8000))
    assert list(lines) == ["server", *SITES]
    server = shlex.split(lines["server"])
    assert server[:4] == ["undrift", "deploy", "server", "app"]
    assert server[4:] == ["--host", "0.0.0.0", "--port", "8000", "--certs", str(made.server)]
    for site in SITES:
        words = shlex.split(lines[site])
        assert words[:6] == ["undrift", "deploy", "site", "app", "--site", site]
        assert words[6:] == ["--superlink", "fl.example.org:8000", "--certs", str(made.site(site))]


def test_commands_for_addresses_and_unusual_folders(tmp_path):
    made = make(tmp_path / "my certs; ls", ["2001:db8::7"], ["a"])
    lines = dict(commands(made, "2001:DB8::7", 8000))
    assert "--host :: " in lines["server"] and "[2001:db8::7]:8000" in shlex.split(lines["a"])
    assert str(made.site("a")) in shlex.split(lines["a"])
    for host, listens in {"localhost": "127.0.0.1", "127.0.0.1": "127.0.0.1", "::1": "::1"}.items():
        assert f"--host {listens} " in commands(made, host, 8000)[0][1]
