"""Clock that stands still until a test moves it."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from pyqd.primitives.durations import SECOND_NS

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class ManualClock:
    """Time of a MemoryBroker. now: its first time, with a time zone; the system's time by default."""

    def __init__(self, now: datetime | None = None) -> None:
        start = datetime.now(timezone.utc) if now is None else now
        if start.tzinfo is None:
            raise ValueError("now= needs a time zone, such as datetime.now(timezone.utc)")
        self.now_ns = ns_of(start - EPOCH)

    @property
    def now(self) -> datetime:
        """The time, in UTC."""
        return EPOCH + timedelta(microseconds=self.now_ns // 1000)

    @property
    def now_s(self) -> float:
        """The time in Unix seconds."""
        return self.now_ns / SECOND_NS

    def advance(self, seconds: float | timedelta) -> datetime:
        """Move the clock forward and return the new time. Messages become due and time out on the way.

        Raises: ValueError for a negative time.
        """
        step_ns = ns_of(seconds) if isinstance(seconds, timedelta) else round(seconds * SECOND_NS)
        if step_ns < 0:
            raise ValueError(f"cannot advance by {seconds} s: the clock only moves forward")
        self.now_ns += step_ns
        return self.now

    def advance_to(self, time: datetime) -> datetime:
        """Move the clock forward to a time with a time zone. Raises: ValueError for an earlier one."""
        return self.advance(time - self.now)


def ns_of(span: timedelta) -> int:
    """Return a timedelta in nanoseconds, exactly."""
    return ((span.days * 86_400 + span.seconds) * 1_000_000 + span.microseconds) * 1000
