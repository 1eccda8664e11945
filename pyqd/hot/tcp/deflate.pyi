from typing import final

from pyqd.hot.net.transport import StreamCodec

RAW: int
LEVELS_PER_LEVEL: int
COMPRESSOR_BYTES: dict[int, int]
DECOMPRESSOR_BYTES: int

@final
class Deflate(StreamCodec):
    def __init__(self, level: int) -> None: ...
