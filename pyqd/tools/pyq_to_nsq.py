"""Command `pyq_to_nsq`: publishes the messages of topics to other brokers, as they are or filtered.

Messages that are there together travel as one MPUB, and are finished together when the broker has them.

Source: docs/tools/pyq_to_nsq.md; docs/nsq/admin-and-tools.md, "nsq_to_nsq".
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pyqd.client.aio import Consumer, Producer
from pyqd.client.errors import ClientError, ClosedError, NotConnectedError, RefusedError
from pyqd.client.message import Message
from pyqd.primitives.names import is_valid_name_str
from pyqd.tools.common import (
    EXIT_OK,
    Fatal,
    ProducerOpt,
    Sources,
    ToolOptions,
    client_options,
    declare_flag,
    declare_repeated,
    log,
    require_one_kind,
    run_tool,
)
from pyqd.tools.intake import Tasks, consume, consumer_of, without_spent
from pyqd.tools.json_filter import JsonFilter, NoJsonObjectError, Verdict
from pyqd.tools.status_lines import status_lines
from pyqd.tools.targets import targets_for

TOOL: Final = "pyq_to_nsq"
SYNOPSIS: Final = "Publishes the messages of topics to other brokers. A message is finished when one of them has it."
FETCH_COUNT: Final = 10_000
# Less than the default limit of brokers, which is 5 MiB.
BATCH_BYTES: Final = 1 << 20
# Times for an answer and for a connection. The second is short, because another destination may work.
ANSWER_S: Final = 60.0
CONNECT_S: Final = 1.0
# Codes of refusals that concern one message, or the size of a batch.
BATCH_CODES: Final = ("E_BAD_BODY", "E_BAD_MESSAGE")


@dataclass(frozen=True, kw_only=True)
class ToNsqOptions(ProducerOpt, Sources, ToolOptions):
    """Flags of pyq_to_nsq."""

    topic: tuple[str, ...] = declare_repeated("topic to consume")
    channel: str = declare_flag("nsq_to_nsq", "channel to consume")
    destination_nsqd_tcp_address: tuple[str, ...] = declare_repeated(
        "nsqd TCP address to publish to (may be given multiple times: each message goes to one of them)"
    )
    destination_topic: str = declare_flag("", "topic to publish to, by default that of the message")
    max_in_flight: int = declare_flag(200, "max number of messages to allow in flight, for each topic")
    mode: str = declare_flag("hostpool", "choice of the destination: round-robin, hostpool, epsilon-greedy")
    require_json_field: str = declare_flag("", "for JSON messages: only pass messages that contain this field")
    require_json_value: str = declare_flag(
        "", "for JSON messages: only pass messages in which the required field has this value"
    )
    whitelist_json_field: tuple[str, ...] = declare_repeated("for JSON messages: pass this field, and no others")
    status_every: int = declare_flag(250, "number of messages between two status lines; 0 for none")

    def check(self) -> None:
        """Check all flags. Raises: Fatal."""
        if not self.topic or not self.channel:
            raise Fatal("--topic and --channel are required")
        if not all(map(is_valid_name_str, self.topic)):
            raise Fatal("--topic is invalid")
        if self.destination_topic and not is_valid_name_str(self.destination_topic):
            raise Fatal("--destination-topic is invalid")
        if not is_valid_name_str(self.channel):
            raise Fatal("--channel is invalid")
        require_one_kind(self.nsqd_tcp_address, self.lookupd_http_address)
        if not self.destination_nsqd_tcp_address:
            raise Fatal("--destination-nsqd-tcp-address required")


def main(argv: Sequence[str] | None = None) -> int:
    return run_tool(TOOL, ToNsqOptions, argv, run, SYNOPSIS)


class ForwardedMessage(NamedTuple):
    """Message, and the body to publish for it."""

    message: Message
    body: bytes


class Forwarder:
    """Publishes messages to destinations, and answers them to their consumers."""

    def __init__(self, options: ToNsqOptions) -> None:
        self._options = options
        addresses = options.destination_nsqd_tcp_address
        keywords = client_options(TOOL, options.producer_opt).producer_keywords()
        self._consumer_options = client_options(TOOL, options.consumer_opt)
        self._producers = [Producer(address, timeout=ANSWER_S, **keywords) for address in addresses]
        self._targets = targets_for(options.mode, len(addresses))
        self._all_status, self._status = status_lines(options.status_every, addresses)
        self._filter = JsonFilter(options.require_json_field, options.require_json_value, options.whitelist_json_field)

    async def run(self) -> None:
        """Pass messages on until a signal. Raises: ClientError."""
        options = self._options
        consumers = [
            consumer_of(options, self._consumer_options, topic, options.channel, options.max_in_flight)
            for topic in options.topic
        ]
        try:
            await consume(consumers, self._forward_all)
        finally:
            await asyncio.gather(*(producer.close(0) for producer in self._producers))

    async def _forward_all(self, consumer: Consumer) -> None:
        tasks = Tasks(consumer)
        while True:
            try:
                messages = await consumer.fetch(FETCH_COUNT)
            except ClosedError:
                break
            tasks.start(self._forward(consumer, messages), messages)
        await tasks.end()

    async def _forward(self, consumer: Consumer, messages: list[Message]) -> None:
        messages = without_spent(consumer, messages, self._consumer_options)
        outgoing = (
            self._filtered(messages)
            if self._filter.is_active
            else [ForwardedMessage(message, message.body) for message in messages]
        )
        shares: list[list[ForwardedMessage]] = [[] for _ in self._producers]
        now_s = time.monotonic()
        if len(shares) == 1:
            shares[0] = outgoing
        else:
            for each in outgoing:
                shares[self._targets.choose(now_s)].append(each)
        publishing = [
            self._publish(consumer, target, batch) for target, share in enumerate(shares) for batch in batches_of(share)
        ]
        await asyncio.gather(*publishing)

    def _filtered(self, messages: Sequence[Message]) -> list[ForwardedMessage]:
        passed: list[ForwardedMessage] = []
        for message in messages:
            try:
                verdict, body = self._filter.apply(message.body)
            except NoJsonObjectError:
                log(f"ERROR: Unable to decode json: {message.body.decode(errors='replace')}")
                message.finish()
                continue
            if verdict is Verdict.PASS:
                passed.append(ForwardedMessage(message, body))
            elif verdict is Verdict.DROP:
                message.finish()
            else:
                log("ERROR: missing field to check required value")
                message.requeue()
        return passed

    async def _publish(self, consumer: Consumer, target: int, batch: Sequence[ForwardedMessage]) -> None:
        began_s = time.monotonic()
        error = await self._error_of(target, self._options.destination_topic or consumer.topic, batch)
        now_s = time.monotonic()
        if isinstance(error, RefusedError) and error.code in BATCH_CODES:
            if len(batch) > 1:
                # One message may be the reason: the others are published without it.
                middle = len(batch) // 2
                await self._publish(consumer, target, batch[:middle])
                await self._publish(consumer, target, batch[middle:])
                return
        else:
            self._targets.note(target, now_s, None if error else now_s - began_s)
        if error is None:
            consumer.finish_many([each.message for each in batch])
        else:
            log(f"ERROR: {len(batch)} messages are requeued: {error}")
            for each in batch:
                each.message.requeue()
        self._status[target].note(now_s - began_s, len(batch))
        self._all_status.note(now_s - began_s, len(batch))

    async def _error_of(self, target: int, topic: str, batch: Sequence[ForwardedMessage]) -> ClientError | None:
        producer = self._producers[target]
        publishing: Coroutine[Any, Any, object] = (
            producer.publish(topic, batch[0].body)
            if len(batch) == 1
            else producer.publish_many(topic, [each.body for each in batch])
        )
        try:
            await (publishing if is_connected(producer) else if_connected(producer, publishing))
        except ClientError as error:
            return error
        return None


def is_connected(producer: Producer) -> bool:
    return any(broker["connected"] for broker in producer.stats()["brokers"].values())


async def if_connected(producer: Producer, publishing: Coroutine[Any, Any, object]) -> None:
    """Wait for a publication unless its producer stays without a connection. Raises: ClientError."""
    task = asyncio.ensure_future(publishing)
    try:
        await asyncio.wait({task}, timeout=CONNECT_S)
        if task.done() or is_connected(producer):
            await task
            return
    finally:
        task.cancel()
    reasons = [broker["error"] or f"{name} is slow" for name, broker in producer.stats()["brokers"].items()]
    raise NotConnectedError(f"no connection: {'; '.join(reasons)}")


def batches_of(share: Sequence[ForwardedMessage]) -> Iterator[Sequence[ForwardedMessage]]:
    start = size_bytes = 0
    for index, each in enumerate(share):
        size_bytes += len(each.body)
        if size_bytes > BATCH_BYTES and index > start:
            yield share[start:index]
            start, size_bytes = index, len(each.body)
    if share:
        yield share[start:]


async def run(options: ToNsqOptions) -> int:
    """Run the tool. Returns: the exit code. Raises: Fatal, ClientError."""
    options.check()
    await Forwarder(options).run()
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
