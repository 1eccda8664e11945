"""Count of the memory in the buffers of all connections.

A connection with nothing half received and nothing unsent owns no buffer, and the shared scratch buffers do not count.
So the count changes when a buffer is created, grows or is freed, and never per message. If the limit is exceeded, a
callable is called once, which must not wait; its owner calls `arm` when it has freed memory.

A transport counts its own memory and its codec's (pyx/net/transport.pyx). The system's socket buffers do not count.
"""

from libc.stdint cimport INT64_MAX

cdef extern from *:
    """
    #include <malloc.h>
    #ifdef __GLIBC__
    static void pyqd_keep_freed(int size_bytes) {
        mallopt(M_TRIM_THRESHOLD, size_bytes);
        mallopt(M_MMAP_THRESHOLD, size_bytes);
    }
    #else
    static void pyqd_keep_freed(int size_bytes) { (void) size_bytes; }
    #endif
    """
    void pyqd_keep_freed(int size_bytes) noexcept nogil

cdef enum:
    KEPT_BYTES = 16 << 20

cdef int64_t total_bytes = 0
cdef int64_t limit_bytes = INT64_MAX
cdef bint is_armed = False
cdef object over = None


cdef int buffer_grown(uint64_t size_bytes) except -1:
    """Count a new buffer, or the growth of one."""
    global total_bytes, is_armed
    total_bytes += <int64_t> size_bytes
    if total_bytes > limit_bytes and is_armed:
        is_armed = False
        over()
    return 0


cdef void buffer_freed(uint64_t size_bytes) noexcept nogil:
    """Deduct a freed buffer, or the bytes by which one shrank."""
    global total_bytes
    total_bytes -= <int64_t> size_bytes


def keep_freed_memory():
    """Make the C library keep up to 16 MiB of freed memory for later allocations, in the whole process.

    Otherwise a buffer that grows for a large command and is freed with it would be fetched from the system each time.
    Zeroing and faulting in its pages costs more than the command. Source: mallopt(3).
    """
    pyqd_keep_freed(KEPT_BYTES)


def note_change(int64_t change_bytes):
    """Count memory that a Python object holds for a connection: more, or (negative) less."""
    if change_bytes > 0:
        buffer_grown(<uint64_t> change_bytes)
    else:
        buffer_freed(<uint64_t> -change_bytes)


def total():
    """Return the bytes of all buffers."""
    return total_bytes


def watch(int64_t bytes_max, on_over):
    """Call `on_over` when the buffers exceed bytes_max; 0 is no limit."""
    global limit_bytes, over
    limit_bytes = bytes_max or INT64_MAX
    over = on_over
    arm()


def arm():
    """Report the next growth beyond the limit again."""
    global is_armed
    is_armed = over is not None
