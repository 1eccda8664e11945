"""Command `pyq_stat`: prints rates, depths and counters of one channel, over all brokers that have the topic.

Source: docs/tools/pyq_stat.md.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from pyqd.primitives.addresses import TcpAddress
from pyqd.primitives.durations import SECOND_NS
from pyqd.primitives.goflags import DURATION, INT
from pyqd.tools.cluster import Http
from pyqd.tools.common import (
    EXIT_OK,
    HTTP_TIMEOUTS,
    Fatal,
    HttpTimeoutFlags,
    Stdout,
    ToolOptions,
    declare_flag,
    declare_repeated,
    require_one_kind,
    require_positive,
    run_tool,
    stop_on,
)

TOOL: Final = "pyq_stat"
SYNOPSIS: Final = "Prints rates, depths and counters of one channel, over all brokers that have the topic."
HEADER_EVERY: Final = 25
# Numbers of a channel in /stats.
SUMMED: Final = (
    "depth",
    "backend_depth",
    "in_flight_count",
    "deferred_count",
    "requeue_count",
    "timeout_count",
    "message_count",
    "client_count",
)
HEADER: Final = (
    "------rate------+----------------depth----------------+--------------metadata---------------\n"
    "ingress  egress |   total     mem    disk inflt   def |     req     t-o         msgs clients\n"
)


@dataclass(frozen=True, kw_only=True)
class StatOptions(HttpTimeoutFlags, ToolOptions):
    """Flags of pyq_stat."""

    topic: str = declare_flag("", "NSQ topic")
    channel: str = declare_flag("", "NSQ channel")
    interval_ns: int = declare_flag(2 * SECOND_NS, "time between two lines", kind=DURATION)
    count: int | None = declare_flag(None, "number of lines; without it there is no end", kind=INT)
    nsqd_http_address: tuple[str, ...] = declare_repeated("nsqd HTTP address")
    lookupd_http_address: tuple[str, ...] = declare_repeated("lookupd HTTP address")


def main(argv: Sequence[str] | None = None) -> int:
    return run_tool(TOOL, StatOptions, argv, run, SYNOPSIS)


def check(options: StatOptions) -> None:
    if not options.topic or not options.channel:
        raise Fatal("--topic and --channel are required")
    require_positive(options, "interval_ns", *HTTP_TIMEOUTS, "count")
    require_one_kind(options.nsqd_http_address, options.lookupd_http_address, "--nsqd-http-address")
    for flag, addresses in (("nsqd", options.nsqd_http_address), ("lookupd", options.lookupd_http_address)):
        if any("://" in address for address in addresses):
            raise Fatal(f"--{flag}-http-address error - address should not contain scheme")


def totals_of(answers: Iterable[Mapping[str, Any]], topic: str, channel: str) -> Counter[str] | None:
    totals: Counter[str] | None = None
    for answer in answers:
        for each in answer.get("topics") or ():
            for found in each.get("channels") or ():
                if (each.get("topic_name"), found.get("channel_name")) == (topic, channel):
                    totals = totals or Counter()
                    totals.update({name: int(found.get(name) or 0) for name in SUMMED})
    return totals


def line_of(now: Counter[str], before: Counter[str], interval_s: float) -> str:
    received = now["message_count"] - before["message_count"]
    sent = received - (now["depth"] - before["depth"])
    return (
        f"{int(received / interval_s):7d} {int(sent / interval_s):7d} |"
        f" {now['depth']:7d} {now['depth'] - now['backend_depth']:7d} {now['backend_depth']:7d}"
        f" {now['in_flight_count']:5d} {now['deferred_count']:5d} |"
        f" {now['requeue_count']:7d} {now['timeout_count']:7d} {now['message_count']:12d} {now['client_count']:7d}\n"
    )


class Poll:
    """Asks the brokers for the numbers of the channel."""

    def __init__(self, options: StatOptions) -> None:
        self._options = options
        self._http = Http.of(options)

    async def totals(self) -> Counter[str]:
        """Return the numbers now. Raises: Fatal if one of the brokers or lookup daemons gives no answer."""
        options = self._options
        brokers, subject = await self._brokers()
        # Without the channel: its absence and that of the topic are different errors.
        query = {"format": "json", "topic": options.topic, "include_clients": "false"}
        answers, errors = await self._http.get_from_all(brokers, "/stats", **query)
        if not brokers:
            errors = [f"the lookup daemons name no broker that has topic {options.topic}"]
        require_answers(subject, "nsqd", answers, errors)
        if not options.lookupd_http_address and not any(map(self._has_topic, answers.values())):
            reason = f"topic {options.topic} does not exist at {', '.join(brokers)}; is --topic right?"
            require_answers("nsqd stats", "nsqd", (), [reason])
        totals = totals_of(answers.values(), options.topic, options.channel)
        if totals is None:
            raise Fatal(
                f"ERROR: failed to find channel({options.channel}) in stats metadata for topic({options.topic})"
            )
        return totals

    def _has_topic(self, answer: Mapping[str, Any]) -> bool:
        return any(topic.get("topic_name") == self._options.topic for topic in answer.get("topics") or ())

    async def _brokers(self) -> tuple[Sequence[str], str]:
        """Return the brokers to ask, and the subject of an error if they do not answer. Raises: Fatal."""
        daemons = self._options.lookupd_http_address
        if not daemons:
            return self._options.nsqd_http_address, "topic producers"
        answers, errors = await self._http.get_from_all(daemons, "/lookup", topic=self._options.topic)
        require_answers("topic producers", "nsqlookupd", answers, errors)
        producers = [producer for answer in answers.values() for producer in answer.get("producers") or ()]
        addresses = (TcpAddress(producer["broadcast_address"], producer["http_port"]) for producer in producers)
        return list(dict.fromkeys(map(str, addresses))), "nsqd stats"


def require_answers(subject: str, program: str, answers: Collection[object], errors: Sequence[str]) -> None:
    """Raise Fatal if one of the programs gave no answer, or if none was asked. errors: say why."""
    text = "; ".join(errors)
    if not answers:
        raise Fatal(f"ERROR: failed to get {subject} - failed to query any {program}: {text}")
    if errors:
        raise Fatal(f"ERROR: failed to get {subject} - {text}")


async def print_lines(options: StatOptions) -> None:
    """Print a line per interval, and the header from time to time. The first poll has no line."""
    stdout, poll = Stdout(), Poll(options)
    interval_s = options.interval_ns / SECOND_NS
    before: Counter[str] | None = None
    for number in count():
        now = await poll.totals()
        text = HEADER if number % HEADER_EVERY == 0 else ""
        if before is not None:
            text += line_of(now, before, interval_s)
        await stdout.write(text.encode())
        if options.count is not None and number >= options.count:
            return
        before = now
        await asyncio.sleep(interval_s)


async def run(options: StatOptions) -> int:
    """Print lines until there are enough, or until a signal. Returns: the exit code."""
    check(options)
    task = asyncio.create_task(print_lines(options))

    def stop() -> None:
        task.cancel()

    with stop_on(signal.SIGHUP, signal.SIGINT, signal.SIGTERM, on_signal=stop), suppress(asyncio.CancelledError):
        await task
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
