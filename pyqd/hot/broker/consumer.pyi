from typing import Any, final

from typing_extensions import Self

from pyqd.hot.broker.trace import TraceClient
from pyqd.hot.primitives.schedule import Scheduled

IN_ZONE: int
IN_REGION: int
ELSEWHERE: int

class Consumer(Scheduled):
    client: Any
    rdy: int
    in_flight: int
    @property
    def unsynced_count(self) -> int: ...
    message_count: int
    finish_count: int
    requeue_count: int
    msg_timeout_ns: int
    sample_rate: int
    locality: int
    traced: TraceClient | None
    def __new__(cls, *args: Any, **kwargs: Any) -> Self: ...
    @property
    def number(self) -> int: ...

@final
class UnsyncedFins:
    def begin_sync(self) -> list[tuple[Consumer, int]]: ...
    def fail_sync(self, covered: list[tuple[Consumer, int]]) -> int: ...
