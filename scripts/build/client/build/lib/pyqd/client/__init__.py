"""The Python client: producers and consumers of NSQ, for blocking code. pyqd.client.aio has the same for asyncio.

    from pyqd.client import Consumer, Producer

Source: docs/client.md.
"""

from pyqd.client import errors
from pyqd.client.consumer import Consumer
from pyqd.client.consumption import RetryPolicy
from pyqd.client.errors import *  # noqa: F403 - its __all__ is the list
from pyqd.client.message import Message, Requeue
from pyqd.client.outgoing import Outgoing
from pyqd.client.producer import Producer
from pyqd.client.settings import Settings

__all__ = ["Consumer", "Message", "Outgoing", "Producer", "Requeue", "RetryPolicy", "Settings"]
__all__ += errors.__all__
