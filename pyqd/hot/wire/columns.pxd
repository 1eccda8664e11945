# pyqd/hot/wire/columns.pxd: records to columns. Design notes: pyx/wire/columns.pyx.

from libc.stdint cimport uint64_t

cdef class Columns:
    cdef readonly uint64_t rows
    cdef readonly uint64_t lost          # expected ordinals without a row
    cdef readonly uint64_t damaged       # of these: records whose checksum is wrong
    cdef readonly uint64_t following     # position after the last record; read on from here
    cdef readonly bytes body_offsets     # int32[rows + 1]; None, like bodies, if they are not wanted
    cdef readonly bytes bodies           # concatenated
    cdef readonly bytes id_offsets       # int32[rows + 1]
    cdef readonly bytes ids              # 16 hexadecimal digits each
    cdef readonly bytes positions        # int64[rows]; as the next three
    cdef readonly bytes timestamps_ns
    cdef readonly bytes timestamps_us
    cdef readonly bytes dues_us
    cdef readonly bytes due_bits         # bit of row i: i & 7 of byte i >> 3; 1 if there is a due time
    cdef readonly uint64_t due_count
    cdef readonly bytes attempts         # int32[rows]
