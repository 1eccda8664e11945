# A connection compressed with deflate. Design notes: pyx/tcp/deflate.pyx.
cimport cython
from libc.stdint cimport uint64_t

from pyqd.hot.net.transport cimport Codec

@cython.final
cdef class Deflate(Codec):
    cdef object compressor
    cdef object decompressor
    cdef bytes undecoded
    cdef uint64_t objects_bytes          # memory of the two, once they have worked
    cdef bint unfinished                 # something was compressed since the last flush
