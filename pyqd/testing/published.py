"""Messages that were published to a topic, in order, for assertions."""

from datetime import datetime
from typing import NamedTuple


class PublishedMessage(NamedTuple):
    """One message of a topic. id: 16 hexadecimal digits. due: due time of a deferred message, else None. UTC."""

    id: str
    body: bytes
    timestamp: datetime
    due: datetime | None
