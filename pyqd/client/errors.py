"""Errors of the client. All are ClientError; each text names the operation, the broker and the cause.

A broker's error frame is a RefusedError with the broker's code and text. Errors of the connection tell whether a
command may have been executed: an UnansweredError leaves that open, all other errors mean that the broker did nothing.
"""

from __future__ import annotations

import re
from typing import Final

# The errors that users catch; pyqd.client and pyqd.client.aio have them too.
__all__ = [
    "AnsweredError",
    "AuthenticationError",
    "BufferFullError",
    "ClientError",
    "ClosedError",
    "CodecError",
    "InvalidNameError",
    "LookupFailedError",
    "NotConnectedError",
    "NotFoundError",
    "ProtocolError",
    "QuotaError",
    "RefusedError",
    "SettingError",
    "TimedOutError",
    "TlsError",
    "TooBigError",
    "UnansweredError",
]


class ClientError(Exception):
    """Base class of all errors of the client. code: of a broker's refusal; empty otherwise."""

    code = ""


class SettingError(ClientError, ValueError):
    """An option, an address or a URL is not valid."""


class InvalidNameError(SettingError):
    """The name of a topic or channel is not valid."""


class ProtocolError(ClientError):
    """The other side sent bytes that are not NSQ's protocol; the connection is closed."""


class TlsError(ClientError):
    """TLS is impossible: certificate, files, or a broker without TLS. A retry does not help."""


class ClosedError(ClientError):
    """The producer or consumer is closed."""


class TimedOutError(ClientError, TimeoutError):
    """No answer in time. A publish may have been executed if it was sent: see may_have_happened."""

    def __init__(self, text: str, *, may_have_happened: bool = False) -> None:
        super().__init__(text)
        self.may_have_happened = may_have_happened


class NotConnectedError(ClientError, ConnectionError):
    """No broker could be reached."""


class UnansweredError(NotConnectedError):
    """The connection broke before the answer: the command may have been executed, or not."""


class BufferFullError(ClientError):
    """More bytes wait to be sent than max_pending_bytes."""


class LookupFailedError(ClientError):
    """A lookup daemon could not be asked, or its answer is not valid."""


class AnsweredError(ClientError):
    """The message was finished or requeued before, or its connection is gone."""


class CodecError(ClientError, ValueError):
    """A body cannot be encoded or decoded."""


class RefusedError(ClientError):
    """The broker's error. code: such as E_BAD_TOPIC. text: the code and the broker's reason. broker: its address.

    shown: the whole error as a sentence, for a text that is a bare code.
    """

    def __init__(self, text: str, broker: str = "", doing: str = "", shown: str = "") -> None:
        super().__init__(": ".join(part for part in ((broker, shown) if shown else (broker, doing, text)) if part))
        self.text = text
        self.broker = broker
        self.code = text.split(" ", 1)[0]


class TooBigError(RefusedError):
    """A message or a batch is larger than the broker accepts."""


class NotFoundError(RefusedError):
    """The broker does not have the topic, the channel or the message."""


class QuotaError(RefusedError):
    """A limit of the broker is reached: number of connections, topics or channels, or space."""


class AuthenticationError(RefusedError):
    """The broker refuses the secret, or the rights that it gives."""


QUOTA_CODES: Final = frozenset({"E_TOO_MANY_CONNECTIONS", "E_TOO_MANY_TOPICS", "E_TOO_MANY_CHANNELS"})
AUTHENTICATION_CODES: Final = frozenset(
    {"E_AUTH_FIRST", "E_AUTH_FAILED", "E_AUTH_DISABLED", "E_AUTH_ERROR", "E_UNAUTHORIZED"}
)
# Refusals of a publish. The code is that of any failed write, so that the text tells a lack of space: the topic's quota
# and the disk's floor of pyqd, errors of the system from pyqd and nsqd.
WRITE_CODES: Final = frozenset({"E_PUB_FAILED", "E_MPUB_FAILED", "E_DPUB_FAILED", "E_DMPUB_FAILED"})
SPACE: Final = re.compile(
    r"limit of \d+ bytes is reached|would be left free on the disk|no space left on device|disk quota exceeded",
    re.IGNORECASE,
)
# End of the refusal of a publish by a broker that stops, or has just deleted the topic. It has stored nothing.
EXITING: Final = " exiting"


def is_exiting(error: Exception) -> bool:
    """Return whether a broker refuses a publish because it stops, so that another one may take the message."""
    return isinstance(error, RefusedError) and error.code in WRITE_CODES and error.text.endswith(EXITING)


def refusal(data: bytes, broker: str = "", doing: str = "") -> RefusedError:
    """Return the error for the data of an error frame."""
    text = data.decode(errors="replace")
    code = text.split(" ", 1)[0]
    kind = RefusedError
    if code in QUOTA_CODES or (code in WRITE_CODES and SPACE.search(text)):
        kind = QuotaError
    elif code in AUTHENTICATION_CODES:
        kind = AuthenticationError
    elif " too big " in text and code in ("E_BAD_MESSAGE", "E_BAD_BODY"):
        kind = TooBigError
    return kind(text, broker, doing)
