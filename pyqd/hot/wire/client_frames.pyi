from typing import Any, final

from typing_extensions import Buffer

@final
class FrameSplitter:
    @property
    def frame_bytes_max(self) -> int: ...
    def __init__(self, frame_bytes_max: int = 1 << 30, error_type: type[Exception] = ValueError) -> None: ...
    def feed(self, data: Buffer) -> list[tuple[Any, ...]]: ...
