"""A channel's ledger: how far it has handed out, how far it has finished, and which records between are finished.

    finished ......... | floor: first not finished | ... one bit each ... | cursor: never handed out | 1s: skipped | end
    but exceptions

The ledger is a mapped file: a page of header and a window of bits, bit i at `i mod capacity_bits`. Setting a bit is the
FIN; the mapping keeps it over a kill. A bit may also be set at or past the cursor: the message was deferred, and is
finished or cancelled, and the cursor will skip it. Depth follows from floor, cursor and `ahead`:
`depth = end - cursor - ahead`, plus the messages that wait for redelivery.

Invariants:
1. `floor <= cursor`; the record at `floor` is not finished unless `floor == cursor`.
2. Bits are set only in `[floor, floor + capacity_bits)`; `finished_count` is their number, `ahead` that of those at or
   past the cursor.
3. A change of several stores (clearing the bits behind a moved floor, a reset) is announced in the header first and
   completed by `adopt` after a kill. A bit left behind the floor would stand for a record a window's length later,
   which would then never be delivered.
4. With `clears_late` the bits of `[uncleared_from, absorb_to)` lie behind the floor and are still set. The header
   announces them, and no bit that shares their place is set before they are cleared.
5. The records below the floor are finished, except the open exceptions. These lie below all bits of the window.

Header and window are two pages at least, and a power failure may keep one and not the other. If the kernel has written
the cleared bits and not the floor, the records are delivered again. --sync-fin promises that a synced FIN stays. So
with this flag the bits behind the floor are cleared only when a sync has covered the floor, and a reset goes to a new
file. A caller that can wait has this file synced in a thread before the reset (`begin_reset`).

The bits reach from the oldest unfinished record to the newest finished one. If they outgrow the window, a window of
twice the size is written to a new file and synced, and replaces the old one by rename(2). Without the sync a power
failure could leave the name with a file of zeros. The sync is done in a thread (`begin_growth`): a channel has its
window grow before its cursor has come to the end of it, and hands out nothing that the window does not reach until it
has grown. Meanwhile the ledger changes, and syncs speak for it. Each of them brings the new file up to date first and
writes both files (`sync_targets`), so after a power failure either may have the name. Bits that the new file got and
that lie behind the floor by then stay set until it has the name, as with `clears_late`.

A caller that cannot wait grows the window on the spot (`reach`, `finish`), and waits for the sync.

If one old record stays unfinished, the window would double with the backlog's span. So from EXCEPTIONS_FROM_BITS on,
the new file gets a window of the same size that begins later, and the few unfinished records before that become its
*exceptions*: their ordinals lie behind the window, see pyqd/hot/diskqueue/exceptions.pxd. A list is written with a new
file only; the FIN of an exception sets a flag in it, and comes in by the way of one beyond the window. If the list
would take more space than the window, the window doubles, and the open exceptions are copied. So the size of a file
depends on the number of unfinished records and not on their span.

A file that a sync or a stop writes is *sealed*: a checksum of the header and one of window and exceptions lie in the
header, and say that they count. The first change after that takes the seal off before it stores anything, so a kill
between two syncs leaves a file without one, which is believed as it is. To ask for the seal costs a FIN nothing: a
sealed ledger reaches no record (`is_open_for`), so the first FIN comes in by the way of one beyond the window, and the
first delivery by that of a record near the window's end (`roomy_below`). Each other change calls `unseal`. After a
power failure the window may be newer than the header. Then the window is believed and the seal comes off; the header,
in one page, is checked all the same.

Rejected: ranges in a tree (a random FIN order makes as many nodes as bits, and nodes cannot be stored by one
instruction); one bit array per segment (a FIN would have to find the segment first).
"""

cimport cython
from libc.string cimport memcmp, memcpy, memset

from pyqd.hot.diskqueue.exceptions cimport (
    FINISHED_SINCE,
    NONE_OPEN,
    are_ascending,
    count_exceptions,
    finish_exceptions,
    index_from,
    is_exception,
    use_exceptions,
)
from pyqd.hot.diskqueue.mapping cimport Mapping, store_again, store_barrier
from pyqd.hot.primitives.bitmap cimport (
    window_add,
    window_clear_range,
    window_copy,
    window_count,
    window_next_one,
    window_next_zero,
    window_run_of_ones,
    window_set,
    window_set_range,
    window_test,
    window_word,
)
from pyqd.hot.primitives.crc32c cimport crc32c
from pyqd.hot.primitives.debug cimport debug_require

from pyqd.diskqueue.damage import reused, set_aside
from pyqd.primitives.errors import CorruptionError, DiskFull, LaterFormatError, StorageError

cdef uint64_t MAGIC = 0x52474c_44515950          # "PYQDLGR\0", little-endian
cdef uint64_t BITS_PER_PAGE = 8 * 4096
cdef uint64_t WINDOW_BITS_MIN = BITS_PER_PAGE
# A window of so many bits is not doubled for few unfinished records: those are listed, at so many bits each.
cdef uint64_t EXCEPTIONS_FROM_BITS = 1 << 20
cdef uint64_t EXCEPTION_BITS = 64
cdef uint64_t ALL_CLEARED = <uint64_t> -1
GROWING = ".growing"

assert sizeof(LedgerHeader) <= LEDGER_HEADER_BYTES
assert sizeof(LedgerSettings) == 128


cdef uint32_t settings_checksum(const LedgerSettings* settings) noexcept:
    return crc32c(0, <const char*> settings + 4, sizeof(LedgerSettings) - 4)


cdef uint32_t header_checksum(const LedgerHeader* header) noexcept:
    """Return the checksum of a header, but for the fields that change while it is sealed, and the seal."""
    cdef LedgerHeader copy = header[0]
    copy.cursor_offset = 0
    copy.requeue_count = copy.timeout_count = copy.finish_count = copy.dead_letter_count = copy.expired_count = 0
    copy.sealed = copy.checksum = 0
    return crc32c(0, &copy, sizeof(LedgerHeader))


cdef int seal_header(LedgerHeader* header) noexcept:
    debug_require(header.reset_to == 0)
    header.checksum = header_checksum(header)
    store_barrier()
    header.sealed = LEDGER_SEALED
    return 0


cdef int set_trusted_below(LedgerHeader* header, uint64_t ordinal) noexcept:
    """Raise `trusted_below` after a sync; a sealed header stays so."""
    cdef bint was_sealed = header.sealed == LEDGER_SEALED
    if header.trusted_below < ordinal:
        header.sealed = 0
        store_barrier()
        header.trusted_below = ordinal
        if was_sealed:
            seal_header(header)
    return 0


cdef int count_from(LedgerHeader* header, uint64_t ordinal) noexcept:
    """Count the records from an ordinal on as given to the channel, if it counts those from a later one on."""
    cdef uint64_t counted_from = min(header.start + header.spared, ordinal)
    header.start = min(header.start, ordinal)
    header.spared = counted_from - header.start
    return 0


def set_limits_for_tests(uint64_t capacity_bits, uint64_t exceptions_from_bits=1 << 20, uint64_t exception_bits=64):
    """Set the number of bits of new ledgers, a power of two, so that windows grow soon: for tests.

    exceptions_from_bits: of a window that gets exceptions instead of growing, if they take less space than it at
    `exception_bits` each. Returns: the former three numbers.
    """
    global WINDOW_BITS_MIN, EXCEPTIONS_FROM_BITS, EXCEPTION_BITS
    former = (WINDOW_BITS_MIN, EXCEPTIONS_FROM_BITS, EXCEPTION_BITS)
    assert capacity_bits >= 64 and capacity_bits & (capacity_bits - 1) == 0
    WINDOW_BITS_MIN, EXCEPTIONS_FROM_BITS, EXCEPTION_BITS = capacity_bits, exceptions_from_bits, exception_bits
    return former


@cython.final
cdef class Ledger:
    """The ledger of one reader of one log.

    files: the operating system. path: the file, created if it is missing; None for anonymous memory. placeholders:
    given by a start, which continues in memory if the disk has no space for the file (pyqd.diskqueue.placeholders).
    expected: a missing file counts as lost. exists: whether the file exists; None: find out. power_failed: the window
    may be newer than the header.

    A damaged or lost file, or one of a later format, is replaced by a fresh one: `rebuilt`. `outran`: the ledger had
    marked records after the log's end, which the log has lost.
    Raises: StorageError. Source: docs/storage.md, "Ledger".
    """

    def __init__(
        self, files, path=None, placeholders=None, bint expected=False, exists=None, bint power_failed=False,
    ):
        cdef Mapping mapping
        aside = None
        self.files = files
        self.path = path
        self.power_failed = power_failed
        if path is not None and (files.exists(path) if exists is None else exists):
            try:
                mapping = files.open_mapped(path)
                mapping.require_readable()
                self.verify(mapping)
                self.adopt(mapping)
                return
            except CorruptionError as error:
                aside = set_aside(
                    files, path, error, "all that its log keeps counts as unfinished and is delivered again")
                self.rebuilt = True
                self.damage = None if self.unwritten else str(error)
        self.rebuilt = self.rebuilt or expected
        self.pristine = True
        try:
            mapping = self.new_file(WINDOW_BITS_MIN)
        except DiskFull:
            mapping = None
            if aside is not None:
                mapping = reused(files, aside, path + GROWING, LEDGER_HEADER_BYTES + WINDOW_BITS_MIN // 8)
            if mapping is None:
                if placeholders is None:
                    raise
                self.placeholders = placeholders
                mapping = placeholders.map(path, LEDGER_HEADER_BYTES + WINDOW_BITS_MIN // 8, self.note_written)
        (<LedgerHeader*> mapping.base).capacity_bits = WINDOW_BITS_MIN
        # A new file has no earlier lap of the window, whatever the kernel has written of it.
        (<LedgerHeader*> mapping.base).trusted_below = WINDOW_BITS_MIN
        if self.rebuilt:
            # In the file before it has its name: a kill or a power failure later in the start takes no caution away.
            (<LedgerHeader*> mapping.base).replaces_lost = 1
        (<LedgerHeader*> mapping.base).version = LEDGER_VERSION
        (<LedgerHeader*> mapping.base).magic = MAGIC
        self.replace_file(mapping)

    cdef Mapping new_file(self, uint64_t capacity_bits, uint64_t exceptions_count=0):
        assert capacity_bits >= 64 and capacity_bits & (capacity_bits - 1) == 0
        growing = None if self.path is None else self.path + GROWING
        # The new file takes the name from one that is still being synced.
        self.forget_growth()
        return self.files.new_mapped(growing, file_bytes_of(capacity_bits, exceptions_count), True)

    cdef int replace_file(self, Mapping mapping) except -1:
        cdef Mapping former = self.mapping
        # A placeholder gets its name when it is written.
        if self.path is not None and mapping.path is not None:
            if former is not None:
                former.pin()
            try:
                self.files.rename(self.path + GROWING, self.path)
            except StorageError:
                if former is not None:
                    former.unpin()
                raise
            mapping.moved(self.path)
            if former is not None:
                # A sync in a thread may hold it for a while; its path names another file now.
                former.file_removed()
            if self.placeholders is not None:
                self.placeholders.forget(self.path)
                self.placeholders = None
            if self.on_replaced is not None:
                self.on_replaced()
        self.adopt(mapping)
        return 0

    def note_written(self):
        """Record that a ledger kept in memory has a file now, whose name no sync has covered yet."""
        assert self.path is not None, "a ledger in memory has no file"
        self.placeholders = None
        self.change_count += 1
        if self.on_replaced is not None:
            self.on_replaced()

    cdef int verify(self, Mapping mapping) except -1:
        """Check a file of an earlier run. Raises: CorruptionError, LaterFormatError."""
        cdef LedgerHeader* header = <LedgerHeader*> mapping.base
        cdef const char* window
        path = mapping.path or "memory"
        self.unwritten = self.power_failed and header.magic == 0 and header.version == 0
        if mapping.size_bytes <= LEDGER_HEADER_BYTES or header.magic != MAGIC:
            raise CorruptionError(path, 0, "not a pyqd ledger")
        if header.version > LEDGER_VERSION:
            raise LaterFormatError(path, 8, f"ledger format version {header.version}; this pyqd reads {LEDGER_VERSION}")
        if header.sealed != 0 and (header.sealed != LEDGER_SEALED or header.checksum != header_checksum(header)):
            raise CorruptionError(path, 420, "the checksum of the ledger's header is wrong")
        if (
            header.version != LEDGER_VERSION
            or header.capacity_bits < 64
            or header.capacity_bits & (header.capacity_bits - 1)
            or file_bytes_of(header.capacity_bits, header.exceptions_count) > mapping.size_bytes
            or (header.floor > header.cursor and header.reset_to == 0 and header.absorb_to == 0)
            or header.absorb_to - header.absorb_from > header.capacity_bits and header.absorb_to != 0
        ):
            raise CorruptionError(path, 16, "the ledger's header contradicts itself")
        window = <const char*> mapping.base + LEDGER_HEADER_BYTES
        if header.sealed != 0 and header.bits_checksum != crc32c(
                0, window, file_bytes_of(header.capacity_bits, header.exceptions_count) - LEDGER_HEADER_BYTES):
            if not self.power_failed:
                raise CorruptionError(path, LEDGER_HEADER_BYTES, "the checksum of the ledger's bits is wrong")
            # The bits are believed now, so they must be after a kill too.
            header.sealed = 0
        # On stable storage before the file had its name, so no power failure leaves them half-written.
        if not are_ascending(<const uint64_t*> (window + header.capacity_bits // 8), header.exceptions_count):
            raise CorruptionError(
                path, LEDGER_HEADER_BYTES + header.capacity_bits // 8, "the ledger's exceptions are out of order")
        return 0

    def seal(self):
        """Store checksums of the file, for a sync or a stop: they count until the next change. Cost: O(capacity)."""
        if self.path is None or self.open_bits == 0:
            return
        assert self.header.reset_to == 0, "a reset is under way"
        self.header.bits_checksum = crc32c(0, self.words, self.file_bytes() - LEDGER_HEADER_BYTES)
        seal_header(self.header)
        self.open_bits = 0
        self.roomy_below = 0

    cdef int break_seal(self) except -1:
        """Let the file be changed, whose checksums count until then."""
        assert self.open_bits == 0
        self.header.sealed = 0
        store_barrier()
        self.open_bits = self.capacity_bits
        # The next sync seals it again.
        self.change_count += 1
        return 0

    cdef int adopt(self, Mapping mapping) except -1:
        """Continue in a file: complete changes that a kill has interrupted."""
        cdef LedgerHeader* header = <LedgerHeader*> mapping.base
        self.change_count += 1
        self.mapping = mapping
        self.header = header
        self.words = <uint64_t*> (mapping.base + LEDGER_HEADER_BYTES)
        self.capacity_bits = header.capacity_bits
        self.open_bits = 0 if header.sealed != 0 else self.capacity_bits
        if header.reset_to != 0:
            self.reset(header.reset_to - 1)
        self.roomy_below = 0
        self.uncleared_from = ALL_CLEARED
        if header.absorb_to != 0 and self.clears_late:
            # It has grown; after a start it clears late only when it has been adopted.
            self.uncleared_from = header.absorb_from
        elif header.absorb_to != 0:
            self.unseal()
            header.floor = max(header.floor, header.absorb_to)
            header.cursor = max(header.cursor, header.floor)
            self.sync_floor()
            self.clear_absorbed()
        self.finished_count = window_count(self.words, self.capacity_bits, header.floor, self.bits_end())
        self.count_ahead()
        use_exceptions(&self.exceptions, self.words + self.capacity_bits // 64, header.exceptions_count)
        # `clamp` has dropped those at or past the floor; a power failure may have kept the floor and not that.
        self.finish_below(header.floor, NONE_OPEN)
        assert header.floor <= header.cursor, "invariant 1"
        return 0

    cpdef int clamp(self, uint64_t oldest, uint64_t end) except -1:
        """Forget the records outside the log's `[oldest, end)`: after a start, before any other call."""
        cdef LedgerHeader* header = self.header
        assert oldest <= end, "the log ends before it begins"
        self.change_count += 1
        # All of them are of records that the log has no more, or that a reset has dropped durably.
        self.clear_late_bits(header.floor)
        self.finish_below(0, oldest)
        # Before the floor: other records get their ordinals.
        self.finish_below(end, NONE_OPEN)
        self.known_end = max(header.cursor, self.finished_end())
        self.outran = self.outran or self.known_end > end
        if header.floor > end or header.cursor > end:
            self.unseal()
            header.floor = min(header.floor, end)
            store_barrier()
            header.cursor = end
        # A store dirties the page even if it changes nothing: 15 us of a start with many idle channels.
        if self.counted_from() > end:
            self.unseal()
            count_from(header, end)
        if header.floor < oldest:
            self.unseal()
            self.clear_bits(header.floor, min(oldest, header.floor + self.capacity_bits))
            header.cursor = max(header.cursor, oldest)
            store_barrier()
            header.floor = oldest
        if end - header.floor < self.capacity_bits:
            self.clear_bits(end, header.floor + self.capacity_bits)
        if self.finished_count != 0:
            self.finished_count = window_count(
                self.words, self.capacity_bits, header.floor, header.floor + self.capacity_bits)
        self.count_ahead()
        assert oldest <= header.floor <= header.cursor <= end, "invariant 1"
        return self.absorb_found()

    cdef int clear_bits(self, uint64_t start, uint64_t end) except -1:
        """Clear the bits of `[start, end)`, in a window that has some; the caller updates `finished_count`."""
        debug_require(start <= end)
        if self.finished_count != 0 and window_count(self.words, self.capacity_bits, start, end) != 0:
            self.unseal()
            window_clear_range(self.words, self.capacity_bits, start, end)
        return 0

    cdef int absorb_found(self) except -1:
        """Like `absorb`, at a start: a ledger in which nothing changes stays sealed."""
        if self.header.floor < self.header.cursor and self.is_finished(self.header.floor):
            self.unseal()
            self.absorb()
        return 0

    def drop_doubtful_bits(self):
        """After a power failure and before `clamp`: forget the bits that may be those of an earlier lap of the window.

        Header and window are written by the kernel in any order. A bit of the last synced state or later may lie where
        a record of the next lap has its own; so from a lap past the floor of then (`trusted_below`) no bit counts.
        """
        cdef LedgerHeader* header = self.header
        cdef uint64_t end = header.floor + self.capacity_bits
        cdef uint64_t start = max(header.floor, header.trusted_below)
        if start < end:
            self.unseal()
            window_clear_range(self.words, self.capacity_bits, start, end)
        self.finished_count = window_count(self.words, self.capacity_bits, header.floor, end)
        self.count_ahead()

    def note_synced(self, uint64_t bits_from, uint64_t reset_count, uint64_t change_count):
        """Record that header and window are on stable storage as they were at resets and changes, or later.

        bits_from: the first record of which the window had a bit then.
        May be called in a thread, as the interpreter's lock is held.
        """
        assert change_count <= self.change_count, "a sync has covered changes that were not made yet"
        self.synced_change_count = max(self.synced_change_count, change_count)
        if reset_count == self.reset_count:
            set_trusted_below(self.header, bits_from + self.capacity_bits)

    def trust_bits(self, Mapping mapping not None, uint64_t window_from, uint64_t reset_count):
        """Let a header say that the bits of its file are on stable storage, as they were at resets.

        mapping: of the ledger's file, or of one that a larger file has replaced since and that may have the name again
        after a power failure. window_from: the first record of which that file had a bit then. May be called in a
        thread, as the interpreter's lock is held.
        """
        cdef LedgerHeader* header = <LedgerHeader*> mapping.base
        assert reset_count <= self.reset_count, "the reset has not been made yet"
        if reset_count == self.reset_count:
            set_trusted_below(header, window_from + header.capacity_bits)

    def note_floor_synced(self, uint64_t floor, uint64_t reset_count):
        """Clear the bits behind a floor that is on stable storage, as of so many resets."""
        assert reset_count <= self.reset_count, "the reset has not been made yet"
        if self.uncleared_from != ALL_CLEARED and reset_count == self.reset_count:
            self.clear_late_bits(floor)

    def has_bits_in_doubt(self):
        """Return True if a power failure would drop bits that are on stable storage. Cost: O(capacity)."""
        return self.finished_count != 0 and self.finished_end() > self.header.trusted_below

    cdef int count_ahead(self) except -1:
        cdef uint64_t limit = self.bits_end()
        self.ahead = 0
        if self.finished_count != 0 and self.header.cursor < limit:
            self.ahead = window_count(self.words, self.capacity_bits, self.header.cursor, limit)
        assert self.ahead <= self.finished_count, "invariant 2"
        return 0

    cdef int finish(self, uint64_t ordinal) except -1:
        """Mark a record as finished, in a ledger that is not sealed. Cost: O(1); O(run) if the floor moves."""
        cdef LedgerHeader* header = self.header
        debug_require(self.open_bits != 0)
        if ordinal < header.floor:
            assert is_exception(&self.exceptions, ordinal), "finished twice"
            return self.finish_below(ordinal, ordinal + 1)
        self.change_count += 1
        if ordinal == header.floor and ordinal < header.cursor:
            header.floor = ordinal + 1
            if self.finished_count != 0:
                self.absorb()
            return 0
        if not self.reaches(ordinal):
            self.grow(ordinal)
            # The floor may be at the record now.
            return self.finish(ordinal)
        assert not window_test(self.words, self.capacity_bits, ordinal), "finished twice"
        window_set(self.words, self.capacity_bits, ordinal)
        self.finished_count += 1
        if ordinal >= header.cursor:
            self.ahead += 1
        debug_require(self.ahead <= self.finished_count)
        return 0

    cdef int finish_below(self, uint64_t start, uint64_t end) except -1:
        """Finish the exceptions of `[start, end)`."""
        if count_exceptions(&self.exceptions, start, end) != 0:
            self.unseal()
            self.change_count += 1
            finish_exceptions(&self.exceptions, start, end)
        return 0

    cdef bint try_finish(self, uint64_t ordinal) except -1:
        """Mark a record as finished at a start, which a full disk must not end.

        Returns: False if the window cannot grow; the record is not to be delivered, and the next start finds it again.
        """
        self.unseal()
        try:
            self.finish(ordinal)
        except DiskFull:
            return False
        return True

    def try_note_range(self, uint64_t start, uint64_t end):
        """Like `try_finish`, for every record of `[start, end)`."""
        try:
            self.finish_range(start, end)
        except DiskFull:
            return False
        return True

    cdef int reach(self, uint64_t ordinal) except -1:
        """Make the window reach an ordinal, so that `finish` cannot fail. Raises: StorageError (nothing changed)."""
        self.unseal()
        if ordinal >= self.header.floor and not self.reaches(ordinal):
            self.grow(ordinal)
        assert ordinal < self.header.floor or self.reaches(ordinal)
        return 0

    cdef int finish_range(self, uint64_t start, uint64_t end) except -1:
        """Mark every record of `[start, end)` as finished, whether it was or not."""
        cdef LedgerHeader* header = self.header
        cdef uint64_t ahead_from
        if start >= end:
            return 0
        if end > header.floor and not self.reaches(end - 1):
            self.unseal()
            self.grow(end - 1)
            header = self.header
        self.finish_below(start, min(end, header.floor))
        start = max(start, header.floor)
        if start >= end:
            return 0
        self.unseal()
        self.change_count += 1
        self.finished_count += end - start - window_count(self.words, self.capacity_bits, start, end)
        if end > header.cursor:
            ahead_from = max(start, header.cursor)
            self.ahead += end - ahead_from - window_count(self.words, self.capacity_bits, ahead_from, end)
        window_set_range(self.words, self.capacity_bits, start, end)
        self.absorb()
        assert self.ahead <= self.finished_count, "invariant 2"
        return 0

    cdef uint64_t start_of_newest(self, uint64_t count, uint64_t end) except? 0:
        """Return the last ordinal from which on `count` records before `end` are not finished; the cursor's, if fewer.

        Cost: O(records, 64 at a time).
        """
        cdef uint64_t start = max(end, self.header.cursor)
        cdef uint64_t step, unfinished
        while count != 0 and start > self.header.cursor:
            step = min(start - self.header.cursor, <uint64_t> 64)
            unfinished = self.unfinished_in(start - step, start)
            if unfinished > count:
                step = 1
                unfinished = self.unfinished_in(start - 1, start)
            start -= step
            count -= unfinished
        return start

    cdef uint64_t unfinished_in(self, uint64_t start, uint64_t end) noexcept:
        """Count the unfinished records of `[start, end)`. Cost: O(bits and exceptions there)."""
        cdef uint64_t floor = self.header.floor
        cdef uint64_t limit = min(end, self.bits_end())
        cdef uint64_t count = 0
        debug_require(start <= end)
        if start < floor:
            count = count_exceptions(&self.exceptions, start, min(end, floor))
            start = min(end, floor)
        count += end - start
        if self.finished_count != 0 and start < limit:
            count -= window_count(self.words, self.capacity_bits, start, limit)
        return count

    cdef uint64_t next_unfinished(self, uint64_t ordinal, uint64_t end) noexcept:
        """Return the first unfinished record of `[ordinal, end)`, from the floor on; `end` if there is none."""
        cdef uint64_t limit = min(end, self.bits_end())
        debug_require(self.header.floor <= ordinal <= end)
        return window_next_zero(self.words, self.capacity_bits, ordinal, limit) if ordinal < limit else ordinal

    cdef uint64_t unfinished_from(self, uint64_t ordinal, uint64_t end) noexcept:
        """Like `next_unfinished`, from any ordinal on: the exceptions are among them."""
        cdef uint64_t index
        if ordinal < self.header.floor:
            index = index_from(&self.exceptions, ordinal)
            while index < self.exceptions.count and self.exceptions.ordinals[index] & FINISHED_SINCE:
                index += 1
            if index < self.exceptions.count:
                return min(self.exceptions.ordinals[index], end)
            ordinal = self.header.floor
        return self.next_unfinished(ordinal, end) if ordinal < end else end

    cdef int reserve_bits(self, uint64_t count) except -1:
        """Make the window so large, for a reset, which keeps its size. Blocks.

        Raises: StorageError (nothing changed).
        """
        cdef Growth plan = Growth(self.capacity_bits, self.header.floor, self.exceptions.open_count)
        while plan.capacity_bits < count:
            plan.capacity_bits *= 2
        if plan.capacity_bits != self.capacity_bits:
            self.grow_as(&plan)
        assert self.capacity_bits >= count
        return 0

    cdef int prepare_range(self, uint64_t start, uint64_t end) except -1:
        """Prepare to finish the records of `[start, end)`: the window reaches them, and all pages are writable.

        The first store to a page since it was synced is a fault, which may wait for the file system.
        Raises: StorageError.
        """
        cdef uint64_t at = start
        assert start < end
        self.reach(end - 1)
        store_again(<char*> self.header)
        while at < end:
            store_again(<char*> &self.words[window_word(self.capacity_bits, at)])
            at = (at | (BITS_PER_PAGE - 1)) + 1
        return 0

    cdef bint is_finished(self, uint64_t ordinal) noexcept:
        cdef uint64_t floor = self.header.floor
        if ordinal < floor:
            return not is_exception(&self.exceptions, ordinal)
        return self.reaches(ordinal) and window_test(self.words, self.capacity_bits, ordinal)

    cdef uint64_t finished_end(self) noexcept:
        """Return 1 + the highest finished ordinal, or the floor if no bit is set. Cost: O(capacity)."""
        cdef uint64_t end = self.bits_end()
        cdef uint64_t start
        if self.finished_count == 0:
            return self.header.floor
        while end > self.header.floor and not window_test(self.words, self.capacity_bits, end - 1):
            # A word at a time where it has no bit set.
            start = max(self.header.floor, (end - 1) & ~<uint64_t> 63)
            end = start if window_count(self.words, self.capacity_bits, start, end) == 0 else end - 1
        return end

    cdef int hand_out(self) except -1:
        """Move the cursor over a record that is handed out now, in a ledger that is not sealed."""
        debug_require(self.open_bits != 0)
        assert not self.next_is_finished(), "a finished record is handed out"
        self.change_count += 1
        self.header.cursor += 1
        return 0

    cdef bint next_is_finished(self) noexcept:
        """Return whether the record at the cursor is finished, so that the cursor skips it."""
        debug_require(self.ahead <= self.finished_count)
        return self.ahead != 0 and self.is_finished(self.header.cursor)

    cdef int skip(self) except -1:
        """Move the cursor over a finished record."""
        assert self.ahead > 0
        self.unseal()
        self.change_count += 1
        self.header.cursor += 1
        self.ahead -= 1
        if self.header.floor + 1 == self.header.cursor:
            self.absorb()
        return 0

    cdef uint64_t finished_run(self, uint64_t end) noexcept:
        """Return the number of finished records from the cursor on, without a gap and below an ordinal."""
        debug_require(self.header.cursor <= end)
        end = min(end, self.bits_end())
        if self.header.cursor >= end:
            return 0
        return window_run_of_ones(self.words, self.capacity_bits, self.header.cursor, end)

    cdef int skip_run(self, uint64_t count) except -1:
        """Move the cursor over `count` finished records."""
        cdef bint follows = self.header.floor == self.header.cursor
        assert count <= self.ahead
        debug_require(self.finished_run(self.header.cursor + count) == count)
        self.unseal()
        self.change_count += 1
        self.header.cursor += count
        self.ahead -= count
        if follows:
            self.absorb()
        return 0

    cdef int absorb(self) except -1:
        """Move the floor over the finished records that follow it, not past the cursor."""
        cdef LedgerHeader* header = self.header
        cdef uint64_t old = header.floor
        cdef uint64_t limit = min(header.cursor, self.bits_end())
        cdef uint64_t run = window_run_of_ones(self.words, self.capacity_bits, old, limit)
        if run != 0:
            if header.absorb_to == 0:
                header.absorb_from = old
                store_barrier()
            header.absorb_to = old + run
            store_barrier()
            header.floor = old + run
            assert header.floor <= header.cursor and run <= self.finished_count
            self.finished_count -= run
            if self.clears_late:
                self.uncleared_from = header.absorb_from
            else:
                self.clear_absorbed()
        return 0

    cdef int clear_absorbed(self) except -1:
        assert self.header.absorb_from <= self.header.absorb_to <= self.header.floor
        store_barrier()
        window_clear_range(self.words, self.capacity_bits, self.header.absorb_from, self.header.absorb_to)
        store_barrier()
        self.header.absorb_to = 0
        return 0

    cdef int clear_late_bits(self, uint64_t end) except -1:
        """Clear those of the bits behind the floor that are of records below an ordinal, the floor at most."""
        if self.uncleared_from == ALL_CLEARED or end <= self.uncleared_from:
            return 0
        assert end <= self.header.floor, "the bits of unfinished records are cleared"
        self.unseal()
        self.change_count += 1
        if end >= self.header.absorb_to:
            self.uncleared_from = ALL_CLEARED
            return self.clear_absorbed()
        window_clear_range(self.words, self.capacity_bits, self.uncleared_from, end)
        store_barrier()
        self.header.absorb_from = end
        self.uncleared_from = end
        return 0

    cdef int sync_floor(self) except -1:
        """Sync the header, in a start that finds bits behind the floor. A failure is left to the syncs to come."""
        if self.path is not None:
            try:
                self.files.sync(self.mapping, 0, LEDGER_HEADER_BYTES)
            except StorageError:
                self.mapping.failed_syncs += 1
        return 0

    cdef int reset(self, uint64_t ordinal) except -1:
        """Start over at an ordinal: all before it is finished, nothing from it on.

        All that a reset changes lies in one page but for the window, which `trusted_below` guards: so a power failure
        leaves all of it or nothing.
        Raises: StorageError if it was prepared for a larger window (nothing changed).
        """
        cdef LedgerHeader* header = self.header
        cdef bint prepared = self.is_prepared_for(ordinal)
        cdef bint has_to_grow = prepared and (<LedgerHeader*> self.growing.base).capacity_bits > self.capacity_bits
        try:
            if prepared:
                return self.reset_in_prepared(ordinal)
            if self.resets_in_new_file():
                return self.reset_in_new_file(ordinal)
        except StorageError:
            # On a full disk, which this may be to relieve: in place, as without --sync-fin.
            if has_to_grow:
                raise
        self.unseal()
        header.reset_to = ordinal + 1
        store_barrier()
        header.absorb_to = 0
        self.uncleared_from = ALL_CLEARED
        header.exceptions_count = 0
        use_exceptions(&self.exceptions, NULL, 0)
        header.floor = ordinal
        header.cursor = ordinal
        count_from(header, ordinal)
        # A reset that a kill has interrupted may take two numbers: none of the notes has the first.
        header.generation += 1
        # A reset may go back: then the bits on stable storage are of other deliveries. A new file has zeros only.
        header.trusted_below = ordinal + self.capacity_bits if self.pristine else 0
        self.pristine = False
        self.roomy_below = 0
        self.reset_count += 1
        self.change_count += 1
        memset(self.words, 0, self.capacity_bits // 8)
        store_barrier()
        header.reset_to = 0
        self.finished_count = 0
        self.ahead = 0
        return 0

    cdef bint resets_in_new_file(self) noexcept:
        """Return True if a reset in place might leave a mixture of both states after a power failure."""
        return self.clears_late and (self.finished_count != 0 or self.uncleared_from != ALL_CLEARED)

    cdef LedgerHeader header_after_reset(self, uint64_t ordinal, uint64_t capacity_bits) noexcept:
        cdef LedgerHeader header = self.header[0]
        debug_require(capacity_bits >= self.capacity_bits)
        header.sealed = 0
        header.version = LEDGER_VERSION
        header.capacity_bits = capacity_bits
        header.exceptions_count = 0
        header.absorb_to = 0
        header.floor = ordinal
        header.cursor = ordinal
        count_from(&header, ordinal)
        header.generation += 1
        header.trusted_below = ordinal + capacity_bits
        return header

    cdef int reset_in_new_file(self, uint64_t ordinal) except -1:
        """Like `reset`, in another file, so that a power failure leaves all of the former ledger or all of this one.

        Blocks. Raises: StorageError (nothing changed).
        """
        cdef Mapping mapping = self.new_file(self.capacity_bits)
        (<LedgerHeader*> mapping.base)[0] = self.header_after_reset(ordinal, self.capacity_bits)
        self.sync_and_replace(mapping)
        self.reset_count += 1
        assert self.finished_count == 0 and self.ahead == 0, "the new file has bits"
        return 0

    def begin_reset(self, uint64_t ordinal, uint64_t reached):
        """Prepare the file of a reset to an ordinal or a later one, for a caller that syncs it in a thread.

        reached: an ordinal that its window has to reach. Returns: the mapping to sync as a whole before
        `note_reset_synced`; None if the reset needs no other file. Raises: StorageError (nothing changed).
        """
        cdef uint64_t capacity = self.capacity_bits
        cdef Mapping mapping
        assert self.path is not None, "a ledger in memory is reset in place"
        while reached > ordinal and reached - ordinal >= capacity:
            capacity *= 2
        if capacity == self.capacity_bits and not self.resets_in_new_file():
            return None
        mapping = self.new_file(capacity)
        mapping.hold()
        (<LedgerHeader*> mapping.base)[0] = self.header_after_reset(ordinal, capacity)
        self.growing = mapping
        self.reset_begun = True
        self.reset_synced = False
        self.growth_from = self.header.floor
        return mapping

    def note_reset_synced(self, Mapping mapping not None):
        """Let a reset continue in the file of `begin_reset`, which is on stable storage."""
        assert self.reset_begun or self.growing is not mapping
        self.reset_synced = self.growing is mapping

    cdef bint is_prepared_for(self, uint64_t ordinal) noexcept:
        """Return True if a reset can continue in the file of `begin_reset` without another sync.

        Until the next sync, a power failure may leave the header as it was prepared, which has to be as good as that of
        this reset. The prepared header may name an earlier ordinal if no record from there on is finished: a power
        failure then brings back only records that a reset without an answer has dropped.
        """
        cdef LedgerHeader now
        cdef LedgerHeader* header
        if self.growing is None or not self.reset_begun or not self.reset_synced:
            return False
        header = <LedgerHeader*> self.growing.base
        now = self.header_after_reset(ordinal, header.capacity_bits)
        return (
            (ordinal == header.floor
             or ordinal > header.floor and self.header.cursor <= header.floor and self.finished_end() <= header.floor)
            and now.paused == header.paused
            and now.generation == header.generation
            and now.replaces_lost == header.replaces_lost
            and memcmp(now.settings, header.settings, sizeof(now.settings)) == 0
        )

    cdef int reset_in_prepared(self, uint64_t ordinal) except -1:
        """Like `reset`, in the file of `begin_reset`. Raises: StorageError (nothing changed)."""
        cdef Mapping mapping = self.growing
        cdef LedgerHeader* header = <LedgerHeader*> mapping.base
        header[0] = self.header_after_reset(ordinal, header.capacity_bits)
        self.continue_in(mapping)
        self.reset_count += 1
        assert self.finished_count == 0 and self.ahead == 0, "the new file has bits"
        return 0

    cdef int continue_in(self, Mapping mapping) except -1:
        """Continue in the file of `begin_growth` or `begin_reset`. Raises: StorageError (given up)."""
        assert self.growing is mapping, "the file is not the one that was synced"
        try:
            self.replace_file(mapping)
        except StorageError:
            self.cancel_growth(mapping)
            raise
        self.growing = None
        mapping.unpin()
        return 0

    cdef bint reset_reaches(self, uint64_t ordinal, uint64_t reached) noexcept:
        """Return True if the window reaches an ordinal after a reset, as it was prepared for that."""
        return (
            self.is_prepared_for(ordinal)
            and reached - ordinal < (<LedgerHeader*> self.growing.base).capacity_bits
        )

    cdef int grow(self, uint64_t ordinal) except -1:
        """Replace the window by one that reaches the ordinal. Blocks. Raises: StorageError (nothing changed)."""
        cdef Growth plan = self.plan_growth(ordinal)
        assert not self.reaches(ordinal), "the window is large enough"
        self.grow_as(&plan)
        assert self.reaches(ordinal)
        return 0

    cdef int grow_as(self, const Growth* plan) except -1:
        """Continue in a file as planned. Blocks. Raises: StorageError (nothing changed)."""
        cdef Mapping mapping = self.new_file(plan.capacity_bits, plan.exceptions_count)
        self.copy_to(mapping.base, plan)
        self.sync_and_replace(mapping)
        # The record at a later floor may be finished.
        return self.absorb_found()

    cdef Growth plan_growth(self, uint64_t ordinal) except *:
        """Return the smallest window that reaches an ordinal: a larger one, or one that begins later."""
        cdef Growth plan = Growth(self.capacity_bits, self.header.floor, self.exceptions.open_count)
        assert ordinal >= self.header.floor, "the record is finished"
        while ordinal - plan.floor >= plan.capacity_bits:
            if plan.capacity_bits >= EXCEPTIONS_FROM_BITS and self.plan_exceptions(ordinal, &plan):
                break
            plan.capacity_bits *= 2
        return plan

    cdef bint plan_exceptions(self, uint64_t ordinal, Growth* plan) except -1:
        """Let a window that is too small begin later, if few records before that are not finished.

        Half of it is left behind, so that records handed out of late keep their bits. Returns: whether it was possible.
        """
        cdef uint64_t floor = max(self.header.floor + plan.capacity_bits // 2, ordinal - plan.capacity_bits + 1)
        cdef uint64_t count
        # A channel's queue is no exception.
        floor = min(floor, self.header.cursor)
        if ordinal - floor >= plan.capacity_bits:
            return False
        floor = self.next_unfinished(floor, self.header.cursor)
        count = self.exceptions.open_count + self.unfinished_in(self.header.floor, floor)
        if count * EXCEPTION_BITS >= plan.capacity_bits:
            return False
        assert self.header.floor < floor <= ordinal
        plan.floor = floor
        plan.exceptions_count = count
        return True

    cdef int copy_to(self, char* base, const Growth* plan) except -1:
        """Copy header, window and exceptions to a file of zeros."""
        cdef LedgerHeader* header = <LedgerHeader*> base
        cdef uint64_t* words = <uint64_t*> (base + LEDGER_HEADER_BYTES)
        assert plan.capacity_bits >= self.capacity_bits and plan.floor >= self.header.floor
        header[0] = self.header[0]
        header.sealed = 0
        header.version = LEDGER_VERSION
        header.capacity_bits = plan.capacity_bits
        header.floor = plan.floor
        header.exceptions_count = <uint32_t> plan.exceptions_count
        header.absorb_to = 0
        window_copy(
            self.words, self.capacity_bits, words, plan.capacity_bits, plan.floor, max(plan.floor, self.bits_end()))
        # All bits of the new file can be trusted once the file has the name.
        header.trusted_below = plan.floor + plan.capacity_bits
        return self.copy_exceptions(words + plan.capacity_bits // 64, plan)

    cdef int copy_exceptions(self, uint64_t* target, const Growth* plan) except -1:
        """Store the records below a planned floor that are not finished."""
        cdef uint64_t index, ordinal, count = 0
        for index in range(self.exceptions.open_from, self.exceptions.count):
            if not self.exceptions.ordinals[index] & FINISHED_SINCE:
                target[count] = self.exceptions.ordinals[index]
                count += 1
        ordinal = self.next_unfinished(self.header.floor, plan.floor)
        while ordinal < plan.floor:
            target[count] = ordinal
            count += 1
            ordinal = self.next_unfinished(ordinal + 1, plan.floor)
        assert count == plan.exceptions_count, "an unfinished record is not listed"
        return 0

    def begin_growth(self, uint64_t ordinal):
        """Copy the ledger to another file, whose window reaches the ordinal, for a caller that syncs it in a thread.

        Returns: the mapping to sync as a whole before `end_growth`. Raises: StorageError (nothing changed).
        """
        cdef Growth plan = self.plan_growth(ordinal)
        cdef Mapping mapping = self.new_file(plan.capacity_bits, plan.exceptions_count)
        # Its path may name another file soon.
        mapping.hold()
        self.copy_to(mapping.base, &plan)
        self.growing = mapping
        self.reset_begun = False
        self.growth_from = plan.floor
        self.growth_reset_count = self.reset_count
        return mapping

    def end_growth(self, Mapping mapping not None):
        """Continue in the synced file of `begin_growth`, unless the growth has been given up.

        Raises: StorageError (given up).
        """
        cdef LedgerHeader* header = <LedgerHeader*> mapping.base
        self.update_growing()
        if self.growing is not mapping:
            return
        if header.absorb_to != 0 and not self.clears_late:
            window_clear_range(
                <uint64_t*> (mapping.base + LEDGER_HEADER_BYTES), header.capacity_bits, header.absorb_from,
                header.absorb_to)
            header.absorb_to = 0
        self.continue_in(mapping)
        # As in `grow_as`.
        self.absorb_found()

    cdef int update_growing(self) except -1:
        """Bring the file that grows up to date; or give it up if it was copied before a reset, or has become too small.

        Its bits behind the floor stay, so no mixture of old and new pages on the disk lacks one of a finished record.
        """
        cdef LedgerHeader* header
        cdef LedgerHeader now
        cdef uint64_t* window
        if self.growing is None or self.reset_begun:
            return 0
        header = <LedgerHeader*> self.growing.base
        if (
            self.growth_reset_count != self.reset_count
            or self.bits_end() > self.growth_from + header.capacity_bits
        ):
            try:
                self.cancel_growth()
            except StorageError:
                # The next growth takes the file that is left.
                pass
            return 0
        now = self.header[0]
        assert now.cursor >= self.growth_from, "only a reset moves the cursor back"
        now.sealed = 0
        now.version = header.version
        now.floor = max(now.floor, self.growth_from)
        window = <uint64_t*> (self.growing.base + LEDGER_HEADER_BYTES)
        window_add(
            self.words, self.capacity_bits, window, header.capacity_bits, now.floor, max(now.floor, self.bits_end()))
        self.update_exceptions(window + header.capacity_bits // 64, header.exceptions_count)
        now.exceptions_count = header.exceptions_count
        now.capacity_bits = header.capacity_bits
        now.trusted_below = self.growth_from + header.capacity_bits
        now.absorb_from = self.growth_from
        now.absorb_to = now.floor if now.floor != self.growth_from else 0
        store_barrier()
        header[0] = now
        return 0

    cdef int update_exceptions(self, uint64_t* ordinals, uint64_t count) noexcept:
        """Flag those exceptions of the file that grows that are finished since. Cost: O(its own and this file's)."""
        cdef Exceptions* known = &self.exceptions
        cdef uint64_t index, at = 0
        cdef bint is_finished
        for index in range(count):
            if ordinals[index] & FINISHED_SINCE:
                continue
            if ordinals[index] >= self.header.floor:
                is_finished = self.is_finished(ordinals[index])
            else:
                while at < known.count and known.ordinals[at] & ~FINISHED_SINCE < ordinals[index]:
                    at += 1
                is_finished = at == known.count or known.ordinals[at] != ordinals[index]
            if is_finished:
                ordinals[index] |= FINISHED_SINCE
        return 0

    def cancel_growth(self, mapping=None):
        """Remove the file of `begin_growth` or `begin_reset`, unless it is in use. mapping: None for any of these.

        Raises: StorageError.
        """
        if self.growing is not None and (mapping is None or self.growing is mapping):
            self.forget_growth()
            self.files.remove(self.path + GROWING)

    def cancel_reset(self):
        """Remove the file of `begin_reset`, unless it is in use. Raises: StorageError."""
        if self.reset_begun:
            self.cancel_growth()

    def forget_growth(self):
        """Cancel a growth or reset under way, whose file is gone or is replaced."""
        if self.growing is not None:
            self.growing.file_removed()
            self.growing = None

    cdef int sync_and_replace(self, Mapping mapping) except -1:
        """Sync another file, then rename it to the ledger's name. Raises: StorageError (nothing changed)."""
        if self.path is not None:
            try:
                self.files.sync(mapping, 0, mapping.size_bytes)
            except StorageError:
                self.files.remove(self.path + GROWING)
                raise
        return self.replace_file(mapping)

    def check(self):
        """Assert the invariants. Cost: O(capacity)."""
        cdef LedgerHeader* header = self.header
        cdef uint64_t limit = self.bits_end()
        assert header.floor <= header.cursor
        assert (header.absorb_to != 0) == (self.uncleared_from != ALL_CLEARED)
        if header.floor < header.cursor:
            assert not self.is_finished(header.floor)
        assert self.finished_count == window_count(self.words, self.capacity_bits, header.floor, limit)
        if header.cursor < limit:
            assert self.ahead == window_count(self.words, self.capacity_bits, header.cursor, limit)
        else:
            assert self.ahead == 0
        assert header.reset_to == 0 and self.synced_change_count <= self.change_count
        assert self.capacity_bits == header.capacity_bits and self.file_bytes() <= self.mapping.size_bytes
        self.check_exceptions()
        assert self.uncleared_from == ALL_CLEARED or header.absorb_from == self.uncleared_from <= header.floor
        assert self.growing is None or self.path is not None
        assert self.open_bits == (0 if header.sealed else self.capacity_bits)
        if header.sealed:
            self.verify(self.mapping)

    def check_exceptions(self):
        """Assert that the exceptions and their counts agree. Cost: O(exceptions)."""
        cdef Exceptions found
        assert self.exceptions.count == self.header.exceptions_count
        assert are_ascending(self.exceptions.ordinals, self.exceptions.count)
        use_exceptions(&found, self.exceptions.ordinals, self.exceptions.count)
        assert (found.open_count, found.oldest) == (self.exceptions.open_count, self.exceptions.oldest)
        assert count_exceptions(&found, 0, self.bits_start()) == found.open_count, "invariant 5"

    @property
    def started(self) -> bool:
        """True if the ledger has a place in the log; a kill may leave a new ledger without one."""
        return self.header.cursor_segment != 0

    @property
    def floor(self) -> int:
        return self.header.floor

    @property
    def oldest(self) -> int:
        """The first record not finished; the floor if no exception is open."""
        return self.oldest_unfinished()

    @property
    def exceptions_count(self) -> int:
        """Number of the unfinished records below the floor."""
        return self.exceptions.open_count

    @property
    def cursor(self) -> int:
        return self.header.cursor

    @property
    def bits_from(self) -> int:
        if self.growing is not None:
            return min(self.bits_start(), self.growth_from)
        return self.bits_start()

    @property
    def window_from(self) -> int:
        """The first record of which the file has a bit; `bits_from` speaks also for a file that grows."""
        return self.bits_start()

    @property
    def start(self) -> int:
        return self.header.start

    @property
    def generation(self) -> int:
        return self.header.generation

    @generation.setter
    def generation(self, uint32_t number):
        """Take up the notes of a ledger that is lost."""
        if self.header.generation != number:
            self.unseal()
            self.header.generation = number

    @property
    def replaces_lost(self) -> bool:
        """True if the ledger replaces a lost one and its channel has not been recovered since."""
        return self.header.replaces_lost != 0

    def note_recovered(self):
        """Record after a start that the channel is recovered."""
        if self.header.replaces_lost != 0:
            self.unseal()
            self.change_count += 1
            self.header.replaces_lost = 0

    cdef LedgerSettings* newest_settings(self) noexcept:
        """Return the valid settings with the higher number; NULL if there are none."""
        cdef LedgerSettings* found = NULL
        cdef LedgerSettings* each
        for index in range(2):
            each = &self.header.settings[index]
            if each.number != 0 and each.checksum == settings_checksum(each) and each.size_bytes <= SETTINGS_BYTES_MAX:
                if found == NULL or each.number > found.number:
                    found = each
        return found

    @property
    def settings(self) -> bytes:
        """Settings of the channel, up to SETTINGS_BYTES_MAX bytes. A kill leaves the former or the new ones."""
        cdef LedgerSettings* found = self.newest_settings()
        return b"" if found == NULL else found.content[:found.size_bytes]

    @settings.setter
    def settings(self, bytes content):
        cdef LedgerSettings* found = self.newest_settings()
        cdef LedgerSettings* other = &self.header.settings[found == &self.header.settings[0]]
        assert len(content) <= SETTINGS_BYTES_MAX
        self.unseal()
        self.change_count += 1
        other.checksum = 0
        store_barrier()
        other.number = 1 if found == NULL else found.number + 1
        other.size_bytes = <uint32_t> len(content)
        memset(other.content, 0, SETTINGS_BYTES_MAX)
        memcpy(other.content, <const char*> content, len(content))
        store_barrier()
        other.checksum = settings_checksum(other)

    def sync_target(self):
        """Return the mapping of the file, and the number of its bytes in use."""
        return self.mapping, self.file_bytes()

    def sync_targets(self):
        """Return [(mapping, bytes in use)] that a sync has to write: of the file, and of one that will replace it."""
        self.update_growing()
        targets = [self.sync_target()]
        if self.growing is not None and not self.reset_begun:
            targets.append((self.growing, self.growing.size_bytes))
        return targets

    def unfinished(self, uint64_t end):
        """Yield the ordinals below `end` that are not finished."""
        cdef uint64_t at = self.unfinished_from(0, end)
        while at < end:
            yield at
            at = self.unfinished_from(at + 1, end)

    def marked(self, uint64_t start, uint64_t end):
        """Return the ordinals of `[start, end)` whose bits are set. Cost: O(these ordinals, and the words between)."""
        cdef uint64_t at = max(start, self.header.floor)
        cdef uint64_t limit = min(end, self.bits_end())
        found = []
        while at < limit:
            at = window_next_one(self.words, self.capacity_bits, at, limit)
            if at < limit:
                found.append(at)
            at += 1
        return found

    def mark(self, uint64_t ordinal, uint64_t oldest, uint64_t end):
        """Set the bit of a record, in a ledger that lists some of the records `[oldest, end)` of a log.

        Its cursor stays at its floor, so that no bit is absorbed. Raises: StorageError (nothing is marked).
        """
        assert oldest <= ordinal < end
        self.advance_to(oldest, end)
        if not self.is_finished(ordinal):
            self.unseal()
            self.finish(ordinal)

    cdef int advance_to(self, uint64_t oldest, uint64_t end) except -1:
        """Forget the marks of records that the log `[oldest, end)` has no more."""
        if self.header.floor < oldest:
            self.clamp(oldest, end)
        return 0

    def note_finished(self, uint64_t ordinal):
        """Mark a record as finished, from Python (tests, cold paths). Raises: StorageError."""
        self.unseal()
        self.finish(ordinal)

    def note_range(self, uint64_t start, uint64_t end):
        """Mark a range of records as finished, from Python. Raises: StorageError."""
        self.finish_range(start, end)

    def note_handed_out(self):
        """Advance the cursor by one record, from Python. Returns: False if the record was finished and is skipped."""
        if self.next_is_finished():
            self.skip()
            return False
        self.unseal()
        self.hand_out()
        return True

    def has_finished(self, uint64_t ordinal):
        """Return whether a record is finished."""
        return self.is_finished(ordinal)

    def start_at(self, uint64_t ordinal):
        """Reset the ledger to an ordinal, from Python."""
        self.reset(ordinal)
