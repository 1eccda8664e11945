# The bodies of MPUB and DMPUB from columns of Arrow tables. Design notes: pyx/wire/mpub.pyx.
from libc.stdint cimport int32_t, int64_t

cdef enum:
    SIZE_BYTES = 4
    TIME_BYTES = 8
    DIGITS_MAX = 20

# Rows of one column of binary or string. All pointers are borrowed.
cdef struct Rows:
    const int32_t* offsets               # or NULL
    const int64_t* offsets_large         # or NULL
    const char* data                     # data[offsets[i]:offsets[i + 1]] is row i
    int64_t data_bytes
    const int64_t* times                 # one for each row, or NULL

cdef int64_t size_of(const Rows* rows, int64_t row) except -1
