"""TLS towards brokers and lookup daemons: the context for the options, and the diagnosis of failures.

Some failures pass with a retry, such as a connection that breaks in a handshake. Those that `wrong_for_good` recognises
do not; they are reported at once with a remedy. Needs only the standard library.
"""

import socket
import ssl
from typing import Final

from pyqd_spark.options import Connection

# OpenSSL's codes for a certificate that is valid only for other names or other IP addresses.
OTHER_NAME: Final = (62, 64)
# Alerts that a retry may cure.
PASSING_ALERTS: Final = ("INTERNAL_ERROR", "CLOSE_NOTIFY", "USER_CANCELLED")
NO_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNKNOWN_PROTOCOL")


class TlsOptionError(ValueError):
    """A file named by an option cannot be used. The text names both, and the machine."""


def context_of(given: Connection) -> ssl.SSLContext:
    """Return the TLS context for a connection. Raises: TlsOptionError."""
    named = {"tlsRootCaFile": given.tls_root_ca_file, "tlsCert": given.tls_cert, "tlsKey": given.tls_key}
    for name, path in named.items():
        try:
            if path is not None:
                open(path, "rb").close()
        except OSError as error:
            where = f"on {socket.gethostname()}; it must be there on the driver's machine and each executor's"
            raise TlsOptionError(f"option {name}={path}: {error.strerror} {where}") from error
    try:
        context = ssl.create_default_context(cafile=given.tls_root_ca_file)
    except OSError as error:
        raise TlsOptionError(f"option tlsRootCaFile={given.tls_root_ca_file}: {error}") from error
    if given.tls_cert is not None:
        try:
            context.load_cert_chain(given.tls_cert, given.tls_key, password=_no_password)
        except (OSError, ValueError) as error:
            key = "" if given.tls_key is None else f", tlsKey={given.tls_key}"
            raise TlsOptionError(f"option tlsCert={given.tls_cert}{key}: {error}") from error
    if given.tls_insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _no_password() -> str:
    # Without this, OpenSSL would ask for the password on the terminal.
    raise ValueError("the key is encrypted; one without a password is needed")


def wrong_for_good(error: BaseException | None, given: Connection) -> str | None:
    """Return the cause and the remedy of a TLS failure; None if it may pass or is of another kind."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS: certificate verify failed: {error.verify_message}; {_trust(error.verify_code)}"
    if not isinstance(error, ssl.SSLError):
        return None
    reason = error.reason or ""
    if reason in NO_TLS:
        return (
            "the port speaks no TLS: is it the one of HTTPS? Where there is to be none, as with nsqlookupd, write http://"
            " before the address"
        )
    if "_ALERT_" not in reason or reason.endswith(PASSING_ALERTS):
        return None
    said = f"TLS: the other side refuses: {reason.partition('_ALERT_')[2].lower().replace('_', ' ')}"
    if given.tls_cert is None:
        return f"{said}; does it want a client's certificate, options tlsCert and tlsKey?"
    return f"{said}; does it trust the certificate of option tlsCert={given.tls_cert}?"


def _trust(code: int) -> str:
    if code in OTHER_NAME:
        return "the address has to be one of those that the certificate names"
    return "option tlsRootCaFile names the file with the authorities to trust"
