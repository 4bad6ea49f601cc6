"""The certificates of a deployment: who may call itself the server, and who is which site.

A CA of one's own signs the server's certificate, by which sites know the server. Each site has a
key pair, by which the server knows the site. Whoever runs `make` holds everything; the folder
`server` goes to the server and `sites/<site>` to that site, and neither holds what is another's.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from undrift.utils.errors import UndriftError, first_line, require, require_range, require_whole
from undrift.utils.files import written_whole

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, CertificateBuilder, Name

ALWAYS = ("127.0.0.1", "localhost", "::1")
"""What every server's certificate is valid for, so that a deployment can be tried at home."""

SOON = timedelta(days=30)
"""What expires within this time is made anew."""

CA_DAYS = 3650
"""How long the CA is valid: each time it is made anew, every site must get it again."""

_SITE = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,59}")
_HOST = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*")


@dataclass(frozen=True)
class Made:
    """Where everything is, and what of it is new."""

    folder: Path
    hosts: tuple[str, ...]
    """the names and addresses of the server that its certificate is valid for"""
    sites: tuple[str, ...]
    """every site that has a key: those asked for, then those that had one before"""
    expires: datetime
    """when the server's certificate does"""
    made: tuple[Path, ...]
    """the files that were written"""
    kept: tuple[Path, ...]
    """the files that were there already, and are as they were"""

    @property
    def ca_key(self) -> Path:
        """The CA's key, which stays with whoever makes certificates."""
        return self.folder / "ca.key"

    @property
    def server(self) -> Path:
        """The folder that goes to the server: ca.crt, server.pem, server.key, secret, sites."""
        return self.folder / "server"

    def public_key(self, site: str) -> Path:
        """The file by which the server knows a site."""
        return self.server / "sites" / f"{site}.pub"

    def site(self, site: str) -> Path:
        """The folder that goes to a site: ca.crt, key, key.pub, secret."""
        return self.folder / "sites" / site


def make(folder: Path, hosts: Sequence[str], sites: Sequence[str], days: int = 365) -> Made:
    """Make what a deployment with TLS and authenticated sites needs, or what is missing of it.

    What is there stays: the CA and the sites' keys always, the server's certificate unless it is
    for other hosts or expires soon. A site whose folder was moved away keeps its key, too.

    Parameters
    ----------
    folder
        where everything goes
    hosts
        the server's names and IP addresses, as the sites call it; none for those it has already
    sites
        the sites' names, also further ones than before
    days
        how long the server's certificate is valid
    """
    days = require_whole("days", days, at_least=1)
    require_range("days", days, at_most=36_500)
    hosts = [_host(host) for host in hosts]
    for site in sites:
        require_site(site)
    _require_cryptography()
    everyone = [*dict.fromkeys([*sites, *_before(folder)])]
    _require_apart(everyone)
    for each in (folder, folder / "server", folder / "server" / "sites", folder / "sites"):
        _make_folder(each)
    files = _Files()
    key, ca = _authority(folder, days, files)
    certificate = _server(folder / "server", hosts, days, key, ca, files)
    for site in everyone:
        _site(folder, site, _text(ca), files)
    return Made(
        folder,
        _hosts_of(certificate),
        tuple(everyone),
        certificate.not_valid_after_utc,
        tuple(files.made),
        tuple(files.kept),
    )


def commands(made: Made, host: str, port: int, app: str = "app") -> list[tuple[str, str]]:
    """What to type at the server and at each site: where, and the command.

    Parameters
    ----------
    made
        what `make` gave
    host
        the server, as the sites call it: one of the hosts of its certificate
    port
        the server's port
    app
        the folder of the experiment, the same everywhere
    """
    port = require_whole("The port", port, at_least=1)
    require_range("The port", port, at_most=65_535)
    host = _host(host)
    require(
        host in made.hosts,
        f"The server's certificate is not valid for {host}, but for {', '.join(made.hosts)}: make "
        f"it for this host as well.",
    )
    listens = host if _is_address(host) and ip_address(host).is_loopback else "0.0.0.0"
    if host == "localhost":
        listens = "127.0.0.1"
    elif ":" in host and listens != host:
        listens = "::"
    server = f"undrift deploy server {_quoted(app)} --host {listens} --port {port}"
    lines = [("server", f"{server} --certs {_quoted(made.server)}")]
    superlink = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    for site in made.sites:
        called = f"undrift deploy site {_quoted(app)} --site {site} --superlink"
        lines.append((site, f"{called} {_quoted(superlink)} --certs {_quoted(made.site(site))}"))
    return lines


def require_site(site: str) -> None:
    """Refuse a name that no site may have."""
    require(
        isinstance(site, str) and _SITE.fullmatch(site) is not None,
        f"The site is called {str(site)[:80]!r}, but its name must be of at most 60 letters a to "
        f"z, digits, '-', '_' and '.', and not begin with a dot.",
    )


# The three kinds of things that are made


def _authority(
    folder: Path, days: int, files: _Files
) -> tuple[EllipticCurvePrivateKey, Certificate]:
    """The CA's key and certificate; one that expires soon is made anew with the same key."""
    from cryptography import x509

    place, public = folder / "ca.key", folder / "server" / "ca.crt"
    if place.exists():
        key = _read_key(place)
        files.keep(place, private=True)
    else:
        require(
            not public.exists(),
            f"{public} is there, but not {place}, the key that made it: put the key back, or make "
            f"everything in another folder.",
        )
        key = _new_key()
        files.write(place, _pem(key), private=True)  # first: the certificate follows from it
    if public.exists():
        ca = _read_certificate(public)
        require(
            ca.public_key() == key.public_key(),
            f"{public} was not made with {place}: one of them comes from elsewhere.",
        )
        if _lasts(ca):
            files.keep(public)
            return key, ca
    what = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    ca = _signed(
        _begun("undrift CA", key, max(CA_DAYS, days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(what, critical=True),
        key,
        "undrift CA",
    )
    files.write(public, _text(ca))
    return key, ca


def _server(
    folder: Path,
    hosts: Sequence[str],
    days: int,
    ca_key: EllipticCurvePrivateKey,
    ca: Certificate,
    files: _Files,
) -> Certificate:
    """The server's certificate, with its key and its secret."""
    from cryptography import x509

    files.once(folder / "secret", secrets.token_bytes(32))
    place, public = folder / "server.key", folder / "server.pem"
    before = _read_certificate(public) if public.exists() else None
    wanted = hosts or (_hosts_of(before) if before is not None else ())
    wanted = [*dict.fromkeys([*wanted, *ALWAYS])]
    if (
        before is not None
        and set(_hosts_of(before)) == set(wanted)
        and _lasts(before)
        and place.exists()
        and _belongs(before, _read_key(place), ca)
    ):
        files.keep(place, private=True)
        files.keep(public)
        return before
    key = _new_key()
    names: list[x509.GeneralName] = [
        x509.IPAddress(ip_address(host)) if _is_address(host) else x509.DNSName(host)
        for host in wanted
    ]
    what = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
    server_only = x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH])
    certificate = _signed(
        _begun("undrift server", key, days, ca)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(what, critical=True)
        .add_extension(server_only, critical=False),
        ca_key,
        "undrift CA",
    )
    # Killed in between, the two do not belong together, and the next call makes both anew.
    files.write(place, _pem(key), private=True)
    files.write(public, _text(certificate))
    return certificate


def _site(folder: Path, site: str, ca: bytes, files: _Files) -> None:
    """A site's folder, and its public key in the server's."""
    from cryptography.hazmat.primitives import serialization as to

    own, known = folder / "sites" / site, folder / "server" / "sites" / f"{site}.pub"
    place = own / "key"
    if not place.exists() and known.exists():  # it has its key; only the CA may be new
        files.keep(known)
        if own.is_dir():
            files.same(own / "ca.crt", ca)
        return
    _make_folder(own)
    if place.exists():
        key = _read_key(place, ssh=True)
        files.keep(place, private=True)
    else:
        key = _new_key()
        text = key.private_bytes(to.Encoding.PEM, to.PrivateFormat.OpenSSH, to.NoEncryption())
        files.write(place, text, private=True)
    line = key.public_key().public_bytes(to.Encoding.OpenSSH, to.PublicFormat.OpenSSH) + b"\n"
    files.same(own / "key.pub", line)
    files.same(own / "ca.crt", ca)
    files.once(own / "secret", secrets.token_bytes(32))
    files.same(known, line)  # last: from here on the site counts as one that has its key


# Keys and certificates


def _new_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP384R1())


def _begun(
    name: str, key: EllipticCurvePrivateKey, days: int, ca: Certificate | None = None
) -> CertificateBuilder:
    """A certificate that lacks what it is for."""
    from cryptography import x509

    now = datetime.now(UTC)
    end = now + timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(_named(name))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # a site's clock may be behind
        .not_valid_after(end if ca is None else min(end, ca.not_valid_after_utc))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _signed(builder: CertificateBuilder, key: EllipticCurvePrivateKey, by: str) -> Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    whose = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
    return (
        builder.issuer_name(_named(by))
        .add_extension(whose, critical=False)
        .sign(key, hashes.SHA384())
    )


def _named(name: str) -> Name:
    from cryptography import x509

    return x509.Name(
        [
            x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, "undrift"),
            x509.NameAttribute(x509.NameOID.COMMON_NAME, name),
        ]
    )


def _pem(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization as to

    return key.private_bytes(to.Encoding.PEM, to.PrivateFormat.PKCS8, to.NoEncryption())


def _text(certificate: Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _read_key(path: Path, ssh: bool = False) -> EllipticCurvePrivateKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization as of
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

    load = of.load_ssh_private_key if ssh else of.load_pem_private_key
    try:
        key = load(_read(path), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UndriftError(f"{path} is no key that can be read: {first_line(error)}.") from error
    if not isinstance(key, EllipticCurvePrivateKey):
        raise UndriftError(f"{path} is a key of another kind than ECDSA.")
    return key


def _read_certificate(path: Path) -> Certificate:
    from cryptography.x509 import load_pem_x509_certificate

    try:
        return load_pem_x509_certificate(_read(path))
    except ValueError as error:
        raise UndriftError(
            f"{path} is no certificate that can be read: {first_line(error)}."
        ) from error


def _hosts_of(certificate: Certificate) -> tuple[str, ...]:
    """The names and addresses a certificate is valid for."""
    from cryptography import x509

    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(
        str(name.value) for name in names if isinstance(name, x509.DNSName | x509.IPAddress)
    )


def _lasts(certificate: Certificate) -> bool:
    return certificate.not_valid_after_utc - datetime.now(UTC) > SOON


def _belongs(certificate: Certificate, key: EllipticCurvePrivateKey, ca: Certificate) -> bool:
    """Whether a certificate is that of the key, and signed by the CA."""
    from cryptography.exceptions import InvalidSignature

    try:
        certificate.verify_directly_issued_by(ca)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return certificate.public_key() == key.public_key()


# Names


def _host(host: str) -> str:
    """A name or an address in the one way to write it; others are refused."""
    if _is_address(host):
        address = ip_address(host)
        require(
            not address.is_unspecified,
            f"The host {host} stands for every address of a machine: give the one, or the name, "
            f"by which the sites reach the server.",
        )
        return str(address)
    name = str(host).lower()
    fits = _HOST.fullmatch(name) is not None and len(name) <= 253
    require(
        fits and not name.rpartition(".")[2].isdigit(),
        f"The host is {str(host)[:80]!r}, but must be an IP address or a name such as "
        f"fl.example.org, without a port.",
    )
    return name


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return "%" not in host  # an address of one machine's interface


def _before(folder: Path) -> list[str]:
    """The sites that have a key already."""
    known = [path.stem for path in (folder / "server" / "sites").glob("*.pub")]
    own = [path.parent.name for path in (folder / "sites").glob("*/key")]
    return sorted({site for site in [*known, *own] if _SITE.fullmatch(site)})


def _require_apart(sites: Iterable[str]) -> None:
    """Refuse names that are the same file where upper and lower case are one."""
    seen: dict[str, str] = {}
    for site in sites:
        other = seen.setdefault(site.lower(), site)
        require(
            other == site,
            f"The sites {other} and {site} differ only in upper and lower case: rename one.",
        )


def _quoted(word: str | Path) -> str:
    return shlex.quote(str(word))


# Files


class _Files:
    """Writes files whole, and tells which were written and which were there."""

    def __init__(self) -> None:
        self.made: list[Path] = []
        self.kept: list[Path] = []

    def write(self, path: Path, content: bytes, private: bool = False) -> None:
        """A new file, which nobody else can read at any moment if it is private."""
        with written_whole(path) as partial:
            partial.unlink(missing_ok=True)  # what a killed process left may be open to others
            how = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            with open(os.open(partial, how, 0o600 if private else 0o644), "wb") as file:
                file.write(content)
        self.made.append(path)

    def keep(self, path: Path, private: bool = False) -> None:
        """A file that stays, and is closed to others if it is private."""
        if private:
            try:
                path.chmod(0o600)
            except OSError as error:
                raise UndriftError(
                    f"{path} cannot be closed to others: {first_line(error)}."
                ) from error
        self.kept.append(path)

    def same(self, path: Path, content: bytes) -> None:
        """A public file with this content."""
        if path.exists() and _read(path) == content:
            self.keep(path)
        else:
            self.write(path, content)

    def once(self, path: Path, content: bytes) -> None:
        """A private file, with this content unless it is there."""
        if path.exists():
            self.keep(path, private=True)
        else:
            self.write(path, content, private=True)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UndriftError(f"{path} cannot be read: {first_line(error)}.") from error


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UndriftError(f"The folder {path} cannot be made: {first_line(error)}.") from error


def _require_cryptography() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise UndriftError(
            "Certificates need the package cryptography, which is not installed: "
            "pip install 'undrift[flower]'."
        ) from None
