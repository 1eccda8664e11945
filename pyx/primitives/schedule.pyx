"""Who wants a turn: now (once per pass of the loop), or at a time.

Publishing wakes channels, acknowledging frees room, an unblocked socket can take more: each asks for a turn, and all
turns of one pass run together, so that what arrived in between leaves in one send. Times (message timeouts, deferred
messages, heartbeats) share one heap and one timer of the loop, armed at the earliest. A timer is set to the earliest
moment something *may* be due; whoever is called looks, and asks again. So the hot path never moves a timer later.

All turns of one pass of the loop share one budget of work, `work_left`, however many items want turns and whatever each
has to do: deliveries take off the bytes they send, long work what it walks over. An item with long work does a slice of
it, notes where it stands, and asks for another turn. Items whose turn has not come when the budget is used up are first
in the next. The loop polls in between, so nobody waits for more than one budget and one slice.

The budget counts work, so a test does the same on each machine. How long the same work takes differs by ten times and
more: a page that the host has taken back costs 30 us when it is touched first. So the daemon sets `time_max_ns` as
well: the budget comes in portions, and none is begun after that time. Without a limit, portions make no difference.

The loop itself is above this layer: it comes in as two callables.

Invariants: 1. an item is in `wanting` once, exactly when `wake_wanted`. 2. `armed_ns` is at most the earliest deadline.
3. each run calls one item at least, so everything comes to its turn.
"""

cimport cython
from libc.stdint cimport INT64_MAX

from pyqd.hot.primitives.clock cimport mono_ns
from pyqd.hot.primitives.heap cimport ABSENT


cdef class Scheduled:
    """Something that gets turns. Subclasses fill in `wake` and `on_time`."""

    def __cinit__(self):
        self.timer = ABSENT

    cdef int wake(self) except -1:
        raise AssertionError("no turn was expected")

    cdef int on_time(self, int64_t now_ns) except -1:
        raise AssertionError("no timer was expected")


@cython.final
cdef class Scheduler:
    """The list of who wants a turn and the heap of who waits for a time."""

    def __init__(self):
        self.wanting = []
        self.deadlines = DeadlineHeap()
        self.timed = []
        self.free_slots = []
        self.armed_ns = INT64_MAX
        self.begin_turn()

    cdef int begin_turn(self) noexcept:
        """Have all the work of a turn ahead."""
        self.work_left = WORK_PORTION
        self.work_behind = WORK_PER_TURN - WORK_PORTION
        self.end_ns = INT64_MAX if self.time_max_ns == 0 else mono_ns() + self.time_max_ns
        return 0

    cdef bint next_portion(self) noexcept:
        """Begin with another portion of this turn's work. Returns: False if work or time is used up."""
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
        """Give the item a turn in this pass or the next; asking twice is asking once."""
        if not item.wake_wanted:
            item.wake_wanted = True
            self.wanting.append(item)
            if len(self.wanting) == 1 and self.on_wake_wanted is not None:
                self.on_wake_wanted()
        return 0

    def run_wakes(self):
        """Give a turn to everyone who asked until now, as far as the work goes. Returns: how many had one.

        What one turn raises goes to `on_error` and does not cost the others theirs.
        """
        cdef Scheduled item
        cdef Py_ssize_t count = 0
        wanting = self.wanting
        self.wanting = []
        self.begin_turn()
        for item in wanting:
            item.wake_wanted = False
            count += 1
            try:
                item.wake()
            except Exception as error:
                self.report(error)
            if not self.has_work():
                break
        if count < len(wanting):
            self.put_off(wanting[count:])
        return count

    cdef int put_off(self, list items) except -1:
        """Let items that had no turn come first in the next."""
        cdef bint is_first = len(self.wanting) == 0
        self.wanting = items + self.wanting
        if is_first and self.on_wake_wanted is not None:
            self.on_wake_wanted()
        return 0

    def report(self, error):
        """Tell `on_error`, or raise where nobody listens."""
        if self.on_error is None:
            raise error
        self.on_error(error)

    cdef int set_timer(self, Scheduled item, int64_t due_ns) except -1:
        """Call the item's `on_time` at `due_ns` (monotonic) at the latest; an earlier time it has already stands."""
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
        """Forget the item's time."""
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
        """Call everyone whose time has come, as far as the work goes.

        Returns: the next time (monotonic ns) to call this, which may have passed, or None.
        """
        cdef Scheduled item
        cdef uint32_t slot
        self.begin_turn()
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
