# A connection compressed with deflate. Design notes: pyx/deflate.pyx.
from pyqd.hot.transport cimport Transport

cdef class Deflate(Transport):
    cdef object compressor
    cdef object decompressor
    cdef bytes undecoded
    cdef bint unfinished                 # something was compressed since the last flush
