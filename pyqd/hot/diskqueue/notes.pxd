# Notes of a channel about its messages, on disk. Design notes: pyx/diskqueue/notes.pyx; the format: docs/storage.md,
# "Notes".
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from pyqd.hot.diskqueue.mapping cimport Mapping
from pyqd.hot.diskqueue.notefiles cimport SLOTS_PER_CHUNK, Note, NoteFiles, SlotFile
from pyqd.hot.primitives.arrays cimport Array

cdef enum:
    NO_NOTE = 0                          # a slot number that no note has

# A note that a start has found. Its index is sorted by seq.
cdef struct FoundNote:
    uint64_t seq
    uint32_t slot
    uint8_t taken                        # its message is not finished

cdef class NoteFile(SlotFile):
    cdef uint32_t first                  # slot number of the file's first byte
    cdef uint32_t end                    # behind its last slot
    cdef uint32_t fresh                  # slots from here on were never used
    cdef uint32_t free_slot              # first of the list of freed slots; NO_NOTE: none
    cdef uint32_t count                  # notes in it

    cdef inline Note* at(self, uint32_t slot) noexcept:
        return self.slots + (slot - self.first)

    cdef inline bint is_nearly_full(self) noexcept:
        # Return whether three quarters of its slots have just been used.
        return self.fresh == self.end - (self.end - self.first) // 4

    cdef inline bint has_free(self) noexcept:
        return self.free_slot != NO_NOTE or self.fresh != self.end

cdef class Notes:
    cdef readonly NoteFiles store
    cdef readonly uint64_t generation    # files of other generations do not count
    cdef dict dropped                    # NoteFile by number, of an earlier generation; see `begin_generation`
    cdef list chunks                     # NoteFile by chunk of slot numbers; None: there is none
    cdef NoteFile current                # the next note goes there, if it has a free slot; None: there is no file
    cdef readonly uint64_t count         # notes
    cdef Array found_memory
    cdef FoundNote* found                # until `end_recovery`; in the order of seq
    cdef readonly uint64_t found_count
    cdef uint64_t next_found             # the search goes on here

    cdef inline NoteFile file_of(self, uint32_t slot):
        return <NoteFile> self.chunks[slot // SLOTS_PER_CHUNK]

    cdef inline const Note* at(self, uint32_t slot):
        # Return the note of a slot, which has one.
        return self.file_of(slot).at(slot)

    cdef uint32_t put(
        self, uint64_t seq, uint8_t kind, uint16_t attempts, int64_t due_ns, uint64_t place
    ) except NO_NOTE
    cpdef int change(self, uint32_t slot, uint8_t kind, uint16_t attempts) except -1
    cpdef int free(self, uint32_t slot) except -1
    cdef int add_file(self) except -1
    cdef uint64_t next_number(self) except? 0
    cdef int enter(self, NoteFile file) except -1
    cdef int drop_file(self, NoteFile file) except -1
    cdef int leave_file(self, NoteFile file) except -1
    cpdef int begin_generation(self, uint64_t generation) except -1
    cdef int abandon(self) except -1
    cpdef int end_recovery(self) except -1
    cdef uint64_t find_in(self, NoteFile file, bint power_failed) except? <uint64_t> -1
    cdef int add_found(self, const Note* note, uint32_t slot) except -1
    cdef int sort_found(self) except -1
    cpdef uint32_t find(self, uint64_t seq) except? NO_NOTE
