from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from pyqd.hot.broker.log_cursor cimport LogCursor
from pyqd.hot.diskqueue.log cimport Log
from pyqd.hot.diskqueue.logreader cimport LogReader
from pyqd.hot.diskqueue.notes cimport NO_NOTE, Note, Notes
from pyqd.hot.diskqueue.presence cimport Presence
from pyqd.hot.diskqueue.segment cimport Segment
from pyqd.hot.primitives.heap cimport DeadlineHeap
from pyqd.hot.wire.record cimport Record

cdef class Deferral:
    cdef LogCursor cursor
    cdef Log log                         # the topic's
    cdef LogReader reader                # finds records whose places are not in their notes
    cdef object files                    # ChannelFiles: opens the notes
    cdef readonly Notes notes            # None until there is one
    cdef DeadlineHeap waiting            # by slot of the note; Unix ns, odd after a requeue with a delay
    cdef int64_t wall_ahead_ns           # the wall clock less the monotonic one, to which the odd ones belong
    cdef uint64_t defer_count            # since the start: messages that were given a due time
    cdef Presence presence               # of the pages of the record that is due next; None until one is due

    cdef inline int64_t next_due(self) noexcept:
        return self.waiting.peek_due()

    cdef inline bint is_being_read(self) noexcept:
        # Return whether the record that is due next waits for a thread that reads it.
        return self.presence is not None and self.presence.reads

    cpdef int adopt(self, Notes notes) except -1
    cdef int open(self) except -1
    cdef uint64_t place_of(self, const Record* record) noexcept
    cdef uint64_t hinted_offset(self, const Note* note, Segment segment) noexcept
    cdef bint is_present(self, Presence presence, uint32_t slot, uint64_t length) except -1
    cdef const Record* record_of(self, uint32_t slot) except? NULL
    cdef uint32_t put(self, const Record* record, uint8_t kind, uint16_t attempts, int64_t due_ns) except NO_NOTE
    cdef uint32_t defer(
        self, const Record* record, uint16_t attempts, int64_t due_ns, uint32_t former, bint is_delay=*) except NO_NOTE
    cdef int wait_for(self, uint32_t slot, int64_t due_ns) except -1
    cdef int override(self, const Record* record, int64_t due_ns) except -1
    cdef int add_overridden(self, uint64_t ordinal) except -1
    cdef int forget(self, uint32_t slot) except -1
    cdef int follow_clock(self, int64_t wall_now_ns) except -1
    cdef bint is_next_present(self) except -1
    cdef uint32_t pop_due(self) except NO_NOTE
    cdef int64_t find_waiting(self, uint64_t seq, uint64_t start, uint64_t end) except? -1
    cdef int drop_all(self) except -1
    cdef int abandon(self) except -1
