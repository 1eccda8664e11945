from typing import final

from pyqd.hot.net.transport import StreamCodec

@final
class Snappy(StreamCodec):
    def __init__(self) -> None: ...
