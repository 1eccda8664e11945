"""Compaction: the few unfinished messages of an old segment are copied out of it, so that the segment can be removed.

    topic's log   | first: 3 of 400,000 unfinished | ... all finished ... | active
    parked log    | ...                   copies of the 3, due at once | end

The copy goes to the channel's parked log, with id, timestamp and attempts; the slot of one that is in flight, or its
place in the ring, points at the copy from then on. The old record is the copy's origin, settled like all origins: at
once, or when a sync has covered the copy (see pyx/broker/parked_log.pyx). Room for each is made first, so that a
message is moved whole or not at all.

Only records that have been handed out of a topic's log are moved. Those at or past the cursor are a queue, and stay in
order.

A parked log has no queue: its messages come by their due times, in any order of segments. So if most of its records
are finished, all unfinished ones of the oldest segment are copied to the end, until the log is compact again.

Invariants: those of the channel hold between any two messages moved. In particular a record below the cursor that is
not finished is in the slots, or in the ring, or an origin not settled yet, which was moved before.
"""

from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t

from pyqd.hot.broker.channel cimport ChannelCore
from pyqd.hot.broker.parked_log cimport ParkedLog
from pyqd.hot.broker.slots cimport FROM_PARKED, FROM_TOPIC, ReadyEntry, Slot
from pyqd.hot.diskqueue.segment cimport Segment
from pyqd.hot.primitives.clock cimport wall_ns
from pyqd.hot.wire.record cimport Record, record_ordinal


def stopped_growing_ns(Segment segment not None):
    """Return when a segment stopped growing (Unix): when the next one began; the active one has not."""
    return segment.next.header().created_ns if segment.next is not None else wall_ns()


def unfinished_below(ChannelCore channel not None, uint64_t end):
    """Count the records below an ordinal that a channel has not finished.

    Cost: O(64th part of the window, and exceptions).
    """
    cdef uint64_t oldest = channel.ledger.oldest_unfinished()
    return channel.ledger.unfinished_in(oldest, end) if end > oldest else 0


cdef int move_one(ChannelCore channel, const Record* record, ReadyEntry* place) except -1:
    """Copy one record of the topic's log and let its slot, or its place in the ring, point to the copy.

    place: its entry in the ring; NULL: it is in flight. Returns: 1, or 0 for a record that was moved before.
    Raises: StorageError, MemoryError (nothing changed).
    """
    cdef ParkedLog parked = channel.parking.parked
    cdef int64_t slot = channel.slots.find_record(record)
    cdef uint16_t attempts
    cdef const Record* copy
    if slot < 0 and place == NULL:
        return 0
    assert slot < 0 or place == NULL, "a record is in flight or waits in the ring"
    attempts = channel.slots.used(<uint32_t> slot).attempts if slot >= 0 else place.attempts
    channel.ledger.reach(record_ordinal(record))
    copy = parked.copy_handed_out(record, FROM_TOPIC, attempts, attempts, 0)
    channel.note_parking()
    if slot >= 0:
        channel.slots.repoint(<uint32_t> slot, copy, FROM_PARKED)
    else:
        place.record = copy
        place.source = FROM_PARKED
    return 1


def move_unfinished(ChannelCore channel not None, Segment segment not None, uint64_t count_max):
    """Copy the channel's unfinished records of a segment to its parked log; the channel has delivered all of the
    segment.

    Returns: how many were moved, at most `count_max`. Raises: StorageError (moved messages stay moved). Cost: a
    comparison of addresses for each message in the ring and in flight, which reads no record, and the copies.
    """
    cdef const char* start = segment.base
    cdef const char* end = segment.base + segment.tail
    cdef uint64_t moved = 0
    cdef uint32_t index
    cdef uint64_t number
    cdef ReadyEntry* entry
    cdef const Slot* held
    assert channel.ledger.header.cursor >= segment.end_ordinal()
    if channel.ledger.oldest_unfinished() >= segment.end_ordinal():
        return 0
    channel.parking.open()
    for number in range(channel.ready.first, channel.ready.end()):
        if moved == count_max:
            break
        entry = channel.ready.at(number)
        if start <= <const char*> entry.record < end:
            # It was verified when it was delivered or recovered; the disk may fail to read it by now.
            channel.cursor.verify(segment, <const char*> entry.record - start, record_ordinal(entry.record))
            moved += move_one(channel, entry.record, entry)
    for index in range(channel.slots.capacity):
        if moved == count_max:
            break
        held = channel.slots.used(index)
        if held != NULL and start <= <const char*> held.record < end:
            channel.cursor.verify(segment, <const char*> held.record - start, record_ordinal(held.record))
            moved += move_one(channel, held.record, NULL)
    channel.parking.settle_now()
    return moved


cdef int copy_parked(ChannelCore channel, const Record* record, int64_t waiting, ReadyEntry* place) except -1:
    """Copy one parked record to the end of its log and let its slot, or its place in the ring, point to the copy.

    waiting: its slot in the parked log, if that is not negative. place: its entry in the ring, if that is not NULL.
    Returns and raises: as `move_one`.
    """
    cdef ParkedLog parked = channel.parking.parked
    cdef int64_t slot = channel.slots.find_record(record)
    cdef const Record* copy
    if slot < 0 and waiting < 0 and place == NULL:
        return 0
    assert (slot >= 0) + (waiting >= 0) + (place != NULL) == 1, "a record is in one place"
    parked.ledger.reach(record_ordinal(record))
    # A kill before handed_out is copied must not take a delivery back: the record itself counts it too.
    copy = parked.copy_handed_out(
        record, FROM_PARKED, record.handed_out or record.attempts, record.handed_out, record.due_ns)
    channel.note_parking()
    if slot >= 0:
        channel.slots.repoint(<uint32_t> slot, copy, FROM_PARKED)
    elif waiting >= 0:
        parked.repoint(<uint32_t> waiting, copy)
    else:
        place.record = copy
    return 1


def move_parked(ChannelCore channel not None, uint64_t count_max):
    """Copy the unfinished records of the oldest segment of a channel's parked log to the end of that log.

    Due times, attempts and the owners of messages in flight stay as they are. Returns: how many were moved, at most
    `count_max`. Raises: StorageError (moved messages stay moved). Cost: a comparison of addresses for each message
    deferred, in the ring and in flight, and the copies.
    """
    cdef ParkedLog parked = channel.parking.parked
    cdef const Record* record
    cdef Segment segment = parked.log.first
    cdef const char* start = segment.base
    cdef const char* end = segment.base + segment.tail
    cdef uint64_t moved = 0
    cdef uint32_t index
    cdef uint64_t number
    cdef ReadyEntry* entry
    cdef const Slot* held
    assert segment is not parked.log.active, "the copies go to another segment"
    for number in range(channel.ready.first, channel.ready.end()):
        if moved == count_max:
            break
        entry = channel.ready.at(number)
        if start <= <const char*> entry.record < end:
            moved += copy_parked(channel, entry.record, -1, entry)
    for index in range(channel.slots.capacity):
        if moved == count_max:
            break
        held = channel.slots.used(index)
        if held != NULL and start <= <const char*> held.record < end:
            moved += copy_parked(channel, held.record, -1, NULL)
    for index in range(parked.capacity):
        if moved == count_max:
            break
        record = parked.waiting_in(index)
        if record != NULL and start <= <const char*> record < end:
            moved += copy_parked(channel, record, index, NULL)
    if moved:
        channel.parking.settle_now()
    return moved


def unfinished_parked(ParkedLog parked not None):
    """Return how many records of a parked log are not finished, and how many it keeps."""
    cdef uint64_t unfinished = parked.ledger.unfinished_in(parked.ledger.oldest_unfinished(), parked.log.end)
    return unfinished, parked.log.end - parked.log.first.first_ordinal


def trim_parked(ParkedLog parked not None):
    """Trim the records of a parked log that nothing needs any more."""
    parked.trim()
