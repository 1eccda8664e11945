"""Structures and scanners of compiled code as Python classes and functions, for their tests.

Misuse raises an error instead of corrupting memory. Built with the benchmarks: PYQD_BUILD_BENCH=1.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from pyqd.hot.broker.latency cimport LatencyBuffer
from pyqd.hot.broker.rate_limit cimport RateLimit
from pyqd.hot.diskqueue.rewrite cimport Rewrite
from pyqd.hot.primitives.bitmap cimport (
    is_window, window_clear_range, window_copy, window_count, window_next_one, window_next_zero,
    window_run_of_ones, window_set, window_set_range, window_test,
)
from pyqd.hot.primitives.crc32c cimport crc32c_software
from pyqd.hot.primitives.deadlines cimport DeadlineQueue
from pyqd.hot.primitives.dueheap cimport DueHeap
from pyqd.hot.primitives.heap cimport DeadlineHeap
from pyqd.hot.primitives.idtable cimport PYQD_ID_MULTIPLIER, IdTable
from pyqd.hot.wire.scanner cimport (
    COMMAND_AUTH, COMMAND_CLS, COMMAND_DMPUB, COMMAND_DPUB, COMMAND_FIN, COMMAND_IDENTIFY, COMMAND_MPUB, COMMAND_NOP,
    COMMAND_PUB, COMMAND_RDY, COMMAND_REQ, COMMAND_SUB, COMMAND_TOUCH, COMMAND_UNKNOWN, SCAN_NEED_MORE, SCAN_READY,
    Batch, CommandLine, Scan, is_name, parse_digits, scan_batch, scan_line,
)


@cython.final
cdef class Ring:
    """Ring of capacity_bits bits; misuse raises ValueError instead of corrupting.

    capacity_bits: a power of two, 64 or more. All positions are positions in the endless row.
    """

    cdef uint64_t* words
    cdef readonly uint64_t capacity_bits

    def __cinit__(self, uint64_t capacity_bits):
        self.words = NULL
        self.capacity_bits = capacity_bits
        if not is_window(capacity_bits, 0, 0):
            raise ValueError(f"invalid capacity of {capacity_bits} bits: give a power of two, 64 or more")
        self.words = <uint64_t*>calloc(capacity_bits // 64, sizeof(uint64_t))
        if self.words == NULL:
            raise MemoryError(f"not enough memory for a bitmap of {capacity_bits} bits")

    def __dealloc__(self):
        free(self.words)

    cdef int require_range(self, uint64_t start, uint64_t end) except -1:
        if not is_window(self.capacity_bits, start, end):
            raise ValueError(f"[{start}, {end}) must be a range of at most {self.capacity_bits} bits")
        return 0

    def set(self, uint64_t position):
        window_set(self.words, self.capacity_bits, position)

    def test(self, uint64_t position):
        return bool(window_test(self.words, self.capacity_bits, position))

    def next_one(self, uint64_t start, uint64_t end):
        self.require_range(start, end)
        return window_next_one(self.words, self.capacity_bits, start, end)

    def next_zero(self, uint64_t start, uint64_t end):
        self.require_range(start, end)
        return window_next_zero(self.words, self.capacity_bits, start, end)

    def run_of_ones(self, uint64_t start, uint64_t end):
        self.require_range(start, end)
        return window_run_of_ones(self.words, self.capacity_bits, start, end)

    def set_range(self, uint64_t start, uint64_t end):
        self.require_range(start, end)
        window_set_range(self.words, self.capacity_bits, start, end)

    def clear_range(self, uint64_t start, uint64_t end):
        self.require_range(start, end)
        window_clear_range(self.words, self.capacity_bits, start, end)

    def count(self, uint64_t start, uint64_t end):
        self.require_range(start, end)
        return window_count(self.words, self.capacity_bits, start, end)

    def copied(self, uint64_t capacity_bits, uint64_t start, uint64_t end):
        cdef Ring target = Ring(capacity_bits)
        self.require_range(start, end)
        target.require_range(start, end)
        # Ones everywhere, so that a word which window_copy does not write is noticed.
        window_set_range(target.words, capacity_bits, 0, capacity_bits)
        window_copy(self.words, self.capacity_bits, target.words, capacity_bits, start, end)
        return target


@cython.final
cdef class Heap:
    """A DeadlineHeap for tests in Python; misuse raises instead of corrupting."""

    cdef DeadlineHeap core

    def __cinit__(self, uint32_t slot_count=0):
        self.core = DeadlineHeap()
        self.core.reserve(slot_count)

    def __len__(self):
        return self.core.count

    def __contains__(self, uint32_t slot):
        return self.core.contains(slot)

    @property
    def slot_count_max(self):
        return self.core.slot_count_max

    def reserve(self, uint32_t slot_count):
        self.core.reserve(slot_count)

    def push(self, uint32_t slot, int64_t due_ns):
        self.core.push(slot, due_ns)

    def update(self, uint32_t slot, int64_t due_ns):
        self.core.update(slot, due_ns)

    def remove(self, uint32_t slot):
        self.core.remove(slot)

    def due_of(self, uint32_t slot):
        if not self.core.contains(slot):
            raise KeyError(slot)
        return self.core.due_of(slot)

    def pop(self):
        if self.core.count == 0:
            raise IndexError("the heap is empty")
        return self.core.pop()

    def peek_due(self):
        return self.core.peek_due()

    def peek_slot(self):
        return self.core.peek_slot()

    def shift_odd(self, int64_t by_ns):
        self.core.shift_odd(by_ns)

    def clear(self):
        self.core.clear()

    def check(self):
        self.core.check()


@cython.final
cdef class Dues:
    """A DueHeap for tests in Python; misuse raises instead of corrupting."""

    cdef DueHeap core

    def __cinit__(self):
        self.core = DueHeap()

    def __len__(self):
        return self.core.count

    @property
    def memory_bytes(self):
        return self.core.memory.bytes

    def push(self, int64_t due_ns, uint64_t ref):
        self.core.reserve(1)
        self.core.push(due_ns, ref)

    def pop(self):
        if self.core.count == 0:
            raise IndexError("the heap is empty")
        return self.core.pop()

    def peek_due(self):
        return self.core.peek_due()

    def peek_ref(self):
        if self.core.count == 0:
            raise IndexError("the heap is empty")
        return self.core.peek_ref()

    def entries(self):
        return [(self.core.entries[index].due_ns, self.core.entries[index].ref) for index in range(self.core.count)]

    def clear(self):
        self.core.clear()

    def check(self):
        self.core.check()


@cython.final
cdef class Queue:
    """A DeadlineQueue for tests in Python; misuse raises instead of corrupting."""

    cdef DeadlineQueue core

    def __cinit__(self, uint32_t slot_count=0):
        self.core = DeadlineQueue()
        self.core.reserve(slot_count)

    def __len__(self):
        return self.core.count()

    def __contains__(self, uint32_t slot):
        return self.core.contains(slot)

    @property
    def ring_count(self):
        return self.core.kept

    def reserve(self, uint32_t slot_count):
        self.core.reserve(slot_count)

    def push(self, uint32_t slot, int64_t due_ns):
        self.core.push(slot, due_ns)

    def update(self, uint32_t slot, int64_t due_ns):
        self.core.update(slot, due_ns)

    def remove(self, uint32_t slot):
        self.core.remove(slot)

    def due_of(self, uint32_t slot):
        if not self.core.contains(slot):
            raise KeyError(slot)
        return self.core.due_of(slot)

    def peek_due(self):
        return self.core.peek_due()

    def peek_slot(self):
        return self.core.peek_slot()

    def clear(self):
        self.core.clear()

    def check(self):
        self.core.check()


@cython.final
cdef class Table:
    """An IdTable for tests in Python; misuse raises instead of corrupting."""

    cdef IdTable core

    def __cinit__(self, uint64_t copied_at_once_max=16384):
        self.core = IdTable()
        self.core.copied_at_once_max = copied_at_once_max

    def __len__(self):
        return self.core.count

    @property
    def capacity(self):
        return self.core.capacity

    @property
    def old_capacity(self):
        return self.core.old_capacity

    def put(self, uint64_t guid, uint32_t slot):
        if not self.core.put(guid, slot):
            raise KeyError(guid)

    def get(self, uint64_t guid):
        return self.core.get(guid)

    def take(self, uint64_t guid):
        return self.core.take(guid)

    def clear(self):
        self.core.clear()

    def check(self):
        self.core.check()

    def probe_lengths(self):
        cdef uint64_t index
        cdef uint64_t mask = self.core.capacity - 1
        assert self.core.old_cells == NULL, "for a table that is not being copied"
        lengths = []
        for index in range(self.core.capacity):
            if self.core.cells[index].guid != 0:
                lengths.append(((index - (self.core.cells[index].guid * PYQD_ID_MULTIPLIER >> self.core.shift)) & mask) + 1)
        return lengths


COMMAND_NAMES = {
    COMMAND_UNKNOWN: None, COMMAND_FIN: "FIN", COMMAND_PUB: "PUB", COMMAND_MPUB: "MPUB", COMMAND_DPUB: "DPUB",
    COMMAND_DMPUB: "DMPUB",
    COMMAND_RDY: "RDY", COMMAND_REQ: "REQ", COMMAND_TOUCH: "TOUCH", COMMAND_NOP: "NOP", COMMAND_SUB: "SUB",
    COMMAND_IDENTIFY: "IDENTIFY", COMMAND_AUTH: "AUTH", COMMAND_CLS: "CLS",
}


def split_line(bytes data not None):
    """Scan one command line, for tests. Returns: None for more, False for too long, else (command, params, bytes used).

    command: the command's name, or None for an unknown one. params: the first two parameters.
    """
    cdef CommandLine line
    cdef Scan scan = scan_line(data, <uint64_t> len(data), &line)
    if scan != SCAN_READY:
        return None if scan == SCAN_NEED_MORE else False
    params = [line.params[index].at[:line.params[index].size_bytes] for index in range(min(line.param_count, 2))]
    return COMMAND_NAMES[line.command], params, line.line_bytes


def check_batch(chunks, int64_t max_msg_bytes, int64_t max_count, uint32_t lead_bytes=0):
    """Walk a batch's body that arrives in chunks, for tests. Returns: (Scan, index, bytes used, body_words)."""
    cdef Batch batch = Batch(index=0, count=0, size_bytes=0, offset=0, body_words=0)
    cdef Scan scan = SCAN_NEED_MORE
    received = b""
    for chunk in chunks:
        received += chunk
        scan = scan_batch(received, <uint64_t> len(received), max_msg_bytes, max_count, lead_bytes, &batch)
        if scan != SCAN_NEED_MORE:
            break
    return int(scan), batch.index, batch.offset, batch.body_words


def name_is_valid(bytes name not None):
    """Return whether a topic or channel may have this name."""
    return is_name(name, <uint32_t> len(name))


def digits_value(bytes text not None):
    """Return the number in a parameter; None if it is not a number."""
    cdef int64_t value = 0
    return value if parse_digits(text, <uint32_t> len(text), &value) else None


def crc32c_in_software(data, uint32_t crc=0):
    """Return the CRC-32C of bytes without the processor's instructions."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return crc32c_software(crc, view.buf, <size_t> view.len)
    finally:
        PyBuffer_Release(&view)


def take_tokens(RateLimit bucket not None, uint64_t wanted, int64_t now_ns):
    """Take up to `wanted` tokens. Returns: the number taken."""
    cdef uint64_t taken = min(wanted, bucket.available(now_ns))
    bucket.spend(taken)
    return taken


def next_token_ns(RateLimit bucket not None):
    """Return the next time worth a retry (monotonic)."""
    return bucket.ready_ns()


def note_latency(LatencyBuffer buffer not None, int64_t published_ns):
    """Store the latency of a message that is finished now."""
    buffer.note(published_ns)


def need(Rewrite rewrite not None, uint64_t ordinal):
    """Let a rewriting keep a record."""
    if not rewrite.start <= ordinal < rewrite.end:
        raise ValueError(f"record {ordinal} is not in the segments that are rewritten")
    window_set(rewrite.to.needed, rewrite.to.capacity_bits, ordinal)
