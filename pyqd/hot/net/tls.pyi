from OpenSSL import SSL

from pyqd.hot.net.transport import Transport

class Tls(Transport):
    connection: SSL.Connection
    def __init__(self, fd: int, connection: SSL.Connection, *, early: bytes = b"") -> None: ...

def reason_of(error: SSL.Error) -> str: ...
