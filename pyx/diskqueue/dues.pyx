"""Due times of a topic's records: an index, in the order of the log, that all channels read.

    dues/0, dues/1, ...   | header | entry | entry | entry | ...        an entry takes one slot of 32 bytes

A record with a due time has an entry, which is stored before the record is valid. So channels learn due times without
reading records. An entry never says that a message exists: entries of records that are finished, or that rewriting made
part of a gap, stay until their file is trimmed.

Entries have dense indexes, in the order of the ordinals of their records. The number of a file fixes the indexes of its
entries. The header comes with the first entry, and its `origin` is 1 + the ordinal of the last entry in earlier files.
So a start knows whether the files that are missing had entries of records that the log has.

Entries are dropped at the end only, if a batch is discarded. Behind the last one all slots are free.

A start compares the files with the log. After a kill they are complete up to the log's end, and may have entries of
records that did not become valid. After a power failure they are complete up to the last sync; the records from there
on are walked over. If a file is missing or damaged, all entries are made again by a walk over the headers of the log. A
disk without space for them leaves them in memory, and the next start makes them again.

Invariants: 1. the ordinals of the entries ascend, their checksums are right, and slots at or past `end` are free.
2. the files in `held` have all indexes from `first` to before `space_end`.

Source: docs/storage.md, "Due times".
"""

cimport cython
from libc.string cimport memset

from pyqd.hot.diskqueue.log cimport Position
from pyqd.hot.diskqueue.mapping cimport store_barrier
from pyqd.hot.diskqueue.notefiles cimport (
    NOTE_PUBLISHED,
    fill_slot,
    is_free,
    is_sound,
    note_offset,
    note_place,
)
from pyqd.hot.diskqueue.segment cimport SEGMENT_HEADER_BYTES, Segment
from pyqd.hot.primitives.debug cimport debug_require
from pyqd.hot.wire.record cimport ORDINAL_MASK, Record, record_ordinal, record_span, store_word

import logging

from pyqd.primitives.errors import DiskFull

cdef uint64_t MAGIC = 0x455544_44515950          # "PYQDDUE\0", little-endian

logger = logging.getLogger(__name__)


cdef inline uint64_t entry_ordinal(const Note* at) noexcept nogil:
    return at.seq & ORDINAL_MASK


@cython.final
cdef class DueFile(SlotFile):
    """One file of entries."""

    def __init__(self, Mapping mapping not None, uint64_t number):
        SlotFile.__init__(self, mapping, number)
        self.entries = self.slots + HEADER_SLOTS
        self.first = first_entry_of(number)
        self.end = first_entry_of(number + 1)


@cython.final
cdef class Dues:
    """Due times of one topic, in the files of a directory, which the first entry makes; None: in memory.

    files, directory, limit, prepare: as for NoteFiles.
    """

    def __init__(self, files not None, directory, limit not None, prepare=None):
        self.store = NoteFiles(MAGIC, "due times", files, directory, limit, prepare)
        self.held = []

    # Changes.

    cpdef int reserve_files(self, uint64_t count) except -1:
        """Make files for so many more entries, and have the next one made ahead if the last one is nearly full."""
        cdef uint64_t number
        cdef DueFile file
        while self.space_end - self.end < count:
            number = self.next_number()
            file = DueFile(self.store.make(number), number)
            self.enter(file)
        if self.end + count > self.ahead_at:
            self.ahead_at = self.space_end
            self.store.ask_ahead(self.next_number())
        return 0

    cdef int enter(self, DueFile file) except -1:
        """Add a file to those in use, behind the last one."""
        if not self.held:
            self.first_number = file.number
            self.first = self.end = file.first
        assert file.number == self.next_number(), "files have consecutive numbers"
        self.held.append(file)
        self.store.in_use[file.number] = file
        self.space_end = file.end
        self.ahead_at = file.end - (file.end - file.first) // 4
        return 0

    cdef int append(self, uint64_t seq, int64_t due_ns, uint64_t place) noexcept:
        """Add the entry of a record, behind all others; its space is reserved.

        place: number of the record's segment << 32 | offset there / 8.
        """
        cdef DueFile file = self.file_of(self.end)
        cdef Note entry = Note(
            checksum=0, attempts=0, kind=NOTE_PUBLISHED, reserved=0, seq=seq, due_ns=due_ns, place=place)
        debug_require(self.end < self.space_end)
        debug_require(due_ns != 0)
        debug_require((seq & ORDINAL_MASK) >= self.ordinal_end)
        if self.end == file.first:
            self.store.begin_header(file, self.ordinal_end)
        fill_slot(file.entries + (self.end - file.first), &entry)
        self.ordinal_end = (seq & ORDINAL_MASK) + 1
        self.end += 1
        return self.store.note_change(file)

    cpdef int take_back(self, uint64_t end) except -1:
        """Drop the entries from an index on: their records did not become valid. Their space stays."""
        assert self.first <= end <= self.end, "only entries are dropped"
        if end == self.end:
            return 0
        self.clear_from(end, self.end)
        return self.end_at(end)

    cdef int end_at(self, uint64_t end) except -1:
        """Let the entries end at the index of one of them."""
        cdef DueFile file = self.file_of(end)
        self.end = end
        self.ordinal_end = file.header().origin if end == file.first else entry_ordinal(self.at(end - 1)) + 1
        return 0

    cdef int clear_from(self, uint64_t start, uint64_t end) except -1:
        """Free the slots from `start` to before `end`, the last first: a kill leaves dense indexes."""
        cdef DueFile file
        cdef Note* at
        cdef uint64_t index = end
        while index > start:
            index -= 1
            file = self.file_of(index)
            at = file.entries + (index - file.first)
            store_word(<char*> at, 0)
            memset(<char*> at + 8, 0, sizeof(Note) - 8)
            if index == file.first:
                store_barrier()
                (<NoteHeader*> file.slots).magic = 0
            self.store.note_change(file)
        return 0

    cpdef int trim(self, uint64_t ordinal) except -1:
        """Remove the files whose entries all belong to records below an ordinal, but not that of the last entry."""
        cdef DueFile file
        while len(self.held) > 1:
            file = self.held[0]
            if file.end >= self.end or entry_ordinal(self.at(file.end - 1)) >= ordinal:
                break
            del self.held[0]
            self.first_number += 1
            self.first = file.end
            self.store.remove(file)
        return 0

    cpdef uint64_t lower_bound(self, uint64_t ordinal) noexcept:
        """Return the index of the first entry of a record with that ordinal or a greater one. Cost: O(log entries)."""
        cdef uint64_t low = self.first
        cdef uint64_t high = self.end
        cdef uint64_t middle
        while low < high:
            middle = low + ((high - low) >> 1)
            if entry_ordinal(self.at(middle)) < ordinal:
                low = middle + 1
            else:
                high = middle
        return low

    cdef int forget_files(self) except -1:
        """Drop all entries; later ones have indexes of their own."""
        cdef uint64_t number = self.next_number()
        self.held = []
        self.first_number = number
        self.first = self.end = self.space_end = self.ahead_at = first_entry_of(number)
        return 0

    cpdef int abandon(self) except -1:
        """Drop all entries, because the files are gone; later ones are kept in memory only."""
        self.store.abandon()
        return self.forget_files()

    # Start.

    cdef int clear_behind(self) except -1:
        """Free the slots behind the last entry that a start has found, and remove the files without entries."""
        cdef DueFile file
        for file in reversed(self.held):
            self.clear_from(max(self.end, file.first), file.first + file.used_end() - HEADER_SLOTS)
        while self.held and (<DueFile> self.held[len(self.held) - 1]).first >= self.end:
            file = self.held.pop()
            self.space_end = self.ahead_at = file.first
            self.store.remove(file)
        if not self.held:
            self.forget_files()
        return 0

    cdef int remove_files(self) except -1:
        """Remove the files that a start has found so far."""
        for file in self.held:
            self.store.remove(file)
        self.held = []
        return 0

    cdef int note_found_synced(self, uint64_t synced_below) except -1:
        """Record that an earlier run has synced the entries of records below an ordinal, and no others."""
        cdef DueFile file
        cdef uint64_t synced_end = self.lower_bound(synced_below)
        for file in self.held:
            if synced_end < min(file.end, self.end):
                self.store.note_change(file)
        return 0

    cdef int walk(self, Log log, uint64_t ordinal) except -1:
        """Add the entries of the records of a log from an ordinal on. Raises: StorageError (some of them are there)."""
        cdef Segment segment
        cdef const Record* record
        cdef Position position
        cdef uint64_t offset
        if ordinal >= log.end:
            return 0
        position = log.locate(ordinal)
        segment, offset = position.segment, position.offset
        while segment is not None:
            log.ready(segment)
            while offset < segment.tail:
                record = <const Record*> (segment.base + offset)
                if record.due_ns != 0 and record.flags == 0 and record_ordinal(record) >= ordinal:
                    self.reserve(1)
                    self.append(record.seq, record.due_ns, note_place(segment.number, offset))
                offset += record_span(record.size_bytes)
            segment = segment.next
            offset = SEGMENT_HEADER_BYTES
        return 0

    # From Python: imports, tests.

    def add(self, uint64_t seq, int64_t due_ns, uint64_t place=0):
        """Add the entry of a record. Returns: its index. Raises: StorageError (nothing changed)."""
        self.reserve(1)
        self.append(seq, due_ns, place)
        return self.end - 1

    def rows(self):
        """Return [(seq, due time, segment number, offset)] of all entries, in order."""
        cdef uint64_t index
        cdef const Note* at
        rows = []
        for index in range(self.first, self.end):
            at = self.at(index)
            rows.append((at.seq, at.due_ns, at.place >> 32, note_offset(at)))
        return rows

    def check(self):
        """Assert the invariants. Cost: O(slots)."""
        cdef DueFile file
        cdef uint64_t index
        cdef uint64_t number = self.first_number
        cdef uint64_t ordinal_end = 0
        cdef const Note* at
        assert self.first <= self.end <= self.space_end and self.ahead_at <= self.space_end
        assert list(self.store.in_use.values()) == self.held
        assert self.first == first_entry_of(self.first_number), "invariant 2"
        for file in self.held:
            assert file.number == number and file_number_of(file.first) == number, "invariant 2"
            assert file_number_of(file.end - 1) == number, "invariant 2"
            number += 1
            if file.first < self.end:
                assert file.header().magic == MAGIC and file.header().origin >= ordinal_end
                assert file.first == self.first or file.header().origin == ordinal_end
                ordinal_end = file.header().origin
            else:
                assert file.header().magic == 0
            for index in range(file.first, file.end):
                at = file.entries + (index - file.first)
                if index < self.end:
                    assert is_sound(at) and entry_ordinal(at) >= ordinal_end, "invariant 1"
                    ordinal_end = entry_ordinal(at) + 1
                else:
                    assert is_free(at), "invariant 1"
        assert self.space_end == first_entry_of(number), "invariant 2"
        assert self.end == self.first or self.ordinal_end == ordinal_end


@cython.final
cdef class FoundDues:
    """Files of an earlier run, compared with the log."""

    cdef Dues dues
    cdef Log log
    cdef uint64_t synced_below           # entries of records below are complete; the log's end unless the power failed
    cdef bint power_failed
    cdef str problem                     # None: the files are complete up to `synced_below`

    def __init__(
        self, Dues dues not None, Log log not None, uint64_t due_below, uint64_t synced_below, bint power_failed,
        bint found,
    ):
        self.dues = dues
        self.log = log
        self.power_failed = power_failed
        self.synced_below = min(synced_below, log.end) if power_failed else log.end
        if found:
            self.find()
        if self.problem is None:
            self.scan()
        if self.problem is None:
            self.check_end(due_below)
        if self.problem is None:
            self.drop_last()

    cdef int find(self) except -1:
        """Find the files that follow one another up to the last one; others, and those without entries, are removed."""
        cdef DueFile file
        cdef Dues dues = self.dues
        # They count as missing.
        damaged = []
        for number, mapping in dues.store.open_found(damaged):
            file = DueFile(mapping, number)
            if file.header().magic == 0:
                if not self.power_failed and not is_free(file.entries):
                    self.problem = f"{file.mapping.path}: the header of the file is missing"
            elif file.header().origin <= self.log.first.first_ordinal:
                # The entries of all files before belong to records that the log has no more.
                dues.remove_files()
                dues.enter(file)
                continue
            elif dues.held and file.number == dues.next_number():
                dues.enter(file)
                continue
            elif not self.power_failed or file.header().origin < self.synced_below:
                self.problem = f"{file.mapping.path}: the file before it is missing"
            dues.store.remove(file)
        for error in damaged:
            if not self.power_failed:
                self.problem = str(error)
            dues.store.files.remove(error.file)
        return 0

    cdef int scan(self) except -1:
        """Find the end of the entries, and check all of them."""
        cdef DueFile file
        cdef Dues dues = self.dues
        cdef Note* at
        cdef bint ended = False
        if dues.held:
            dues.end_at(dues.first)
        for file in dues.held:
            if not ended and file.header().origin != dues.ordinal_end:
                self.problem = f"{file.mapping.path}: it does not continue the file before"
                return 0
            at = file.entries
            while at < file.entries + (file.end - file.first):
                if is_free(at):
                    ended = True
                elif not is_sound(at):
                    self.problem = f"{file.mapping.path}: an entry is damaged"
                    return 0
                elif not ended and entry_ordinal(at) >= dues.ordinal_end:
                    dues.end += 1
                    dues.ordinal_end = entry_ordinal(at) + 1
                elif not self.power_failed or entry_ordinal(at) < self.synced_below:
                    self.problem = f"{file.mapping.path}: an entry is at a wrong place"
                    return 0
                else:
                    ended = True
                at += 1
        return 0

    cdef int drop_last(self) except -1:
        """Leave out entries at the end of records that did not become valid, or that a power failure may have taken."""
        cdef Dues dues = self.dues
        cdef const Note* last
        while dues.end > dues.first:
            last = dues.at(dues.end - 1)
            if entry_ordinal(last) < self.synced_below and self.has_record(last.seq):
                break
            dues.end_at(dues.end - 1)
        return 0

    cdef bint has_record(self, uint64_t seq) except -1:
        """Return whether a record of the log has, or may have had, that sequence number."""
        cdef uint64_t ordinal = seq & ORDINAL_MASK
        cdef Segment segment = self.log.segment_of(ordinal)
        if not segment.first_ordinal <= ordinal < segment.end_ordinal():
            return ordinal < self.log.end
        return seq == segment.header().first_seq + (ordinal - segment.first_ordinal)

    cdef int check_end(self, uint64_t due_below) except -1:
        """Find out whether entries at the end are missing. due_below: as for `open_dues`."""
        cdef uint64_t log_first = self.log.first.first_ordinal
        cdef uint64_t needed_end = min(due_below, self.log.end)
        if needed_end <= log_first:
            return 0
        if not self.dues.held and self.power_failed and self.synced_below <= log_first:
            # No sync has covered a file.
            return 0
        if not self.dues.held:
            self.problem = "all files are missing"
        elif self.dues.ordinal_end < needed_end and (not self.power_failed or due_below <= self.synced_below):
            # Otherwise the last entry may be one that the power failure took.
            self.problem = "the last entry is missing"
        return 0


cdef Dues remade(files, directory, limit, Log log, prepare):
    """Return all due times of a log. Raises: StorageError."""
    cdef Dues dues = Dues(files, directory, limit, prepare)
    dues.walk(log, log.first.first_ordinal)
    return dues


def open_dues(
    files not None, directory, limit not None, Log log not None, *, uint64_t due_below, uint64_t synced_below,
    bint power_failed, bint found, prepare=None,
):
    """Return the due times of a log, complete, with those of an earlier run.

    due_below: 1 + ordinal of the last record with a due time, as the topic's state says; 0: there was none.
    synced_below: a sync has covered the records below it and their entries. found: the directory is there. prepare:
    as for Dues. Cost: O(entries); if the files are damaged, O(records). Raises: StorageError.
    """
    cdef Dues dues = Dues(files, directory, limit, prepare)
    cdef FoundDues kept
    if directory is None:
        return dues
    kept = FoundDues(dues, log, due_below, synced_below, power_failed, found)
    try:
        if kept.problem is None:
            dues.clear_behind()
            dues.note_found_synced(synced_below)
            if power_failed:
                dues.walk(log, max(kept.synced_below, log.first.first_ordinal))
            return dues
        logger.warning(
            "DISKQUEUE(%s): %s - the index of due times is made again from the records", directory, kept.problem)
        dues.remove_files()
        return remade(files, directory, limit, log, prepare)
    except DiskFull as error:
        logger.warning(
            "DISKQUEUE(%s): %s - the index of due times is kept in memory; the next start makes it again from the "
            "records", directory, error)
        for number in dues.store.found_numbers():
            files.remove(dues.store.path_of(number))
        return remade(files, None, limit, log, None)
