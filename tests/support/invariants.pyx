"""Checks of the invariants that relate the parts of a channel, and those of a topic, for tests and the simulation.

Each unfinished record that the channel has handed out, or that has a due time, is in exactly one place, so counting the
places finds a message that is lost until the next start, or held twice. See invariant 1 in pyx/broker/channel.pyx.
"""

from libc.stdint cimport uint32_t, uint64_t

from pyqd.hot.broker.channel cimport ChannelCore
from pyqd.hot.broker.consumer cimport Consumer
from pyqd.hot.broker.deferral cimport Deferral
from pyqd.hot.broker.log_cursor cimport LogCursor
from pyqd.hot.broker.slots cimport ReadyEntry, ReadyRing, Slot, fingerprint
from pyqd.hot.broker.topic cimport TopicCore
from pyqd.hot.diskqueue.ledger cimport Ledger
from pyqd.hot.diskqueue.log cimport Log
from pyqd.hot.diskqueue.segment cimport SEGMENT_HEADER_BYTES, Segment
from pyqd.hot.wire.record cimport ORDINAL_MASK, RECORD_LOST, Record, ordinal_after, record_ordinal, record_span


cdef struct Counts:
    uint64_t behind                      # in flight, for redelivery, dead letters, or deferred, below the cursor
    uint64_t plain_ahead                 # the same at or past it, without a due time of the publisher's
    uint64_t due_ahead                   # and with one


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


cdef int count_held(ChannelCore channel, const Record* record, Counts* counts) except -1:
    """Count a message that is in flight, for redelivery, a dead letter, or waits by a note."""
    if record_ordinal(record) < channel.cursor.ordinal():
        counts.behind += 1
    elif record.due_ns != 0 and channel.cursor.is_in_dues(record_ordinal(record)):
        counts.due_ahead += 1
    else:
        assert channel.cursor.is_overridden(record_ordinal(record)), "the cursor would hand a message out again"
        counts.plain_ahead += 1
    return 0


cdef int count_deferred(ChannelCore channel, Counts* counts) except -1:
    """Count the messages that wait for due times."""
    cdef Deferral deferral = channel.deferral
    cdef const Record* record
    cdef uint32_t slot
    cdef uint64_t index
    deferral.check()
    for slot in range(deferral.waiting.slot_count_max):
        if deferral.waiting.contains(slot):
            record = deferral.record_of(deferral.notes.at(slot))
            assert record != NULL, "a note of a record that the log does not keep"
            count_held(channel, record, counts)
    for index in range(deferral.published.count):
        count_entry(channel, deferral.published.entries[index].ref, counts)
    for index in range(deferral.dues_seen, channel.readable.due_end):
        count_entry(channel, channel.readable.dues.at(index).seq & ORDINAL_MASK, counts)
    return 0


cdef int count_entry(ChannelCore channel, uint64_t ordinal, Counts* counts) except -1:
    """Count a message that waits for its publisher's due time, unless the entry is void."""
    if not channel.deferral.is_void(ordinal):
        counts.behind += ordinal < channel.cursor.ordinal()
        counts.due_ahead += ordinal >= channel.cursor.ordinal()
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
            assert not channel.ledger.is_finished(record_ordinal(held.record))
            in_flight[held.consumer] = in_flight.get(held.consumer, 0) + 1
            count_held(channel, held.record, counts)
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
            assert not channel.ledger.is_finished(record_ordinal(entry.record))
            count_held(channel, entry.record, counts)
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
    cdef Counts counts = Counts(behind=0, plain_ahead=0, due_ahead=0)
    cdef Ledger ledger = channel.ledger
    cdef uint64_t cursor = channel.cursor.ordinal()
    cdef uint64_t spared
    ledger.check()
    assert cursor <= channel.readable.end
    spared = ledger.ahead + channel.cursor.dues_ahead() + channel.cursor.overridden_count()
    assert spared <= channel.readable.end - cursor, "the depth is negative"
    assert channel.slots.deadlines.count() == channel.slots.ids.count == channel.slots.count()
    assert channel.waits.resets or not channel.waits.prepares_reset
    assert channel.waits.growths != 0 or not channel.waits.resets
    assert not channel.waits.throttled or channel.dispatcher.rate_limit is not None
    assert channel.dispatcher.trace is channel.trace
    assert len(channel.dead_letters.copies) == channel.dead_letters.unsynced.count
    check_cursor(channel.cursor)
    assert channel.dead_letters.pending_unsorted <= channel.dead_letters.pending.count
    count_slots(channel, &counts)
    count_rings(channel, &counts)
    count_deferred(channel, &counts)
    assert counts.plain_ahead == channel.cursor.overridden_count(), "messages that the cursor passes over"
    assert counts.due_ahead == channel.cursor.dues_ahead(), "deferred messages past the cursor"
    assert channel.cursor.dues_ahead() == channel.cursor.unfinished_dues(cursor, channel.readable.end)
    assert are_accounted_for(
        channel.readable.log, ledger, ledger.oldest_unfinished(), cursor, counts.behind), "delivered messages"


def check_topic(TopicCore topic not None):
    """Raise AssertionError if an invariant of a topic or of one of its channels is broken."""
    assert topic.log.first.first_ordinal <= topic.state.held_from <= topic.log.end
    assert topic.log.first.first_ordinal <= topic.readable.end <= topic.log.end
    assert not topic.is_readable() or topic.readable.end == topic.log.end
    assert topic.state.last_guid <= topic.guids.last_id and topic.state.given_below <= topic.log.end + 1
    assert topic.log.batch.is_open or topic.open_count == 0
    topic.log.check()
    topic.readable.dues.check()
    assert topic.readable.due_end == topic.readable.dues.lower_bound(topic.readable.end)
    assert topic.readable.due_end <= topic.readable.dues_stored <= topic.readable.dues.end
    for channel in topic.channels:
        check_channel(channel)
