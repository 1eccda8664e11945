from typing import final

from pyqd.hot.net.transport import Codec

RAW: int
LEVELS_PER_LEVEL: int
COMPRESSOR_BYTES: dict[int, int]
DECOMPRESSOR_BYTES: int

@final
class Deflate(Codec):
    def __init__(self, level: int) -> None: ...
