from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from pyqd.hot.broker.log_cursor cimport LogCursor
from pyqd.hot.broker.parked_log cimport ParkedLog
from pyqd.hot.broker.readable_log cimport ReadableLog
from pyqd.hot.broker.slots cimport FROM_TOPIC
from pyqd.hot.diskqueue.ledger cimport Ledger
from pyqd.hot.diskqueue.log cimport Log, Position
from pyqd.hot.diskqueue.presence cimport Presence
from pyqd.hot.diskqueue.segment cimport Segment
from pyqd.hot.wire.record cimport Record, record_ordinal

cdef enum:
    # In units of work: parking a record, beside its bytes; making the files of a parked log.
    PARK_WORK = 150
    OPEN_WORK = 200000

cdef enum Progress:
    CAUGHT_UP = 0                        # nothing lags any more
    MORE_TO_PARK = 1                     # the work budget of this pass is used up
    NO_SPACE_TO_PARK = 2                 # a timer has to retry
    WINDOW_TOO_SMALL = 3                   # the ledger has to reach `beyond` first
    PAGES_ABSENT = 4                     # a thread has to read pages first, those in `presence`

cdef class Parking:
    cdef ReadableLog readable
    cdef Ledger ledger                   # of the topic's log
    cdef LogCursor cursor
    cdef object files                    # ChannelFiles: opens the parked log, and logs failures
    cdef readonly ParkedLog parked       # None until a message is parked
    cdef public bint durable             # origins are settled by syncs, not at once
    cdef uint64_t settle_end             # parked records below are durable, their origins not all settled; 0: none
    cdef uint64_t unsettled_ahead        # origins at or past the cursor that are not settled
    # Lag: deferred records that are readable and not parked yet.
    cdef uint64_t deferred_seen          # of the ReadableLog's deferred_count: those parked, handed out or finished
    cdef uint64_t counted_from           # ordinal; deferred records below it are in neither of these two counts
    cdef uint64_t uncounted_end          # uncounted deferred records may lie below this ordinal; 0: there are none
    cdef Segment walk_segment            # parking goes on at this place; None: at the cursor
    cdef uint64_t walk_offset
    cdef uint64_t walk_ordinal
    cdef Presence presence               # of the pages at the walk's place; None until there is a walk
    cdef bint stuck                      # there was no space to park, and that is logged
    cdef uint64_t beyond                 # with WINDOW_TOO_SMALL: ordinal
    cdef bint grows_at_once              # the ledger could not grow in a thread: parking grows it on the spot

    cdef inline uint64_t pending(self) noexcept:
        # Count the deferred messages that are readable, counted and not parked yet.
        return self.readable.deferred_count - self.deferred_seen

    cdef inline uint64_t queued_count(self) noexcept:
        # Count the messages of the topic's log that were neither handed out nor deferred.
        return (
            self.readable.end - self.ledger.header.cursor - self.ledger.ahead - self.unsettled_ahead - self.pending()
            - self.cursor.overridden_count())

    cdef inline bint lags(self) noexcept:
        return self.readable.deferred_count != self.deferred_seen or self.uncounted_end != 0

    cdef inline bint is_current(self, uint64_t deferred_count) noexcept:
        # Return True if nothing lagged when `deferred_count` had this value.
        return self.deferred_seen == deferred_count and self.uncounted_end == 0

    cdef inline bint is_parked(self, const Record* record) noexcept:
        # Return True if an earlier run ended between parking the message and finishing this record of it.
        return self.parked is not None and self.parked.has_duplicate(record)

    cdef inline uint64_t waiting_count(self) noexcept:
        # Count the messages in the parked log that wait for their due time.
        return 0 if self.parked is None else self.parked.count()

    cdef inline uint64_t parked_end(self) noexcept:
        return 0 if self.parked is None else self.parked.log.end

    cdef inline bint awaits_sync(self) noexcept:
        # Return True if there are origins that a sync settles.
        return self.durable and self.parked is not None and self.parked.unsettled() != 0

    cdef inline bint is_beyond(self, uint64_t ordinal) noexcept:
        # Return True if parking a record of the topic's log would wait until a larger ledger is on stable storage.
        return not self.ledger.reaches(ordinal) and self.ledger.path is not None and not self.grows_at_once

    cdef inline Ledger ledger_of(self, uint8_t source):
        # Return the ledger of the log that a record is from.
        return self.ledger if source == FROM_TOPIC else self.parked.ledger

    cdef inline Log log_of(self, uint8_t source):
        # Return the log that a record is from.
        return self.readable.log if source == FROM_TOPIC else self.parked.log

    cdef inline int reach(self, const Record* record, uint8_t source) except -1:
        # Grow a record's ledger so that finishing the record cannot fail. Raises: StorageError (nothing changed).
        return self.ledger_of(source).reach(record_ordinal(record))

    cdef inline int finish(self, const Record* record, uint8_t source) except -1:
        # Mark a record as finished in its ledger, and have drained segments trimmed.
        if source == FROM_TOPIC:
            return self.cursor.finish(record)
        return self.parked.finish(record)

    cdef int open(self) except -1
    cpdef int adopt(self, ParkedLog parked) except -1
    cdef bint step_over(self, const Record* record) except -1
    cdef bint is_origin_ahead(self, const Record* record) except -1
    cdef int forget_ahead(self) except -1
    cdef int park(
        self, const Record* record, uint8_t source, uint16_t attempts, int64_t due_ns, bint is_delay=*) except -1
    cdef int prepare(self, uint64_t span_bytes, uint64_t ordinal) except -1
    cdef int prepare_batch(self, uint64_t span_bytes, uint32_t count, uint64_t last_ordinal) except -1
    cdef int park_batch(self, const Record* first, uint32_t count) except -1
    cdef bint try_park_published(self, const Record* record, uint16_t attempts) except -1
    cdef int park_published(self, const Record* record, uint16_t attempts) except -1
    cdef int pass_deferred(self, uint64_t ordinal) except -1
    cdef int settle_now(self) except -1
    cdef bint settle_some(self, bint whole) except -1
    cdef int settle_to(self, uint64_t end) except -1
    cdef int settle_in(self, Ledger ledger, uint64_t ordinal) except -1
    cdef int walk_to(self, Segment segment, uint64_t offset, uint64_t ordinal) except -1
    cdef int lag_from(self, Segment segment, uint64_t offset, uint64_t ordinal) except -1
    cdef int lag_uncounted(self, Position position, uint64_t end) except -1
    cdef int lag_counted(self, Position position, uint64_t count) except -1
    cdef int lag_below(self, uint64_t end) except -1
    cdef int forget_lag(self) except -1
    cdef Progress catch_up(self, bint whole) except *
    cdef const Record* next_walked(self, bint whole) except? NULL
    cdef Progress stop_for_space(self, error) except *
    cdef Progress stop_for_window(self, uint64_t ordinal) except *
    cdef int drop_all(self) except -1
    cdef int abandon(self) except -1
    cdef int forget(self) except -1
