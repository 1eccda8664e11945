# What a channel has still to read of its topic's log, and what it parks. Design notes: pyx/broker/cursor.pyx.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from pyqd.hot.broker.feed cimport Feed
from pyqd.hot.diskqueue.ledger cimport Ledger
from pyqd.hot.diskqueue.log cimport Position
from pyqd.hot.diskqueue.segment cimport Segment
from pyqd.hot.primitives.schedule cimport Scheduled
from pyqd.hot.wire.record cimport Record

cdef enum:
    # As work of a turn: parking a record, beside its bytes; making the files of a parked log.
    PARK_WORK = 150
    OPEN_WORK = 200000

cdef class ChannelCursor(Scheduled):
    cdef readonly Feed feed
    cdef readonly Ledger ledger
    cdef Segment segment                 # of the cursor
    cdef uint64_t offset                 # of the cursor in it
    cdef public object parked            # Parked, or None until something is
    cdef uint64_t unsettled_ahead        # parked and not settled, at or past the cursor; see pyx/broker/parked.pyx
    cdef set moved_ahead                 # ordinals of those of them whose turn was put off by id; None: there are none
    cdef public bint parks_durably       # what is parked is settled by whoever syncs, not at once
    cdef uint64_t deferred_seen          # of the feed's deferred_count: those parked, handed out or finished here
    cdef uint64_t counted_from           # ordinal; deferred records below it are in neither of these two counts
    cdef uint64_t uncounted_end          # such records that are not parked may lie below it; 0: there are none
    cdef Segment walk_segment            # if the channel lags: where it goes on parking; None: at the cursor
    cdef uint64_t walk_offset
    cdef uint64_t walk_ordinal
    cdef bint stuck                      # what lags could not be parked for want of room
    cdef uint64_t settle_end             # parked records below are on stable storage, so their origins can be settled
    cdef bint parking                    # it is in the feed's `parking`
    cdef bint held_up                    # a record could not be finished for want of room: a timer retries it

    # How many deferred messages the channel has been shown that are not parked yet.
    cdef inline uint64_t pending(self) noexcept:
        return self.feed.deferred_count - self.deferred_seen

    cdef inline bint lags(self) noexcept:
        return self.feed.deferred_count != self.deferred_seen or self.uncounted_end != 0

    cdef int lag_from(self, Segment segment, uint64_t offset, uint64_t ordinal) except -1
    cdef int lag_uncounted(self, Position position, uint64_t end) except -1
    cdef int lag_counted(self, Position position, uint64_t count) except -1
    cdef int walk_to(self, Segment segment, uint64_t offset, uint64_t ordinal) except -1
    cdef int catch_up(self, bint whole) except -1
    cdef const Record* next_walked(self) except? NULL
    cdef int stay_behind(self, error) except -1
    cdef int forget_lag(self) except -1
    cdef int pass_deferred(self, uint64_t ordinal) noexcept
    cdef int settle_some(self, bint whole) except -1
    cdef int settle_to(self, uint64_t end) except -1
    cdef bint is_sound(self, Segment segment, uint64_t offset, uint64_t ordinal) except -1
    cdef const Record* take_at_cursor(self) except? NULL
    cdef bint cursor_is_sound(self, const Record* record) except -1
    cdef bint step_over_deferred(self, const Record* record) except -1
    cdef bint is_origin_ahead(self, const Record* record) except -1
    cdef bint is_moved(self, uint64_t ordinal) except -1
    cdef int forget_ahead(self, uint64_t ordinal) except -1
    cdef int leave_drained(self) except -1
    cdef int note_cursor(self) except -1
    cdef Ledger ledger_of(self, uint8_t source)
    cdef int reach(self, const Record* record, uint8_t source) except -1
    cdef bint try_finish_at_cursor(self) except -1
    cdef int finish_missing(self, uint64_t start, uint64_t end) except -1
    cdef int retry_soon(self) except -1
    cdef int finish_record(self, const Record* record, uint8_t source) except -1
    cdef int note_drained(self) except -1
    cdef int park(self, const Record* record, uint8_t source, uint16_t attempts, int64_t due_ns) except -1
    cdef int settle_unless_durable(self) except -1
    cdef int note_parking(self) except -1
    cdef int note_all_settled(self) except -1
    cdef bint skip_finished(self) except -1
    cdef int note_finished_ahead(self) except -1
    cdef int settle_in(self, Ledger ledger, uint64_t ordinal) except -1
    cdef int prepare_park(self, uint64_t span_bytes, uint64_t ordinal) except -1
    cdef int prepare_park_batch(self, uint64_t span_bytes, uint32_t count, uint64_t last_ordinal) except -1
    cdef int park_batch(self, const Record* first, uint32_t count) except -1
    cdef bint try_park_published(self, const Record* record, uint16_t attempts) except -1
    cdef int park_published(self, const Record* record, uint16_t attempts) except -1
    cdef bint is_parked(self, const Record* record) noexcept
    cdef int set_next_timer(self, int64_t now_ns) except -1
