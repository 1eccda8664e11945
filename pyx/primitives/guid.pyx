"""64-bit ids of messages: their factory, and their form on the wire.

An id, from the top:

    bit  63      62 .. 22               21 .. 12     11 .. 0
        +---+--------------------------+------------+----------+
        | 0 | ticks since nsqd's epoch | node id    | sequence |      tick: 2**20 ns = 1.048576 ms
        +---+--------------------------+------------+----------+

On the wire it is 16 lowercase hex digits of the big-endian value. Source: docs/nsq/broker-semantics.md, "Message id".

Invariants
    1. Ids of one factory grow strictly, whatever the clock does, also over a restart that calls resume_after with the
       greatest id it knows, and when the node id has changed between the runs.
    2. An id carries the factory's node id, is not 0, and is below 2**63 (nsqd holds ids in an int64).
    3. next_id never blocks and never fails. nsqd sleeps a millisecond when the sequence of a tick is used up or the
       clock stands still; a loop that serves every connection cannot. Here the factory runs ahead of the clock instead:
       it takes the next tick, and comes back to the clock's tick when that has caught up. 4096 ids per tick are 3.9
       million a second.
    4. A clock outside of the ticks that fit, before 28 October 2012 or after November 2085, counts as one that stands
       still.

All of this follows from one rule. The candidate is (tick of the clock, node, 0). If it is not greater than last_id, the
candidate is last_id + 1, which is right as long as it carries our node id: a used-up sequence carries into the node's
bits, and so does an id of another node differ there. Else the candidate is (tick of last_id + 1, node, 0).

The hex conversions work on 8 digits in one 64-bit word, without table and without a branch per digit.
"""


cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint32_t, uint64_t

assert TICK_SHIFT == 22 and NODE_ID_COUNT == 1024


@cython.final
cdef class GuidFactory:
    """Factory of strictly growing ids of one node.

    node_id: 0 to 1023. Raises: ValueError if it is outside.
    """

    def __cinit__(self, long long node_id):
        if not 0 <= node_id < NODE_ID_COUNT:
            raise ValueError("--node-id must be [0,1024)")
        self.node_id = <uint32_t>node_id
        self.last_id = 0

    cdef int resume_after(self, uint64_t last_id) except -1:
        """Make all future ids greater than last_id too. Raises ValueError if last_id is 2**63 or more."""
        if last_id >> 63:
            raise ValueError(f"invalid message id {last_id:#x}: give one below 2**63")
        if last_id > self.last_id:
            self.last_id = last_id
        return 0

    def next(self, int64_t wall_ns):
        """Return the next id at a wall clock in nanoseconds."""
        return self.next_id(wall_ns)

    def resume(self, uint64_t last_id):
        """Make all future ids greater than last_id as well. Raises: ValueError if last_id is 2**63 or more."""
        self.resume_after(last_id)


def id_after(uint64_t guid, int64_t steps):
    """Return the id that a factory gives `steps` ids later, or earlier if negative, while the clock stands still."""
    return id_after_steps(guid, steps)


def to_hex(uint64_t guid):
    """Return the 16 hex digits of an id as bytes."""
    cdef bytes text = PyBytes_FromStringAndSize(NULL, HEX_SIZE)
    id_to_hex(guid, PyBytes_AS_STRING(text))
    return text


def from_hex(bytes text not None):
    """Return the id of 16 lowercase hex digits. Raises: ValueError for any other text."""
    cdef uint64_t guid = 0
    if len(text) != HEX_SIZE or hex_to_id(PyBytes_AS_STRING(text), &guid) != 0:
        raise ValueError("invalid message id: give 16 lowercase hex digits")
    return guid
