"""How much memory the buffers of all connections take together.

A connection that has nothing half received and nothing unsent owns no buffer, and the scratches that all share are not
counted. So this is touched when a buffer is made, grows or is freed, and never for a message. That there is more than
the limit is told once, by a callable that must not wait; whoever acts on it calls `arm` then.

A transport counts what it and its codec hold (pyx/net/transport.pyx). Not counted: what the system holds for sockets.
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
    """Count a buffer, or what one grew by."""
    global total_bytes, is_armed
    total_bytes += <int64_t> size_bytes
    if total_bytes > limit_bytes and is_armed:
        is_armed = False
        over()
    return 0


cdef void buffer_freed(uint64_t size_bytes) noexcept nogil:
    """Count a buffer no more, or what one shrank by."""
    global total_bytes
    total_bytes -= <int64_t> size_bytes


def keep_freed():
    """Have the C library keep up to 16 MiB of what is freed for what is allocated next, in the whole process.

    A buffer that grows while a large command comes in and is freed with it would else be fetched from the system each
    time: its pages are zeroed and faulted in, which costs more than the command. Source: mallopt(3).
    """
    pyqd_keep_freed(KEPT_BYTES)


def note_change(int64_t change_bytes):
    """Count what a Python object holds for a connection: more, or (negative) less."""
    if change_bytes > 0:
        buffer_grown(<uint64_t> change_bytes)
    else:
        buffer_freed(<uint64_t> -change_bytes)


def total():
    """Return the bytes of all buffers."""
    return total_bytes


def watch(int64_t bytes_max, on_over):
    """Call `on_over` when there are more bytes than that; 0 is no limit."""
    global limit_bytes, over
    limit_bytes = bytes_max or INT64_MAX
    over = on_over
    arm()


def arm():
    """Tell of the next growth beyond the limit."""
    global is_armed
    is_armed = over is not None
