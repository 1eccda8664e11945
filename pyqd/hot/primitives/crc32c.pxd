# pyqd/hot/primitives/crc32c.pxd: the checksum of records. Design notes: pyx/primitives/crc32c.pyx.

from libc.stdint cimport uint32_t

# Returns the CRC-32C of data[:count], continued from `crc`, the checksum of the bytes before; 0 to start. `data` needs
# no alignment, and may be NULL if count is 0.
cdef uint32_t crc32c(uint32_t crc, const void* data, size_t count) noexcept nogil
# Returns the same without the processor's CRC instructions.
cdef uint32_t crc32c_software(uint32_t crc, const void* data, size_t count) noexcept nogil
