"""The keys that sign requests and answers: those of the folders of certificates."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from undrift.utils.errors import UndriftError, first_line

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives import serialization as pem
    from cryptography.hazmat.primitives.asymmetric import ec
except ImportError:
    raise UndriftError(
        "Signatures need the package cryptography, which is not installed: "
        "pip install 'undrift[flower]'."
    ) from None

PEERS = "peers"
"""The folder of all sites' public keys, in a site's folder of certificates."""
ALGORITHM = ec.ECDSA(hashes.SHA384())


class SigningKey:
    """A private key, with the certificate that goes with its signatures.

    Parameters
    ----------
    key
        the file with the private key, in PEM or in OpenSSH's format
    certificate
        the file with the certificate of that key, in PEM; None for a site's key
    """

    def __init__(self, key: Path, certificate: Path | None = None):
        self._key = _private_key(key)
        self.certificate = b""
        if certificate is not None:
            self.certificate = read_certificate(certificate).public_bytes(pem.Encoding.DER)

    @property
    def public_key(self) -> bytes:
        """The public key in OpenSSH's format."""
        public = self._key.public_key()
        return public.public_bytes(pem.Encoding.OpenSSH, pem.PublicFormat.OpenSSH)

    def sign(self, content: bytes) -> bytes:
        """The signature of some bytes."""
        return self._key.sign(content, ALGORITHM)


class SiteKeys:
    """The public keys of the sites that the server knows, one file for each.

    A key is read whenever it is needed: deleting its file revokes it while the server runs.
    """

    def __init__(self, folder: Path):
        self._folder = folder

    def verify(self, site: str, content: bytes, signature: bytes) -> str | None:
        """None if the site signed the content, or else a few words that say why not."""
        file = self._folder / f"{site}.pub"
        try:
            key = pem.load_ssh_public_key(file.read_bytes())
        except (OSError, ValueError, UnsupportedAlgorithm):
            return f"no public key of site {site!r} is known here"
        if not signed_by(key, content, signature):
            return f"it is not signed with the key of site {site!r}"
        return None


class ServerTrust:
    """Recognises the server by a certificate that the site's CA issued.

    The certificate comes with every request, so that the server may renew it at any time.
    """

    def __init__(self, ca: Path):
        self._ca = read_certificate(ca)

    def verify(self, certificate: bytes, content: bytes, signature: bytes) -> str | None:
        """None if the owner of the certificate signed the content, or else why not."""
        if not signature or not certificate:
            return "it is not signed"
        try:
            found = x509.load_der_x509_certificate(certificate)
            found.verify_directly_issued_by(self._ca)
            usage = found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
            return "its certificate was not issued by this site's CA for a server"
        if x509.ExtendedKeyUsageOID.SERVER_AUTH not in usage:
            return "its certificate was not issued by this site's CA for a server"
        if not found.not_valid_before_utc <= datetime.now(UTC) <= found.not_valid_after_utc:
            return "the server's certificate has expired, or is not valid yet by this site's clock"
        if not signed_by(found.public_key(), content, signature):
            return "it is not signed by the server"
        return None


def read_certificate(path: Path) -> x509.Certificate:
    """The certificate in a file, in PEM."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UndriftError(f"{path} is not a readable certificate: {first_line(error)}.") from error


def signed_by(key: object, content: bytes, signature: bytes) -> bool:
    """Whether the owner of a public key signed some bytes."""
    if not isinstance(key, ec.EllipticCurvePublicKey):
        return False
    try:
        key.verify(signature, content, ALGORITHM)
    except InvalidSignature:
        return False
    return True


def _private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        content = path.read_bytes()
        openssh = b"OPENSSH PRIVATE KEY" in content
        load = pem.load_ssh_private_key if openssh else pem.load_pem_private_key
        key = load(content, None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UndriftError(f"{path} is not a readable key: {first_line(error)}.") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UndriftError(f"{path} is not an ECDSA key.")
    return key
