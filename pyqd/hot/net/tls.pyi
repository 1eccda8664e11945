from typing import final

from OpenSSL import SSL

from pyqd.hot.net.transport import StreamCodec

@final
class Tls(StreamCodec):
    connection: SSL.Connection
    def __init__(self, connection: SSL.Connection) -> None: ...

def reason_of(error: SSL.Error) -> str: ...
