from typing import final

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
