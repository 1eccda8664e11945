from pyqd.hot.net.transport import Transport

CORRUPT: str
UNSUPPORTED: str

class Snappy(Transport):
    def __init__(self, fd: int, *, below: Transport | None = None, early: bytes = b"") -> None: ...
