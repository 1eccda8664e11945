"""Messages that were published to a topic, in order, for assertions."""

from datetime import datetime, timezone
from typing import NamedTuple


class PublishedMessage(NamedTuple):
    """One message of a topic. id: 16 hexadecimal digits. due: due time of a deferred message, else None. UTC."""

    id: str
    body: bytes
    timestamp: datetime
    due: datetime | None


def utc(time_ns: int) -> datetime:
    """Return a time in UTC, to the microsecond."""
    return datetime.fromtimestamp(time_ns // 1000 / 1e6, timezone.utc)
