"""Scheduler of wakes, once per pass of the loop, and of timers.

Publishing wakes channels, FIN frees in-flight slots, and an unblocked socket can take more bytes. Each schedules a
wake. All wakes of one pass run together, so that messages which arrived in between leave in one send. Times (message
timeouts, deferred messages, heartbeats) share one heap and one timer of the loop, armed at the earliest. A timer is set
to the earliest time at which something *may* be due; the called item checks and sets its timer again. So the hot path
never moves a timer later.

All wakes of one pass of the loop share one budget of work, `work_left`: deliveries deduct the bytes they send, long
work deducts the bytes it passes over. An item with long work does a slice, notes its place, and schedules another wake.
Items whose wake did not run when the budget is used up are first in the next pass. The loop polls in between, so no
client waits longer than for one budget and one slice.

Channels with messages to deliver take *turns*: a wake that delivers a bounded number of bytes, and asks for another
turn if more can be delivered. Turns of one pass go round, first in, first out, until the budget is used up, and go on
there in the next pass. So between two turns of a channel every other one that waits has a turn, and the channels
deliver as much in a pass as its publishers may have stored.

The budget counts work, so a test does the same on each machine. The time for the same work differs by ten times and
more: the first touch of a page that the host has taken back costs 30 us. So the daemon also sets `time_max_ns`: the
budget comes in portions, and no portion begins after that time. Without this limit, portions make no difference.

The loop itself is above this layer and is called through two callables.

Invariants: 1. An item is in `wanting` or in `turns`, once, exactly if `wake_wanted`. 2. `armed_ns` is at most the
earliest deadline. 3. Each run calls at least one item, so every item is called in the end.
"""

cimport cython
from libc.stdint cimport INT64_MAX

from pyqd.hot.primitives.clock cimport mono_ns
from pyqd.hot.primitives.heap cimport ABSENT


cdef class Scheduled:
    """Item of the scheduler. Subclasses override `wake` and `on_time`."""

    def __cinit__(self):
        self.timer = ABSENT

    cdef int wake(self) except -1:
        raise AssertionError(f"{type(self).__name__} was woken, but does not implement wake")

    cdef int on_time(self, int64_t now_ns) except -1:
        raise AssertionError(f"the timer of {type(self).__name__} has run, but it does not implement on_time")


@cython.final
cdef class Scheduler:
    """List of items with a scheduled wake, and heap of items with a timer.

    The arguments are described in pyqd/hot/primitives/schedule.pxd.
    """

    def __init__(self, on_wake_wanted=None, on_timer_wanted=None, on_error=None, int64_t time_max_ns=0):
        self.on_wake_wanted = on_wake_wanted
        self.on_timer_wanted = on_timer_wanted
        self.on_error = on_error
        self.time_max_ns = time_max_ns
        self.wanting = []
        self.turns = []
        self.deadlines = DeadlineHeap()
        self.timed = []
        self.free_slots = []
        self.armed_ns = INT64_MAX
        self.begin_pass()

    cdef int begin_pass(self) noexcept:
        self.work_left = WORK_PORTION
        self.work_behind = WORK_PER_PASS - WORK_PORTION
        self.end_ns = INT64_MAX if self.time_max_ns == 0 else mono_ns() + self.time_max_ns
        return 0

    cdef bint next_portion(self) noexcept:
        """Begin another portion of this pass's work. Returns: False if work or time is used up."""
        cdef int64_t portion = min(self.work_behind, WORK_PORTION - self.work_left)
        if self.work_left + self.work_behind <= 0:
            return False
        if self.end_ns != INT64_MAX and mono_ns() >= self.end_ns:
            self.work_behind = 0
            return False
        self.work_left += portion
        self.work_behind -= portion
        return True

    cdef int request_wake(self, Scheduled item) except -1:
        """Schedule the item's wake for this pass or the next. A second request before the wake has no effect."""
        if not item.wake_wanted:
            item.wake_wanted = True
            self.wanting.append(item)
            if len(self.wanting) == 1 and self.on_wake_wanted is not None:
                self.on_wake_wanted()
        return 0

    cdef int request_turn(self, Scheduled item) except -1:
        """Schedule the item's wake behind the turns that wait: in this pass, if its budget lasts until then."""
        if not self.running:
            return self.request_wake(item)
        if not item.wake_wanted:
            item.wake_wanted = True
            self.turns.append(item)
        return 0

    def run_wakes(self):
        """Wake the scheduled items, and those that ask for a turn, as far as the budget goes.

        An error of one item goes to `on_error` and does not stop the others. Returns: how many wakes were run.
        """
        cdef list items = self.wanting
        cdef list remaining
        cdef Py_ssize_t woken, count = 0
        self.wanting = []
        self.begin_pass()
        self.running = True
        try:
            while True:
                woken = self.wake_each(items)
                count += woken
                remaining = items[woken:]
                items, self.turns = self.turns, []
                if remaining or not items or not self.has_work():
                    break
        finally:
            self.running = False
        if remaining or items:
            self.defer_remaining(remaining + items)
        return count

    cdef Py_ssize_t wake_each(self, list items) except -1:
        """Wake items in order until the budget is used up. Returns: how many."""
        cdef Scheduled item
        cdef Py_ssize_t count = 0
        for item in items:
            item.wake_wanted = False
            count += 1
            try:
                item.wake()
            except Exception as error:
                self.report(error)
            if not self.spend(WAKE_WORK):
                break
        return count

    cdef int defer_remaining(self, list items) except -1:
        """Put items that were not woken first in the next pass."""
        cdef bint is_first = len(self.wanting) == 0
        self.wanting = items + self.wanting
        if is_first and self.on_wake_wanted is not None:
            self.on_wake_wanted()
        return 0

    def report(self, error):
        """Pass an error to `on_error`; raise it if that is None."""
        if self.on_error is None:
            raise error
        self.on_error(error)

    cdef int set_timer(self, Scheduled item, int64_t due_ns) except -1:
        """Call the item's `on_time` at `due_ns` (monotonic) at the latest. An earlier time that is already set
        stays.
        """
        if item.timer == <uint32_t> ABSENT:
            item.timer = self.take_slot(item)
            self.deadlines.push(item.timer, due_ns)
        elif due_ns < self.deadlines.due_of(item.timer):
            self.deadlines.update(item.timer, due_ns)
        if due_ns < self.armed_ns:
            self.armed_ns = due_ns
            if self.on_timer_wanted is not None:
                self.on_timer_wanted(due_ns)
        return 0

    def take_slot(self, Scheduled item):
        cdef uint32_t slot
        if self.free_slots:
            slot = self.free_slots.pop()
            self.timed[slot] = item
            return slot
        slot = <uint32_t> len(self.timed)
        if slot >= self.deadlines.slot_count_max:
            self.deadlines.reserve(max(64, 2 * slot))
        self.timed.append(item)
        return slot

    cdef int drop_timer(self, Scheduled item) except -1:
        cdef uint32_t slot = item.timer
        if slot != <uint32_t> ABSENT:
            self.deadlines.remove(slot)
            self.release_slot(slot, item)
        return 0

    def release_slot(self, uint32_t slot, Scheduled item):
        self.timed[slot] = None
        self.free_slots.append(slot)
        item.timer = ABSENT

    def run_timers(self, int64_t now_ns):
        """Call the items whose time has come, as far as the budget goes.

        Returns: the next time (monotonic ns) to call this method, which may have passed, or None.
        """
        cdef Scheduled item
        cdef uint32_t slot
        self.begin_pass()
        while self.deadlines.peek_due() <= now_ns and self.has_work():
            slot = self.deadlines.pop()
            item = self.timed[slot]
            self.release_slot(slot, item)
            try:
                item.on_time(now_ns)
            except Exception as error:
                self.report(error)
        self.armed_ns = self.deadlines.peek_due()
        return None if self.armed_ns == INT64_MAX else self.armed_ns
