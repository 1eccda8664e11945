"""Flow control of a consumer: distribution of RDY over its connections, and back-off after failures.

RDY n lets a broker have n messages in flight on a connection. ConsumerFlow splits max_in_flight among the connections:

* Sharing: with at most max_in_flight connections each has an equal share; the remainder goes to the oldest ones.
* Rationing: with more connections, max_in_flight of them have RDY 1. Every redistribute_s, connections that wait take
  over from connections that are idle (no message for low_rdy_idle_s) or have had RDY for low_rdy_s.
* Back-off: level 1 begins when failures prevail: so many in a row, or most of the recent results. All connections have
  RDY 0 for first_s x 2**level; then one of them, the probe, has RDY 1. Its message decides: success lowers the level,
  failure raises it. Level 0 ends the back-off. A single failure is no sign of a broken dependency, and a pause would
  stop all other messages for it.

Invariants:

1. The sum of RDY over all connections is at most max_in_flight, without exception.
2. A connection occupies max(RDY, messages in flight) slots. RDY is raised only into free slots, of which there are
   max_in_flight. So a message in flight on one connection is not counted away by RDY that moved to another one.
3. RDY is 0 everywhere during the wait of a back-off, while paused, and after stop().
4. The connection whose RDY was taken longest ago is served first, so that every connection gets RDY in turn.

There is no clock here: each event carries the time, in seconds of a monotonic clock.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from pyqd.client.errors import SettingError

REDISTRIBUTE_S_MIN: Final = 0.01
# Share of a connection's RDY in flight from which the consumer is starved. Source: go-nsq, pynsq.
STARVED_SHARE: Final = 0.85
# Results of which more than half are failures when a back-off begins.
RECENT_COUNT: Final = 20
RECENT_MASK: Final = (1 << RECENT_COUNT) - 1


class SetRdy(NamedTuple):
    """Command to send now: RDY with this count on the connection of this key."""

    key: Hashable
    count: int  # type: ignore[assignment]  # hides tuple.count, which is of no use here


@dataclass(frozen=True)
class FlowSettings:
    """Times of flow control, in seconds, and the beginning of a back-off.

    backoff_failures: failures in a row that begin a back-off, as most of the last 20 results do; 1 for the rule of
    NSQ's clients. The wait of back-off level n is backoff_first_s x 2**n, at most backoff_max_s. 0 in one of them: no
    back-off. backoff_jitter: wait a random part of that time (full jitter).
    """

    backoff_failures: int = 5
    backoff_first_s: float = 1.0
    backoff_max_s: float = 120.0
    backoff_jitter: bool = False
    low_rdy_idle_s: float = 10.0
    low_rdy_s: float = 30.0
    redistribute_s: float = 5.0

    def __post_init__(self) -> None:
        for name in ("backoff_first_s", "backoff_max_s", "low_rdy_idle_s", "low_rdy_s"):
            _check_time(name, getattr(self, name), 0.0)
        # Each redistribution sends commands.
        _check_time("redistribute_s", self.redistribute_s, REDISTRIBUTE_S_MIN)
        count = self.backoff_failures
        if type(count) is not int or not 1 <= count <= RECENT_COUNT:
            raise SettingError(f"backoff_failures={count!r}: expected a number from 1 to {RECENT_COUNT}")


def _check_time(name: str, value: object, least: float) -> None:
    if not isinstance(value, (int, float)) or not least <= value < float("inf"):
        raise SettingError(f"{name}={value!r}: expected a number of seconds, at least {least:g}")


class _Connection:
    """RDY of one connection: rdy as last sent, target as it should be. Times are None for never."""

    __slots__ = ("dropped_at", "in_flight", "key", "last_message_at", "max_rdy", "rdy", "rdy_at", "target")

    def __init__(self, key: Hashable, max_rdy: int, now: float) -> None:
        self.key = key
        self.max_rdy = max_rdy
        self.rdy = 0
        self.target = 0
        self.in_flight = 0
        self.last_message_at = now
        self.rdy_at = now
        self.dropped_at = float("-inf")

    @property
    def slots(self) -> int:
        return max(self.rdy, self.in_flight)


class ConsumerFlow:
    """RDY and back-off of one consumer. Every event returns the commands that the caller sends now.

    A key stands for one connection: a new connection to the same broker needs a key of its own, so that late results
    of the old one are not counted for it. Results of unknown keys are ignored: their messages time out at the broker.
    Not safe for several threads at once.
    """

    def __init__(self, max_in_flight: int, settings: FlowSettings, rng: random.Random) -> None:
        self.in_flight = 0
        self.backoff_level = 0
        # Results outside of a back-off, a bit each: 1 for a failure. The last one is the lowest bit.
        self._recent = 0
        # When tick() must be called; None: not before the next event.
        self.next_deadline: float | None = None
        self._max_in_flight = max_in_flight
        self._settings = settings
        self._rng = rng
        self._connections: dict[Hashable, _Connection] = {}
        self._is_paused = False
        self._is_stopped = False
        # Some connection has less RDY than its target, because messages in flight occupy the slots.
        self._is_short = False
        self._wait_ends_at: float | None = None
        self._redistribute_at: float | None = None
        self._probe: _Connection | None = None

    @property
    def max_in_flight(self) -> int:
        """Maximum number of messages in flight, over all connections."""
        return self._max_in_flight

    @property
    def is_starved(self) -> bool:
        """True if few or no more messages come from one of the connections before some are answered."""
        return any(
            connection.in_flight and connection.in_flight >= int(connection.rdy * STARVED_SHARE)
            for connection in self._connections.values()
        )

    # Connections.

    def connected(self, key: Hashable, max_rdy_count: int, now: float) -> list[SetRdy]:
        """Take a connection that has sent SUB. max_rdy_count: the broker's limit, from its answer to IDENTIFY."""
        if key in self._connections:
            raise ValueError(f"connection {key!r} is there already")
        self._connections[key] = _Connection(key, max_rdy_count, now)
        return self._retarget(now)

    def disconnected(self, key: Hashable, now: float) -> list[SetRdy]:
        """Remove a connection, if it is there, and give its RDY to the others. Its messages are no longer in flight."""
        connection = self._connections.pop(key, None)
        if connection is None:
            return []
        self.in_flight -= connection.in_flight
        if connection is self._probe:
            self._probe = None
        return self._retarget(now)

    # Messages.

    def received(self, key: Hashable, count: int, now: float) -> None:
        """Count messages that came in."""
        connection = self._connections.get(key)
        if connection is not None:
            connection.in_flight += count
            connection.last_message_at = now
            self.in_flight += count

    def finished(self, key: Hashable, now: float, count: int = 1) -> list[SetRdy]:
        """Count messages that were handled. A batch is one success for the back-off."""
        if not self._release(key, count):
            return []
        if not self.backoff_level:
            self._recent = self._recent << 1 & RECENT_MASK
        elif self._wait_ends_at is None:
            return self._step(self.backoff_level - 1, now)
        return self._raise(now) if self._is_short else []

    def requeued(self, key: Hashable, now: float, backoff: bool, count: int = 1) -> list[SetRdy]:
        """Count messages that go back to the broker. backoff: because of a failure; a batch is one failure."""
        return self._unfinished(backoff, now) if self._release(key, count) else []

    def failed(self, key: Hashable, now: float) -> list[SetRdy]:
        """Count a failure whose message stays in flight until it is released: it becomes a dead letter."""
        return self._unfinished(True, now) if key in self._connections else []

    def _unfinished(self, is_failure: bool, now: float) -> list[SetRdy]:
        """Act on a message that was not handled."""
        if self._wait_ends_at is None:
            may_wait = self._bound_s(self.backoff_level + 1) <= self._settings.backoff_max_s
            if is_failure and self._do_failures_prevail() and may_wait:
                return self._step(self.backoff_level + 1, now)
            if self.backoff_level:
                return self._step(self.backoff_level, now)
        return self._raise(now) if self._is_short else []

    def _do_failures_prevail(self) -> bool:
        """Note a failure. Return True if a back-off begins, or is under way."""
        if self.backoff_level:
            return True
        self._recent = (self._recent << 1 | 1) & RECENT_MASK
        row = (1 << self._settings.backoff_failures) - 1
        return self._recent & row == row or self._recent.bit_count() > RECENT_COUNT // 2

    def released(self, key: Hashable, count: int, now: float) -> list[SetRdy]:
        """Count messages that leave as neither successes nor failures: the broker has taken them back, for example."""
        if not self._release(key, count):
            return []
        return self._raise(now) if self._is_short else []

    # The consumer as a whole.

    def set_max_in_flight(self, count: int, now: float) -> list[SetRdy]:
        """Change the maximum number of messages in flight; 0 stops the intake."""
        self._max_in_flight = count
        return self._retarget(now)

    def pause(self, now: float) -> list[SetRdy]:
        """Set RDY 0 everywhere until resume()."""
        self._is_paused = True
        return self._retarget(now)

    def resume(self, now: float) -> list[SetRdy]:
        """End pause()."""
        self._is_paused = False
        return self._retarget(now)

    def stop(self, now: float) -> list[SetRdy]:
        """End for good. Returns an empty list: the caller sends CLS, after which a broker's RDY is 0."""
        self._is_stopped = True
        self._wait_ends_at = None
        for connection in self._connections.values():
            connection.rdy = 0
        return self._retarget(now)

    def tick(self, now: float) -> list[SetRdy]:
        """Act if next_deadline has passed."""
        if self._wait_ends_at is not None:
            if now < self._wait_ends_at:
                return []
            self._wait_ends_at = None
            return self._retarget(now)
        if self._redistribute_at is None or now < self._redistribute_at:
            return []
        self._redistribute_at = None
        self._take_over(now)
        return self._retarget(now)

    # Back-off.

    def _bound_s(self, level: int) -> float:
        """Return the longest wait of a level; infinite if there is no back-off."""
        first_s = self._settings.backoff_first_s
        if first_s <= 0 or self._settings.backoff_max_s <= 0:
            return float("inf")
        return first_s * 2.0**level

    def _step(self, level: int, now: float) -> list[SetRdy]:
        """Enter a level: full RDY for level 0, otherwise a wait with RDY 0 on all connections."""
        self.backoff_level = level
        self._recent = 0
        self._probe = None
        if level and not self._is_stopped:
            wait_s = min(self._bound_s(level), self._settings.backoff_max_s)
            if self._settings.backoff_jitter:
                wait_s *= self._rng.random()
            self._wait_ends_at = now + wait_s
        return self._retarget(now)

    # Distribution.

    def _release(self, key: Hashable, count: int) -> bool:
        connection = self._connections.get(key)
        if connection is None:
            return False
        count = min(count, connection.in_flight)
        connection.in_flight -= count
        self.in_flight -= count
        return True

    def _limit(self) -> int:
        return 0 if self._is_paused or self._is_stopped else self._max_in_flight

    def _retarget(self, now: float) -> list[SetRdy]:
        """Compute every connection's target, and move RDY there as far as slots are free."""
        connections = self._connections.values()
        limit = self._limit()
        is_probing = self.backoff_level > 0
        if limit == 0 or self._wait_ends_at is not None:
            holders: Iterable[_Connection] = ()
        elif is_probing:
            if self._probe is None and connections:
                self._probe = self._longest_without(connections)[0]
            holders = (self._probe,) if self._probe is not None else ()
        elif len(connections) <= limit:
            self._share(limit)
            return self._move(limit, now)
        else:
            holders = self._ration(limit)
        for connection in connections:
            connection.target = 0
        for connection in holders:
            connection.target = min(1, connection.max_rdy)
        commands = self._move(limit, now)
        may_take_over = limit > 0 and self._wait_ends_at is None and len(connections) > 1
        self._schedule(now if may_take_over else None)
        return commands

    def _share(self, limit: int) -> None:
        """Split the limit equally. Connections with a small max_rdy come first: others get the part they cannot use."""
        remaining = limit
        open_count = len(self._connections)
        for connection in sorted(self._connections.values(), key=lambda connection: connection.max_rdy):
            connection.target = min(connection.max_rdy, -(-remaining // open_count))
            remaining -= connection.target
            open_count -= 1
        self._schedule(None)

    def _ration(self, limit: int) -> list[_Connection]:
        """Return the connections that have RDY 1: those that had RDY keep it, then the longest without."""
        keeping = [connection for connection in self._connections.values() if connection.target > 0][:limit]
        waiting = [connection for connection in self._connections.values() if connection.target == 0]
        return keeping + self._longest_without(waiting)[: limit - len(keeping)]

    def _take_over(self, now: float) -> None:
        """Move targets from idle connections, and from those whose time is up, to as many that wait."""
        connections = self._connections.values()
        waiting = [connection for connection in connections if connection.target == 0]
        giving = [connection for connection in connections if connection.rdy > 0 and self._should_give(connection, now)]
        giving.sort(key=lambda connection: connection.rdy_at)
        for giver, taker in zip(giving, self._longest_without(waiting), strict=False):
            giver.target, taker.target = 0, 1
            if giver is self._probe:
                self._probe = taker

    def _should_give(self, connection: _Connection, now: float) -> bool:
        # A connection with a slow handler is not idle: its RDY could not be used elsewhere before the message is done.
        is_idle = connection.in_flight == 0 and now - connection.last_message_at > self._settings.low_rdy_idle_s
        return is_idle or now - connection.rdy_at > self._settings.low_rdy_s

    def _longest_without(self, connections: Iterable[_Connection]) -> list[_Connection]:
        """Sort by the time since RDY was taken. Ties are random, so that consumers of one fleet spread."""
        # With a message in flight RDY 1 brings no other one, so such a connection comes last.
        return sorted(connections, key=lambda one: (one.in_flight > 0, one.dropped_at, self._rng.random()))

    def _move(self, limit: int, now: float) -> list[SetRdy]:
        """Lower RDY to the targets, and further if a smaller limit demands it; then raise into free slots."""
        before = {connection: connection.rdy for connection in self._connections.values()}
        for connection in before:
            connection.rdy = min(connection.rdy, connection.target)
        excess = sum(connection.slots for connection in before) - limit
        for connection in before:
            cut = min(excess, connection.rdy - connection.in_flight)
            if cut > 0:
                connection.rdy -= cut
                excess -= cut
        if excess > 0:
            # Messages in flight alone exceed the limit: a finished one must not bring the next one.
            for connection in before:
                connection.rdy = 0
        self._fill(-excess)
        changed = [connection for connection, rdy in before.items() if connection.rdy != rdy]
        # RDY that goes down first, so that a caller that sends in order never exceeds the limit.
        changed.sort(key=lambda connection: connection.rdy > before[connection])
        for connection in changed:
            if connection.rdy > 0:
                connection.rdy_at = now
            else:
                connection.dropped_at = now
        return [SetRdy(connection.key, connection.rdy) for connection in changed]

    def _raise(self, now: float) -> list[SetRdy]:
        """Raise RDY into slots that messages have left."""
        connections = self._connections.values()
        before = {connection: connection.rdy for connection in connections if connection.rdy < connection.target}
        self._fill(self._limit() - sum(connection.slots for connection in connections))
        raised = [connection for connection, rdy in before.items() if connection.rdy > rdy]
        for connection in raised:
            connection.rdy_at = now
        return [SetRdy(connection.key, connection.rdy) for connection in raised]

    def _fill(self, free: int) -> None:
        """Give free slots to connections below their target: first one to each without RDY, then the rest."""
        below = [connection for connection in self._connections.values() if connection.rdy < connection.target]
        # A free count below 0 stands for excess messages: no RDY before they are answered.
        for goal_max in (1, self._max_in_flight) if free >= 0 else ():
            for connection in below:
                goal = min(connection.target, goal_max, connection.slots + free)
                if goal > connection.rdy:
                    free += connection.slots
                    connection.rdy = goal
                    free -= connection.slots
        self._is_short = any(connection.rdy < connection.target for connection in below)

    def _schedule(self, redistribute_from: float | None) -> None:
        """Set the next deadline. redistribute_from: the present time if RDY may have to move to other connections."""
        if redistribute_from is None:
            self._redistribute_at = None
        elif self._redistribute_at is None:
            self._redistribute_at = redistribute_from + self._settings.redistribute_s
        self.next_deadline = self._wait_ends_at if self._wait_ends_at is not None else self._redistribute_at
