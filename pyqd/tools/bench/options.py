"""Flags of `pyq_bench`, and the checks of their values."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Final

from pyqd.primitives.durations import SECOND_NS
from pyqd.primitives.goflags import DURATION, declared_flags
from pyqd.tools.common import Fatal, ToolOptions, declare_flag

SIZE_MIN: Final = 8
SIZE_MAX: Final = 1 << 20
CONNECTIONS_MAX: Final = 10_000
RATE_MAX: Final = 1_000_000_000
RDY_MAX: Final = 1_000_000
COUNT_MAX: Final = 1_000_000_000_000
# Memory for the commands of one connection, in the generator.
OUTSTANDING_BYTES_MAX: Final = 64 << 20
COMMAND_BYTES: Final = 80
DEADLINE: Final = "%Y-%m-%d %H:%M:%S"


@dataclass(frozen=True, kw_only=True)
class Common(ToolOptions):
    """Flags of every command."""

    nsqd_tcp_address: str = declare_flag("127.0.0.1:4150", "TCP address of nsqd or pyqd")
    nsqd_http_address: str = declare_flag(
        "",
        "its HTTP address, which is needed to delete the topic afterwards",
        default_text="the host and the port after that of TCP",
    )
    auth_secret: str = declare_flag("", "secret for AUTH, if the broker demands it")
    topic: str = declare_flag("", "topic to use", default_text="a new one, deleted afterwards")
    keep_topic: bool = declare_flag(False, "leave the new topic")
    delete_topic: bool = declare_flag(False, "delete the topic of --topic afterwards; only if it did not exist before")
    connections: int = declare_flag(
        4, "number of connections; of latency: of publishers, and as many consumers", minimum=1, maximum=CONNECTIONS_MAX
    )
    size: int = declare_flag(200, "bytes of a message that is published", minimum=SIZE_MIN, maximum=SIZE_MAX)
    runfor_ns: int = declare_flag(
        0, "duration of the measurement", kind=DURATION, minimum=0, default_text="10s without --count"
    )
    count: int = declare_flag(
        0,
        "number of messages, with the warm-up; consume: 1000000 for a new topic",
        minimum=0,
        maximum=COUNT_MAX,
        default_text="no limit",
    )
    warm_up_ns: int = declare_flag(0, "time before the measurement", kind=DURATION, minimum=0)
    deadline: str = declare_flag("", 'time to begin at in UTC, as "2026-11-24 12:00:00"', default_text="at once")
    timeout_ns: int = declare_flag(
        10 * SECOND_NS, "limit for connecting, and for what is missing at the end", kind=DURATION, minimum=1
    )
    spin: bool = declare_flag(False, "poll instead of sleeping; uses a whole core")
    quiet: bool = declare_flag(False, "show no progress")
    json: bool = declare_flag(False, "print the summary as one line of JSON")
    # Makes the name of an ephemeral channel unique.
    seed: str = field(default_factory=lambda: secrets.token_hex(4))

    @property
    def timeout_s(self) -> float:
        return self.timeout_ns / SECOND_NS

    def check(self) -> None:
        """Check the values. Raises: Fatal."""
        for flag in declared_flags(type(self)):
            try:
                flag.check(getattr(self, flag.attribute))
            except ValueError as error:
                raise Fatal(str(error)) from None
        self.wait_s()

    def wait_s(self) -> float:
        """Return the time until the load begins, in s. Raises: Fatal."""
        if not self.deadline:
            return 0.0
        try:
            begins = datetime.strptime(self.deadline, DEADLINE).replace(tzinfo=timezone.utc)
        except ValueError:
            raise Fatal(f'--deadline must be a time in UTC, as "2026-11-24 12:00:00", not "{self.deadline}"') from None
        return max(0.0, (begins - datetime.now(timezone.utc)).total_seconds())


@dataclass(frozen=True, kw_only=True)
class PublishOptions(Common):
    """Flags of `publish`."""

    batch_size: int = declare_flag(200, "messages in a command: 1 for PUB, more for MPUB; of latency: 1", minimum=1)
    outstanding: int = declare_flag(
        4, "commands without an answer on a connection, at most; no limit with a rate", minimum=1
    )
    rate: int = declare_flag(
        0,
        "messages per second over all connections, sent at their times whatever the broker does;"
        " 0: as answers come; of latency: 1000",
        minimum=0,
        maximum=RATE_MAX,
    )

    def check(self) -> None:
        """Check the values. Raises: Fatal."""
        super().check()
        if self.count % self.batch_size:
            raise Fatal(f"--count must be a multiple of --batch-size: {self.count} is not one of {self.batch_size}")
        command_bytes = self.batch_size * (self.size + 4) + COMMAND_BYTES
        if command_bytes * self.outstanding > OUTSTANDING_BYTES_MAX:
            raise Fatal(f"--size x --batch-size x --outstanding must be at most {OUTSTANDING_BYTES_MAX} bytes")


@dataclass(frozen=True, kw_only=True)
class Consuming(Common):
    """Flags of commands that consume."""

    channel: str = declare_flag("", "channel to consume", default_text="a new one; ephemeral with --topic")
    rdy: int = declare_flag(2500, "RDY of each connection", minimum=1, maximum=RDY_MAX)


@dataclass(frozen=True, kw_only=True)
class ConsumeOptions(Consuming):
    """Flags of `consume`."""


@dataclass(frozen=True, kw_only=True)
class LatencyOptions(Consuming, PublishOptions):
    """Flags of `latency`."""

    batch_size: int = declare_flag(1, "messages in a command: 1 for PUB, more for MPUB", minimum=1)
    rate: int = declare_flag(
        1000,
        "messages per second over all connections, sent at their times whatever the broker does",
        minimum=1,
        maximum=RATE_MAX,
    )


@dataclass(frozen=True, kw_only=True)
class AllOptions(Consuming, PublishOptions):
    """Flags of all commands, for the page."""
