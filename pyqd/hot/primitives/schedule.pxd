# Who wants a turn, now or at a time. Design notes: pyx/primitives/schedule.pyx.
from libc.stdint cimport int64_t, uint32_t, uint64_t

from pyqd.hot.primitives.heap cimport DeadlineHeap

cdef enum:
    # What one turn of the loop may do, in units of some nanoseconds: about a byte copied, or looked at and passed over.
    # Full, a turn takes a few milliseconds; a lone item may overdraw it by its own bounded piece of work.
    WORK_PER_TURN = 1 << 20
    # The time is read before each portion: some tenths of a millisecond.
    WORK_PORTION = 1 << 16

cdef class Scheduled:
    cdef bint wake_wanted                # in the scheduler's list, and not yet called
    cdef uint32_t timer                  # slot in the scheduler's heap; ABSENT when it has none
    cdef int wake(self) except -1                     # a turn, once per pass of the loop; never switches greenlets
    cdef int on_time(self, int64_t now_ns) except -1  # the time asked for has come; may be early, never late

cdef class Scheduler:
    cdef public object on_wake_wanted    # called without arguments when the list gets its first entry; may be None
    cdef public object on_timer_wanted   # called with a monotonic time in ns when the earliest moved up; may be None
    cdef public object on_error          # called with what a turn raised; None: it is raised
    cdef list wanting
    cdef DeadlineHeap deadlines          # monotonic ns
    cdef list timed                      # by slot: Scheduled or None
    cdef list free_slots
    cdef int64_t armed_ns                # what on_timer_wanted was told last; INT64_MAX when nothing
    cdef public int64_t time_max_ns      # that a turn may take, beside the portion that exceeds it; 0: without a limit
    cdef int64_t work_left               # of the present portion of this turn's work; nothing or less: it is used up
    cdef int64_t work_behind             # of this turn's work, in portions to come
    cdef int64_t end_ns                  # monotonic: no portion is begun from here on; INT64_MAX without a limit

    cdef inline bint has_work(self) noexcept:
        # Say whether this turn may do more; if not, what can wait waits for the next.
        return self.work_left > 0 or self.next_portion()

    cdef inline bint spend(self, int64_t work) noexcept:
        # Take work off what this turn may do. Returns: as has_work.
        self.work_left -= work
        return self.work_left > 0 or self.next_portion()

    cdef inline bint affords(self, uint64_t work) noexcept:
        # Say whether this turn may still do so much at once.
        return self.has_work() and work <= <uint64_t> (self.work_left + self.work_behind)

    cdef int begin_turn(self) noexcept
    cdef bint next_portion(self) noexcept
    cdef int request_wake(self, Scheduled item) except -1
    cdef int set_timer(self, Scheduled item, int64_t due_ns) except -1
    cdef int drop_timer(self, Scheduled item) except -1
    cdef int put_off(self, list items) except -1
