from collections.abc import Callable
from typing import Any

from pyqd.hot.broker.topic import TopicCore

class PlainPublisher:
    enabled: bool
    find_topic: Callable[[bytes], TopicCore | None]
    def __init__(
        self,
        msg_bytes_max: int,
        body_bytes_max: int,
        batch_count_max: int,
        find_topic: Callable[[bytes], TopicCore | None],
    ) -> None: ...

class HttpFront:
    plain_count: int
    deadline_s: float
    idle_s: float
    def __init__(self, fd: int, hub: Any, publisher: PlainPublisher | None = None) -> None: ...
    def next_bytes(self, between_requests: bool) -> memoryview | None: ...
    def on_readable(self) -> None: ...
    def close_front(self) -> None: ...
    def queue_answers(self, data: bytes) -> None: ...
