from typing import Protocol, final, type_check_only

from pyqd.hot.broker.topic import TopicCore
from pyqd.hot.tcp.output import ClientOutput
from pyqd.primitives.errors import StorageError

@type_check_only
class PublisherClient(Protocol):
    """Interface of a connection's Python half to its publisher."""

    def find_topic(self, name: bytes, command: bytes) -> TopicCore: ...
    def permission_until(self, command: bytes, topic: bytes) -> int: ...
    def note_failed_write(self, error: StorageError) -> None: ...

@final
class ProtocolLimits:
    max_msg_bytes: int
    max_body_bytes: int
    max_rdy_count: int
    max_req_timeout_ns: int
    max_defer_ns: int
    sync_each: bool
    def __init__(
        self,
        *,
        max_msg_bytes: int,
        max_body_bytes: int,
        max_rdy_count: int,
        max_req_timeout_ns: int,
        max_defer_ns: int = -1,
        sync_each: bool = False,
    ) -> None: ...

@final
class Publisher:
    auth_needed: bool
    returns_ids: bool
    publish_counts: dict[str, int]
    def __init__(self, output: ClientOutput, limits: ProtocolLimits, client: PublisherClient) -> None: ...
    def note_published(self) -> None: ...
