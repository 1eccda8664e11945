"""The clients of deleted channels are closed in slices."""

from typing import Any

from pyqd.tcp.server import AT_ONCE, BUDGET_S, ClosingQueue


class Loop:
    """A loop whose passes the test makes."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.timers: list[Any] = []

    def now(self) -> float:
        return self.now_s

    def timer(self, _after: float, *, priority: int) -> "Loop":
        assert priority < 0, "sockets come first"
        return self

    def start(self, callback: Any) -> None:
        self.timers.append(callback)

    def run_pass(self) -> None:
        self.now_s += 1
        timers, self.timers = self.timers, []
        for callback in timers:
            callback()


class Bench:
    """Connections, here numbers, and the order in which they were closed. cost_s: of closing one."""

    def __init__(self, cost_s: float) -> None:
        self.loop = Loop()
        self.closed: list[int] = []
        self.spent_s = 0.0
        self.cost_s = cost_s
        hub: Any = type("Hub", (), {"loop": self.loop})()
        self.closing = ClosingQueue(hub, self.close, lambda: self.spent_s)

    def close(self, connection: Any) -> None:
        self.closed.append(connection)
        self.spent_s += self.cost_s

    def add(self, count: int) -> None:
        for number in range(count):
            connection: Any = number
            self.closing.add(connection)


def test_a_few_are_closed_at_once() -> None:
    bench = Bench(BUDGET_S)
    bench.add(AT_ONCE)
    assert bench.closed == list(range(AT_ONCE))
    assert not bench.loop.timers


def test_many_are_closed_in_turns_and_in_order() -> None:
    bench = Bench(BUDGET_S / 4)
    bench.add(AT_ONCE + 10)
    assert len(bench.closed) == AT_ONCE
    counts = []
    while bench.loop.timers:
        before = len(bench.closed)
        bench.loop.run_pass()
        counts.append(len(bench.closed) - before)
    assert counts == [4, 4, 2]
    assert bench.closed == list(range(AT_ONCE + 10))


def test_those_added_while_others_wait_come_behind_them() -> None:
    bench = Bench(2 * BUDGET_S)
    bench.add(AT_ONCE + 2)
    bench.loop.run_pass()
    connection: Any = 99
    bench.closing.add(connection)
    while bench.loop.timers:
        bench.loop.run_pass()
    assert bench.closed == [*range(AT_ONCE + 2), 99]
