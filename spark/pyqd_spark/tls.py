"""TLS towards brokers and lookup daemons: the context for the options, and their names in remedies."""

import socket
import ssl

from pyqd.client import http
from pyqd.client.core.tls import TlsNames
from pyqd.client.errors import TlsError
from pyqd_spark.options import BrokerOptions


def context_of(given: BrokerOptions) -> ssl.SSLContext:
    """Return the TLS context for a connection. Raises: TlsError for a file, with its option and the machine."""
    named = {"tlsRootCaFile": given.tls_root_ca_file, "tlsCert": given.tls_cert, "tlsKey": given.tls_key}
    for name, path in named.items():
        try:
            if path is not None:
                open(path, "rb").close()
        except OSError as error:
            where = f"on {socket.gethostname()}; it must be there on the driver's machine and each executor's"
            raise TlsError(f"option {name}={path}: {error.strerror} {where}") from error
    try:
        context = ssl.create_default_context(cafile=given.tls_root_ca_file)
    except OSError as error:
        raise TlsError(f"option tlsRootCaFile={given.tls_root_ca_file}: {error}") from error
    if given.tls_cert is not None:
        try:
            context.load_cert_chain(given.tls_cert, given.tls_key, password=_no_password)
        except (OSError, ValueError) as error:
            key = "" if given.tls_key is None else f", tlsKey={given.tls_key}"
            raise TlsError(f"option tlsCert={given.tls_cert}{key}: {error}") from error
    if given.tls_insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _no_password() -> str:
    # Without this, OpenSSL would ask for the password on the terminal.
    raise ValueError("the key is encrypted; one without a password is needed")


def names_of(given: BrokerOptions) -> TlsNames:
    return TlsNames("tlsRootCaFile", "tlsCert", "tlsKey", certificate_given=given.tls_cert, port=http.NAMES.port)
