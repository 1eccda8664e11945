"""Owner of one mapped range, which is unmapped with the last reference to it.

A segment that is trimmed while a thread syncs it must stay mapped until the sync returns. So the range belongs to an
object that both hold, and not to the log. The calls that make a mapping are in `pyqd.diskqueue.files`, the seam to the
operating system that tests replace.

A file is mapped in the arena (pyx/diskqueue/arena.pyx), which unmaps it while it is not in use. Its path is therefore
kept up to date: code that renames the file calls `moved`, and code that removes it calls `file_removed`. Memory that
the caller has mapped stays mapped.

The mapping or the descriptor may be the last reference to a removed file, so an object that goes leaves both to the
thread of pyx/primitives/releases.pyx.
"""

from libc.errno cimport EEXIST, ENOENT, errno
from libc.stdint cimport uint32_t, uintptr_t
from libc.stdlib cimport free
from libc.string cimport memchr, memset
from posix.fcntl cimport AT_FDCWD, O_CLOEXEC, O_RDWR, openat
from posix.mman cimport MADV_NORMAL, MADV_RANDOM, MADV_WILLNEED, MAP_FIXED, MAP_NORESERVE, MAP_PRIVATE, MAP_SHARED
from posix.mman cimport PROT_READ, PROT_WRITE, madvise, mincore, mmap, munmap
from posix.stat cimport fstat, struct_stat
from posix.stdlib cimport posix_memalign
from posix cimport unistd

import os

cimport cython

from pyqd.hot.diskqueue.arena cimport (
    extent_free,
    extent_move,
    extent_new,
    extent_of,
    extent_pin,
    extent_remove,
    extent_unpin,
)

from pyqd.hot.primitives.releases cimport PAGE_BYTES, close_later, kernel_page_start, unmap_later
from pyqd.hot.primitives.debug cimport debug_require

from pyqd.primitives.errors import CorruptionError, storage_error

cdef extern from "<fcntl.h>" nogil:
    int fallocate(int fd, int mode, long offset, long length)

cdef extern from "<sys/ioctl.h>" nogil:
    int ioctl(int fd, unsigned long request, ...)

cdef extern from "<linux/fs.h>" nogil:
    unsigned long FS_IOC_FIEMAP

cdef extern from "<linux/fiemap.h>" nogil:
    cdef struct fiemap_extent:
        uint64_t fe_logical
        uint64_t fe_length
        uint32_t fe_flags
    cdef struct fiemap_header "fiemap":
        uint64_t fm_length
        uint32_t fm_mapped_extents
        uint32_t fm_extent_count
    uint32_t FIEMAP_EXTENT_LAST
    uint32_t FIEMAP_EXTENT_UNWRITTEN
    uint32_t FIEMAP_EXTENT_MERGED

cdef extern from "Python.h":
    bytes PyUnicode_EncodeFSDefault(str text)

cdef extern from *:
    """
    typedef volatile char pyqd_volatile_char;
    """
    # Reads that the compiler must not leave out.
    ctypedef char volatile_char "pyqd_volatile_char"

# Limit for a file that is written: so many bytes are filled in less than a millisecond.
cdef uint64_t READ_AHEAD_BYTES_MAX = 256 << 10
cdef enum:
    DESCRIPTORS_MAX = 64
    PAGES_ASKED_AT_ONCE = 256
    # A segment has two extents unless the file system is fragmented: pages that were written, and reserved ones.
    PIECES_MAX = 8

ctypedef void* Holder

cdef struct FileExtents:
    fiemap_header header
    fiemap_extent[PIECES_MAX] pieces

assert sizeof(FileExtents) == sizeof(fiemap_header) + PIECES_MAX * sizeof(fiemap_extent)

cdef Holder[DESCRIPTORS_MAX] holders     # Mapping objects that own a descriptor; borrowed
cdef uint32_t next_place = 0
cdef uint32_t descriptors_max = DESCRIPTORS_MAX
cdef uint64_t unmanaged = 0              # files that are mapped outside the arena, and so for good

memset(holders, 0, sizeof(holders))


def map_file(int fd, uint64_t size_bytes, str path not None, bint private=False):
    """Map an open file, whole, to be read and written. Returns: the Mapping. Raises: StorageError.

    private: stores do not reach the file, which may be open for reading only. Each page stored to takes memory.
    """
    global unmanaged
    cdef Mapping mapping
    cdef bytes encoded = PyUnicode_EncodeFSDefault(path)
    cdef Extent* extent = extent_new(fd, size_bytes, encoded, private)
    cdef void* at
    cdef int flags = MAP_PRIVATE | MAP_NORESERVE if private else MAP_SHARED
    assert size_bytes != 0
    if extent != NULL:
        return over_extent(extent, path)
    if errno == EEXIST:
        at = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, flags, fd, 0)
        if <uintptr_t> at != ~<uintptr_t> 0:
            mapping = Mapping(<uintptr_t> at, size_bytes, path)
            mapping.counted = True
            unmanaged += 1
            return mapping
    failed = errno
    raise storage_error("map", path, OSError(failed, os.strerror(failed)))


cdef Mapping over_extent(Extent* extent, str path):
    cdef Mapping mapping = Mapping.__new__(Mapping)
    assert extent.base != NULL and extent.size_bytes != 0
    mapping.extent = extent
    mapping.base = extent.base
    mapping.size_bytes = extent.size_bytes
    mapping.path = path
    return mapping


cdef bint is_reserved(int fd, uint64_t size_bytes) noexcept nogil:
    """Return True if the file system says that a file has all its blocks; False also if that is not certain.

    Reserving them again would give the file another time of change. So each start would write the inodes of all files.
    Source: the kernel's documentation of fiemap.
    """
    cdef FileExtents found
    cdef uint64_t end = 0
    memset(&found, 0, sizeof(found))
    found.header.fm_length = size_bytes
    found.header.fm_extent_count = PIECES_MAX
    if ioctl(fd, FS_IOC_FIEMAP, &found) != 0:
        return False
    for index in range(found.header.fm_mapped_extents):
        # Any other flag, such as that of blocks shared with another file, means that a store may need a new block.
        if found.pieces[index].fe_logical > end or found.pieces[index].fe_flags & ~(
                FIEMAP_EXTENT_LAST | FIEMAP_EXTENT_UNWRITTEN | FIEMAP_EXTENT_MERGED):
            return False
        end = found.pieces[index].fe_logical + found.pieces[index].fe_length
    return end >= size_bytes


cdef Extent* extent_existing(int directory, const char* name, const char* path, bint reserves) noexcept nogil:
    """Open and map a file that an earlier run left, with all its blocks reserved.

    directory: descriptor that the name is relative to. path: of the file. reserves: reserve missing blocks; otherwise
    such a file is not mapped. Returns: its extent; NULL if any call fails.
    """
    cdef Extent* extent = NULL
    cdef struct_stat found
    cdef int fd = openat(directory, name, O_RDWR | O_CLOEXEC)
    if fd < 0:
        return NULL
    if fstat(fd, &found) == 0 and found.st_size > 0 and (
            is_reserved(fd, <uint64_t> found.st_size)
            or (reserves and fallocate(fd, 0, 0, found.st_size) == 0)):
        extent = extent_of(fd, <uint64_t> found.st_size, path, found.st_dev, found.st_ino)
    unistd.close(fd)
    return extent


def map_existing(str path not None):
    """Open and map a file that an earlier run left, with all its blocks reserved.

    A start opens files by the ten thousand, and Python code around each system call takes as long as the call itself.
    Returns: the Mapping; None if any call fails, so that the caller does the same step by step and finds the reason.
    """
    cdef bytes encoded = PyUnicode_EncodeFSDefault(path)
    cdef const char* name = encoded
    cdef Extent* extent
    with nogil:
        extent = extent_existing(AT_FDCWD, name, name, True)
    return None if extent == NULL else over_extent(extent, path)


def heap_page():
    """Return a Mapping of a page of zeros that takes none of the process's mappings. Raises: MemoryError."""
    cdef void* at = NULL
    cdef Mapping mapping
    if posix_memalign(&at, PAGE_BYTES, PAGE_BYTES) != 0:
        raise MemoryError
    memset(at, 0, PAGE_BYTES)
    mapping = Mapping(<uintptr_t> at, PAGE_BYTES)
    mapping.on_heap = True
    return mapping


def limit_descriptors(uint32_t count):
    """Set how many mappings may own a descriptor at a time."""
    global descriptors_max
    descriptors_max = max(<uint32_t> 1, min(count, <uint32_t> DESCRIPTORS_MAX))


def unmanaged_count():
    """Return how many files are mapped outside the arena."""
    return unmanaged


@cython.final
cdef class Mapping:
    """A mapped range of `size_bytes` bytes, unmapped with the object. Source: mmap(2)."""

    def __cinit__(self):
        self.fd = -1

    def __init__(self, uintptr_t address, uint64_t size_bytes, path=None):
        if address == 0 or address % PAGE_BYTES != 0:
            raise ValueError("a mapping starts on a page")
        if self.base != NULL:
            raise ValueError("the object holds a mapping already")
        self.base = <char*> address
        self.size_bytes = size_bytes
        self.path = path

    def __dealloc__(self):
        global unmanaged
        if self.fd >= 0:
            close_later(self.take_descriptor())
        if self.extent != NULL:
            extent_free(self.extent)
        elif self.on_heap:
            free(self.base)
        elif self.path is not None:
            unmap_later(self.base, self.size_bytes)
            unmanaged -= self.counted
        elif self.base != NULL:
            munmap(self.base, self.size_bytes)

    def pin(self):
        """Keep the range mapped until `unpin`. Returns: False if its file is gone. Raises: StorageError."""
        cdef int failed
        if self.extent == NULL:
            return True
        with nogil:
            failed = extent_pin(self.extent)
        if failed == ENOENT and self.extent.removed:
            return False
        if failed != 0:
            raise storage_error("map", self.path, OSError(failed, os.strerror(failed)))
        return True

    def unpin(self):
        """Let the range be unmapped again when it is not in use."""
        if self.extent != NULL:
            assert self.extent.pin_count > 0, "unpin without pin"
            extent_unpin(self.extent)

    def hold(self):
        """Keep the range mapped for the object's life, as its file is about to be removed. Raises: StorageError."""
        self.pin()

    def moved(self, str path not None):
        """Set the path that the file has now. Raises: MemoryError."""
        if self.extent != NULL and extent_move(self.extent, os.fsencode(path)) != 0:
            raise MemoryError
        self.path = path

    def file_removed(self):
        """Record that the file is removed or about to be; unless the range is mapped, an access finds zeros."""
        if self.extent != NULL:
            extent_remove(self.extent)

    def replace_by_file(self, int fd, str path not None):
        """Map an open file, which holds the bytes that are in this anonymous memory, in its place.

        The file stays mapped for the object's life. Raises: ValueError unless this is memory, StorageError (no change).
        """
        global unmanaged
        if self.extent != NULL or self.on_heap or self.path is not None:
            raise ValueError("only memory can be put into a file")
        if <uintptr_t> mmap(
                self.base, self.size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0
        ) == ~<uintptr_t> 0:
            failed = errno
            raise storage_error("map", path, OSError(failed, os.strerror(failed)))
        self.path = path
        self.counted = True
        unmanaged += 1

    cdef void stop_read_ahead(self) noexcept:
        """Turn read-ahead off while the file is written from end to end: a page that is not in the cache is read alone.

        Otherwise the kernel fills the cache around the page with zeros, as much as the device reads ahead: 8 MiB on
        some devices, which took 28 ms. Source: madvise(2), MADV_RANDOM.
        """
        if self.path is not None and self.size_bytes > READ_AHEAD_BYTES_MAX and not self.alone:
            self.advise(True)

    cdef void read_ahead(self) noexcept:
        """Undo `stop_read_ahead`: from here on the file is read, from the start on."""
        if self.alone:
            self.advise(False)

    cdef void advise(self, bint alone) noexcept:
        """Tell the kernel whether a page is brought in alone. The arena repeats that when it maps the file again."""
        cdef bint is_there = self.extent == NULL or extent_pin(self.extent) == 0
        debug_require(self.path is not None)
        self.alone = alone
        if is_there:
            madvise(self.base, self.size_bytes, MADV_RANDOM if alone else MADV_NORMAL)
        if self.extent != NULL:
            self.extent.alone = alone
            if is_there:
                extent_unpin(self.extent)

    cdef void prefetch(self, uint64_t start, uint64_t length) noexcept:
        """Begin to read a page-aligned range into the cache, in one piece although pages are brought in alone.

        Reading 64 KiB page by page took 1.0 to 1.5 ms of a cloud disk, in one piece 0.2 ms. Source: madvise(2),
        MADV_WILLNEED.
        """
        debug_require(start % PAGE_BYTES == 0)
        debug_require(start <= self.size_bytes)
        debug_require(length <= self.size_bytes - start)
        cdef uint64_t first = kernel_page_start(start)
        if self.alone:
            madvise(self.base + first, start - first + length, MADV_WILLNEED)

    def is_present(self, uint64_t start, uint64_t length):
        """Return whether a page-aligned range is in memory, so that no load of it waits for the disk.

        Returns: True also if that cannot be found out. Source: mincore(2).
        """
        cdef unsigned char[PAGES_ASKED_AT_ONCE] found
        cdef uint64_t end = start + length
        cdef uint64_t piece
        cdef bint present = True
        cdef uint64_t page_bytes = <uint64_t> unistd.sysconf(unistd._SC_PAGESIZE)
        assert start % PAGE_BYTES == 0 and start <= end <= self.size_bytes, "no range of pages"
        if self.path is None or (self.extent != NULL and extent_pin(self.extent) != 0):
            return True
        start = kernel_page_start(start)
        while start < end and present:
            piece = min(end - start, PAGES_ASKED_AT_ONCE * page_bytes)
            if mincore(self.base + start, piece, found) == 0:
                present = memchr(found, 0, (piece + page_bytes - 1) // page_bytes) == NULL
            start += piece
        if self.extent != NULL:
            extent_unpin(self.extent)
        return present

    def require_readable(self):
        """Read a byte of each page, for a small file that is of use as a whole. Raises: CorruptionError."""
        cdef uint64_t offset = 0
        cdef char seen = 0
        while offset < self.size_bytes:
            seen |= (<volatile_char*> self.base)[offset]
            offset += PAGE_BYTES
        if self.is_lost(0, self.size_bytes):
            raise CorruptionError(self.path or "memory", 0, "it cannot be read from the disk (EIO)")

    def keep_descriptor(self, int fd):
        """Own a descriptor of the file, open for writing, until DESCRIPTORS_MAX other mappings want one as well."""
        global next_place
        assert fd >= 0
        if self.fd >= 0:
            raise ValueError("the mapping has a descriptor already")
        next_place = next_place % descriptors_max
        if holders[next_place] != NULL:
            (<Mapping> holders[next_place]).close()
        self.fd = fd
        self.place = next_place
        holders[next_place] = <Holder> self
        next_place = (next_place + 1) % descriptors_max

    cdef void close(self) noexcept:
        """Close the descriptor of the file, if there is one; the range stays mapped."""
        cdef int fd = self.take_descriptor()
        if fd >= 0:
            unistd.close(fd)

    cdef int take_descriptor(self) noexcept:
        """Return the descriptor of the file, for the caller to close; -1: there is none."""
        cdef int fd = self.fd
        if fd >= 0:
            debug_require(holders[self.place] == <Holder> self)
            self.fd = -1
            holders[self.place] = NULL
        return fd

    def dirty_again(self, uint64_t start_bytes, uint64_t length_bytes):
        """Make the pages of a page-aligned range dirty without changing a byte; in any thread, with the lock released.

        Bytes stored there meanwhile stay. Raises: ValueError for a range that is not in the mapping.
        """
        cdef uint64_t offset
        if start_bytes % PAGE_BYTES or start_bytes > self.size_bytes or length_bytes > self.size_bytes - start_bytes:
            raise ValueError(f"no range of pages of {self.size_bytes} bytes: {start_bytes}, {length_bytes}")
        with nogil:
            offset = 0
            while offset < length_bytes:
                store_again(self.base + start_bytes + offset)
                offset += PAGE_BYTES

    @property
    def address(self) -> int:
        """The first byte's address, for calls into the operating system."""
        return <uintptr_t> self.base

    def view(self):
        """Return a writable memoryview of the whole range, for tests and inspection; it keeps the mapping alive."""
        return memoryview(self)

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        cdef Py_ssize_t size = <Py_ssize_t> self.size_bytes
        buffer.buf = self.base
        buffer.obj = self
        buffer.len = size
        buffer.readonly = 0
        buffer.itemsize = 1
        buffer.format = NULL
        buffer.ndim = 1
        buffer.shape = NULL
        buffer.strides = NULL
        buffer.suboffsets = NULL
        buffer.internal = NULL
