"""A consumer that finds its brokers by a lookup daemon, as a process: it prints the body of each message.

Arguments: pynsq or gnsq; the HTTP address of the lookup daemon; topic; channel.
"""

import sys
from typing import Any

POLL_S = 1


def show(body: bytes) -> None:
    print(body.decode(), flush=True)


def run_pynsq(lookupd: str, topic: str, channel: str) -> None:
    import nsq

    def handle(message: nsq.Message) -> bool:
        show(message.body)
        return True

    nsq.Reader(
        topic,
        channel,
        message_handler=handle,
        lookupd_http_addresses=[f"http://{lookupd}"],
        lookupd_poll_interval=POLL_S,
        max_in_flight=10,
    )
    nsq.run()


def run_gnsq(lookupd: str, topic: str, channel: str) -> None:
    import gnsq

    def handle(_consumer: gnsq.Consumer, message: Any) -> None:
        show(message.body)

    consumer = gnsq.Consumer(
        topic,
        channel,
        lookupd_http_addresses=[lookupd],
        lookupd_poll_interval=POLL_S,
        max_in_flight=10,
        message_handler=handle,
    )
    consumer.start()


if __name__ == "__main__":
    {"pynsq": run_pynsq, "gnsq": run_gnsq}[sys.argv[1]](*sys.argv[2:])
