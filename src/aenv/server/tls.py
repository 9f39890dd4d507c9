"""The TLS listener's certificate: the operator's, or one of our own for the wildcard domain, signed
by our own CA.

``data/tls`` holds ``ca.pem`` (for clients to trust), ``ca.key``, ``server.pem``, ``server.key``;
keys are 0600. The CA stays for ten years; the certificate is renewed at a start within 30 days of
its end, or when the domain changed.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from aenv.models.errors import HostSetupError
from aenv.models.settings import Settings

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

CA_LIFE = timedelta(days=3650)
CERTIFICATE_LIFE = timedelta(days=397)
RENEW_BEFORE = timedelta(days=30)


def context(settings: Settings, *, now: datetime | None = None) -> ssl.SSLContext:
    """For the listener. HostSetupError when the operator's files cannot be used."""
    if settings.tls.cert and settings.tls.key:
        return _loaded(Path(settings.tls.cert), Path(settings.tls.key))
    folder = settings.folders.data / "tls"
    name = (settings.domain or "localhost").partition(":")[0]
    _ensure(folder, name, now or datetime.now(UTC))
    return _loaded(folder / "server.pem", folder / "server.key")


def _loaded(certificate: Path, key: Path) -> ssl.SSLContext:
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    found.minimum_version = ssl.TLSVersion.TLSv1_2
    found.set_alpn_protocols(["http/1.1"])
    try:
        found.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise HostSetupError(
            f"the TLS files {certificate} and {key} cannot be used: {error}"
        ) from error
    return found


def _ensure(folder: Path, name: str, now: datetime) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        ca = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
        ca_key = load_pem_private_key((folder / "ca.key").read_bytes(), None)
    except (OSError, ValueError):
        ca, ca_key = _new_ca(folder, now)
    try:
        current = x509.load_pem_x509_certificate((folder / "server.pem").read_bytes())
        key = load_pem_private_key((folder / "server.key").read_bytes(), None)
        if key.public_key() == current.public_key() and _serves(current, ca, name, now):
            return
    except (OSError, ValueError):
        pass
    _new_certificate(folder, name, now, ca, ca_key)  # type: ignore[arg-type]


def _serves(certificate: x509.Certificate, ca: x509.Certificate, name: str, now: datetime) -> bool:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    try:
        certificate.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):
        return False
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return (
        f"*.{name}" in names.get_values_for_type(x509.DNSName)
        and certificate.not_valid_after_utc - now > RENEW_BEFORE
    )


def _new_ca(folder: Path, now: datetime) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject("aenv local CA")
    ca = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + CA_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(_usage(sign=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    _write(folder / "ca.key", _key_text(key))
    _write(folder / "ca.pem", _certificate_text(ca), mode=0o644)
    return ca, key


def _new_certificate(
    folder: Path, name: str, now: datetime, ca: x509.Certificate, ca_key: EllipticCurvePrivateKey
) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    key = ec.generate_private_key(ec.SECP256R1())
    names = [x509.DNSName(name), x509.DNSName(f"*.{name}")]
    loopback = [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(_subject(name))
        .issuer_name(ca.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + CERTIFICATE_LIFE)
        .add_extension(x509.SubjectAlternativeName([*names, *loopback]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
        .add_extension(_usage(sign=False), critical=True)
        .sign(ca_key, hashes.SHA256())
    )
    _write(folder / "server.key", _key_text(key))
    _write(folder / "server.pem", _certificate_text(certificate) + _certificate_text(ca), 0o644)


def _subject(name: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _usage(*, sign: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign,
        crl_sign=sign,
        encipher_only=False,
        decipher_only=False,
    )


def _key_text(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _certificate_text(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _write(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace the file at once, with its final mode from the start."""
    partial = path.with_name(path.name + ".new")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    partial.replace(path)
