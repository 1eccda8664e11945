"""Tests of pyqd.net.slice_queue."""

import socket
from functools import partial

import gevent
import pytest
from greenlet import getcurrent

from pyqd.net.slice_queue import BUDGET_S, READ_EVENT, SliceQueue


class Clock:
    """A clock that goes on when a piece says so."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Passes:
    """Greenlets that do slices of work, and in which pass of the loop each slice was."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.queue = SliceQueue(gevent.get_hub(), self.clock)
        self.passes: list[list[str]] = []
        self.run = self.queue._run
        self.queue._run = self.note_pass  # type: ignore[method-assign]

    def note_pass(self) -> None:
        self.passes.append([])
        self.run()

    def work(self, name: str, count: int, piece_s: float) -> None:
        for _ in range(count):
            self.queue.wait()
            self.passes[-1].append(name)
            self.clock.now_s += piece_s


@pytest.fixture
def passes():
    return Passes()


def run_together(functions):
    """Run greenlets that all begin in one callback. gevent spreads new greenlets over passes if one takes over 5 ms."""
    hub = gevent.get_hub()
    parked = []

    def park(function):
        parked.append(getcurrent())
        hub.switch()
        function()

    def begin():
        # The loop's time is that of its last pass, which may be that of another test, minutes ago.
        hub.loop.update_now()
        for each in parked:
            each.switch()

    greenlets = [gevent.spawn(park, function) for function in functions]
    while len(parked) < len(greenlets):
        gevent.sleep(0)
    hub.loop.run_callback(begin)
    gevent.joinall(greenlets, timeout=50, raise_error=True)
    assert all(each.dead for each in greenlets)


def run(passes, names, count, piece_s):
    run_together([partial(passes.work, name, count, piece_s) for name in names])


def test_slices_of_one_pass_share_the_budget_however_many_greenlets_there_are(passes):
    run(passes, "abcdef", 2, BUDGET_S / 2)
    assert passes.passes == [["a", "b"], ["c", "d"], ["e", "f"]] * 2


def test_a_piece_above_the_budget_is_alone_in_its_pass(passes):
    run(passes, "abc", 2, 2 * BUDGET_S)
    assert passes.passes == [["a"], ["b"], ["c"]] * 2


def test_a_greenlet_has_one_turn_in_a_pass(passes):
    run(passes, "a", 3, 0.0)
    assert passes.passes == [["a"]] * 3


def test_a_greenlet_that_is_killed_while_it_waits_leaves_the_turns_to_the_others(passes):
    killed = gevent.spawn(passes.work, "killed", 1, 0.0)
    other = gevent.spawn(passes.work, "other", 1, 0.0)
    gevent.spawn(killed.kill)
    gevent.joinall([killed, other], timeout=50, raise_error=True)
    assert [name for names in passes.passes for name in names][-1] == "other"
    assert other.dead


def test_a_lone_slice_runs_at_once_and_many_slices_of_one_pass_share_the_budget(passes):
    at_once: list[str] = []

    def work(name: str) -> None:
        passes.queue.wait_if_busy()
        if not passes.passes:
            at_once.append(name)
        else:
            passes.passes[-1].append(name)
        passes.clock.now_s += BUDGET_S / 2

    run_together([partial(work, name) for name in "abcdef"])
    assert at_once == ["a", "b"]
    assert passes.passes == [["c", "d"], ["e", "f"]]


def test_a_socket_that_becomes_readable_during_a_slice_is_served_before_the_next_slice(passes):
    ours, theirs = socket.socketpair()
    served: list[str] = []
    hub = gevent.get_hub()
    watcher = hub.loop.io(ours.fileno(), READ_EVENT)

    def serve() -> None:
        watcher.stop()
        served.append("socket")

    def work() -> None:
        for number in range(3):
            passes.queue.wait()
            served.append(f"slice {number}")
            if number == 1:
                theirs.send(b"x")

    with ours, theirs:
        watcher.start(serve)
        run_together([work])
        watcher.close()
    assert served == ["slice 0", "slice 1", "socket", "slice 2"]


def test_short_slices_and_long_ones_of_one_pass_share_the_budget(passes):
    done: list[tuple[int, str]] = []

    def long_work() -> None:
        passes.queue.wait()
        done.append((len(passes.passes), "long"))
        passes.clock.now_s += BUDGET_S
        # In the callbacks behind this slice, which belong to the same pass.
        gevent.spawn(short_work)
        gevent.spawn(short_work)

    def short_work() -> None:
        passes.queue.wait_if_busy()
        done.append((len(passes.passes), "short"))

    run_together([long_work])
    gevent.sleep(0.01)
    assert done == [(1, "long"), (2, "short"), (2, "short")]
