"""FINs of a channel that wait for a sync of its ledger, with --sync-fin.

A FIN counts against its consumer's RDY until a sync has covered it, so that a client whose FINs are not durable gets no
further messages. A sync covers the FINs that were added before it began.

Invariant: a consumer is in `consumers` once, exactly if it has FINs that no sync under way covers (`awaits_sync`).
"""

cimport cython
from libc.stdint cimport int64_t


@cython.final
cdef class UnsyncedFins:
    """Consumers of one channel with FINs that are not on stable storage."""

    def __cinit__(self):
        self.consumers = []

    cdef bint add(self, Consumer consumer) except -1:
        """Count a FIN of a consumer. Returns: True if it is the first one for the next sync."""
        consumer.unsynced_count += 1
        if consumer.awaits_sync:
            return False
        consumer.awaits_sync = True
        self.consumers.append(consumer)
        return len(self.consumers) == 1

    cpdef list begin_sync(self):
        """Return [(consumer, FINs)] that a sync covers if its ledgers are gathered now."""
        cdef Consumer consumer
        cdef list covered = []
        for consumer in self.consumers:
            assert consumer.awaits_sync, "a consumer is listed twice"
            consumer.awaits_sync = False
            covered.append((consumer, consumer.unsynced_count))
        self.consumers = []
        return covered

    cdef int end_sync(self, list covered) except -1:
        """Release FINs that are on stable storage, as `begin_sync` returned them."""
        cdef Consumer consumer
        cdef int64_t count
        for consumer, count in covered:
            assert count <= consumer.unsynced_count
            consumer.unsynced_count -= count
        return 0

    cpdef int fail_sync(self, list covered) except -1:
        """Add FINs whose sync has failed to those that the next sync covers."""
        cdef Consumer consumer
        for consumer, _ in covered:
            if not consumer.awaits_sync:
                consumer.awaits_sync = True
                self.consumers.append(consumer)
        return 0
