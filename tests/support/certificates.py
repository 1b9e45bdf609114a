"""Certificates for tests: an authority of our own, and what it signs, as PEM files."""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate and its key.

    Attributes:
        certificate: PEM file of the certificate.
        key: PEM file of the key, encrypted where a password was given.
        both: PEM file of key and certificate, as Kafka takes key stores; the key is not encrypted.
    """

    certificate: Path
    key: Path
    both: Path


class Authority:
    """A certificate authority whose files lie in a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(f"{name} authority")
        self._certificate = (
            _builder(subject, subject, self._key, days=(-1, 2))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.file = folder / f"{name}-ca.pem"
        self.file.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        name: str,
        *,
        host: str | None = "127.0.0.1",
        days: tuple[int, int] = (-1, 2),
        password: str | None = None,
    ) -> Issued:
        """Sign a certificate for a host (an address or a name) that holds from and to so many days from now."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(name), self._certificate.subject, key, days=days)
        if host is not None:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_general_name(host)]), critical=False
            )
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = builder.add_extension(issuer, critical=False).sign(self._key, hashes.SHA256())
        pem = certificate.public_bytes(serialization.Encoding.PEM)
        files = Issued(*(self._folder / f"{self._name}-{name}.{kind}" for kind in ("crt", "key", "pem")))
        files.certificate.write_bytes(pem)
        files.key.write_bytes(_private(key, password))
        files.both.write_bytes(_private(key, None) + pem)
        return files


def _private(key: ec.EllipticCurvePrivateKey, password: str | None) -> bytes:
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password is not None:
        encryption = serialization.BestAvailableEncryption(password.encode())
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, *, days: tuple[int, int]
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    begin, end = (now + datetime.timedelta(days=day) for day in days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
