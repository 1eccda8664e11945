"""Files of slots of 32 bytes, of which notes (pyx/diskqueue/notes.pyx) and due times (pyx/diskqueue/dues.pyx) consist.

    0, 1, ...   | header, 64 bytes | slot | slot | slot | ...

A slot is valid by its first word, which is stored last and holds the checksum; in a free slot it is 0. A slot lies in
one sector of the disk.

A file has 64 KiB, its successors twice as much each, up to 1 MiB. The number of a file fixes the numbers of its slots.
When a file is used to three quarters, a thread makes another one ahead, under a name that no other file of the process
has: its directory may be another one by then.

Source: docs/storage.md, "Notes".
"""

cimport cython

from pyqd.hot.diskqueue.mapping cimport store_barrier
from pyqd.hot.primitives.crc32c cimport crc32c
from pyqd.hot.primitives.debug cimport debug_require
from pyqd.hot.wire.record cimport store_word

import os
from itertools import count

from pyqd.diskqueue.files import MAKING
from pyqd.primitives.errors import CorruptionError, LaterFormatError, StorageError

cdef uint64_t FILE_BYTES_MIN = SLOTS_PER_CHUNK * NOTE_BYTES

cdef enum:
    NOTE_VERSION = 1

assert sizeof(Note) == NOTE_BYTES and sizeof(NoteHeader) == HEADER_SLOTS * NOTE_BYTES

# Begins the names of files that were made ahead.
AHEAD = "ahead."
ahead_numbers = count(1)


cdef uint32_t note_checksum(const Note* note) noexcept nogil:
    return crc32c(0, <const char*> note + 4, 20)


cdef void fill_slot(Note* at, const Note* note) noexcept nogil:
    """Store a note into a free slot; its checksum is computed here."""
    cdef Note first = note[0]
    first.checksum = note_checksum(note)
    at.seq, at.due_ns, at.place = note.seq, note.due_ns, note.place
    store_word(<char*> at, (<const uint64_t*> &first)[0])


cdef uint32_t header_checksum(const NoteHeader* header) noexcept nogil:
    return crc32c(0, &header.number, 2 * sizeof(uint64_t))


cdef class SlotFile:
    """One file of slots. mapping: of all its bytes, zeros or as an earlier run left them."""

    def __init__(self, Mapping mapping not None, uint64_t number):
        self.mapping = mapping
        self.number = number
        self.slots = <Note*> mapping.base

    cdef uint64_t used_end(self) noexcept:
        """Return the number of slots, with those of the header, up to the last one that is not free."""
        cdef uint64_t end = self.mapping.size_bytes // NOTE_BYTES
        while end > HEADER_SLOTS and is_free(self.slots + (end - 1)):
            end -= 1
        return end


@cython.final
cdef class NoteFiles:
    """Files of slots in a directory; None: in memory.

    magic: of the files. content: of the files, for errors. limit: SpaceLimit that allows new files. prepare: called as
    prepare(self, path, size_bytes) to make a file of zeros ahead, and to call `offer`; None: each file is made when it
    is needed. The first file makes the directory, if it is missing.
    """

    def __init__(
        self, uint64_t magic, str content not None, files not None, directory, limit not None, prepare=None,
    ):
        self.magic = magic
        self.content = content
        self.files = files
        self.directory = directory
        self.limit = limit
        self.prepare = prepare
        self.in_use = {}

    def path_of(self, uint64_t number):
        """Return the path of a file."""
        return f"{self.directory}/{number}"

    cdef list found_numbers(self):
        """Return the numbers of the files that an earlier run left, in order. Files that were half made are removed."""
        cdef list numbers = []
        for name in self.files.list_directory(self.directory):
            if name.startswith(AHEAD) or name.endswith(MAKING):
                self.files.remove(f"{self.directory}/{name}")
            elif name.isdecimal():
                numbers.append(int(name))
        numbers.sort()
        return numbers

    cdef list open_found(self, list damaged):
        """Return (number, Mapping) of the files of an earlier run, in order. damaged: gets the errors of the others.

        Raises: StorageError.
        """
        cdef list found = []
        for number in self.found_numbers():
            try:
                found.append((number, self.open(number)))
            except CorruptionError as error:
                damaged.append(error)
        return found

    cdef Mapping open(self, uint64_t number):
        """Return a file of an earlier run. Raises: StorageError, CorruptionError, LaterFormatError."""
        cdef str path = self.path_of(number)
        cdef Mapping mapping = self.files.open_mapped(path)
        cdef const NoteHeader* header = <const NoteHeader*> mapping.base
        mapping.require_readable()
        if mapping.size_bytes != chunks_of(number) * FILE_BYTES_MIN:
            raise CorruptionError(path, 0, f"the file of {self.content} has a wrong size")
        # Without a magic a kill has come before the header, or the power failed before the disk had it.
        if header.magic != 0:
            if header.magic != self.magic:
                raise CorruptionError(path, 0, f"not a file of {self.content} of pyqd")
            if header.version > NOTE_VERSION:
                raise LaterFormatError(
                    path, 8, f"{self.content} of format version {header.version}; this pyqd reads {NOTE_VERSION}")
            if header.checksum != header_checksum(header) or header.number != number:
                raise CorruptionError(path, 12, f"the checksum of the header of the file of {self.content} is wrong")
        self.size_bytes += mapping.size_bytes
        # The earlier run may not have synced it.
        self.note_named()
        return mapping

    cdef Mapping make(self, uint64_t number):
        """Return a file of zeros with its name: the one that was made ahead, or a new one. Raises: StorageError."""
        cdef uint64_t size_bytes = chunks_of(number) * FILE_BYTES_MIN
        cdef Mapping mapping = self.spare
        if self.directory is not None and not self.files.exists(self.directory):
            self.files.make_directory(self.directory)
        if mapping is not None and mapping.size_bytes != size_bytes:
            self.drop_spare()
            mapping = None
        if mapping is not None:
            self.files.rename(self.spare_path, self.path_of(number))
            mapping.moved(self.path_of(number))
            self.spare = None
        else:
            with self.limit.claim(size_bytes, size_bytes, self.directory is not None):
                mapping = self.files.new_mapped(
                    None if self.directory is None else self.path_of(number), size_bytes, True)
            self.size_bytes += size_bytes
        self.note_named()
        return mapping

    cdef void begin_header(self, SlotFile file, uint64_t origin) noexcept:
        """Store the header of a file, which has none."""
        cdef NoteHeader* header = <NoteHeader*> file.slots
        debug_require(header.magic == 0)
        header.version = NOTE_VERSION
        header.number = file.number
        header.origin = origin
        header.checksum = header_checksum(header)
        store_barrier()
        header.magic = self.magic

    cdef int ask_ahead(self, uint64_t number) except -1:
        """Have a file made in a thread, unless one is there or on the way. number: that it will have."""
        if self.prepare is not None and not self.preparing and self.spare is None:
            self.preparing = True
            self.spare_path = f"{self.directory}/{AHEAD}{next(ahead_numbers)}"
            self.prepare(self, self.spare_path, chunks_of(number) * FILE_BYTES_MIN)
        return 0

    def offer(self, Mapping mapping):
        """Take up the file that was made ahead; None: it could not be made."""
        self.preparing = False
        if mapping is not None and self.abandoned:
            mapping.file_removed()
        elif mapping is not None:
            self.spare = mapping
            self.size_bytes += mapping.size_bytes

    cdef int drop_spare(self) except -1:
        """Remove the file that was made ahead, if there is one. If the disk refuses, the next start removes it."""
        cdef Mapping spare = self.spare
        if spare is not None:
            self.spare = None
            self.size_bytes -= spare.size_bytes
            spare.file_removed()
            try:
                self.files.remove(self.spare_path)
            except StorageError:
                return 0
        return 0

    cdef int remove(self, SlotFile file) except -1:
        """Remove a file. If the disk refuses, it stays, and the next start removes it."""
        cdef Mapping mapping = file.mapping
        self.in_use.pop(file.number, None)
        self.size_bytes -= mapping.size_bytes
        if mapping.path is None:
            return 0
        mapping.file_removed()
        try:
            self.files.remove(mapping.path)
        except StorageError:
            # A FIN, which has been made, must not fail for it.
            return 0
        return self.note_named()

    cdef int note_named(self) except -1:
        """Count the name of a file that has come or gone, which the next sync has to cover."""
        self.change_count += 1
        self.named_at = self.change_count
        return 0

    # Syncs.

    def dirty_files(self):
        """Return [(file, number of its changes)] of the files with changes that no sync has covered."""
        return [
            (file, file.change_count) for file in self.in_use.values()
            if file.change_count != file.synced_change_count]

    def changed_directories(self):
        """Return the directories with names that no sync has covered: that of the files, and the one above."""
        if self.directory is None or self.named_at <= self.synced_change_count:
            return []
        return [self.directory, os.path.dirname(self.directory)]

    def note_synced(self, list files not None, uint64_t change_count):
        """Record that files of `dirty_files`, and all names, are on stable storage. change_count: as they were listed.

        May be called in a thread, as the interpreter's lock is held.
        """
        cdef SlotFile file
        cdef uint64_t changes
        for file, changes in files:
            file.synced_change_count = max(file.synced_change_count, changes)
        self.synced_change_count = max(self.synced_change_count, change_count)

    # A deleted topic or channel.

    def files_moved(self, str directory not None):
        """Set the directory in which the files are now, until they are removed."""
        cdef SlotFile file
        self.directory = directory
        for file in self.in_use.values():
            if file.mapping.path is not None:
                file.mapping.moved(self.path_of(file.number))
        if self.spare_path is not None:
            self.spare_path = os.path.join(directory, os.path.basename(self.spare_path))
        if self.spare is not None:
            self.spare.moved(self.spare_path)

    cdef int abandon(self) except -1:
        """Forget all files, which are gone; later ones are in memory."""
        cdef SlotFile file
        for file in self.in_use.values():
            file.mapping.file_removed()
        self.in_use = {}
        if self.spare is not None:
            self.spare.file_removed()
            self.spare = None
        self.abandoned = True
        self.directory = None
        # No cycle: a deleted topic must go without a full collection.
        self.prepare = None
        self.size_bytes = 0
        return 0
