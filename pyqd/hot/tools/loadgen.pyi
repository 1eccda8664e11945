from collections.abc import Iterable

from pyqd.tools.bench.outcome import LoadReport

class LoadError(Exception): ...

class Load:
    def __init__(self, *, messages: int, body_bytes: int, filler: bytes = b"x", channels: int = 1) -> None: ...
    def add_publishers(
        self,
        fds: Iterable[int],
        *,
        topic: str,
        batch: int,
        outstanding: int,
        rate_per_s: float = 0.0,
        defer_ms: int = 0,
    ) -> None: ...
    def add_http_publishers(
        self, fds: Iterable[int], *, topic: str, batch: int, outstanding: int, lines: bool = False
    ) -> None: ...
    def add_consumers(self, fds: Iterable[int], *, rdy: int, channel: int = 0) -> None: ...
    def add_idlers(self, fds: Iterable[int]) -> None: ...
    def run(self, deadline_s: float, *, spin: bool = False) -> LoadReport: ...
