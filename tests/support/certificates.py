"""Certificates for tests of TLS: an authority, and the certificates it signs."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
VALID = datetime.timedelta(days=2)


@dataclass(frozen=True)
class Certificate:
    path: Path
    key_path: Path
    certificate: x509.Certificate
    key: Key


def new_key(kind: str = "ec") -> Key:
    if kind == "rsa":
        return rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return ec.generate_private_key(ec.SECP256R1())


def usage(is_authority: bool) -> x509.KeyUsage:
    """Return the uses of a key. Python 3.13 demands the extension of authorities."""
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=not is_authority,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )


def certify(
    directory: Path, name: str, *, signer: Certificate | None = None, kind: str = "ec", has_usage: bool = True
) -> Certificate:
    """Make a certificate for a common name and 127.0.0.1, signed by `signer`, or by itself as an authority."""
    key = new_key(kind)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.timezone.utc)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if signer is None else signer.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - VALID)
        .not_valid_after(now + VALID)
        .add_extension(x509.BasicConstraints(ca=signer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    if has_usage:
        builder = builder.add_extension(usage(signer is None), critical=True)
    if signer is not None:
        authority_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.key.public_key())
        builder = builder.add_extension(authority_key, critical=False)
    certificate = builder.sign(key if signer is None else signer.key, hashes.SHA256())
    made = Certificate(directory / f"{name}.pem", directory / f"{name}.key", certificate, key)
    made.path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    made.key_path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return made


class Certificates:
    """An authority, a server's and a client's certificates signed by it, and a self-signed one."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = certify(directory, "authority")
        self.server = certify(directory, "server", signer=self.authority)
        self.client = certify(directory, "client", signer=self.authority)
        self.stranger = certify(directory, "stranger")

    def server_flags(self) -> tuple[str, ...]:
        """Return the flags that a daemon needs for TLS."""
        return (f"-tls-cert={self.server.path}", f"-tls-key={self.server.key_path}")

    def client_context(self, certificate: Certificate | None = None) -> ssl.SSLContext:
        """Return the context of a client that knows the authority and shows a certificate if one is given."""
        context = ssl.create_default_context(cafile=str(self.authority.path))
        if certificate is not None:
            context.load_cert_chain(certificate.path, certificate.key_path)
        return context
