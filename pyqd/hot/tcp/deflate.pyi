from typing import final

from pyqd.hot.net.transport import StreamCodec

@final
class Deflate(StreamCodec):
    def __init__(self, level: int) -> None: ...
