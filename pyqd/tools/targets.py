"""Choice of a target for a message among several: in turn, in turn without those that fail, or by response time.

The modes of NSQ's tools. Times come in as arguments, in seconds of a monotonic clock.
Source: docs/nsq/admin-and-tools.md, "nsq_to_http"; for epsilon-greedy, the documentation of Go's hostpool package.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

from pyqd.primitives.backoff import NO_JITTER, Backoff

RETRY_FIRST_S: Final = 30.0
RETRY_MAX_S: Final = 900.0

# Share of choices that explore, and how it shrinks with each of them.
EPSILON_FIRST: Final = 0.3
EPSILON_FACTOR: Final = 0.9
EPSILON_LEAST: Final = 0.01
# Response times are kept in slices of time; older slices weigh less, and the oldest are forgotten.
SLICES: Final = 120
SLICE_S: Final = 300.0 / SLICES


class RoundRobin:
    """Each target in turn. Targets are numbered from 0."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._last = 0

    def choose(self, now_s: float) -> int:  # noqa: ARG002 - as in HostPool
        """Return the next target. The first is number 1, as in NSQ's tools."""
        self._last = (self._last + 1) % self._count
        return self._last

    def note(self, target: int, now_s: float, took_s: float | None) -> None:
        """Ignore results."""


@dataclass
class Host:
    """State of a target. sums and counts: of its response times, by slice of time."""

    is_dead: bool = False
    retry_at_s: float = 0.0
    delays: Backoff = field(default_factory=lambda: Backoff(RETRY_FIRST_S, RETRY_MAX_S, jitter=NO_JITTER))
    sums: list[float] = field(default_factory=lambda: [0.0] * SLICES)
    counts: list[int] = field(default_factory=lambda: [0] * SLICES)

    def may_be_tried(self, now_s: float) -> bool:
        return not self.is_dead or self.retry_at_s < now_s

    def try_again(self, now_s: float) -> None:
        """Note a failure, or that a dead target gets a message: the next one comes after a time that doubles."""
        self.retry_at_s = now_s + self.delays.next_s()


class HostPool:
    """Each target in turn, but for those that failed: these get a message after 30 s, then after twice the time."""

    def __init__(self, count: int) -> None:
        self.hosts = [Host() for _ in range(count)]
        self._next = 0

    def choose(self, now_s: float) -> int:
        """Return the next target that works, or that may be tried again; the first one if there is none."""
        count = len(self.hosts)
        for step in range(count):
            target = (self._next + step) % count
            host = self.hosts[target]
            if host.may_be_tried(now_s):
                if host.is_dead:
                    host.try_again(now_s)
                self._next = target + 1
                return target
        for host in self.hosts:
            host.is_dead = False
        self._next = 0
        return 0

    def note(self, target: int, now_s: float, took_s: float | None) -> None:
        """Note the response time of a target; None for a failure."""
        host = self.hosts[target]
        if took_s is not None:
            host.is_dead = False
        elif not host.is_dead:
            host.is_dead = True
            host.delays.reset()
            host.try_again(now_s)


class EpsilonGreedy(HostPool):
    """Targets by response time: the faster ones more often, and now and then any of them, in turn."""

    def __init__(self, count: int, rng: random.Random | None = None) -> None:
        super().__init__(count)
        self._rng = rng or random.Random()
        self._epsilon = EPSILON_FIRST
        self._slice = 0
        # Mean response times, until one changes: a batch of messages asks for each message.
        self._averages_s: list[float] = []

    def choose(self, now_s: float) -> int:
        """Return a target with a probability of the inverse of its response time."""
        self._move_to(now_s)
        if self._rng.random() < self._epsilon:
            self._epsilon = max(EPSILON_LEAST, self._epsilon * EPSILON_FACTOR)
            return super().choose(now_s)
        times_s = {target: self._average_s(host) for target, host in enumerate(self.hosts) if host.may_be_tried(now_s)}
        speeds = {target: 1.0 / time_s for target, time_s in times_s.items() if time_s > 0}
        if not speeds:
            return super().choose(now_s)
        (chosen,) = self._rng.choices(list(speeds), list(speeds.values()))
        if self.hosts[chosen].is_dead:
            self.hosts[chosen].try_again(now_s)
        return chosen

    def note(self, target: int, now_s: float, took_s: float | None) -> None:
        super().note(target, now_s, took_s)
        if took_s is not None:
            self._move_to(now_s)
            index = self._slice % SLICES
            self.hosts[target].sums[index] += took_s
            self.hosts[target].counts[index] += 1
            self._averages_s = []

    def _move_to(self, now_s: float) -> None:
        present = int(now_s / SLICE_S)
        for number in range(max(self._slice + 1, present - SLICES + 1), present + 1):
            for host in self.hosts:
                host.sums[number % SLICES] = 0.0
                host.counts[number % SLICES] = 0
        if present > self._slice:
            self._slice = present
            self._averages_s = []

    def _average_s(self, host: Host) -> float:
        """Return the mean response time, in which a slice weighs the more the younger it is; 0 without one."""
        total = last = 0.0
        for age in range(1, SLICES + 1):
            index = (self._slice + age) % SLICES
            if host.counts[index]:
                last = host.sums[index] / host.counts[index]
            total += last * age / SLICES
        return total


Targets = RoundRobin | HostPool


def targets_for(mode: str, count: int) -> Targets:
    """Return the choice of a mode: hostpool, epsilon-greedy, or any other word for each target in turn."""
    if mode == "hostpool":
        return HostPool(count)
    if mode == "epsilon-greedy":
        return EpsilonGreedy(count)
    return RoundRobin(count)
