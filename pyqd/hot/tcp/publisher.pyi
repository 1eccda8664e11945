from typing import final

from pyqd.hot.tcp.output import ClientOutput
from pyqd.tcp.connection import Connection

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
    def __init__(self, output: ClientOutput, limits: ProtocolLimits, client: Connection) -> None: ...
    def note_published(self) -> None: ...
