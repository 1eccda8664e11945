# Files of slots of 32 bytes: notes of a channel, due times of a topic. Design notes: pyx/diskqueue/notefiles.pyx; the
# format: docs/storage.md, "Notes".
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from pyqd.hot.diskqueue.mapping cimport Mapping

cdef enum:
    NOTE_BYTES = 32
    SLOTS_PER_CHUNK = 2048               # 64 KiB: the smallest file
    HEADER_SLOTS = 2                     # of each file
    DOUBLINGS = 4                        # of the size, from file to file
    CHUNKS_MAX = 1 << DOUBLINGS          # of a file
    DOUBLED_CHUNKS = CHUNKS_MAX - 1      # of the files before the first of that size

cdef enum NoteKind:
    NOTE_PUBLISHED = 1                   # the due time of a record
    NOTE_DEFERRED = 2                    # the message waits for `due_ns`
    NOTE_DELIVERED = 3                   # the message was handed out, or waits for redelivery

cdef struct Note:
    uint32_t checksum                    # crc32c over the 20 bytes after it; the first word is stored last
    uint16_t attempts                    # deliveries so far
    uint8_t kind                         # NoteKind
    uint8_t reserved                     # zero
    uint64_t seq                         # of the record, with the epoch
    int64_t due_ns                       # Unix; 0 if NOTE_DELIVERED
    uint64_t place                       # hint: number of the segment << 32 | offset there / 8

cdef inline uint64_t note_offset(const Note* note) noexcept nogil:
    # Return the offset of a note's record in its segment, as the hint says.
    return <uint64_t> <uint32_t> note.place << 3

cdef inline uint64_t note_place(uint64_t segment_number, uint64_t offset) noexcept nogil:
    # Return the hint of a record at that offset of a segment.
    return segment_number << 32 | offset >> 3

cdef struct NoteHeader:
    uint64_t magic                       # stored last; 0: there is no header
    uint32_t version
    uint32_t checksum                    # crc32c over number and origin
    uint64_t number                      # of the file
    uint64_t origin                      # of its slots: a generation, or an ordinal
    uint64_t[4] reserved

cdef inline uint64_t chunks_of(uint64_t number) noexcept nogil:
    # Return the number of chunks of a file.
    return <uint64_t> 1 << min(number, <uint64_t> DOUBLINGS)

cdef inline uint64_t first_chunk_of(uint64_t number) noexcept nogil:
    # Return the number of chunks of all files before a file.
    if number <= DOUBLINGS:
        return (<uint64_t> 1 << number) - 1
    return DOUBLED_CHUNKS + CHUNKS_MAX * (number - DOUBLINGS)

cdef uint32_t note_checksum(const Note* note) noexcept nogil
cdef void fill_slot(Note* at, const Note* note) noexcept nogil

cdef inline bint is_free(const Note* at) noexcept nogil:
    return (<const uint64_t*> at)[0] == 0

cdef inline bint is_sound(const Note* at) noexcept nogil:
    return at.checksum == note_checksum(at)

cdef class SlotFile:
    cdef readonly Mapping mapping
    cdef readonly uint64_t number
    cdef Note* slots                     # from the header on
    cdef readonly uint64_t change_count
    cdef readonly uint64_t synced_change_count    # as of the last completed sync

    cdef inline const NoteHeader* header(self) noexcept:
        return <const NoteHeader*> self.slots

    cdef uint64_t used_end(self) noexcept

cdef class NoteFiles:
    cdef readonly object files           # the seam to the operating system
    cdef readonly str directory          # None: anonymous memory
    cdef public object limit             # SpaceLimit
    cdef str content                     # of the files, for errors: "notes"
    cdef uint64_t magic                  # of the files
    cdef object prepare                  # makes a file in a thread; None: all are made when they are needed
    cdef bint preparing                  # it has been called, and `offer` has not
    cdef Mapping spare                   # the file that it has made; None: there is none
    cdef str spare_path
    cdef bint abandoned                  # the files are gone
    cdef readonly uint64_t size_bytes    # of all files
    cdef dict in_use                     # SlotFile by number
    cdef readonly uint64_t change_count  # goes up with every change that a sync has to cover
    cdef readonly uint64_t synced_change_count    # as of the last completed sync
    cdef uint64_t named_at               # the change_count of the last name of a file that has come or gone

    cdef inline int note_change(self, SlotFile file) noexcept:
        # Count a change of a file, which the next sync has to cover.
        file.change_count += 1
        self.change_count += 1
        return 0

    cdef list found_numbers(self)
    cdef list open_found(self, list damaged)
    cdef Mapping open(self, uint64_t number)
    cdef Mapping make(self, uint64_t number)
    cdef void begin_header(self, SlotFile file, uint64_t origin) noexcept
    cdef int ask_ahead(self, uint64_t number) except -1
    cdef int drop_spare(self) except -1
    cdef int remove(self, SlotFile file) except -1
    cdef int note_named(self) except -1
    cdef int abandon(self) except -1
