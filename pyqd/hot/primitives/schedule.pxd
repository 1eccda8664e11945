from libc.stdint cimport int64_t, uint32_t, uint64_t

from pyqd.hot.primitives.heap cimport DeadlineHeap

cdef enum:
    # Budget of one pass of the loop, in units of some nanoseconds: about a byte copied, or a byte passed over. A full
    # budget takes a few milliseconds; a lone item may overdraw it by its own bounded slice of work.
    WORK_PER_PASS = 1 << 20
    # Of a wake, beside the work that it deducts itself.
    WAKE_WORK = 64
    # The time is read before each portion: some tenths of a millisecond.
    WORK_PORTION = 1 << 16

cdef class Scheduled:
    cdef bint wake_wanted                # in the scheduler's list, and not yet called
    cdef uint32_t timer                  # slot in the scheduler's heap; ABSENT if it has none
    cdef int wake(self) except -1                     # run once per pass of the loop; never switches greenlets
    cdef int on_time(self, int64_t now_ns) except -1  # the set time has come; may be early, never late

cdef class Scheduler:
    cdef public object on_wake_wanted    # called without arguments on the first entry in the list; may be None
    cdef public object on_timer_wanted   # called with a monotonic time in ns if the earliest moved up; may be None
    cdef public object on_error          # called with the error of an item; None: the error is raised
    cdef list wanting
    cdef list turns                      # asked for in this run of wakes
    cdef bint running                    # in `run_wakes`
    cdef DeadlineHeap deadlines          # monotonic ns
    cdef list timed                      # by slot: Scheduled or None
    cdef list free_slots
    cdef int64_t armed_ns                # last argument of on_timer_wanted; INT64_MAX if there is none
    cdef public int64_t time_max_ns      # longest time of a pass, beside the portion that exceeds it; 0: no limit
    cdef int64_t work_left               # of the current portion of this pass's work; 0 or less: used up
    cdef int64_t work_behind             # of this pass's work, in later portions
    cdef int64_t end_ns                  # monotonic: no portion begins after it; INT64_MAX without a limit

    cdef inline bint has_work(self) noexcept:
        # Return whether this pass may do more work; if not, work that can wait is left for the next pass.
        return self.work_left > 0 or self.next_portion()

    cdef inline bint spend(self, int64_t work) noexcept:
        # Deduct work from the budget of this pass. Returns: as has_work.
        self.work_left -= work
        return self.work_left > 0 or self.next_portion()

    cdef int begin_pass(self) noexcept
    cdef bint next_portion(self) noexcept
    cdef int request_wake(self, Scheduled item) except -1
    cdef int request_turn(self, Scheduled item) except -1
    cdef Py_ssize_t wake_each(self, list items) except -1
    cdef int set_timer(self, Scheduled item, int64_t due_ns) except -1
    cdef int drop_timer(self, Scheduled item) except -1
    cdef int defer_remaining(self, list items) except -1
