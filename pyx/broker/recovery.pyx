"""Recovery of a channel: what an earlier run handed out and did not finish waits for redelivery.

The files say nearly all: what the ledger has no bit for and lies below its cursor was handed out, what the parked log
keeps waits for its due time, or was handed out and says so itself. Only a clean stop notes the attempts of the rest.
Parking leaves two records of a message for a while; the start finishes the one in the topic's log (see
pyx/broker/parked.pyx).

The order: `begin_at` where a channel takes over messages, `finish_twins` where there may be twins past the cursor, then
`recover`, then `recover_parked`. Nothing has subscribed yet, and the log's segments may not have been verified.
"""

from libc.stdint cimport uint16_t, uint32_t, uint64_t

from pyqd.hot.broker.channel cimport ChannelCore
from pyqd.hot.broker.feed cimport Feed
from pyqd.hot.broker.parked cimport Parked
from pyqd.hot.broker.slots cimport FROM_PARKED, FROM_TOPIC
from pyqd.hot.diskqueue.ledger cimport Ledger
from pyqd.hot.diskqueue.log cimport Position
from pyqd.hot.diskqueue.mapping cimport store_barrier
from pyqd.hot.diskqueue.segment cimport SEGMENT_HEADER_BYTES, Segment
from pyqd.hot.primitives.clock cimport mono_ns, wall_ns
from pyqd.hot.wire.record cimport RECORD_LOST, Record, record_ordinal, record_span


def start_ledger(Ledger ledger not None, Position position not None):
    """Make a fresh ledger begin at a position of the log."""
    ledger.reset(position.ordinal, ledger.header.parked_from)
    ledger.header.start = position.ordinal
    ledger.header.cursor_offset = position.offset
    # The segment's number is what says that the ledger has its place: all else comes before it.
    store_barrier()
    ledger.header.cursor_segment = position.segment.number


def begin_at(ChannelCore channel not None, Position position not None):
    """Have a channel that an earlier run left begin at another place, before anything of it is recovered."""
    assert channel.parked is None, "what is parked was taken up before"
    start_ledger(channel.ledger, position)
    channel.segment, channel.offset = position.segment, position.offset


def cursor_position(Ledger ledger not None, Feed feed not None):
    """Return the Position of a ledger's cursor in its log, from the place noted where that still holds."""
    return feed.log.position_at(
        ledger.header.cursor_segment, ledger.header.cursor_offset, ledger.header.cursor)


def has_moved_twins(ChannelCore channel not None):
    """Say, after a start, whether origins past the cursor may be among the records without a due time."""
    return (
        channel.parked is not None
        and channel.ledger.header.moved_until > (<Parked> channel.parked).ledger.header.parked_below)


def finish_twins(ChannelCore channel not None):
    """After a power failure and before `recover`: finish the origins past the cursor, which may be one of before.

    Cost: O(records up to the last one that was parked since the last sync).
    """
    cdef Position position = channel.feed.log.locate(channel.ledger.header.cursor)
    cdef Segment segment = position.segment
    cdef uint64_t offset = position.offset
    cdef uint64_t left = 0 if channel.parked is None else (<Parked> channel.parked).last_twin_guid
    cdef const Record* record
    forget_parked_below(channel)
    while segment is not None:
        channel.feed.log.ready(segment)
        while offset < segment.tail:
            record = <const Record*> (segment.base + offset)
            if record.guid > left:
                return
            if channel.is_parked(record) and not channel.ledger.is_finished(record_ordinal(record)):
                channel.ledger.try_finish(record_ordinal(record))
            offset += record_span(record.size_bytes)
        segment = segment.next
        offset = SEGMENT_HEADER_BYTES


cdef int forget_parked_below(ChannelCore channel) except -1:
    """Before `recover`: look again at the records past the cursor, which of them are parked."""
    channel.ledger.header.parked_below = min(
        channel.ledger.header.parked_below, channel.ledger.header.cursor)
    return 0


def recover(ChannelCore channel not None, dict attempts_of, bint power_failed):
    """After a start: what was handed out and not finished waits for redelivery, in order.

    A message with a due time to come is parked again: there was no space to park it, so it was delivered early, or the
    power failed before its parked record was on stable storage.
    attempts_of: {(source, ordinal): deliveries so far} as noted by a clean stop; without a note one delivery is
    presumed, so that attempts never read as a first delivery again. Cost: walks the unfinished part of the log.
    """
    cdef uint64_t ordinal
    cdef uint16_t attempts
    cdef Position position = None
    cdef Segment segment = None
    cdef uint64_t offset = 0
    cdef const Record* record
    if channel.parked is not None and (<Parked> channel.parked).twins.count != 0:
        forget_parked_below(channel)
    for ordinal in list(channel.ledger.unfinished(channel.ledger.header.cursor)):
        if position is None or ordinal >= position.segment.end_ordinal():
            position = channel.feed.log.locate(ordinal)
            channel.feed.log.ready(position.segment)
            segment, offset = position.segment, position.offset
        if position.ordinal > ordinal:
            continue
        record = <const Record*> (segment.base + offset)
        while record_ordinal(record) < ordinal:
            offset += record_span(record.size_bytes)
            record = <const Record*> (segment.base + offset)
        if record.flags & RECORD_LOST or channel.is_parked(record):
            channel.ledger.try_finish(ordinal)
            continue
        # Only a power failure can take a parked record away and leave a message that was never delivered.
        presumed = 0 if power_failed and record.due_ns > wall_ns() else 1
        attempts = attempts_of.get((FROM_TOPIC, ordinal), presumed)
        if record.due_ns <= wall_ns() or channel.is_spent(attempts) or not channel.try_park_published(record, attempts):
            channel.give_back(record, attempts, FROM_TOPIC)


def recover_parked(ChannelCore channel not None, dict attempts_of):
    """After a start: what of the parked log was handed out goes to the ring, with its attempts; the rest waits."""
    cdef Parked parked = channel.parked
    cdef const Record* record
    cdef uint32_t slot
    for slot in range(parked.capacity):
        if parked.dues.contains(slot):
            record = parked.records[slot]
            # A note of 0 is of one that was due and not delivered yet; a kill leaves no notes.
            attempts = attempts_of.get((FROM_PARKED, record_ordinal(record))) if attempts_of else None
            if attempts is None and record.handed_out:
                attempts = record.handed_out
            elif attempts is not None and attempts > record.handed_out:
                # A power failure has taken the mark. It is needed again: the note is used once.
                (<Record*> record).handed_out = attempts
            if attempts is not None:
                channel.give_back(parked.take(slot), attempts, FROM_PARKED)
    channel.set_next_timer(mono_ns())
