"""A connection compressed with deflate: raw, flushed to a byte boundary whenever something has to leave.

The compressor is ISA-L's if it is installed: on messages it is several times as fast as zlib at the same level of size.
Its levels are three; nsqd's nine are spread over them. Source: RFC 1951; docs/nsq/tcp-protocol.md, "Upgrade sequence".
"""

cimport cython
from cpython.buffer cimport PyBUF_READ
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport uint64_t
from libc.string cimport memcpy

from pyqd.hot.net.transport cimport StreamCodec

import zlib

from pyqd.hot.net.transport import TransportError

try:
    from isal import isal_zlib
except ImportError:
    isal_zlib = None

cdef enum:
    ENCODED_BYTES = 64 << 10
    RAW = -15                            # the window of 32 KiB, without header and checksum
    LEVELS_PER_LEVEL = 3
    # Measured: bytes allocated for one object, with isal 1.7; zlib's are those of zconf.h.
    DECOMPRESSOR_BYTES = 88_000
    ZLIB_COMPRESSOR_BYTES = 268_000
    ZLIB_DECOMPRESSOR_BYTES = 44_000

cdef dict COMPRESSOR_BYTES = {1: 370_000, 2: 417_000, 3: 432_000}
cdef object library = zlib if isal_zlib is None else isal_zlib


@cython.final
cdef class Deflate(StreamCodec):
    """Deflate. level: 1 to 9, as nsqd counts."""

    cdef object compressor
    cdef object decompressor
    cdef bytes undecoded
    cdef uint64_t objects_bytes          # memory of the two, once they have worked
    cdef bint unfinished                 # something was compressed since the last flush

    def __init__(self, int level):
        if library is zlib:
            self.objects_bytes = ZLIB_COMPRESSOR_BYTES + ZLIB_DECOMPRESSOR_BYTES
        else:
            level = (level + LEVELS_PER_LEVEL - 1) // LEVELS_PER_LEVEL
            self.objects_bytes = <uint64_t> COMPRESSOR_BYTES[level] + DECOMPRESSOR_BYTES
        self.compressor = library.compressobj(level, library.DEFLATED, RAW)
        self.decompressor = library.decompressobj(RAW)
        self.undecoded = b""
        self.state_bytes = self.objects_bytes

    cdef bytes encode(self, const char* data, uint64_t size_bytes, uint64_t* used):
        used[0] = min(size_bytes, <uint64_t> ENCODED_BYTES)
        self.unfinished = True
        return self.compressor.compress(
            PyMemoryView_FromMemory(<char*> data, <Py_ssize_t> used[0], PyBUF_READ))

    cdef bytes finish_encoding(self):
        if not self.unfinished:
            return b""
        self.unfinished = False
        return self.compressor.flush(library.Z_SYNC_FLUSH)

    cdef int take(self, const char* data, uint64_t size_bytes) except -1:
        self.undecoded = self.undecoded + data[:size_bytes]
        return 0

    cdef ssize_t decode(self, char* into, uint64_t capacity) except -1:
        cdef bytes decoded
        try:
            decoded = self.decompressor.decompress(self.undecoded, <Py_ssize_t> capacity)
        except library.error as error:
            raise TransportError(f"flate: {error}") from error
        self.undecoded = self.decompressor.unconsumed_tail
        self.ended = self.decompressor.eof
        self.more = not self.ended and (len(self.undecoded) != 0 or <uint64_t> len(decoded) == capacity)
        memcpy(into, <const char*> decoded, <size_t> len(decoded))
        self.state_bytes = self.objects_bytes + <uint64_t> len(self.undecoded)
        return len(decoded)
