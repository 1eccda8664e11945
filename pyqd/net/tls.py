"""TLS of a server: certificate, checks of client certificates, versions and ciphers.

The library is pyOpenSSL: Python's ssl module cannot request a client certificate without verifying it, and the policy
"require" does that.

Source: docs/nsq/config.md, "nsqd"; docs/nsq/http-api.md, "TLS fields".
"""

from __future__ import annotations

import dataclasses
import logging
import os
from typing import Final, NamedTuple

from pyqd.hot.net.tls import reason_of
from pyqd.primitives.openssl import SSL

# Number of the version in the protocol.
TLS_1_2: Final = 0x0303
PEM_CERTIFICATE: Final = b"-----BEGIN CERTIFICATE-----"

# The suites before TLS 1.3 that Go offers and that are not broken, in Go's order, by OpenSSL's names.
CIPHERS: Final = {
    "ECDHE-ECDSA-AES128-GCM-SHA256": (0xC02B, "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"),
    "ECDHE-RSA-AES128-GCM-SHA256": (0xC02F, "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"),
    "ECDHE-ECDSA-AES256-GCM-SHA384": (0xC02C, ""),
    "ECDHE-RSA-AES256-GCM-SHA384": (0xC030, ""),
    "ECDHE-ECDSA-CHACHA20-POLY1305": (0xCCA9, ""),
    "ECDHE-RSA-CHACHA20-POLY1305": (0xCCA8, ""),
    "ECDHE-ECDSA-AES128-SHA": (0xC009, "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA"),
    "ECDHE-RSA-AES128-SHA": (0xC013, "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA"),
    "ECDHE-ECDSA-AES256-SHA": (0xC00A, "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA"),
    "ECDHE-RSA-AES256-SHA": (0xC014, "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA"),
    "AES128-GCM-SHA256": (0x009C, ""),
    "AES256-GCM-SHA384": (0x009D, ""),
    "AES128-SHA": (0x002F, "TLS_RSA_WITH_AES_128_CBC_SHA"),
    "AES256-SHA": (0x0035, "TLS_RSA_WITH_AES_256_CBC_SHA"),
}
CIPHERS_OF_TLS13: Final = {
    "TLS_AES_128_GCM_SHA256": (0x1301, ""),
    "TLS_AES_256_GCM_SHA384": (0x1302, ""),
    "TLS_CHACHA20_POLY1305_SHA256": (0x1303, ""),
}

logger = logging.getLogger(__name__)


class TlsConfigError(Exception):
    """TLS cannot be set up; str() of it is the reason, in nsqd's words where nsqd has some."""


class TlsSession(NamedTuple):
    """Result of a handshake. version: by OpenSSL's name. cipher_suite: empty if `CIPHERS` has no name."""

    version: str
    cipher_suite: str
    cipher_number: int


@dataclasses.dataclass(frozen=True, slots=True)
class TlsSettings:
    """Files and rules of a server's TLS; without certificate and key there is none.

    client_auth_policy: "require" for any client certificate, "require-verify" for one that an authority in root_ca_file
    (empty: of the system) has signed, else empty. min_version: the number of the version in the protocol. required: a
    missing certificate is an error.
    """

    certificate_path: str = ""
    key_path: str = ""
    client_auth_policy: str = ""
    root_ca_file: str = ""
    min_version: int = TLS_1_2
    required: bool = False


class TlsServer:
    """Source of TLS connections for a server. Raises: TlsConfigError.

    `reload` reads certificates and authorities again; existing connections keep theirs.
    """

    def __init__(self, settings: TlsSettings) -> None:
        self._settings = settings
        self._context: SSL.Context | None = None
        try:
            if settings.certificate_path or settings.key_path:
                self._context = server_context(settings)
        except ModuleNotFoundError as error:
            raise TlsConfigError("TLS needs the package pyOpenSSL: pip install 'pyqd[tls]'") from error
        except TlsConfigError as error:
            raise TlsConfigError(f"failed to build TLS config - {error}") from error
        if self._context is None and settings.required:
            raise TlsConfigError("cannot require TLS client connections without TLS key and cert")
        try:
            if settings.root_ca_file:
                read_authorities(settings.root_ca_file)
        except TlsConfigError as error:
            raise TlsConfigError(f"failed to build client TLS config - {error}") from error

    @property
    def enabled(self) -> bool:
        return self._context is not None

    def reload(self) -> None:
        """Read the files again, for new connections; if they are invalid, keep the old ones."""
        if self._context is None:
            return
        try:
            self._context = server_context(self._settings)
        except TlsConfigError as error:
            logger.error("TLS: cannot reload certificates: %s; the old ones stay in use", error)
        else:
            logger.info("TLS: reloaded certificates")

    def connection(self) -> SSL.Connection:
        """Return the server side of a new connection, without a socket."""
        assert self._context is not None
        connection = SSL.Connection(self._context, None)
        connection.set_accept_state()
        return connection


def server_context(settings: TlsSettings) -> SSL.Context:
    """Return the context of a server. Raises: TlsConfigError."""
    context = SSL.Context(SSL.TLS_SERVER_METHOD)
    context.set_min_proto_version(settings.min_version)
    # Versions before 1.2 need signatures that OpenSSL counts as too weak at its default level.
    level = ":@SECLEVEL=0" if settings.min_version < TLS_1_2 else ""
    context.set_cipher_list((":".join(CIPHERS) + level).encode())
    context.set_tls13_ciphersuites(":".join(CIPHERS_OF_TLS13).encode())
    context.set_options(SSL.OP_CIPHER_SERVER_PREFERENCE | SSL.OP_NO_COMPRESSION | SSL.OP_NO_RENEGOTIATION)
    context.set_session_id(b"pyqd")
    load_certificate(context, settings.certificate_path, settings.key_path)
    if settings.client_auth_policy == "require":
        context.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT, lambda *_: True)
    elif settings.client_auth_policy == "require-verify":
        context.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT, None)
        if not settings.root_ca_file:
            context.set_default_verify_paths()
    if settings.root_ca_file:
        read_authorities(settings.root_ca_file)
        context.load_verify_locations(settings.root_ca_file)
        context.load_client_ca(settings.root_ca_file.encode())
    return context


def load_certificate(context: SSL.Context, certificate_path: str, key_path: str) -> None:
    """Load a certificate and its key into the context. Raises: TlsConfigError."""
    for path, content, kind in ((certificate_path, PEM_CERTIFICATE, "certificate"), (key_path, b"PRIVATE KEY", "key")):
        if content not in read_file(path):
            raise TlsConfigError(f"tls: failed to find any PEM data in {kind} input")
    try:
        context.use_certificate_chain_file(certificate_path)
    except SSL.Error as error:
        raise TlsConfigError(f"tls: failed to parse certificate: {reason_of(error)}") from error
    try:
        context.use_privatekey_file(key_path)
        context.check_privatekey()
    except SSL.Error as error:
        raise TlsConfigError(f"tls: private key does not match public key: {reason_of(error)}") from error


def read_authorities(path: str) -> None:
    """Check that a file holds a certificate. Raises: TlsConfigError."""
    if PEM_CERTIFICATE not in read_file(path):
        raise TlsConfigError("failed to append certificate to pool")


def read_file(path: str) -> bytes:
    """Return the content of a file. Raises: TlsConfigError."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        reason = os.strerror(error.errno).lower() if error.errno else str(error)
        raise TlsConfigError(f"open {path}: {reason}") from error


def session_of(connection: SSL.Connection) -> TlsSession:
    name = connection.get_cipher_name() or ""
    number, known_name = (CIPHERS | CIPHERS_OF_TLS13).get(name, (0, name))
    return TlsSession(connection.get_protocol_version_name(), known_name, number)


def common_name_of(connection: SSL.Connection) -> str:
    """Return the common name in the client's certificate; empty if there is none."""
    certificate = connection.get_peer_certificate()
    return "" if certificate is None else certificate.get_subject().commonName or ""
