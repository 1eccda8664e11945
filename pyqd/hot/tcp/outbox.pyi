from pyqd.hot.broker.consumer import Consumer
from pyqd.hot.net.transport import Transport

class Outbox(Consumer):
    sent_bytes: int
    transport: Transport | None
