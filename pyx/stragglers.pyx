"""Stragglers: a few unfinished messages of an old segment are copied out of it, so that the segment can go.

    topic's log   | first: 3 of 400,000 unfinished | ... all finished ... | active
    parked log    | ...                   copies of the 3, due at once | end

The copy goes to the channel's parked log, with id, timestamp and attempts; the slot of one that is in flight, or its
place in the ring, points at the copy from then on. The old record is the copy's origin, settled like all origins (see
pyx/parked.pyx): at once, or when a sync has covered the copy. Room for all is made first, so that nothing can fail half
way.

Only what has been handed out is moved. What lies at or past the cursor is a queue, however long, and stays in order.

Invariants: those of the channel hold between any two messages moved. In particular a record below the cursor that is
not finished is in the slots, or in the ring, or an origin not settled yet, which was moved before.
"""

from libc.stdint cimport int64_t, uint16_t, uint32_t

from pyqd.hot.clock cimport wall_ns
from pyqd.hot.parked cimport Parked
from pyqd.hot.record cimport record_body, record_ordinal, record_span
from pyqd.hot.segment cimport SEGMENT_HEADER_BYTES, Segment
from pyqd.hot.slots cimport FROM_PARKED, FROM_TOPIC


def stopped_growing_ns(Segment segment not None):
    """Return when a segment stopped growing (Unix): when the next one began; the active one has not."""
    return segment.next.header().created_ns if segment.next is not None else wall_ns()


def unfinished_below(ChannelCore channel not None, uint64_t end):
    """Count the records below an ordinal that a channel has not finished. Cost: O(these)."""
    cdef uint64_t count = 0
    for _ in channel.ledger.unfinished(end):
        count += 1
    return count


cdef dict ring_places(ChannelCore channel, uint64_t end):
    """Return {ordinal: place in the ring} of the topic's records below an ordinal that wait for redelivery."""
    cdef uint32_t index, at
    places = {}
    for index in range(channel.ready.count):
        at = (channel.ready.head + index) & (channel.ready.capacity - 1)
        if channel.ready.entries[at].source == FROM_TOPIC:
            if record_ordinal(channel.ready.entries[at].record) < end:
                places[record_ordinal(channel.ready.entries[at].record)] = at
    return places


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
    parked.origins[parked.unsettled()] = ordinal << 1 | FROM_TOPIC
    copy = <Record*> parked.log.append(
        record.guid, record.timestamp_ns, 0, attempts, record_body(record), record.size_bytes)
    copy.handed_out = attempts
    parked.ledger.hand_out()
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
    Cost: a walk over the segment's headers, the channel's ring, and the copies.
    """
    cdef uint64_t offset = SEGMENT_HEADER_BYTES
    cdef uint64_t moved = 0
    cdef const Record* record
    assert channel.ledger.header.cursor >= segment.end_ordinal()
    if channel.ledger.header.floor >= segment.end_ordinal():
        return 0
    if channel.parked is None:
        channel.parked = channel.open_parked()
    channel.feed.log.ready(segment)
    places = ring_places(channel, segment.end_ordinal())
    while offset < segment.tail and moved < count_max:
        record = <const Record*> (segment.base + offset)
        offset += record_span(record.size_bytes)
        if not channel.ledger.is_finished(record_ordinal(record)):
            moved += move_one(channel, record, places.get(record_ordinal(record)))
    channel.settle_unless_durable()
    return moved


def trim_parked(Parked parked not None):
    """Give up what nothing holds any more of a parked log."""
    parked.trim()
