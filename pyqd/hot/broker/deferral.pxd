from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from pyqd.hot.broker.log_cursor cimport LogCursor
from pyqd.hot.broker.readable_log cimport ReadableLog
from pyqd.hot.diskqueue.ledger cimport Ledger
from pyqd.hot.diskqueue.log cimport Log
from pyqd.hot.diskqueue.logreader cimport LogReader
from pyqd.hot.diskqueue.notefiles cimport Note
from pyqd.hot.diskqueue.notes cimport NO_NOTE, Notes
from pyqd.hot.diskqueue.presence cimport Presence
from pyqd.hot.diskqueue.segment cimport Segment
from pyqd.hot.primitives.dueheap cimport DueHeap
from pyqd.hot.primitives.heap cimport DeadlineHeap
from pyqd.hot.wire.record cimport Record

cdef class Deferral:
    cdef LogCursor cursor
    cdef Log log                         # the topic's
    cdef LogReader reader                # finds records whose places are not in their notes
    cdef object files                    # ChannelFiles: opens the notes
    cdef readonly Notes notes            # None until there is one
    cdef DeadlineHeap waiting            # by slot of the note; Unix ns, odd after a requeue with a delay
    cdef DueHeap published               # by ordinal of the record; Unix ns
    cdef uint64_t dues_seen              # index in the topic's dues: those from there on are unseen
    cdef int64_t released_ns             # the greatest due time of an entry that has left `published`
    cdef set superseded                  # ordinals of records that wait by a note, and have a void entry of dues yet
    cdef int64_t wall_ahead_ns           # the wall clock less the monotonic one, to which the odd ones belong
    cdef uint64_t defer_count            # since the start: messages that were given a due time
    cdef Presence presence               # of the pages of the record that is due next; None until one is due

    cdef inline int64_t next_due(self) noexcept:
        return min(self.waiting.peek_due(), self.published.peek_due())

    cdef inline bint is_being_read(self) noexcept:
        # Return whether the record that is due next waits for a thread that reads it.
        return self.presence is not None and self.presence.reads

    cpdef int adopt(self, Notes notes) except -1
    cdef int open(self) except -1
    cdef uint64_t place_of(self, const Record* record) noexcept
    cdef uint64_t hinted_offset(self, const Note* note, Segment segment) noexcept
    cdef bint is_present(self, Presence presence, const Note* note, uint64_t length) except -1
    cdef const Record* record_of(self, const Note* note) except? NULL
    cdef uint32_t put(self, const Record* record, uint8_t kind, uint16_t attempts, int64_t due_ns) except NO_NOTE
    cdef uint32_t defer(
        self, const Record* record, uint16_t attempts, int64_t due_ns, uint32_t former) except NO_NOTE
    cdef uint32_t delay(
        self, const Record* record, uint16_t attempts, int64_t delay_ns, uint32_t former) except NO_NOTE
    cdef uint32_t defer_as(
        self, const Record* record, uint16_t attempts, int64_t due_ns, int64_t waits_until_ns, uint32_t former,
    ) except NO_NOTE
    cdef int wait_for(self, uint32_t slot, int64_t due_ns) except -1
    cdef int override(self, const Record* record, int64_t due_ns) except -1
    cdef int add_overridden(self, uint64_t ordinal) except -1
    cdef int supersede(self, const Record* record, int64_t due_ns) except -1
    cdef uint64_t superseded_end(self) except? 0
    cdef int forget(self, uint32_t slot) except -1
    cdef int follow_clock(self, int64_t wall_now_ns) except -1
    cdef bint is_next_present(self) except -1
    cdef bint see(self) except -1
    cdef int see_to(self, uint64_t end) except -1
    cdef bint drops_void(self, uint64_t ordinal) except -1
    cdef bint is_void(self, uint64_t ordinal) except -1
    cdef int begin(self, bint from_cursor) except -1
    cdef uint32_t next_note(self) except? NO_NOTE
    cdef const Note* next_entry(self) except NULL
    cdef bint drops_next_void(self) except -1
    cdef int drop_lost(self) except -1
    cdef int pop_published(self) except -1
    cdef const Note* entry_of(self, uint64_t ordinal) except NULL
    cdef uint64_t count(self) noexcept
    cdef int64_t find_waiting(self, uint64_t seq, uint64_t start, uint64_t end) except? -1
    cdef int drop_all(self) except -1
    cdef int clear(self) except -1
    cdef int abandon(self) except -1
