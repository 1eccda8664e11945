"""Command `pyq_tail`: prints the messages of topics, one a line, and finishes them.

Each topic has a consumer of its own on the same channel; without --channel that is a new ephemeral one, so that the
program sees copies of the messages from now on.

Source: docs/tools/pyq_tail.md.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyqd.client.aio import Consumer, Message
from pyqd.client.errors import ClosedError
from pyqd.primitives.durations import SECOND_NS
from pyqd.primitives.goflags import DURATION
from pyqd.tools.cluster import Http, TopicPattern, new_topics
from pyqd.tools.common import (
    EXIT_OK,
    Fatal,
    Sources,
    Stdout,
    ToolOptions,
    client_options,
    declare_flag,
    declare_repeated,
    log,
    require_one_kind,
    require_positive,
    run_tool,
    stop_on,
)
from pyqd.tools.intake import consumer_of
from pyqd.tools.message_lines import COLORS, lines_for

TOOL: Final = "pyq_tail"
SYNOPSIS: Final = "Prints the messages of topics, one a line."
# Time for messages that are being printed at the end.
END_S: Final = 2.0


@dataclass(frozen=True, kw_only=True)
class TailOptions(Sources, ToolOptions):
    """Flags of pyq_tail."""

    topic: tuple[str, ...] = declare_repeated("NSQ topic")
    topic_pattern: tuple[str, ...] = declare_repeated(
        "regular expression: follow all topics of the lookup daemons with a part that matches"
    )
    topic_refresh_ns: int = declare_flag(
        10 * SECOND_NS, "time between two looks for new topics that match", kind=DURATION
    )
    channel: str = declare_flag("", "NSQ channel; by default a new one, tail<number>#ephemeral")
    max_in_flight: int = declare_flag(200, "max number of messages to allow in flight, for each topic")
    n: int = declare_flag(0, "number of messages of one topic after which to end; 0 for no end")
    print_topic: bool = declare_flag(False, "print the name of the topic before each message")
    color: str = declare_flag("auto", "auto: colour JSON and escape control characters on a terminal; always; never")


def main(argv: Sequence[str] | None = None) -> int:
    return run_tool(TOOL, TailOptions, argv, run, SYNOPSIS)


def check(options: TailOptions) -> None:
    require_one_kind(options.nsqd_tcp_address, options.lookupd_http_address)
    if not options.topic and not options.topic_pattern:
        raise Fatal("--topic required")
    if options.topic_pattern and not options.lookupd_http_address:
        raise Fatal("--lookupd-http-address must be specified with --topic-pattern")
    require_positive(options, "topic_refresh_ns")
    if options.max_in_flight < 0:
        raise Fatal(f"invalid max_in_flight ! {options.max_in_flight} < 0")
    if options.color not in COLORS:
        raise Fatal(f"--color must be {', '.join(COLORS[:-1])} or {COLORS[-1]}")


class Tail:
    """Consumers of all topics. ended: set when enough messages are printed, after an error, and by a signal."""

    def __init__(self, options: TailOptions) -> None:
        self.ended = asyncio.Event()
        self._options = options
        self._client_options = client_options(TOOL, options.consumer_opt)
        self._channel = options.channel or f"tail{random.randrange(999999):06d}#ephemeral"
        # Topics have no more than they are asked for.
        self._limit = min(options.n, options.max_in_flight) if options.n > 0 else options.max_in_flight
        self._patterns = [TopicPattern(text) for text in options.topic_pattern]
        self._stdout = Stdout()
        self._lines_of = lines_for(options.color, options.print_topic)
        self._consumers: dict[str, Consumer] = {}
        self._unprinted: list[Message] = []
        self._discovery: asyncio.Task[None] | None = None
        self._printing: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Consume the topics. Raises: SettingError for a name; another ClientError if a broker cannot be reached."""
        for topic in dict.fromkeys(self._options.topic):
            await self._follow(topic)
        if self._patterns:
            self._discovery = self._begin(self._discover())

    async def _discover(self) -> None:
        options = self._options
        http = Http(token=self._client_options.consumer_keywords().get("lookupd_token"))
        refresh_s = options.topic_refresh_ns / SECOND_NS
        async for topic in new_topics(http, options.lookupd_http_address, self._patterns, refresh_s):
            if topic not in self._consumers:
                await self._follow(topic)

    async def _follow(self, topic: str) -> None:
        log(f"Adding consumer for topic: {topic}")
        consumer = consumer_of(self._options, self._client_options, topic, self._channel, self._limit)
        self._consumers[topic] = consumer
        await consumer.connect()
        self._printing.append(self._begin(self._print(consumer)))

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        task.add_done_callback(lambda _: self.ended.set())
        return task

    async def _print(self, consumer: Consumer) -> None:
        """Print and finish messages until enough are printed, or the consumer is stopped."""
        left = self._options.n if self._options.n > 0 else sys.maxsize
        while left:
            try:
                messages = await consumer.fetch(min(left, max(self._limit, 1)))
            except ClosedError:
                return
            try:
                await self._stdout.write(self._lines_of(consumer.topic, [message.body for message in messages]))
            except BaseException:
                self._unprinted += messages
                raise
            consumer.finish_many(messages)
            left -= len(messages)

    async def stop(self) -> None:
        """Disconnect. Printed messages are finished, the others are requeued. Raises: the first error of a task."""
        for consumer in self._consumers.values():
            consumer.stop()
        tasks = self._printing if self._discovery is None else [*self._printing, self._discovery]
        if self._discovery is not None:
            self._discovery.cancel()
        unfinished = (await asyncio.wait(self._printing, timeout=END_S))[1] if self._printing else set()
        for task in unfinished:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        drains = [asyncio.create_task(consumer.drain(END_S)) for consumer in self._consumers.values()]
        await asyncio.sleep(0)
        for message in self._unprinted:
            # At the end of the connection the broker would keep it until its timeout.
            message.requeue(0, backoff=False)
        await asyncio.gather(*drains)
        for result in results:
            if isinstance(result, Exception):
                raise result


async def run(options: TailOptions) -> int:
    """Print messages until enough are printed, or until a signal. Returns: the exit code."""
    check(options)
    tail = Tail(options)
    with stop_on(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, on_signal=tail.ended.set):
        try:
            await tail.start()
            await tail.ended.wait()
        finally:
            await tail.stop()
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
