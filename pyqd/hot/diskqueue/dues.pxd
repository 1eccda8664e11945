# Index of the due times of one topic's records, on disk. Design notes: pyx/diskqueue/dues.pyx; the format:
# docs/storage.md, "Due times".
from libc.stdint cimport int64_t, uint64_t

from pyqd.hot.diskqueue.log cimport Log
from pyqd.hot.diskqueue.mapping cimport Mapping
from pyqd.hot.diskqueue.notefiles cimport (
    CHUNKS_MAX,
    DOUBLED_CHUNKS,
    DOUBLINGS,
    HEADER_SLOTS,
    SLOTS_PER_CHUNK,
    Note,
    NoteFiles,
    NoteHeader,
    SlotFile,
    first_chunk_of,
)

cdef enum:
    ENTRIES_MAX = CHUNKS_MAX * SLOTS_PER_CHUNK - HEADER_SLOTS    # of a file
    # In the files before the first of that size.
    DOUBLED_ENTRIES = DOUBLED_CHUNKS * SLOTS_PER_CHUNK - DOUBLINGS * HEADER_SLOTS

cdef inline uint64_t first_entry_of(uint64_t number) noexcept nogil:
    # Return the index of the first entry of a file.
    return first_chunk_of(number) * SLOTS_PER_CHUNK - number * HEADER_SLOTS

cdef inline uint64_t file_number_of(uint64_t index) noexcept nogil:
    # Return the number of the file with an entry.
    cdef uint64_t number = 0
    if index >= DOUBLED_ENTRIES:
        return DOUBLINGS + (index - DOUBLED_ENTRIES) // ENTRIES_MAX
    while index >= first_entry_of(number + 1):
        number += 1
    return number

cdef class DueFile(SlotFile):
    cdef Note* entries                   # the first one
    cdef uint64_t first                  # index of that
    cdef uint64_t end                    # index behind the last one that it has space for

cdef class Dues:
    cdef readonly NoteFiles store
    cdef list held                       # DueFile: consecutive numbers
    cdef uint64_t first_number           # of the first of them
    cdef readonly uint64_t first         # index of the first entry kept
    cdef readonly uint64_t end           # behind the last one
    cdef uint64_t space_end              # there is space for entries below that index ...
    cdef uint64_t ahead_at               # ... and the next file is to be made ahead from this end on
    cdef readonly uint64_t ordinal_end   # 1 + ordinal of the last entry that there ever was; 0: none

    cdef inline uint64_t next_number(self) noexcept:
        # Return the number of the next file.
        return self.first_number + <uint64_t> len(self.held)

    cdef inline DueFile file_of(self, uint64_t index):
        return <DueFile> self.held[file_number_of(index) - self.first_number]

    cdef inline const Note* at(self, uint64_t index) noexcept:
        # Return the entry with that index, from `first` to before `end`; it stays there until it is trimmed.
        cdef DueFile file = self.file_of(index)
        return file.entries + (index - file.first)

    cdef inline int reserve(self, uint64_t count) except -1:
        # Reserve space: so many appends cannot fail then. Raises: StorageError (nothing changed).
        if self.end + count > self.ahead_at:
            self.reserve_files(count)
        return 0

    cpdef int reserve_files(self, uint64_t count) except -1
    cdef int append(self, uint64_t seq, int64_t due_ns, uint64_t place) noexcept
    cpdef int take_back(self, uint64_t end) except -1
    cdef int clear_from(self, uint64_t start, uint64_t end) except -1
    cpdef int trim(self, uint64_t ordinal) except -1
    cpdef uint64_t lower_bound(self, uint64_t ordinal) noexcept
    cdef int enter(self, DueFile file) except -1
    cpdef int abandon(self) except -1
    cdef int forget_files(self) except -1
    cdef int end_at(self, uint64_t end) except -1
    cdef int clear_behind(self) except -1
    cdef int remove_files(self) except -1
    cdef int note_found_synced(self, uint64_t synced_below) except -1
    cdef int walk(self, Log log, uint64_t ordinal) except -1
