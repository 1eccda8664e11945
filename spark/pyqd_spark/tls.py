"""TLS towards brokers and lookup daemons: made as the options say, and what is wrong where it cannot be had.

Some failures pass when tried again, such as a connection that breaks in a handshake. Those that `wrong_for_good` knows
do not, and are told at once with what to do. Needs the standard library alone.
"""

import socket
import ssl
from typing import Final

from pyqd_spark.options import Connection

# The codes of OpenSSL for a certificate that is valid for other names and other IP addresses only.
OTHER_NAME: Final = (62, 64)
# Alerts that may be over by the next try.
PASSING_ALERTS: Final = ("INTERNAL_ERROR", "CLOSE_NOTIFY", "USER_CANCELLED")
NO_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNKNOWN_PROTOCOL")


class TlsOptionError(ValueError):
    """A file that an option names cannot be used. The text names both, and the machine."""


def context_of(given: Connection) -> ssl.SSLContext:
    """Return how TLS is spoken. Raises: TlsOptionError."""
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
    # OpenSSL would ask for one on the terminal.
    raise ValueError("the key is encrypted; one without a password is needed")


def wrong_for_good(error: BaseException | None, given: Connection) -> str | None:
    """Return what is wrong with TLS, and what to do; None for what may pass, or has to do with something else."""
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
