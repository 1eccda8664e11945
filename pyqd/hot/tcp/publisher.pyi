from typing import Protocol, final, type_check_only

from pyqd.hot.broker.topic import TopicCore
from pyqd.hot.tcp.limits import ProtocolLimits
from pyqd.hot.tcp.output import ClientOutput
from pyqd.primitives.errors import StorageError

@type_check_only
class PublisherClient(Protocol):
    """Interface of a connection's Python half to its publisher."""

    def find_topic(self, name: bytes, command: bytes) -> TopicCore: ...
    def permission_until(self, command: bytes, topic: bytes) -> int: ...
    def note_failed_write(self, error: StorageError) -> None: ...

@final
class Publisher:
    auth_needed: bool
    returns_ids: bool
    publish_counts: dict[str, int]
    def __init__(self, output: ClientOutput, limits: ProtocolLimits, client: PublisherClient) -> None: ...
    def note_published(self) -> None: ...
