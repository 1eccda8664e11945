"""TLS on a connection after the handshake.

OpenSSL works on memory here: received records are written to it and plaintext is read; plaintext is written and records
are read. The calls go through pyOpenSSL, a few per pass of up to 128 KiB. Records that OpenSSL sends by itself, an
answer to a change of keys or an alert, leave with the next send.

The handshake waits and is not hot: `pyqd.net.handshake`. Source: RFC 8446, RFC 5246.
"""

cimport cython
from cpython.buffer cimport PyBUF_READ, PyBUF_WRITE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport uint64_t

from pyqd.hot.net.transport cimport StreamCodec

from pyqd.hot.net.transport import TransportError
from pyqd.primitives.openssl import SSL

cdef enum:
    RECORD_BYTES = 16 << 10
    RECORD_OVERHEAD_BYTES = 128          # largest of all suites
    UNASKED_BYTES = 512                  # for records that OpenSSL sends by itself
    STATE_BYTES = 48 << 10               # memory of a connection after its handshake, measured with OpenSSL 3


def reason_of(error):
    """Return the reason of an OpenSSL error in words."""
    reasons = error.args[0] if error.args else ()
    if not isinstance(reasons, list):
        return "the connection ended"
    return "; ".join([str(entry[2]) for entry in reasons]) or "the connection ended"


@cython.final
cdef class Tls(StreamCodec):
    """TLS. connection: an OpenSSL.SSL.Connection without a socket, its handshake done."""

    cdef readonly object connection      # OpenSSL.SSL.Connection with memory buffers
    cdef uint64_t in_bytes               # largest content of each of its two memory buffers so far: they do not shrink
    cdef uint64_t out_bytes

    def __init__(self, connection):
        self.connection = connection
        # The bytes that arrived with the end of the handshake are already in the connection.
        self.more = True
        self.count_state()

    cdef int count_state(self) except -1:
        """Count the memory that OpenSSL takes. Its memory buffers grow to four thirds of their content."""
        self.state_bytes = STATE_BYTES + (self.in_bytes + self.out_bytes) * 4 // 3
        return 0

    cdef bytes encode(self, const char* data, uint64_t size_bytes, uint64_t* used):
        cdef uint64_t encoded = 0
        try:
            while encoded < size_bytes:
                encoded += <uint64_t> self.connection.send(
                    PyMemoryView_FromMemory(<char*> data + encoded, <Py_ssize_t> (size_bytes - encoded), PyBUF_READ))
        except SSL.Error as error:
            raise TransportError(f"tls: {reason_of(error)}") from error
        used[0] = size_bytes
        return self.records(size_bytes + (size_bytes // RECORD_BYTES + 1) * RECORD_OVERHEAD_BYTES + UNASKED_BYTES)

    cdef bytes records(self, uint64_t expected_bytes):
        """Return the records that OpenSSL has made; expected_bytes is an estimate of their size."""
        cdef bytes found = b""
        cdef bytes records
        try:
            while True:
                records = self.connection.bio_read(expected_bytes)
                found = found + records if found else records
                if <uint64_t> len(records) > self.out_bytes:
                    self.out_bytes = <uint64_t> len(records)
                    self.count_state()
                if <uint64_t> len(records) < expected_bytes:
                    return found
        except SSL.WantReadError:
            return found

    cdef int take(self, const char* data, uint64_t size_bytes) except -1:
        self.connection.bio_write(PyMemoryView_FromMemory(<char*> data, <Py_ssize_t> size_bytes, PyBUF_READ))
        if size_bytes > self.in_bytes:
            self.in_bytes = size_bytes
            self.count_state()
        return 0

    cdef ssize_t decode(self, char* into, uint64_t capacity) except -1:
        cdef uint64_t decoded = 0
        cdef uint64_t room
        try:
            while decoded < capacity:
                room = min(capacity - decoded, <uint64_t> RECORD_BYTES)
                decoded += <uint64_t> self.connection.recv_into(
                    PyMemoryView_FromMemory(into + decoded, <Py_ssize_t> room, PyBUF_WRITE))
            self.more = True
        except SSL.WantReadError:
            pass
        except SSL.ZeroReturnError:
            self.ended = True
        except SSL.Error as error:
            raise TransportError(f"tls: {reason_of(error)}") from error
        return <ssize_t> decoded

    cdef bytes end(self):
        try:
            self.connection.shutdown()
        except SSL.Error:
            return b""
        return self.records(UNASKED_BYTES)
