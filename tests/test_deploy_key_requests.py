"""A site makes its own key, and only the public part of it leaves the site."""

import importlib
import json
import shutil
import stat
import sys

import pytest

from commands import called
from deployments import app

pytest.importorskip("cryptography", reason="cryptography is not installed")
from cryptography.hazmat.primitives import serialization as pem

from undrift.deploy import launch
from undrift.deploy.flower.certificates import make_certificates
from undrift.deploy.signing import keys
from undrift.deploy.signing.envelopes import ANSWER
from undrift.deploy.signing.key_requests import make_request, read_request, register
from undrift.deploy.signing.keys import SigningKey, SiteKeys
from undrift.utils.errors import UndriftError


@pytest.fixture
def certs(tmp_path):
    return make_certificates(tmp_path / "certs", ["localhost"], ["b"])


def names(folder):
    return {path.name for path in folder.iterdir()}


def test_a_key_that_a_site_made_signs_what_the_server_accepts(tmp_path, certs):
    done = called("deploy", "request", "own", "--site", "a", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    own = tmp_path / "own"
    assert names(own) == {"key", "key.pub", "secret", "a.request"}
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in own.iterdir())
    shutil.copy(own / "a.request", tmp_path / "sent")
    signed = called("deploy", "sign", "certs", "sent", cwd=tmp_path)
    assert signed.returncode == 0, signed.stderr
    fingerprint = read_request(own / "a.request").fingerprint
    assert fingerprint in done.stdout and fingerprint in signed.stdout
    # Nothing secret is where the CA is, and the server knows both sites.
    assert names(certs.site("a")) == {"ca.crt", "key.pub", "peers"}
    assert names(certs.site("a") / "peers") == {"a.pub", "b.pub"}
    assert names(certs.server / "sites") == {"a.pub", "b.pub"}
    private = (own / "key").read_bytes()
    assert not any(private in path.read_bytes() for path in certs.folder.rglob("*.*"))
    # The site adds the CA's certificate, and has all that it needs.
    shutil.copy(certs.site("a") / "ca.crt", own)
    launch._require_signed(own)
    assert launch._require_files(own, launch.SITE_FILES, "site") == own
    known = SiteKeys(certs.server / "sites")
    assert known.verify("a", ANSWER, SigningKey(own / "key").sign(ANSWER)) is None
    # Flower takes it, too, and another call of certs leaves it as it is.
    assert pem.load_ssh_public_key(certs.public_key("a").read_bytes()).key_size == 384
    before = certs.public_key("a").read_bytes()
    made = make_certificates(certs.folder, [], ["a", "c"])
    assert certs.public_key("a").read_bytes() == before and "a" in made.sites
    assert names(certs.site("a")) == {"ca.crt", "key.pub", "peers"}


def test_a_request_made_again_has_the_same_key(tmp_path):
    path, first = make_request(tmp_path / "own", "a")
    (tmp_path / "own" / "a.request").unlink()
    assert make_request(tmp_path / "own", "a") == (path, first)
    assert read_request(path) == first
    with pytest.raises(UndriftError, match=r"the key of another site \(a\.request\)"):
        make_request(tmp_path / "own", "b")
    with pytest.raises(UndriftError, match="The site's name is"):
        make_request(tmp_path / "other", "../b")


@pytest.mark.parametrize("part", ["site", "public_key", "signature"])
def test_a_request_that_was_changed_is_refused(tmp_path, part):
    path, _ = make_request(tmp_path / "one", "a")
    other, _ = make_request(tmp_path / "two", "b")
    found = json.loads(path.read_text())
    found[part] = json.loads(other.read_text())[part]
    path.write_text(json.dumps(found))
    with pytest.raises(UndriftError, match="is not signed with the key that it has"):
        read_request(path)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "another"},
        {"site": 7},
        {"site": "../../a"},
        {"signature": "?"},
        {"signature": None},
        {"public_key": "ssh-rsa nonsense"},
        {"public_key": 3},
    ],
)
def test_what_is_no_request_is_a_sentence(tmp_path, certs, change):
    path, _ = make_request(tmp_path / "own", "a")
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UndriftError, match=r"is not a request for a key|The site's name is"):
        read_request(path)
    done = called("deploy", "sign", "certs", str(path), cwd=tmp_path)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert not certs.public_key("a").exists()


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff\xfe", b"{}", b" " * 20_000])
def test_other_files_are_no_requests(tmp_path, content):
    path = tmp_path / "a.request"
    path.write_bytes(content)
    with pytest.raises(UndriftError, match=r"not a request|too large"):
        read_request(path)
    with pytest.raises(UndriftError, match="cannot be read"):
        read_request(tmp_path / "none")


def test_a_registered_key_is_not_replaced_in_silence(tmp_path, certs):
    _, first = make_request(tmp_path / "one", "a")
    _, second = make_request(tmp_path / "two", "a")
    register(certs.folder, first)
    register(certs.folder, first)  # the same again
    with pytest.raises(UndriftError, match="already has another key of site 'a'"):
        register(certs.folder, second)
    _, of_b = make_request(tmp_path / "three", "b")
    certs.public_key("b").unlink()
    with pytest.raises(UndriftError, match="has a private key that was created here"):
        register(certs.folder, of_b)
    _, upper = make_request(tmp_path / "four", "A")
    with pytest.raises(UndriftError, match="differ only in upper and lower case"):
        register(certs.folder, upper)
    with pytest.raises(UndriftError, match="has no CA"):
        register(tmp_path / "nowhere", first)


def test_without_cryptography_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(UndriftError, match=r"pip install 'undrift\[flower\]'"):
        importlib.reload(keys)


def test_a_site_whose_key_is_not_registered_yet_is_told_what_to_do(tmp_path):
    make_request(tmp_path / "own", "a")
    experiment = launch.Experiment.load(app(tmp_path / "app"))
    with pytest.raises(UndriftError, match=r"undrift deploy sign, and copy the ca\.crt"):
        launch.run_site(
            experiment, "a", "127.0.0.1:8000", tmp_path, tmp_path / "own", lambda: True, print
        )
