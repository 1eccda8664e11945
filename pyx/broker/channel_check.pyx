"""Check of the invariants that relate the parts of a channel, for tests and the simulation.

Each unfinished record that the channel has handed out is in exactly one place, so counting the places of each log finds
a message that is lost until the next start, or held twice. See invariant 1 in pyx/broker/channel.pyx.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

from pyqd.hot.broker.channel cimport ChannelCore
from pyqd.hot.broker.consumer cimport Consumer
from pyqd.hot.broker.deferral cimport Deferral
from pyqd.hot.broker.log_cursor cimport LogCursor
from pyqd.hot.broker.parked_log cimport ParkedLog
from pyqd.hot.broker.slots cimport FROM_PARKED, FROM_TOPIC, ReadyEntry, ReadyRing, Slot, fingerprint
from pyqd.hot.diskqueue.ledger cimport Ledger
from pyqd.hot.diskqueue.log cimport Log
from pyqd.hot.diskqueue.segment cimport SEGMENT_HEADER_BYTES, Segment
from pyqd.hot.wire.record cimport ORDINAL_MASK, RECORD_LOST, Record, ordinal_after, record_ordinal, record_span


cdef struct Counts:
    uint64_t[2] held                     # by Source: in flight, for redelivery, or dead letters
    uint64_t origins_behind              # unsettled origins in the topic's log, below the cursor
    uint64_t origins_ahead               # and at or past it
    uint64_t origins_parked              # in the parked log
    uint64_t ahead                       # in one of these places, or deferred, at or past the cursor
    uint64_t deferred                    # in the topic's log below the cursor, waiting for due times


cdef uint64_t unfinished_lost_in(Log log, Ledger ledger, uint64_t start, uint64_t end) except? 0:
    """Count the unfinished ordinals of `[start, end)` without a message: a start on a full disk leaves them.

    They are in holes, or their records stand for lost ones.
    """
    cdef Segment segment = log.segment_of(start)
    cdef const Record* record
    cdef uint64_t low, high, offset, count = 0
    for hole in log.holes:
        low, high = hole
        low, high = max(low, start), min(high, end)
        count += ledger.unfinished_in(low, high) if low < high else 0
    while segment is not None and segment.first_ordinal < end:
        offset = segment.tail if segment.unverified else <uint64_t> SEGMENT_HEADER_BYTES
        while offset < segment.tail:
            record = <const Record*> (segment.base + offset)
            if record.flags & RECORD_LOST:
                low, high = max(record_ordinal(record), start), min(ordinal_after(record), end)
                count += ledger.unfinished_in(low, high) if low < high else 0
            offset += record_span(record.size_bytes)
        segment = segment.next
    return count


cdef bint are_accounted_for(Log log, Ledger ledger, uint64_t start, uint64_t end, uint64_t held) except -1:
    """Return whether `held` is the number of unfinished records of `[start, end)`, with or without lost ones."""
    cdef uint64_t unfinished = ledger.unfinished_in(start, end) if start < end else 0
    return held == unfinished or held + unfinished_lost_in(log, ledger, start, end) == unfinished


cdef int count_held(ChannelCore channel, const Record* record, uint8_t source, Counts* counts) except -1:
    """Count a message that is in flight, for redelivery, or a dead letter."""
    if source == FROM_TOPIC and record_ordinal(record) >= channel.cursor.ordinal():
        assert channel.cursor.is_overridden(record_ordinal(record)), "the cursor would hand a message out again"
        counts.ahead += 1
    else:
        counts.held[source] += 1
    return 0


cdef int count_deferred(ChannelCore channel, Counts* counts) except -1:
    """Count the messages that wait for due times of their notes."""
    cdef Deferral deferral = channel.deferral
    cdef uint32_t slot
    deferral.check()
    for slot in range(deferral.waiting.slot_count_max):
        if deferral.waiting.contains(slot):
            if channel.cursor.is_overridden(deferral.notes.at(slot).seq & ORDINAL_MASK):
                counts.ahead += 1
            else:
                assert deferral.notes.at(slot).seq & ORDINAL_MASK < channel.cursor.ordinal()
                counts.deferred += 1
    return 0


cdef int count_slots(ChannelCore channel, Counts* counts) except -1:
    """Count the messages in flight; each is unfinished and counted for its consumer."""
    cdef Consumer consumer
    cdef const Slot* held
    cdef uint32_t slot
    cdef dict in_flight = {}
    channel.slots.ids.check()
    channel.slots.deadlines.check()
    for slot in range(channel.slots.capacity):
        held = channel.slots.used(slot)
        if held != NULL:
            assert channel.slots.find(held.record.guid) == slot
            assert not channel.parking.ledger_of(held.source).is_finished(record_ordinal(held.record))
            in_flight[held.consumer] = in_flight.get(held.consumer, 0) + 1
            count_held(channel, held.record, held.source, counts)
    for consumer in channel.dispatcher.consumers:
        assert consumer.in_flight == in_flight.get(consumer.number, 0), "messages in flight of a consumer"
        assert channel.dispatcher.by_number[consumer.number] is consumer
        assert consumer.in_flight >= 0 and consumer.unsynced_count >= 0
        assert not consumer.awaits_sync or consumer in channel.unsynced_fins.consumers
    assert len(channel.dispatcher.consumers) == len(channel.dispatcher.by_number)
    return 0


cdef int count_rings(ChannelCore channel, Counts* counts) except -1:
    """Count the messages for redelivery and the dead letters; each is unfinished."""
    cdef ReadyRing ring
    cdef const ReadyEntry* entry
    cdef uint64_t number
    for ring in (channel.ready, channel.dead_letters.pending, channel.dead_letters.unsynced):
        assert ring.count <= ring.capacity and ring.capacity & (ring.capacity - 1) == 0
        for number in range(ring.first, ring.end()):
            entry = ring.at(number)
            assert entry.fingerprint == fingerprint(entry.record.guid)
            assert not channel.parking.ledger_of(entry.source).is_finished(record_ordinal(entry.record))
            count_held(channel, entry.record, entry.source, counts)
    return 0


cdef int count_origins(ChannelCore channel, Counts* counts) except -1:
    """Count the unsettled origins that are not finished."""
    cdef ParkedLog parked = channel.parking.parked
    cdef uint64_t index, origin
    assert parked is None or parked.ledger.header.parked_below <= parked.settled <= parked.log.end
    assert parked is None or channel.parking.settle_end <= parked.log.end
    for index in range(0 if parked is None else parked.unsettled()):
        origin = parked.origin_at(index)
        if origin & 1 == FROM_PARKED:
            counts.origins_parked += not parked.ledger.is_finished(origin >> 1)
        elif origin >> 1 >= channel.cursor.ordinal():
            counts.origins_ahead += 1
        else:
            counts.origins_behind += not channel.ledger.is_finished(origin >> 1)
    return 0


cdef int check_waiting(ParkedLog parked) except -1:
    """Check the parked messages that wait for their due times; each is unfinished."""
    cdef const Record* record
    cdef uint32_t slot
    cdef uint64_t count = 0
    parked.dues.check()
    for slot in range(parked.capacity):
        record = parked.waiting_in(slot)
        if record != NULL:
            count += 1
            assert not parked.ledger.is_finished(record_ordinal(record)), "invariant 1 of the parked log"
            assert parked.find_fingerprint(record.guid, slot, slot + 1) == slot
    assert count == parked.count()
    return 0


cdef int check_cursor(LogCursor cursor) except -1:
    """Check that the cursor stands at the record with its ordinal, or at the end of a segment."""
    cdef const Record* record = <const Record*> (cursor.segment.base + cursor.offset)
    assert SEGMENT_HEADER_BYTES <= cursor.offset <= cursor.segment.tail
    if cursor.offset < cursor.segment.tail and not cursor.segment.unverified:
        assert record_ordinal(record) <= max(cursor.ordinal(), cursor.segment.first_ordinal) < ordinal_after(record)
    return 0


def check_channel(ChannelCore channel not None):
    """Raise AssertionError if an invariant is broken. Cost: O(messages held, and capacity of the ledgers)."""
    cdef Counts counts = Counts(
        held=[0, 0], origins_behind=0, origins_ahead=0, origins_parked=0, ahead=0, deferred=0)
    cdef Ledger ledger = channel.ledger
    cdef ParkedLog parked = channel.parking.parked
    cdef uint64_t cursor = channel.cursor.ordinal()
    cdef uint64_t start, spared
    ledger.check()
    assert cursor <= channel.readable.end
    spared = (
        ledger.ahead + channel.parking.unsettled_ahead + channel.parking.pending() + channel.cursor.overridden_count())
    assert spared <= channel.readable.end - cursor, "the depth is negative"
    assert channel.parking.lags() or not channel.readable.all_lag, "a channel without a lag has no place to resume at"
    assert channel.slots.deadlines.count() == channel.slots.ids.count == channel.slots.count()
    assert channel.in_parking == channel.parking.awaits_sync() == (channel in channel.readable.parking)
    assert channel.waits.resets or not channel.waits.prepares_reset
    assert channel.waits.growths != 0 or not channel.waits.resets
    assert not channel.waits.throttled or channel.dispatcher.rate_limit is not None
    assert channel.dispatcher.trace is channel.trace
    assert len(channel.dead_letters.copies) == channel.dead_letters.unsynced.count
    check_cursor(channel.cursor)
    assert channel.dead_letters.pending_unsorted <= channel.dead_letters.pending.count
    count_slots(channel, &counts)
    count_rings(channel, &counts)
    count_origins(channel, &counts)
    count_deferred(channel, &counts)
    assert counts.origins_ahead == channel.parking.unsettled_ahead, "origins past the cursor"
    assert counts.ahead == channel.cursor.overridden_count(), "messages that the cursor passes over"
    assert are_accounted_for(
        channel.readable.log, ledger, ledger.oldest_unfinished(), cursor,
        counts.held[<int> FROM_TOPIC] + counts.origins_behind + counts.deferred
    ), "delivered messages of the topic's log"
    if parked is not None:
        parked.ledger.check()
        check_waiting(parked)
        assert parked.ledger.header.cursor == parked.log.end, "every parked message waits for its due time at once"
        start = max(parked.ledger.oldest_unfinished(), parked.dropped_below)
        assert are_accounted_for(
            parked.log, parked.ledger, start, parked.log.end,
            counts.held[<int> FROM_PARKED] + counts.origins_parked + parked.count()), "messages of the parked log"
