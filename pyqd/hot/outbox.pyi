from pyqd.hot.consumer import Consumer
from pyqd.hot.transport import Transport

class Outbox(Consumer):
    sent_bytes: int
    transport: Transport | None
