# A connection compressed with deflate. Design notes: pyx/tcp/deflate.pyx.
from libc.stdint cimport uint64_t

from pyqd.hot.net.transport cimport Transport

cdef class Deflate(Transport):
    cdef object compressor
    cdef object decompressor
    cdef bytes undecoded
    cdef uint64_t state_bytes            # of the two, once they have worked
    cdef bint unfinished                 # something was compressed since the last flush
