from pyqd.hot.consumer import Consumer

class Outbox(Consumer):
    sent_bytes: int
