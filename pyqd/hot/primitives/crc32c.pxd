# The checksum of records. Design notes: pyx/primitives/crc32c.pyx.

from libc.stdint cimport uint32_t

cdef uint32_t crc32c(uint32_t crc, const void* data, size_t count) noexcept nogil
cdef uint32_t crc32c_software(uint32_t crc, const void* data, size_t count) noexcept nogil
