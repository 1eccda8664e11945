"""Query of a lookup daemon over HTTP for the channels of a topic.

Source: docs/nsq/lookupd.md, "HTTP API": GET /channels?topic=.
"""

import http.client
import json
import ssl
from functools import partial
from typing import Final
from urllib.parse import urlencode

import gevent
import gevent.socket
import gevent.ssl

from pyqd import __version__
from pyqd.primitives.addresses import TcpAddress
from pyqd.primitives.errors import reason_of
from pyqd.primitives.http_client import fetch
from pyqd.primitives.peer_json import json_text

# Some 15,000 names of full length.
ANSWER_BYTES_MAX: Final = 1 << 20
HEADERS: Final = {"Accept": "application/vnd.nsq; version=1.0", "User-Agent": f"pyqd/{__version__}"}


CHECK_ADDRESS: Final = "check the --broadcast-address and --http-address of the lookup daemon"
CHECK_TOKENS: Final = (
    "brokers send no token, so the file of the lookup daemon's --http-auth-token-file needs the line 'anonymous status'"
)
CHECK_AUTHORITY: Final = "--tls-root-ca-file must hold the authority that signed the lookup daemon's certificate"


class QueryError(Exception):
    """A lookup daemon did not return the channels of a topic. cause: of it; remedy: what the operator can do."""

    def __init__(self, cause: str, remedy: str = CHECK_ADDRESS) -> None:
        super().__init__(f"{cause}; {remedy}")


class ChannelQuery:
    """Client of the lookup daemons' HTTP API, by HTTPS if one demands it.

    root_ca_file: path of the authorities that sign for HTTPS; empty for those of the system.
    """

    def __init__(self, root_ca_file: str = "") -> None:
        self._root_ca_file = root_ca_file
        self._context: gevent.ssl.SSLContext | None = None

    def ask(self, address: TcpAddress, topic: str, timeout_s: float) -> list[str]:
        """Return the names that a lookup daemon has, not checked. Raises: QueryError. Switches: yes."""
        url = f"http://{address}/channels?{urlencode({'topic': topic})}"
        # Without the time: a query may have spent a part of it in a queue.
        with gevent.Timeout(timeout_s, QueryError("no answer in time")):
            try:
                status, _, body = fetch(
                    url,
                    headers=HEADERS,
                    redirects_max=0,
                    takes_https=True,
                    new_context=self._tls_context,
                    bytes_max=ANSWER_BYTES_MAX,
                    sockets=gevent.socket,
                )
            except ssl.SSLCertVerificationError as error:
                raise QueryError(reason_of(error), CHECK_AUTHORITY) from error
            except (OSError, ValueError, http.client.HTTPException) as error:
                raise QueryError(reason_of(error)) from error
        if status == http.client.UNAUTHORIZED:
            raise QueryError(f"status {status}", CHECK_TOKENS)
        if status != http.client.OK:
            raise QueryError(f"status {status}")
        return channels_in(body)

    def _tls_context(self) -> gevent.ssl.SSLContext:
        """Return the check of a lookup daemon's certificate. Raises: OSError. Switches: at the first call."""
        if self._context is None:
            make = partial(gevent.ssl.create_default_context, cafile=self._root_ca_file or None)
            # In a thread: the authorities of the system take up to 50 ms.
            self._context = gevent.get_hub().threadpool.apply(make)
        return self._context


def channels_in(body: bytes) -> list[str]:
    """Return the names in an answer. Raises: QueryError."""
    try:
        names = json.loads(json_text(body))["channels"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise QueryError("the answer has no list of channels") from None
    # Go's encoder writes null for a list without elements.
    if names is None:
        return []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise QueryError("the answer has no list of channels")
    return names
