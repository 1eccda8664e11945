"""TLS on a connection after the handshake.

OpenSSL works on memory here: received records are written to it and plaintext is read; plaintext is written and records
are read. The calls go through pyOpenSSL, a few per pass of up to 128 KiB. Records that OpenSSL sends by itself, an
answer to a change of keys or an alert, leave with the next send.

The handshake waits and is not hot: `pyqd.net.handshake`. Source: RFC 8446, RFC 5246.
"""

from cpython.buffer cimport PyBUF_READ, PyBUF_WRITE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport uint64_t

from OpenSSL import SSL

from pyqd.hot.net.transport import TransportError

cdef enum:
    RECORD_BYTES = 16 << 10
    RECORD_OVERHEAD_BYTES = 128          # largest of all suites
    UNASKED_BYTES = 512                  # for records that OpenSSL sends by itself
    STATE_BYTES = 48 << 10               # memory of a connection after its handshake, measured with OpenSSL 3

cdef object WantRead = SSL.WantReadError
cdef object Ended = SSL.ZeroReturnError
cdef object Failed = SSL.Error


def reason_of(error):
    """Return the reason of an OpenSSL error in words."""
    reasons = error.args[0] if error.args else ()
    if not isinstance(reasons, list):
        return "the connection ended"
    return "; ".join([str(entry[2]) for entry in reasons]) or "the connection ended"


cdef class Tls(Transport):
    """TLS layer. connection: an OpenSSL.SSL.Connection without a socket, its handshake done."""

    def __init__(self, int fd, connection, *, bytes early=b""):
        super().__init__(fd, None, early)
        self.connection = connection
        # The bytes that arrived with the end of the handshake are already in the connection.
        self.more = True
        self.count_state()

    cdef int count_state(self) except -1:
        """Count the memory that OpenSSL takes. Its memory buffers grow to four thirds of their content."""
        self.codec_bytes = STATE_BYTES + (self.in_bytes + self.out_bytes) * 4 // 3
        return 0

    cdef uint64_t encode(self, const char* data, uint64_t size_bytes) except 0:
        cdef uint64_t encoded = 0
        try:
            while encoded < size_bytes:
                encoded += <uint64_t> self.connection.send(
                    PyMemoryView_FromMemory(<char*> data + encoded, <Py_ssize_t> (size_bytes - encoded), PyBUF_READ))
        except Failed as error:
            raise TransportError(f"tls: {reason_of(error)}") from error
        self.put_records(size_bytes + (size_bytes // RECORD_BYTES + 1) * RECORD_OVERHEAD_BYTES + UNASKED_BYTES)
        return size_bytes

    cdef int put_records(self, uint64_t expected_bytes) except -1:
        """Queue the records that OpenSSL has made; expected_bytes is an estimate of their size."""
        cdef bytes records
        try:
            while True:
                records = self.connection.bio_read(expected_bytes)
                self.put_encoded(records)
                if <uint64_t> len(records) > self.out_bytes:
                    self.out_bytes = <uint64_t> len(records)
                    self.count_state()
                if <uint64_t> len(records) < expected_bytes:
                    return 0
        except WantRead:
            return 0

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
        except WantRead:
            pass
        except Ended:
            self.ended = True
        except Failed as error:
            raise TransportError(f"tls: {reason_of(error)}") from error
        return <ssize_t> decoded

    def finish(self):
        """Send as much of the closing alert as the socket takes now. Switches: no."""
        try:
            self.connection.shutdown()
        except Failed:
            return
        self.put_records(UNASKED_BYTES)
        self.flush()
