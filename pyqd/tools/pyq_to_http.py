"""Command `pyq_to_http`: sends the messages of a topic to HTTP servers, and finishes those that the servers took.

Source: docs/tools/pyq_to_http.md; docs/nsq/admin-and-tools.md, "nsq_to_http".
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from typing import Final

from pyqd.client.aio import Consumer
from pyqd.client.errors import ClosedError
from pyqd.client.message import Message
from pyqd.primitives.durations import SECOND_NS
from pyqd.tools.common import EXIT_OK, client_options, log, run_tool
from pyqd.tools.intake import Tasks, consume, consumer_of, without_spent
from pyqd.tools.to_http.connection import ServerConnections
from pyqd.tools.to_http.delivery import Delivery, DeliveryError, Sender
from pyqd.tools.to_http.options import ToHttpOptions

TOOL: Final = "pyq_to_http"
SYNOPSIS: Final = """\
Sends the messages of a topic to HTTP servers: by POST in the body, or by GET in the URL. A message is finished when a
server took it, and comes again later if none did.
"""


def main(argv: Sequence[str] | None = None) -> int:
    return run_tool(TOOL, ToHttpOptions, argv, run, SYNOPSIS)


class ToHttp:
    """Sends the messages of one topic, up to n at a time."""

    def __init__(self, options: ToHttpOptions) -> None:
        self._options = options
        self._consumer_options = client_options(TOOL, options.consumer_opt)
        self._connections = ServerConnections(options.connect_timeout_s)
        sender = Sender(self._connections, options.headers(), options.request_timeout_s)
        self._delivery = Delivery(
            sender,
            options.addresses,
            options.requests(),
            options.targets(),
            options.retries,
            options.retry_delay_ns / SECOND_NS,
            options.status_every,
        )

    async def run(self) -> None:
        """Send messages until a signal. Raises: ClientError, Fatal."""
        options = self._options
        consumer = consumer_of(options, self._consumer_options, options.topic, options.channel, options.max_in_flight)
        try:
            await consume([consumer], self._send_all)
        finally:
            self._connections.close()

    async def _send_all(self, consumer: Consumer) -> None:
        tasks = Tasks(consumer)
        while True:
            await tasks.fewer_than(self._options.n)
            try:
                messages = await consumer.fetch(self._options.n - len(tasks))
            except ClosedError:
                break
            for message in without_spent(consumer, messages, self._consumer_options):
                tasks.start(self._send(message), [message])
        await tasks.end()

    async def _send(self, message: Message) -> None:
        if self._options.sample < 1.0 and random.random() > self._options.sample:
            message.finish()
            return
        try:
            await self._delivery.deliver(message.body)
        except DeliveryError as error:
            where = f"[{message.topic}/{message.channel}]"
            log(f"ERR {where} Handler returned error ({error}) for msg {message.id}")
            message.requeue()
        else:
            message.finish()


async def run(options: ToHttpOptions) -> int:
    """Run the tool. Returns: the exit code. Raises: Fatal, ClientError."""
    options.check()
    await ToHttp(options).run()
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
