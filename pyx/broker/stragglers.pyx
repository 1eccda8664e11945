"""Stragglers: a few unfinished messages of an old segment are copied out of it, so that the segment can go.

    topic's log   | first: 3 of 400,000 unfinished | ... all finished ... | active
    parked log    | ...                   copies of the 3, due at once | end

The copy goes to the channel's parked log, with id, timestamp and attempts; the slot of one that is in flight, or its
place in the ring, points at the copy from then on. The old record is the copy's origin, settled like all origins (see
pyx/broker/parked.pyx): at once, or when a sync has covered the copy. Room for all is made first, so that nothing can
fail half way.

Only what has been handed out of a topic's log is moved. What lies at or past the cursor is a queue, however long, and
stays in order.

A parked log has no queue: its messages come by their due times, in whatever order of segments. So where it keeps little
but finished records, the oldest segment is copied to the end, whatever waits in it, until the log is compact again.

Invariants: those of the channel hold between any two messages moved. In particular a record below the cursor that is
not finished is in the slots, or in the ring, or an origin not settled yet, which was moved before.
"""

from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t

from pyqd.hot.broker.parked cimport Parked
from pyqd.hot.broker.replay cimport finished_in
from pyqd.hot.broker.slots cimport FROM_PARKED, FROM_TOPIC, Slot
from pyqd.hot.diskqueue.segment cimport Segment
from pyqd.hot.primitives.clock cimport wall_ns
from pyqd.hot.wire.record cimport record_body, record_ordinal, record_span


def stopped_growing_ns(Segment segment not None):
    """Return when a segment stopped growing (Unix): when the next one began; the active one has not."""
    return segment.next.header().created_ns if segment.next is not None else wall_ns()


def unfinished_below(ChannelCore channel not None, uint64_t end):
    """Count the records below an ordinal that a channel has not finished. Cost: O(64th part of the window)."""
    cdef uint64_t floor = channel.ledger.header.floor
    return end - floor - finished_in(channel.ledger, floor, end) if end > floor else 0


cdef int move_one(ChannelCore channel, const Record* record, object place) except -1:
    """Copy one record and let its slot or its place in the ring point there.

    Returns: 1, or 0 for one that was moved before. Raises: StorageError, MemoryError (nothing changed).
    """
    cdef Parked parked = channel.parked
    cdef uint64_t ordinal = record_ordinal(record)
    cdef int64_t slot = channel.slots.ids.get(record.guid)
    cdef uint16_t attempts
    cdef Record* copy
    if slot >= 0 and channel.slots.slots[slot].record != record:
        slot = -1
    if slot < 0 and place is None:
        return 0
    assert slot < 0 or place is None, "a record is in flight or waits in the ring"
    attempts = channel.slots.slots[slot].attempts if slot >= 0 else channel.ready.entries[<uint32_t> place].attempts
    parked.prepare(record_span(record.size_bytes))
    channel.ledger.reach(ordinal)
    parked.add_origin(ordinal << 1 | FROM_TOPIC)
    copy = <Record*> parked.log.append(
        record.guid, record.timestamp_ns, 0, attempts, record_body(record), record.size_bytes)
    copy.handed_out = attempts
    parked.ledger.hand_out()
    channel.note_parking()
    if slot >= 0:
        channel.slots.slots[slot].record = copy
        channel.slots.slots[slot].source = FROM_PARKED
    else:
        channel.ready.entries[<uint32_t> place].record = copy
        channel.ready.entries[<uint32_t> place].source = FROM_PARKED
    return 1


def move_stragglers(ChannelCore channel not None, Segment segment not None, uint64_t count_max):
    """Copy what a channel has not finished of a segment to its parked log; the channel has handed all of it out.

    Returns: how many were moved, at most `count_max`. Raises: StorageError (what was moved stays moved).
    Cost: a comparison of addresses for each message in the ring and in flight, which reads no record, and the copies.
    """
    cdef const char* start = segment.base
    cdef const char* end = segment.base + segment.tail
    cdef uint64_t moved = 0
    cdef uint32_t index, at
    cdef const Slot* held
    assert channel.ledger.header.cursor >= segment.end_ordinal()
    if channel.ledger.header.floor >= segment.end_ordinal():
        return 0
    if channel.parked is None:
        channel.parked = channel.open_parked()
    channel.feed.log.ready(segment)
    for index in range(channel.ready.count):
        if moved == count_max:
            break
        at = (channel.ready.head + index) & (channel.ready.capacity - 1)
        if start <= <const char*> channel.ready.entries[at].record < end:
            moved += move_one(channel, channel.ready.entries[at].record, at)
    for index in range(channel.slots.capacity):
        if moved == count_max:
            break
        held = &channel.slots.slots[index]
        if start <= <const char*> held.record < end and channel.slots.deadlines.contains(index):
            moved += move_one(channel, held.record, None)
    channel.settle_unless_durable()
    return moved


cdef int copy_parked(ChannelCore channel, const Record* record, object waiting, object place) except -1:
    """Copy one parked record to the end of its log and let its slot, or its place in the ring, point there.

    waiting: its slot among the due times. place: in the ring. Returns and raises as `move_one`.
    """
    cdef Parked parked = channel.parked
    cdef uint64_t ordinal = record_ordinal(record)
    cdef int64_t slot = channel.slots.ids.get(record.guid)
    cdef Record* copy
    if slot >= 0 and channel.slots.slots[slot].record != record:
        slot = -1
    if slot < 0 and waiting is None and place is None:
        return 0
    assert (slot >= 0) + (waiting is not None) + (place is not None) == 1, "a record is in one place"
    parked.prepare(record_span(record.size_bytes))
    parked.ledger.reach(ordinal)
    parked.add_origin(ordinal << 1 | FROM_PARKED)
    # A kill before handed_out is copied must not take a delivery back: the record itself counts it too.
    copy = <Record*> parked.log.append(
        record.guid, record.timestamp_ns, record.due_ns, record.handed_out or record.attempts,
        record_body(record), record.size_bytes)
    copy.handed_out = record.handed_out
    parked.ledger.hand_out()
    channel.note_parking()
    if slot >= 0:
        channel.slots.slots[slot].record = copy
    elif waiting is not None:
        parked.records[<uint32_t> waiting] = copy
    else:
        channel.ready.entries[<uint32_t> place].record = copy
    return 1


def move_parked(ChannelCore channel not None, uint64_t count_max):
    """Copy what is unfinished of the oldest segment of a channel's parked log to the end of that log.

    Due times, attempts and who has what in flight stay as they are.
    Returns: how many were moved, at most `count_max`. Raises: StorageError (what was moved stays moved).
    Cost: a comparison of addresses for each message deferred, in the ring and in flight, and the copies.
    """
    cdef Parked parked = channel.parked
    cdef Segment segment = parked.log.first
    cdef const char* start = segment.base
    cdef const char* end = segment.base + segment.tail
    cdef uint64_t moved = 0
    cdef uint32_t index, at
    cdef const Slot* held
    assert segment is not parked.log.active, "the copies go to another segment"
    for index in range(channel.ready.count):
        if moved == count_max:
            break
        at = (channel.ready.head + index) & (channel.ready.capacity - 1)
        if start <= <const char*> channel.ready.entries[at].record < end:
            moved += copy_parked(channel, channel.ready.entries[at].record, None, at)
    for index in range(channel.slots.capacity):
        if moved == count_max:
            break
        held = &channel.slots.slots[index]
        if start <= <const char*> held.record < end and channel.slots.deadlines.contains(index):
            moved += copy_parked(channel, held.record, None, None)
    for index in range(parked.capacity):
        if moved == count_max:
            break
        if start <= <const char*> parked.records[index] < end and parked.dues.contains(index):
            moved += copy_parked(channel, parked.records[index], index, None)
    if moved:
        channel.settle_unless_durable()
    return moved


def unfinished_parked(Parked parked not None):
    """Return how many records of a parked log are not finished, and how many it keeps."""
    cdef uint64_t unfinished = parked.log.end - parked.ledger.header.floor - parked.ledger.ones
    return unfinished, parked.log.end - parked.log.first.first_ordinal


def trim_parked(Parked parked not None):
    """Give up what nothing holds any more of a parked log."""
    parked.trim()
