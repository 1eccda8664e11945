# What a connection sends: frames are put here and leave in one send. Design notes: pyx/tcp/outbox.pyx.
from libc.stdint cimport uint32_t, uint64_t

from pyqd.hot.broker.consumer cimport Consumer
from pyqd.hot.net.transport cimport Transport
from pyqd.hot.wire.frames cimport FrameType

cdef class Outbox(Consumer):
    cdef int fd
    cdef readonly Transport transport    # None: bytes go to the socket as they are
    cdef char* base                      # the shared scratch, or an own buffer when `owned`
    cdef uint64_t start                  # base[start:end] waits to be sent
    cdef uint64_t end
    cdef uint64_t capacity
    cdef bint owned
    cdef bint broken                     # the peer is gone; what is put here is dropped
    cdef bint withholding                # nothing leaves now: an answer in it is not true yet
    cdef uint64_t true_bytes             # while withholding: base[start:start + true_bytes] was queued before that
    cdef readonly uint64_t sent_bytes

    cdef char* room(self, uint64_t size_bytes) except NULL
    cdef int put(self, FrameType frame_type, const char* data, uint32_t size_bytes) except -1
    cdef int put_ok(self) except -1
    cdef int flush(self) except -1
    cdef int send_in_place(self, const char* data, uint64_t size_bytes) except -1
    cdef ssize_t send_through(self, const char* data, uint64_t size_bytes) except -2
    cdef int flush_transport(self) except -1
    cdef int keep(self, uint64_t capacity) except -1
    cdef int release(self) except -1
    cdef int begin_withholding(self) except -1
    cdef int drop_withheld(self) except -1
    cdef int drop_queued(self) except -1
