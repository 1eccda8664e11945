from libc.stdint cimport uint64_t

cimport cython

cdef enum:
    STAGED_RECORD_MAX = 16 << 10         # bytes that are copied in one piece; more are written from where they lie
    STAGING_BYTES = 128 << 10            # fits into a second-level cache together with its source bytes

@cython.final
cdef class Staging:
    cdef char* buffer                    # owned; page aligned
    cdef int fd                          # of the file written to; -1: nothing is staged
    cdef str path
    cdef uint64_t start                  # offset of the first byte in the buffer: as far into a block as in the file
    cdef uint64_t end
    cdef uint64_t offset                 # in the file, of the byte at `start`

    cdef bint begin(self, int fd, str path, uint64_t offset) noexcept

    cdef inline char* take(self, uint64_t span_bytes) except NULL:
        # Return the address for the bytes that come next, at most STAGED_RECORD_MAX. Raises: StorageError.
        cdef char* at
        assert self.fd >= 0 and span_bytes <= STAGED_RECORD_MAX
        if STAGING_BYTES - self.end < span_bytes:
            self.flush_blocks()
        at = self.buffer + self.end
        self.end += span_bytes
        return at

    cdef int put(self, const char* data, uint64_t size_bytes) except -1
    cdef int flush(self) except -1
    cdef int flush_blocks(self) except -1
    cdef int flush_last(self, uint64_t file_bytes) except -1
    cdef int skip(self, uint64_t span_bytes) except -1
    cdef int write(self, const char* data, uint64_t size_bytes, uint64_t offset) except -1
    cdef int store_word(self, uint64_t offset, uint64_t word) except -1
    cdef int finish(self) noexcept

cdef Staging shared_staging()
