"""The certificates of a deployment: a CA, the server's certificate, and a key pair for each site.

A site recognises the server by a certificate that the CA signed, and the server recognises a site
by its registered public key. `undrift deploy certs` writes everything into one folder: the folder
`server` in it is for the server, `sites/NAME` for that site, and `ca.key` stays where it is.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from undrift.deploy.signing.keys import PEERS
from undrift.deploy.site_names import require_site_name
from undrift.utils.errors import UndriftError, first_line, require, require_range, require_whole
from undrift.utils.files import written_whole

try:
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives import serialization as pem
    from cryptography.hazmat.primitives.asymmetric import ec
except ImportError:
    raise UndriftError(
        "Certificates need the package cryptography, which is not installed: "
        "pip install 'undrift[flower]'."
    ) from None

Key = ec.EllipticCurvePrivateKey
LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Hosts for which every server certificate is valid, to try a deployment on one machine."""
CA_DAYS = 3650
"""How long a CA is valid; the server's certificate never outlives it."""
MAX_DAYS = 36_500
EXPIRES_SOON_DAYS = 30
"""From this many days before the end on, the user is told that a certificate expires."""
SECRET_BYTES = 32
HOST_NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*")


@dataclass
class Certificates:
    """The files of a deployment's certificates."""

    folder: Path
    hosts: tuple[str, ...] = ()
    """the names and addresses for which the server's certificate is valid"""
    sites: tuple[str, ...] = ()
    """all sites that have a key: first those asked for, then those from earlier calls"""
    expires: datetime = datetime.min
    """when the server's certificate expires"""
    written: list[Path] = field(default_factory=list)
    """the files written by this call"""

    @property
    def ca_key(self) -> Path:
        """The key of the CA, which goes neither to the server nor to a site."""
        return self.folder / "ca.key"

    @property
    def server(self) -> Path:
        """The folder for the server: ca.crt, server.pem, server.key, secret, sites."""
        return self.folder / "server"

    def site(self, name: str) -> Path:
        """The folder for a site: ca.crt, key, key.pub, secret, peers."""
        return self.folder / "sites" / name

    def public_key(self, site: str) -> Path:
        """The file by which the server recognises a site."""
        return self.server / "sites" / f"{site}.pub"

    @property
    def warning(self) -> str | None:
        """A sentence for the user if the server's certificate has expired or will soon."""
        left = self.expires - datetime.now(UTC)
        if left > timedelta(days=EXPIRES_SOON_DAYS):
            return None
        verb = "expires" if left > timedelta(0) else "expired"
        return (
            f"The server's certificate {verb} on {self.expires:%Y-%m-%d}: delete "
            f"{self.server / 'server.pem'} and call this again with every --host to renew it."
        )

    def write(self, path: Path, content: bytes, private: bool = False) -> None:
        """Write a new file, readable by this user alone from the start if it is private."""
        with written_whole(path) as partial:
            partial.unlink(missing_ok=True)  # left by a killed process, perhaps readable by others
            mode = 0o600 if private else 0o644
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with open(descriptor, "wb") as file:
                file.write(content)
        self.written.append(path)


def make_certificates(
    folder: Path, hosts: Sequence[str], sites: Sequence[str], days: int = 365
) -> Certificates:
    """Create what is missing of a deployment's certificates; existing files are not overwritten.

    Parameters
    ----------
    folder
        where everything is written
    hosts
        the names and IP addresses by which the sites reach the server; none if the server's
        certificate exists
    sites
        the names of the sites that need a key; those that have one keep it
    days
        how long a new server certificate is valid
    """
    require_range("days", require_whole("days", days, at_least=1), at_most=MAX_DAYS)
    hosts = [_parse_host(host) for host in hosts]
    for site in sites:
        require_site_name(site)
    found = Certificates(folder)
    earlier = sorted(path.stem for path in (found.server / "sites").glob("*.pub"))
    found.sites = tuple(dict.fromkeys([*sites, *earlier]))
    require_distinct(found.sites)
    make_folder(found.server / "sites")
    key, ca = _make_ca(found, days)
    _make_server(found, hosts, days, key, ca)
    for site in found.sites:
        if not found.public_key(site).exists():
            _make_site(found, site)
    write_peers(found)
    return found


def write_peers(found: Certificates) -> None:
    """Give every site the public keys of all sites: with secure aggregation sites check them."""
    for site in found.sites:
        if found.site(site).is_dir():
            peers = found.site(site) / PEERS
            make_folder(peers)
            for other in found.sites:
                public = found.public_key(other).read_bytes()
                path = peers / f"{other}.pub"
                if not path.exists() or path.read_bytes() != public:
                    found.write(path, public)


def commands(certificates: Certificates, host: str, port: int) -> list[tuple[str, str]]:
    """The commands to type at the server and at each site, with the machine they are for.

    Parameters
    ----------
    host
        the name or address by which the sites reach the server
    port
        the port that the server listens on
    """
    host = _parse_host(host)
    listens = "0.0.0.0"
    if host in LOOPBACK:
        listens = "127.0.0.1" if host == "localhost" else host
    elif ":" in host:
        listens = "::"
    server = f"undrift deploy server app --host {listens} --port {port}"
    lines = [("server", f"{server} --certs {shlex.quote(str(certificates.server))}")]
    superlink = shlex.quote(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    for site in certificates.sites:
        own = shlex.quote(str(certificates.site(site)))
        command = f"undrift deploy site app --site {site} --superlink {superlink} --certs {own}"
        lines.append((site, command))
    return lines


# The CA, the server's certificate, and the sites' keys


def _make_ca(found: Certificates, days: int) -> tuple[Key, x509.Certificate]:
    """The CA's key and certificate, read or created."""
    path = found.server / "ca.crt"
    if found.ca_key.exists():
        key = _read_key(found.ca_key)
    else:
        require(
            not path.exists(),
            f"{path} exists, but its key {found.ca_key} does not: put the key back, or use another "
            f"folder.",
        )
        key = new_key()
        found.write(found.ca_key, _private_pem(key), private=True)
    if path.exists():
        ca = _read_certificate(path)
        require(
            ca.public_key() == key.public_key(),
            f"{path} does not belong to {found.ca_key}: restore the file that was replaced, or use "
            f"another folder.",
        )
        return key, ca
    end = datetime.now(UTC) + timedelta(days=max(CA_DAYS, days))
    extensions = [
        (x509.BasicConstraints(ca=True, path_length=0), True),
        (_key_usage(key_cert_sign=True, crl_sign=True), True),
    ]
    ca = _issue("undrift CA", key, end, extensions, key)
    found.write(path, _certificate_pem(ca))
    return key, ca


def _make_server(
    found: Certificates,
    hosts: Sequence[str],
    days: int,
    ca_key: Key,
    ca: x509.Certificate,
) -> None:
    """The server's certificate, key and secret; refuses hosts that an existing one lacks."""
    path, key_path, secret = (found.server / n for n in ("server.pem", "server.key", "secret"))
    if not secret.exists():
        found.write(secret, secrets.token_bytes(SECRET_BYTES), private=True)
    if path.exists() and key_path.exists():
        certificate = _read_certificate(path)
        found.hosts, found.expires = _hosts_of(certificate), certificate.not_valid_after_utc
        missing = [host for host in hosts if host not in found.hosts]
        require(
            not missing,
            f"{path} is valid for {', '.join(found.hosts)}, but not for {', '.join(missing)}: "
            f"delete it and call this again with every --host to issue a new one.",
        )
        return
    found.hosts = tuple(dict.fromkeys([*hosts, *LOOPBACK]))
    names: list[x509.GeneralName] = [
        x509.IPAddress(ip_address(host)) if _is_address(host) else x509.DNSName(host)
        for host in found.hosts
    ]
    key = new_key()
    end = min(datetime.now(UTC) + timedelta(days=days), ca.not_valid_after_utc)
    extensions = [
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (x509.SubjectAlternativeName(names), False),
        (_key_usage(digital_signature=True), True),
        (x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH]), False),
    ]
    certificate = _issue("undrift server", key, end, extensions, ca_key)
    found.expires = certificate.not_valid_after_utc
    # The certificate last: if this process is killed before, both are written again.
    found.write(key_path, _private_pem(key), private=True)
    found.write(path, _certificate_pem(certificate))


def _make_site(found: Certificates, site: str) -> None:
    """A site's folder, and its public key among the server's files."""
    own = found.site(site)
    require(
        not (own / "key").exists(),
        f"{own} has a key that the server does not know: delete the folder, or copy its key.pub to "
        f"{found.public_key(site)}.",
    )
    make_folder(own)
    key = new_key()
    private = key.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.OpenSSH, pem.NoEncryption())
    public = key.public_key().public_bytes(pem.Encoding.OpenSSH, pem.PublicFormat.OpenSSH) + b"\n"
    found.write(own / "ca.crt", (found.server / "ca.crt").read_bytes())
    found.write(own / "secret", secrets.token_bytes(SECRET_BYTES), private=True)
    found.write(own / "key.pub", public)
    found.write(own / "key", private, private=True)
    # Last: a site is complete once the server knows its key.
    found.write(found.public_key(site), public)


# Keys and certificates


def new_key() -> Key:
    """A new private key."""
    return ec.generate_private_key(ec.SECP384R1())


def _issue(
    name: str,
    key: Key,
    end: datetime,
    extensions: Sequence[tuple[x509.ExtensionType, bool]],
    ca_key: Key,
) -> x509.Certificate:
    """A certificate for a key, signed by the CA; every extension says whether it is critical."""
    builder = (
        x509.CertificateBuilder()
        .subject_name(_subject(name))
        .issuer_name(_subject("undrift CA"))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - timedelta(hours=1))  # a site's clock may be slow
        .not_valid_after(end)
    )
    public, ca_public = key.public_key(), ca_key.public_key()
    for extension, critical in (
        (x509.SubjectKeyIdentifier.from_public_key(public), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_public), False),
        *extensions,
    ):
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(ca_key, hashes.SHA384())


def _subject(name: str) -> x509.Name:
    organization = x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, "undrift")
    return x509.Name([organization, x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _key_usage(**allowed: bool) -> x509.ExtensionType:
    names = (
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "key_cert_sign",
        "crl_sign",
        "encipher_only",
        "decipher_only",
    )
    return x509.KeyUsage(**(dict.fromkeys(names, False) | allowed))


def _private_pem(key: Key) -> bytes:
    return key.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.NoEncryption())


def _certificate_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(pem.Encoding.PEM)


def _read_key(path: Path) -> Key:
    try:
        key = pem.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UndriftError(f"{path} is not a readable key: {first_line(error)}.") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UndriftError(f"{path} is not an ECDSA key.")
    return key


def _read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UndriftError(f"{path} is not a readable certificate: {first_line(error)}.") from error


def _hosts_of(certificate: x509.Certificate) -> tuple[str, ...]:
    """The names and addresses for which a certificate is valid."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(
        str(name.value) for name in names if isinstance(name, x509.DNSName | x509.IPAddress)
    )


# Names and folders


def _parse_host(host: str) -> str:
    """A host name or IP address in its normal form; others are refused."""
    if _is_address(host):
        address = ip_address(host)
        require(
            not address.is_unspecified,
            f"The host {host} stands for all addresses of a machine: give the name or address by "
            f"which the sites reach the server.",
        )
        return str(address)
    name = str(host).lower()
    valid = HOST_NAME.fullmatch(name) is not None and len(name) <= 253
    require(
        valid and not name.rpartition(".")[2].isdigit(),  # otherwise a mistyped IP address
        f"The host is {str(host)[:80]!r}, but must be an IP address or a name such as "
        f"fl.example.org, without a port.",
    )
    return name


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return "%" not in host  # a scoped address means something on one machine only


def require_distinct(sites: Sequence[str]) -> None:
    """Refuse names that are one file on a file system that ignores case."""
    seen: dict[str, str] = {}
    for site in sites:
        other = seen.setdefault(site.lower(), site)
        require(
            other == site,
            f"The sites {other} and {site} differ only in upper and lower case: rename one.",
        )


def make_folder(path: Path) -> None:
    """Create a folder and its parents, accessible to this user alone."""
    try:
        for each in reversed([path, *path.parents]):
            if not each.exists():
                each.mkdir(mode=0o700)
    except OSError as error:
        raise UndriftError(f"The folder {path} cannot be created: {first_line(error)}.") from error
