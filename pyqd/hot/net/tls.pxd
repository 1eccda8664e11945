# TLS on a connection after the handshake. Design notes: pyx/net/tls.pyx.
cimport cython
from libc.stdint cimport uint64_t

from pyqd.hot.net.transport cimport Codec

@cython.final
cdef class Tls(Codec):
    cdef readonly object connection      # OpenSSL.SSL.Connection with memory buffers
    cdef uint64_t in_bytes               # largest content of each of its two memory buffers so far: they do not shrink
    cdef uint64_t out_bytes

    cdef bytes records(self, uint64_t expected_bytes)
    cdef int count_state(self) except -1
