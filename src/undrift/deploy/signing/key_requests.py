"""Keys that are made at their site: the site sends a request, and its private key never travels.

`undrift deploy request` makes the key and a request at the site; `undrift deploy sign` registers
the request where the CA is. A request has the public key and a signature with the private one, so
that nobody registers a key that is not its own.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from undrift.deploy.flower.certificates import (
    Certificates,
    make_folder,
    new_key,
    require_distinct,
    write_peers,
)
from undrift.deploy.private_files import write_private, write_secret
from undrift.deploy.signing.keys import SigningKey, UnsupportedAlgorithm, pem, signed_by
from undrift.deploy.site_names import require_site_name
from undrift.utils.errors import UndriftError, first_line, require
from undrift.utils.files import written_whole

KIND = "undrift key request 1"
SUFFIX = ".request"
MAX_REQUEST_BYTES = 10_000


@dataclass(frozen=True)
class KeyRequest:
    """The public key of a site, as it asks to be registered."""

    site: str
    public_key: bytes
    """in OpenSSH's format, without a comment"""

    @property
    def fingerprint(self) -> str:
        """What both sides compare over another channel, as `ssh-keygen -l` shows it."""
        return fingerprint(b64decode(self.public_key.split()[1]))

    @property
    def signed_content(self) -> bytes:
        """What the site signs to show that it has the private key."""
        return b"\n".join([KIND.encode(), self.site.encode(), self.public_key])


def fingerprint(content: bytes) -> str:
    """The SHA-256 hash of a key or a certificate, for people to compare."""
    return "SHA256:" + b64encode(sha256(content).digest()).decode().rstrip("=")


def make_request(folder: Path, site: str) -> tuple[Path, KeyRequest]:
    """Make a site's key in its own folder, and the file to send; existing files are kept.

    Called again, it writes the same request anew.
    """
    require_site_name(site)
    make_folder(folder)
    path = folder / f"{site}{SUFFIX}"
    others = [each.name for each in folder.glob(f"*{SUFFIX}") if each != path]
    require(
        not others,
        f"{folder} has the key of another site ({', '.join(others)}): choose a folder for each.",
    )
    key = folder / "key"
    if not key.exists():
        private = new_key().private_bytes(
            pem.Encoding.PEM, pem.PrivateFormat.OpenSSH, pem.NoEncryption()
        )
        write_private(key, private.decode())
    signing = SigningKey(key)
    request = KeyRequest(site, signing.public_key)
    (folder / "key.pub").write_bytes(request.public_key + b"\n")
    write_secret(folder / "secret")
    content = {
        "kind": KIND,
        "site": site,
        "public_key": request.public_key.decode(),
        "signature": b64encode(signing.sign(request.signed_content)).decode(),
    }
    with written_whole(path) as partial:
        partial.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
    return path, request


def read_request(path: Path) -> KeyRequest:
    """The request in a file, checked to be signed with the key that it has."""
    try:
        require(path.stat().st_size <= MAX_REQUEST_BYTES, f"{path} is too large for a request.")
        found = json.loads(path.read_text("utf-8"))
        require(isinstance(found, dict) and found.get("kind") == KIND, _not_a_request(path))
        site, signature = found["site"], b64decode(found["signature"], validate=True)
        key: Any = pem.load_ssh_public_key(found["public_key"].encode())
    except OSError as error:
        raise UndriftError(f"{path} cannot be read: {first_line(error)}.") from error
    except (ValueError, KeyError, TypeError, AttributeError, UnsupportedAlgorithm) as error:
        raise UndriftError(_not_a_request(path)) from error
    require_site_name(site)
    # Written anew: a comment in the file is not registered with the key.
    request = KeyRequest(site, key.public_bytes(pem.Encoding.OpenSSH, pem.PublicFormat.OpenSSH))
    require(
        signed_by(key, request.signed_content, signature),
        f"{path} is not signed with the key that it has: have site {site!r} make it again with "
        f"undrift deploy request.",
    )
    return request


def register(certs: Path, request: KeyRequest) -> Certificates:
    """Add a site's key to those that the server knows, and write what the site needs.

    Nothing of it is secret: the folder of the site gets the CA's certificate and the public key.
    """
    found = Certificates(certs)
    ca = found.server / "ca.crt"
    require(
        ca.is_file(),
        f"{certs} has no CA: create one with undrift deploy certs {certs} --host HOST.",
    )
    registered = found.public_key(request.site)
    require(
        not registered.exists()
        or registered.read_bytes().split()[:2] == request.public_key.split(),
        f"The server already has another key of site {request.site!r}: if that one is no longer to "
        f"be trusted, delete {registered} and call this again.",
    )
    known = sorted(path.stem for path in registered.parent.glob("*.pub"))
    found.sites = tuple(dict.fromkeys([request.site, *known]))
    require_distinct(found.sites)
    own = found.site(request.site)
    require(
        not (own / "key").exists(),
        f"{own} has a private key that was created here: delete the folder if site "
        f"{request.site!r} is to use its own.",
    )
    make_folder(own)
    found.write(own / "ca.crt", ca.read_bytes())
    found.write(own / "key.pub", request.public_key + b"\n")
    found.write(registered, request.public_key + b"\n")  # last: then the site is complete
    write_peers(found)
    return found


def is_unsigned(certs: Path, files: Sequence[str]) -> bool:
    """Whether a folder has all files of a site but the CA's certificate, as after a request."""
    missing = [name for name in files if not (certs / name).is_file()]
    return missing == ["ca.crt"] and any(certs.glob(f"*{SUFFIX}"))


def _not_a_request(path: Path) -> str:
    return f"{path} is not a request for a key: undrift deploy request makes one at the site."
