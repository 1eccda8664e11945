"""Own one mapped range: the last reference to go unmaps it.

A segment that is trimmed while a sync of it runs in a thread must stay mapped until that sync returns; so the range
belongs to an object that both hold, and not to the log. The calls that make a mapping are in `pyqd.diskqueue.files`,
the seam to the operating system that tests replace.
"""

from libc.stdint cimport uintptr_t

cimport cython

cdef extern from "<sys/mman.h>" nogil:
    int munmap(void* address, size_t length)

cdef extern from "<unistd.h>" nogil:
    int close(int fd)

cdef uint64_t PAGE_BYTES = 4096


@cython.final
cdef class Mapping:
    """A mapped range of `size_bytes` bytes, unmapped with the object. Source: mmap(2)."""

    def __cinit__(self):
        self.fd = -1

    def __init__(self, uintptr_t address, uint64_t size_bytes, path=None):
        if address == 0 or address % 4096 != 0:
            raise ValueError("a mapping starts on a page")
        if self.base != NULL:
            raise ValueError("the object holds a mapping already")
        self.base = <char*> address
        self.size_bytes = size_bytes
        self.path = path

    def __dealloc__(self):
        self.close()
        if self.base != NULL:
            munmap(self.base, self.size_bytes)

    def keep_descriptor(self, int fd):
        """Own a descriptor of the file, open for writing."""
        if self.fd >= 0:
            raise ValueError("the mapping has a descriptor already")
        self.fd = fd

    cdef void close(self) noexcept:
        """Close the descriptor of the file, if there is one; the range stays mapped."""
        if self.fd >= 0:
            close(self.fd)
            self.fd = -1

    def dirty_again(self, uint64_t start_bytes, uint64_t length_bytes):
        """Make the pages of a page-aligned range dirty without changing a byte; in any thread, with the lock released.

        What is stored there meanwhile stays. Raises: ValueError for a range that is not in the mapping.
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
