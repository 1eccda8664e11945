from typing import final

from pyqd.hot.net.transport import Codec

CORRUPT: str
UNSUPPORTED: str

@final
class Snappy(Codec):
    def __init__(self) -> None: ...
