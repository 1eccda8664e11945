"""Diagnosis of TLS failures: those that last, with a remedy, apart from those that a retry may cure."""

from __future__ import annotations

import ssl
from typing import Final, NamedTuple

from pyqd.client.errors import ClientError, NotConnectedError, TlsError

# OpenSSL's codes for a certificate that is valid only for other names or other IP addresses.
OTHER_NAME: Final = (62, 64)
# OpenSSL's codes for the demands of VERIFY_X509_STRICT, a default since Python 3.13.
STRICT: Final = range(80, 94)
# Alerts that a retry may cure.
PASSING_ALERTS: Final = ("INTERNAL_ERROR", "CLOSE_NOTIFY", "USER_CANCELLED")
NO_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNKNOWN_PROTOCOL")


class TlsNames(NamedTuple):
    """Words of the remedies: the options of authorities, certificate and key, and the right port.

    certificate_given: the certificate's file, or None.
    """

    ca: str = "tls_ca"
    certificate: str = "tls_cert"
    key: str = "tls_key"
    certificate_given: str | None = None
    port: str = "is it the right one?"


CLIENT_NAMES: Final = TlsNames()


def lasting_cause(error: BaseException | None, names: TlsNames = CLIENT_NAMES) -> str | None:
    """Return cause and remedy of a TLS failure; None if it may pass or is of another kind."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS: certificate verify failed: {error.verify_message}; {_trust(error.verify_code, names)}"
    if not isinstance(error, ssl.SSLError):
        return None
    reason = error.reason or ""
    if reason in NO_TLS:
        return f"the port speaks no TLS: {names.port}"
    if "_ALERT_" not in reason or reason.endswith(PASSING_ALERTS):
        return None
    said = f"TLS: the other side refuses: {reason.partition('_ALERT_')[2].lower().replace('_', ' ')}"
    if names.certificate_given is None:
        return f"{said}; does it want a client's certificate, options {names.certificate} and {names.key}?"
    return f"{said}; does it trust the certificate of option {names.certificate}={names.certificate_given}?"


def _trust(code: int, names: TlsNames) -> str:
    if code in OTHER_NAME:
        return "the address has to be one of those that the certificate names"
    if code in STRICT:
        return "Python 3.13 and newer demand this of certificates: issue new ones"
    return f"option {names.ca} names the file with the authorities to trust"


def tls_failure(error: ssl.SSLError) -> ClientError:
    """Return the error for a failure of TLS: a TlsError if it lasts, else a NotConnectedError."""
    cause = lasting_cause(error)
    return NotConnectedError(f"TLS: {error.reason or error}") if cause is None else TlsError(cause)
