from pyqd.hot.net.transport import Transport

RAW: int
LEVELS_PER_LEVEL: int
COMPRESSOR_BYTES: dict[int, int]
DECOMPRESSOR_BYTES: int

class Deflate(Transport):
    def __init__(self, fd: int, level: int, *, below: Transport | None = None, early: bytes = b"") -> None: ...
