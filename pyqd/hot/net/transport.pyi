from typing import final

class TransportError(Exception): ...

class StreamCodec:
    """Interface of Tls, Snappy and Deflate; its methods are called by compiled code."""

@final
class CodecTransport:
    def __init__(
        self, fd: int, codec: StreamCodec, *, below: CodecTransport | None = None, early: bytes = b""
    ) -> None: ...
    def finish(self) -> None: ...
    def release(self) -> None: ...
