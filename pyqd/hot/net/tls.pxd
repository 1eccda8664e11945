# TLS on a connection after the handshake. Design notes: pyx/net/tls.pyx.
from libc.stdint cimport uint64_t

from pyqd.hot.net.transport cimport Transport

cdef class Tls(Transport):
    cdef readonly object connection      # OpenSSL.SSL.Connection with memory buffers
    cdef uint64_t in_bytes               # largest content of each of its two memory buffers so far: they do not shrink
    cdef uint64_t out_bytes

    cdef int put_records(self, uint64_t expected_bytes) except -1
    cdef int count_state(self) except -1
