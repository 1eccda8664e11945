# Ledger of the records that a channel has finished: cursor, floor, one bit per record between. Design notes:
# pyx/diskqueue/ledger.pyx.
from libc.stdint cimport int64_t, uint32_t, uint64_t

from pyqd.hot.diskqueue.exceptions cimport Exceptions
from pyqd.hot.diskqueue.mapping cimport Mapping

cdef enum:
    LEDGER_HEADER_BYTES = 4096
    LEDGER_VERSION = 4
    LEDGER_SEALED = 0x4c414553           # "SEAL"
    SETTINGS_BYTES_MAX = 112

cdef struct LedgerSettings:
    uint32_t checksum                    # crc32c over all that follows
    uint32_t size_bytes
    uint64_t number
    char[SETTINGS_BYTES_MAX] content     # the channel's own business

cdef struct LedgerHeader:
    uint64_t magic
    uint32_t version
    uint32_t paused                      # 1: nothing is delivered
    uint64_t capacity_bits               # of the window behind this header; a power of two
    uint64_t floor                       # ordinal of the first record not finished, but for the exceptions below it
    uint64_t cursor                      # ordinal of the next record never handed out; >= floor
    uint64_t cursor_segment              # number of the segment the cursor is in
    uint64_t cursor_offset               # and the offset there
    uint64_t start                       # ordinal at which the channel began
    uint64_t requeue_count
    uint64_t timeout_count
    uint64_t finish_count
    uint64_t absorb_from                 # the run of bits being cleared behind the floor ...
    uint64_t absorb_to                   # ... and its end; 0: no run is being cleared
    uint64_t reset_to                    # 1 + ordinal a reset under way goes to; 0: none
    uint64_t trusted_below               # bits of ordinals from here on may be stale after a power failure
    uint64_t generation                  # of the channel's notes that count; each reset begins another one
    uint64_t dead_letter_count
    LedgerSettings[2] settings           # the one with the higher number counts, if its checksum is right
    uint64_t replaces_lost               # 1: it takes the place of a lost one, and its channel is not recovered yet
    uint64_t spared                      # records from `start` on that the channel was not given: the topic was emptied
    uint64_t expired_count               # for later: 0
    # The checksums lie behind all else that changes, as the disk may write a page while it changes.
    uint32_t sealed                      # LEDGER_SEALED: both checksums are right; 0: the file has changed since
    uint32_t checksum                    # crc32c of this header without its counters, cursor_offset and seal
    uint32_t bits_checksum               # crc32c of the window and the exceptions
    uint32_t exceptions_count            # of the ordinals behind the window

# File that a ledger grows into.
cdef struct Growth:
    uint64_t capacity_bits
    uint64_t floor                       # its window begins there
    uint64_t exceptions_count            # unfinished records below that floor

cdef inline uint64_t file_bytes_of(uint64_t capacity_bits, uint64_t exceptions_count) noexcept:
    return LEDGER_HEADER_BYTES + capacity_bits // 8 + 8 * exceptions_count


cdef class Ledger:
    cdef readonly object files
    cdef readonly str path               # None: anonymous memory
    cdef public object on_replaced       # called without arguments when another file has the name; None: nothing is
    cdef object placeholders             # while the file is missing because the disk is full; else None
    cdef Mapping mapping
    cdef Mapping growing                 # another file, which is being synced to replace it; None: there is none
    cdef bint reset_begun                # `growing` is the file of a reset, and no copy of the ledger ...
    cdef bint reset_synced               # ... and is on stable storage
    cdef uint64_t growth_from            # the floor of `growing` when it was made: it has bits from there on
    cdef uint64_t growth_reset_count     # and `reset_count` then
    # A reader that comes to a record from here on looks whether the window should grow. Lower than need be at times.
    cdef uint64_t roomy_below
    cdef LedgerHeader* header
    cdef uint64_t* words                 # the window
    cdef Exceptions exceptions           # unfinished records below the floor, behind the window
    cdef readonly uint64_t capacity_bits
    cdef uint64_t open_bits              # the same while the file may change; 0 while it is sealed: see `unseal`
    cdef bint power_failed               # the window on stable storage may be newer than the seal
    cdef bint unwritten                  # the power failed before the disk had anything of the file
    cdef readonly str damage             # the reason why a file that was written was set aside; None: none was
    cdef readonly uint64_t known_end     # behind the records that the ledger knew at the start
    cdef public bint clears_late         # bits behind the floor are cleared only when a sync has covered the floor
    cdef uint64_t uncleared_from         # if some are not cleared yet: the first of them; else the highest number
    cdef bint pristine                   # the file is new: no bit was ever set in it, and none can be on the disk
    cdef readonly bint rebuilt           # the file was damaged or lost: no record counts as finished
    cdef readonly bint outran            # `clamp` has dropped bits of records behind the log's end
    cdef readonly uint64_t reset_count   # since it was opened
    cdef readonly uint64_t change_count  # goes up with every change that a sync has to cover
    cdef readonly uint64_t synced_change_count    # as of the last completed sync; 0: there was none
    cdef readonly uint64_t finished_count  # bits set in the window
    cdef readonly uint64_t ahead         # of these, at or past the cursor

    cdef inline uint64_t counted_from(self) noexcept:
        # The channel was given the records from here on, as far as numbers go.
        return self.header.start + self.header.spared

    cdef inline bint reaches(self, uint64_t ordinal) noexcept:
        # Whether finishing a record that is not finished takes no growth.
        return ordinal - self.bits_start() < self.capacity_bits

    cdef inline bint is_open_for(self, uint64_t ordinal) noexcept:
        # Like `reaches`, but False for all records while the file is sealed: a FIN asks nothing else.
        return ordinal - self.bits_start() < self.open_bits

    cdef inline bint is_open_below(self, uint64_t ordinal) noexcept:
        # Whether `finish` takes a record that is not finished and that `is_open_for` denies: it is an exception.
        return ordinal < self.header.floor and self.open_bits != 0

    cdef inline uint64_t oldest_unfinished(self) noexcept:
        # The first record not finished; the floor if there is none below it.
        return min(self.header.floor, self.exceptions.oldest)

    cdef inline int unseal(self) except -1:
        # Before a change of the file, unless the caller knows that it is not sealed.
        return self.break_seal() if self.open_bits == 0 else 0

    cdef inline uint64_t file_bytes(self) noexcept:
        return file_bytes_of(self.capacity_bits, self.exceptions.count)

    cdef inline uint64_t bits_start(self) noexcept:
        # The window has the bits of `capacity_bits` records from here on; those below the floor wait to be cleared.
        return min(self.header.floor, self.uncleared_from)

    cdef inline uint64_t bits_end(self) noexcept:
        # Never below the floor.
        return max(self.header.floor, self.bits_start() + self.capacity_bits)

    cdef int break_seal(self) except -1
    cdef int verify(self, Mapping mapping) except -1
    cdef int finish(self, uint64_t ordinal) except -1
    cdef int finish_below(self, uint64_t start, uint64_t end) except -1
    cdef bint try_finish(self, uint64_t ordinal) except -1
    cdef int reach(self, uint64_t ordinal) except -1
    cdef int finish_range(self, uint64_t start, uint64_t end) except -1
    cdef uint64_t start_of_newest(self, uint64_t count, uint64_t end) except? 0
    cdef uint64_t unfinished_in(self, uint64_t start, uint64_t end) noexcept
    cdef uint64_t next_unfinished(self, uint64_t ordinal, uint64_t end) noexcept
    cdef uint64_t unfinished_from(self, uint64_t ordinal, uint64_t end) noexcept
    cdef int prepare_range(self, uint64_t start, uint64_t end) except -1
    cdef int reserve_bits(self, uint64_t count) except -1
    cdef bint is_finished(self, uint64_t ordinal) noexcept
    cdef uint64_t finished_end(self) noexcept
    cdef int hand_out(self) except -1
    cdef bint next_is_finished(self) noexcept
    cdef int skip(self) except -1
    cdef uint64_t finished_run(self, uint64_t end) noexcept
    cdef int skip_run(self, uint64_t count) except -1
    cdef int reset(self, uint64_t ordinal) except -1
    cdef int absorb(self) except -1
    cdef int clear_absorbed(self) except -1
    cdef int clear_late_bits(self, uint64_t end) except -1
    cdef int sync_floor(self) except -1
    cdef bint resets_in_new_file(self) noexcept
    cdef LedgerHeader header_after_reset(self, uint64_t ordinal, uint64_t capacity_bits) noexcept
    cdef int reset_in_new_file(self, uint64_t ordinal) except -1
    cdef bint is_prepared_for(self, uint64_t ordinal) noexcept
    cdef bint reset_reaches(self, uint64_t ordinal, uint64_t reached) noexcept
    cdef int continue_in(self, Mapping mapping) except -1
    cdef int reset_in_prepared(self, uint64_t ordinal) except -1
    cdef int sync_and_replace(self, Mapping mapping) except -1
    cdef int count_ahead(self) except -1
    cdef LedgerSettings* newest_settings(self) noexcept
    cdef Mapping new_file(self, uint64_t capacity_bits, uint64_t exceptions_count=*)
    cdef int replace_file(self, Mapping mapping) except -1
    cpdef int clamp(self, uint64_t oldest, uint64_t end) except -1
    cdef int advance_to(self, uint64_t oldest, uint64_t end) except -1
    cdef int clear_bits(self, uint64_t start, uint64_t end) except -1
    cdef int absorb_found(self) except -1
    cdef int grow(self, uint64_t ordinal) except -1
    cdef Growth plan_growth(self, uint64_t ordinal) except *
    cdef bint plan_exceptions(self, uint64_t ordinal, Growth* plan) except -1
    cdef int grow_as(self, const Growth* plan) except -1
    cdef int copy_to(self, char* base, const Growth* plan) except -1
    cdef int copy_exceptions(self, uint64_t* target, const Growth* plan) except -1
    cdef int update_exceptions(self, uint64_t* ordinals, uint64_t count) noexcept
    cdef int update_growing(self) except -1
    cdef int adopt(self, Mapping mapping) except -1
