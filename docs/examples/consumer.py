from contextlib import suppress

from pyqd.client import Consumer

with suppress(KeyboardInterrupt), Consumer("orders", "email", nsqd="127.0.0.1:4150") as consumer:
    for message in consumer:
        with message:
            print("received", message.body, flush=True)
