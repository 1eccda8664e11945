"""Notes of a channel about its messages: deliveries so far, and due times that their records do not have.

    notes/0, notes/1, ...   | header | slot | slot | slot | ...        a note takes one slot of 32 bytes

A note names a record by its sequence number, and counts only while that record is kept and not finished. It never says
that a message exists or is finished: the log and the ledger alone do. So notes need no order among the writes of a
sync. If notes are lost, their messages come at once, with an attempt presumed.

The first word of a slot is stored last (pyx/diskqueue/notefiles.pyx). Deliveries so far and kind lie in it, so one
store changes them. A note with another due time takes another slot before the old one is freed. A kill in between
leaves both; the one with more deliveries counts, then the one that waits.

After a power failure a slot with a wrong checksum is one that was written in part, and is dropped; at other times it is
damage.

All notes of a file are of the *generation* in its header. The ledger stores the generation that counts, so a reset of
the channel drops all notes in the same page in which it stores its new place.

A slot number stays right while files come and go. Slot 0 would be in a header; it means that there is no note.

Invariants: 1. A slot has a note, is in its file's list of free slots, or lies at or past `fresh`. 2. A file without
notes is removed, unless it is the current one.

Source: docs/storage.md, "Notes".
"""

cimport cython
from libc.stdlib cimport qsort

from pyqd.hot.diskqueue.notefiles cimport (
    HEADER_SLOTS,
    NOTE_DEFERRED,
    NOTE_DELIVERED,
    chunks_of,
    fill_slot,
    first_chunk_of,
    is_free,
    is_sound,
    note_checksum,
)
from pyqd.hot.primitives.arrays cimport array_release, array_reserve
from pyqd.hot.primitives.debug cimport debug_require
from pyqd.hot.primitives.releases cimport array_release_later
from pyqd.hot.wire.record cimport store_word

from pyqd.diskqueue.damage import set_aside
cdef uint64_t MAGIC = 0x45544e_44515950          # "PYQDNTE\0", little-endian
# Of a file without notes; that of no ledger.
cdef uint64_t NO_GENERATION = 0

cdef enum:
    FOUND_MIN = 1024

KIND_DEFERRED, KIND_DELIVERED = NOTE_DEFERRED, NOTE_DELIVERED


cdef int compare_found(const void* left, const void* right) noexcept nogil:
    cdef const FoundNote* first = <const FoundNote*> left
    cdef const FoundNote* second = <const FoundNote*> right
    if first.seq != second.seq:
        return -1 if first.seq < second.seq else 1
    return 0


cdef bint precedes(const Note* note, const Note* other) noexcept nogil:
    """Return whether a note counts and another one of the same record does not."""
    if note.attempts != other.attempts:
        return note.attempts > other.attempts
    return note.kind == NOTE_DEFERRED and other.kind != NOTE_DEFERRED


@cython.final
cdef class NoteFile(SlotFile):
    """One file of notes."""

    def __init__(self, Mapping mapping not None, uint64_t number):
        SlotFile.__init__(self, mapping, number)
        self.first = <uint32_t> (first_chunk_of(number) * SLOTS_PER_CHUNK)
        self.end = self.first + <uint32_t> (chunks_of(number) * SLOTS_PER_CHUNK)
        self.fresh = self.first + HEADER_SLOTS


cdef uint64_t generation_of(NoteFile file) noexcept:
    """Return the generation of a file's notes; NO_GENERATION if it has no header."""
    return file.header().origin if file.header().magic != 0 else NO_GENERATION


@cython.final
cdef class Notes:
    """Notes of one channel, in the files of a directory, which the first note makes; None: in memory.

    generation: that counts. files, directory, limit, prepare: as for NoteFiles. Raises: StorageError.
    """

    def __init__(self, files not None, directory, limit not None, uint64_t generation, prepare=None):
        self.store = NoteFiles(MAGIC, "notes", files, directory, limit, prepare)
        self.generation = generation
        self.dropped = {}
        self.chunks = []

    def __dealloc__(self):
        array_release(&self.found_memory)

    # Changes.

    cdef uint32_t put(
        self, uint64_t seq, uint8_t kind, uint16_t attempts, int64_t due_ns, uint64_t place,
    ) except NO_NOTE:
        """Store a note. Returns: its slot. Raises: StorageError (nothing changed)."""
        cdef NoteFile file = self.current
        cdef Note note
        cdef Note* at
        cdef uint32_t slot
        assert (kind == NOTE_DEFERRED) == (due_ns != 0), "only a note of a deferred message has a due time"
        if file is None or not file.has_free():
            self.add_file()
            file = self.current
        slot = file.free_slot
        if slot != NO_NOTE:
            at = file.at(slot)
            file.free_slot = <uint32_t> at.place
        else:
            slot = file.fresh
            at = file.at(slot)
            file.fresh += 1
            if file.is_nearly_full():
                self.store.ask_ahead(self.next_number())
        note = Note(
            checksum=0, attempts=attempts, kind=kind, reserved=0, seq=seq, due_ns=due_ns, place=place)
        debug_require(at.checksum == 0)
        fill_slot(at, &note)
        file.count += 1
        self.store.note_change(file)
        self.count += 1
        return slot

    cpdef int change(self, uint32_t slot, uint8_t kind, uint16_t attempts) except -1:
        """Change deliveries and kind of a note, which keeps its due time."""
        cdef NoteFile file = self.file_of(slot)
        cdef Note* at = file.at(slot)
        cdef Note note = at[0]
        debug_require(not is_free(at))
        note.attempts = attempts
        note.kind = kind
        note.checksum = note_checksum(&note)
        store_word(<char*> at, (<uint64_t*> &note)[0])
        self.store.note_change(file)
        return 0

    cpdef int free(self, uint32_t slot) except -1:
        """Remove a note."""
        cdef NoteFile file = self.file_of(slot)
        cdef Note* at = file.at(slot)
        assert not is_free(at), "a note is freed twice"
        store_word(<char*> at, 0)
        at.place = file.free_slot
        file.free_slot = slot
        file.count -= 1
        self.store.note_change(file)
        self.count -= 1
        if self.current is None or not self.current.has_free():
            self.current = file
        elif file.count == 0 and file is not self.current:
            self.drop_file(file)
        return 0

    cdef uint64_t next_number(self) except? 0:
        """Return the number of the next file."""
        cdef uint64_t number = 0
        while number in self.store.in_use or number in self.dropped:
            number += 1
        return number

    cdef int add_file(self) except -1:
        """Make another file the current one. Raises: StorageError (nothing changed)."""
        cdef uint64_t number = self.next_number()
        cdef NoteFile file = NoteFile(self.store.make(number), number)
        self.store.begin_header(file, self.generation)
        self.enter(file)
        self.store.note_change(file)
        self.current = file
        return 0

    cdef int enter(self, NoteFile file) except -1:
        """Add a file to those in use."""
        cdef uint64_t chunk
        cdef uint64_t first = first_chunk_of(file.number)
        cdef uint64_t end = first + chunks_of(file.number)
        assert file.number not in self.store.in_use, "two files have the same slots"
        if <uint64_t> len(self.chunks) < end:
            self.chunks += [None] * <Py_ssize_t> (end - <uint64_t> len(self.chunks))
        for chunk in range(first, end):
            self.chunks[chunk] = file
        self.store.in_use[file.number] = file
        self.count += file.count
        return 0

    cdef int leave_file(self, NoteFile file) except -1:
        """Take a file out of those in use."""
        cdef uint64_t chunk
        cdef uint64_t first = first_chunk_of(file.number)
        for chunk in range(first, first + chunks_of(file.number)):
            self.chunks[chunk] = None
        del self.store.in_use[file.number]
        self.count -= file.count
        self.store.change_count += 1
        if self.current is file:
            self.current = None
        return 0

    cdef int drop_file(self, NoteFile file) except -1:
        """Remove a file without notes."""
        assert file.count == 0, "a file with notes is dropped"
        self.leave_file(file)
        return self.store.remove(file)

    cpdef int begin_generation(self, uint64_t generation) except -1:
        """Drop all notes. Their files stay until `remove_dropped`, and keep their numbers."""
        cdef NoteFile file
        assert self.found == NULL, "the start goes on"
        self.generation = generation
        for file in list(self.store.in_use.values()):
            self.leave_file(file)
            self.dropped[file.number] = file
        assert self.count == 0, "notes are left"
        if self.store.directory is None:
            self.remove_dropped(self.dropped_files())
        return 0

    def dropped_files(self):
        """Return the files of earlier generations that are still there."""
        return list(self.dropped.values())

    def remove_dropped(self, list files not None):
        """Remove files of `dropped_files`: the ledger, on stable storage, has another generation."""
        cdef NoteFile file
        for file in files:
            if self.dropped.pop(file.number, None) is not None:
                self.store.remove(file)

    cdef int abandon(self) except -1:
        """Forget all files, which are gone."""
        cdef NoteFile file
        self.end_recovery()
        for file in self.dropped.values():
            file.mapping.file_removed()
        self.store.abandon()
        self.dropped = {}
        self.chunks = []
        self.current = None
        self.count = 0
        return 0

    # Start.

    def load(self, bint power_failed, bint any_generation=False):
        """Read the files that an earlier run left, and index their notes for `find`.

        any_generation: the ledger is lost; the newest generation that there is counts. A file that is damaged or of a
        later format is set aside. Returns: one text for each damage found; its notes are lost. Raises: StorageError.
        """
        cdef NoteFile file
        cdef uint64_t damaged
        errors = []
        assert not self.store.in_use, "notes are loaded first"
        loaded = [NoteFile(mapping, number) for number, mapping in self.store.open_found(errors)]
        for error in errors:
            set_aside(
                self.store.files, error.file, error,
                "its messages are delivered with attempts from 2, and those of a requeue without delay")
        problems = [str(error) for error in errors]
        if any_generation:
            self.generation = max([self.generation] + [generation_of(each) for each in loaded])
        for file in loaded:
            if generation_of(file) != self.generation:
                self.store.remove(file)
                continue
            damaged = self.find_in(file, power_failed)
            self.enter(file)
            # The earlier run may not have synced them.
            self.store.note_change(file)
            self.current = file
            if damaged != 0 and not power_failed:
                problems.append(f"{self.store.path_of(file.number)}: {damaged} notes are damaged")
        self.sort_found()
        for file in list(self.store.in_use.values()):
            if file.count == 0 and file is not self.current:
                self.drop_file(file)
        return problems

    cdef uint64_t find_in(self, NoteFile file, bint power_failed) except? <uint64_t> -1:
        """Index the notes of a file, and free the slots between. Returns: the number of damaged ones, now free."""
        cdef uint32_t slot = file.first + <uint32_t> file.used_end()
        cdef uint64_t damaged = 0
        cdef Note* at
        file.fresh = slot
        while slot > file.first + HEADER_SLOTS:
            slot -= 1
            at = file.at(slot)
            if not is_free(at) and not is_sound(at):
                store_word(<char*> at, 0)
                damaged += 1
            if is_free(at):
                at.place = file.free_slot
                file.free_slot = slot
            else:
                self.add_found(at, slot)
                file.count += 1
        return damaged

    cdef int add_found(self, const Note* note, uint32_t slot) except -1:
        cdef uint64_t capacity = self.found_memory.bytes // sizeof(FoundNote)
        if self.found_count == capacity and array_reserve(
                &self.found_memory, max(<uint64_t> FOUND_MIN, 2 * capacity) * sizeof(FoundNote)) != 0:
            raise MemoryError
        self.found = <FoundNote*> self.found_memory.base
        self.found[self.found_count] = FoundNote(seq=note.seq, slot=slot, taken=False)
        self.found_count += 1
        return 0

    cdef int sort_found(self) except -1:
        """Sort the index, and free the note of a record that does not count beside another one of it."""
        cdef uint64_t index
        cdef uint64_t kept = 0
        if self.found_count == 0:
            return 0
        qsort(self.found, self.found_count, sizeof(FoundNote), compare_found)
        for index in range(1, self.found_count):
            if compare_found(&self.found[kept], &self.found[index]) != 0:
                kept += 1
                self.found[kept] = self.found[index]
            elif precedes(self.at(self.found[index].slot), self.at(self.found[kept].slot)):
                self.free(self.found[kept].slot)
                self.found[kept] = self.found[index]
            else:
                self.free(self.found[index].slot)
        self.found_count = kept + 1
        return 0

    cpdef uint32_t find(self, uint64_t seq) except? NO_NOTE:
        """Return the slot of the note that a start has found of a record, which is not finished; NO_NOTE: none.

        Cost: O(1) if the records are asked for in order, else O(log notes).
        """
        cdef FoundNote wanted = FoundNote(seq=seq, slot=0, taken=False)
        cdef uint64_t low = self.next_found
        cdef uint64_t high = self.found_count
        cdef uint64_t middle
        if low == high or compare_found(&self.found[low], &wanted) != 0:
            if low != 0 and compare_found(&self.found[low - 1], &wanted) < 0:
                if low == high or compare_found(&self.found[low], &wanted) > 0:
                    return NO_NOTE
            else:
                low = 0
            while low < high:
                middle = low + ((high - low) >> 1)
                if compare_found(&self.found[middle], &wanted) < 0:
                    low = middle + 1
                else:
                    high = middle
        self.next_found = low
        if low == self.found_count or compare_found(&self.found[low], &wanted) != 0:
            return NO_NOTE
        self.next_found = low + 1
        self.found[low].taken = True
        return self.found[low].slot

    def found_slots(self):
        """Return the slots of the notes that a start has found, in the order of their records."""
        return [self.found[index].slot for index in range(self.found_count)]

    cpdef int end_recovery(self) except -1:
        """Free the notes that a start has found and not asked for: their messages are finished, or gone."""
        cdef uint64_t index
        for index in range(self.found_count):
            if not self.found[index].taken:
                self.free(self.found[index].slot)
        array_release_later(&self.found_memory)
        self.found = NULL
        self.found_count = self.next_found = 0
        return 0

    # From Python: imports, tests.

    def add(self, uint64_t seq, uint8_t kind, uint16_t attempts, int64_t due_ns=0, uint64_t place=0):
        """Store a note. Returns: its slot. Raises: StorageError (nothing changed)."""
        return self.put(seq, kind, attempts, due_ns, place)

    def rows(self):
        """Return {slot: (seq, kind, attempts, due time, place)} of all notes. Cost: O(slots)."""
        cdef NoteFile file
        cdef uint32_t slot
        cdef const Note* note
        rows = {}
        for file in self.store.in_use.values():
            for slot in range(file.first + HEADER_SLOTS, file.fresh):
                note = file.at(slot)
                if not is_free(note):
                    rows[slot] = (note.seq, note.kind, note.attempts, note.due_ns, note.place)
        return rows

    def check(self):
        """Assert the invariants. Cost: O(slots)."""
        cdef NoteFile file
        cdef uint32_t slot
        cdef uint64_t free_count, total = 0
        cdef const Note* note
        for number, file in self.store.in_use.items():
            assert file.number == number and self.chunks[file.first // SLOTS_PER_CHUNK] is file
            free_count, slot = 0, file.free_slot
            while slot != NO_NOTE:
                assert file.first + HEADER_SLOTS <= slot < file.fresh and is_free(file.at(slot))
                slot = <uint32_t> file.at(slot).place
                free_count += 1
            assert file.fresh - file.first - HEADER_SLOTS == file.count + free_count, "invariant 1"
            assert file.count != 0 or file is self.current, "invariant 2"
            for slot in range(file.first + HEADER_SLOTS, file.end):
                note = file.at(slot)
                assert is_free(note) or is_sound(note)
                assert is_free(note) or slot < file.fresh, "invariant 1"
            total += file.count
        assert total == self.count
        assert self.current is None or self.store.in_use[self.current.number] is self.current
        assert self.store.synced_change_count <= self.store.change_count
