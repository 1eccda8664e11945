from typing import final

from pyqd.hot.net.transport import StreamCodec

CORRUPT: str
UNSUPPORTED: str

@final
class Snappy(StreamCodec):
    def __init__(self) -> None: ...
