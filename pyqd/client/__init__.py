"""The Python client: producers and consumers of NSQ, for blocking code. pyqd.client.aio has the same for asyncio.

    from pyqd.client import Consumer, Producer

Source: docs/client.md.
"""

from pyqd.client.consumer import Consumer
from pyqd.client.consumption import RetryPolicy
from pyqd.client.errors import (
    AnsweredError,
    AuthenticationError,
    BufferFullError,
    ClientError,
    ClosedError,
    CodecError,
    InvalidNameError,
    LookupFailedError,
    NotConnectedError,
    NotFoundError,
    ProtocolError,
    QuotaError,
    RefusedError,
    SettingError,
    TimedOutError,
    TlsError,
    TooBigError,
    UnansweredError,
)
from pyqd.client.message import Message, Requeue
from pyqd.client.outgoing import Outgoing
from pyqd.client.producer import Producer
from pyqd.client.settings import Settings

__all__ = [
    "AnsweredError",
    "AuthenticationError",
    "BufferFullError",
    "ClientError",
    "ClosedError",
    "CodecError",
    "Consumer",
    "InvalidNameError",
    "LookupFailedError",
    "Message",
    "NotConnectedError",
    "NotFoundError",
    "Outgoing",
    "Producer",
    "ProtocolError",
    "QuotaError",
    "RefusedError",
    "Requeue",
    "RetryPolicy",
    "SettingError",
    "Settings",
    "TimedOutError",
    "TlsError",
    "TooBigError",
    "UnansweredError",
]
