"""Recovery of a channel: messages that an earlier run delivered and did not finish wait for redelivery.

The files say nearly all. A record below the ledger's cursor without a bit was delivered, or waits for the due time in
its note. A record in the parked log waits for its due time, or was delivered and says so itself. Notes tell the
attempts of the rest, if a clean stop has stored them or the message was deferred before. Parking leaves two records of
a message for a while; the start finishes the one in the topic's log (see pyx/broker/parked_log.pyx).

The order: `begin_at` if a channel takes over messages, `finish_duplicates` if there may be duplicates past the cursor,
then `recover`, `recover_queued`, `recover_parked` and `end_recovery`. Nothing has subscribed yet, and the log's
segments may not have been verified.
"""

from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t

from pyqd.hot.broker.channel cimport ChannelCore
from pyqd.hot.broker.parked_log cimport ParkedLog
from pyqd.hot.broker.slots cimport FROM_PARKED, FROM_TOPIC, ReadyEntry, ReadyRing
from pyqd.hot.diskqueue.ledger cimport Ledger
from pyqd.hot.diskqueue.log cimport Log, Position
from pyqd.hot.diskqueue.mapping cimport store_barrier
from pyqd.hot.diskqueue.notes cimport NO_NOTE, NOTE_DEFERRED, NOTE_DELIVERED, Note, Notes
from pyqd.hot.diskqueue.segment cimport SEGMENT_HEADER_BYTES, Segment
from pyqd.hot.primitives.clock cimport mono_ns, wall_ns
from pyqd.hot.wire.record cimport ORDINAL_MASK, RECORD_LOST, Record, ordinal_after, record_ordinal, record_span

FROM_PARKED_LOG = FROM_PARKED


def start_ledger(Ledger ledger not None, Position position not None, bint paused=False):
    """Make a fresh ledger begin at a position of the log. paused: the channel is paused from the start on."""
    ledger.reset(position.ordinal, ledger.header.parked_from)
    ledger.header.paused = ledger.header.paused or paused
    ledger.header.start = position.ordinal
    ledger.header.spared = 0
    ledger.header.cursor_offset = position.offset
    # The segment's number says that the ledger has its place, so everything else is stored before it.
    store_barrier()
    ledger.header.cursor_segment = position.segment.number
    assert ledger.header.floor == ledger.header.cursor == position.ordinal


def begin_at(ChannelCore channel not None, Position position not None):
    """Move the beginning of a channel of an earlier run to another place, before anything of it is recovered."""
    assert channel.parking.parked is None, "the channel was recovered before"
    start_ledger(channel.ledger, position)
    channel.cursor.move_to(position.segment, position.offset)


def cursor_position(Ledger ledger not None, Log log not None):
    """Return the Position of a ledger's cursor in its log, from the place it stored if that is still right."""
    return log.position_at(
        ledger.header.cursor_segment, ledger.header.cursor_offset, ledger.header.cursor)


def finish_duplicates(ChannelCore channel not None):
    """After a power failure and before `recover`: finish the origins past the cursor, which may be one of before.

    Cost: O(records up to the last one that was parked since the last sync).
    """
    cdef Position position = channel.readable.log.locate(channel.ledger.header.cursor)
    cdef Segment segment = position.segment
    cdef uint64_t offset = position.offset
    cdef uint64_t left = 0 if channel.parking.parked is None else channel.parking.parked.last_duplicate_guid
    cdef const Record* record
    assert channel.slots.count() == 0, "messages were delivered before"
    channel.ledger.recheck_past_cursor()
    while segment is not None:
        channel.readable.log.ready(segment)
        while offset < segment.tail:
            record = <const Record*> (segment.base + offset)
            if record.guid > left:
                return
            if channel.parking.is_parked(record) and not channel.ledger.is_finished(record_ordinal(record)):
                channel.ledger.try_finish(record_ordinal(record))
            offset += record_span(record.size_bytes)
        segment = segment.next
        offset = SEGMENT_HEADER_BYTES


cdef uint32_t note_of(ChannelCore channel, uint8_t source, const Record* record) except? NO_NOTE:
    """Return the slot of the note of a record that is not finished; NO_NOTE: it has none."""
    return NO_NOTE if channel.deferral.notes is None else channel.deferral.notes.find(source, record.seq)


cdef int resume(ChannelCore channel, const Record* record, uint32_t slot) except -1:
    """Let a message of the topic's log wait, for its due time or for redelivery, as its note says."""
    cdef const Note* note = channel.deferral.notes.at(slot)
    if note.kind == NOTE_DEFERRED and not channel.dead_letters.is_spent(note.attempts):
        return channel.deferral.wait_for(slot, note.due_ns & ~1)
    return channel.dead_letters.add_returned(record, note.attempts, FROM_TOPIC, slot)


def recover(ChannelCore channel not None, bint power_failed):
    """After a start: delivered and unfinished messages wait for redelivery, in order.

    A message with a due time to come and without a note is parked again: there was no space to park it, so it was
    delivered early, or the power failed before its parked record was on stable storage. Without a note one delivery is
    presumed, so that attempts do not read as a first delivery again. Cost: walks the unfinished part of the log.
    """
    cdef uint64_t ordinal
    cdef uint16_t presumed
    cdef uint32_t note
    cdef Position position = None
    cdef Segment segment = None
    cdef uint64_t offset = 0
    cdef const Record* record
    assert len(channel.dispatcher.consumers) == 0 and channel.slots.count() == 0, "messages were delivered before"
    for ordinal in list(channel.ledger.unfinished(channel.ledger.header.cursor)):
        if position is None or ordinal >= position.segment.end_ordinal():
            position = channel.readable.log.locate(ordinal)
            channel.readable.log.ready(position.segment)
            segment, offset = position.segment, position.offset
        if position.ordinal > ordinal:
            continue
        record = <const Record*> (segment.base + offset)
        while ordinal_after(record) <= ordinal:
            offset += record_span(record.size_bytes)
            record = <const Record*> (segment.base + offset)
        if record.flags & RECORD_LOST or channel.parking.is_parked(record):
            channel.ledger.try_finish(ordinal)
            continue
        note = note_of(channel, FROM_TOPIC, record)
        if note != NO_NOTE:
            resume(channel, record, note)
            continue
        # Only a power failure can take a parked record away and leave a message that was never delivered. A delivery
        # that is presumed makes no dead letter of it.
        presumed = 0 if power_failed and (record.due_ns > wall_ns() or channel.dead_letters.is_spent(1)) else 1
        if (
            record.due_ns <= wall_ns() or channel.dead_letters.is_spent(presumed)
            or not channel.parking.try_park_published(record, presumed)
        ):
            channel.dead_letters.add_returned(record, presumed, FROM_TOPIC, NO_NOTE)
    channel.note_parking()


def recover_queued(ChannelCore channel not None):
    """After a start: messages at or past the cursor that have notes were rescheduled by their ids, while queued."""
    cdef Notes notes = channel.deferral.notes
    cdef Log log = channel.readable.log
    cdef uint32_t slot
    cdef uint64_t ordinal
    cdef Position position
    cdef const Record* record
    if notes is None:
        return
    for slot in notes.found_after(FROM_TOPIC, 0):
        ordinal = notes.at(slot).seq & ORDINAL_MASK
        if ordinal < channel.ledger.header.cursor or ordinal >= log.end or channel.ledger.is_finished(ordinal):
            continue
        position = log.locate(ordinal)
        log.ready(position.segment)
        record = <const Record*> (position.segment.base + position.offset)
        if position.ordinal == ordinal and record.seq == notes.at(slot).seq and not record.flags & RECORD_LOST:
            notes.take(slot)
            channel.deferral.add_overridden(ordinal)
            resume(channel, record, slot)


def recover_parked(ChannelCore channel not None):
    """After a start: delivered messages of the parked log go to the ring, with their attempts; the rest waits."""
    cdef ParkedLog parked = channel.parking.parked
    cdef const Record* record
    cdef uint32_t slot, note
    cdef int32_t attempts
    assert channel.slots.count() == 0, "messages were delivered before"
    for slot in range(parked.capacity):
        record = parked.waiting_in(slot)
        if record != NULL:
            # A note of 0 is of one that was due and not delivered yet; a kill leaves no notes.
            note = note_of(channel, FROM_PARKED, record)
            attempts = -1 if note == NO_NOTE else channel.deferral.notes.at(note).attempts
            if record.handed_out and attempts < record.handed_out:
                # A power failure may bring back the notes of an earlier stop, which a start has used.
                attempts = record.handed_out
            elif attempts > record.handed_out:
                # A power failure has taken the mark. It is needed again: the note of a stop is used once.
                (<Record*> record).handed_out = <uint16_t> attempts
            if attempts >= 0:
                channel.dead_letters.add_returned(parked.take(slot), <uint16_t> attempts, FROM_PARKED, NO_NOTE)
            if note != NO_NOTE:
                channel.deferral.notes.free(note)


def end_recovery(ChannelCore channel not None):
    """Drop the notes of messages that are finished, or gone, and set the timer of those that wait."""
    if channel.deferral.notes is not None:
        channel.deferral.notes.end_recovery()
    channel.set_next_timer(mono_ns())


def note_attempts(ChannelCore channel not None):
    """Store a note for each message that was delivered, is not finished and has none, as a clean stop does.

    Raises: StorageError, after notes of some of them; another call continues.
    """
    cdef uint32_t slot
    cdef uint64_t number
    cdef ReadyEntry* entry
    cdef ReadyRing ring
    for slot in range(channel.slots.capacity):
        if channel.slots.used(slot) != NULL and channel.slots.slots[slot].note == NO_NOTE:
            channel.slots.slots[slot].note = note_attempts_of(
                channel, channel.slots.slots[slot].record, channel.slots.slots[slot].source,
                channel.slots.slots[slot].attempts)
    for ring in (channel.ready, channel.dead_letters.pending, channel.dead_letters.unsynced):
        for number in range(ring.first, ring.end()):
            entry = ring.at(number)
            if entry.note == NO_NOTE:
                entry.note = note_attempts_of(channel, entry.record, entry.source, entry.attempts)


cdef uint32_t note_attempts_of(
    ChannelCore channel, const Record* record, uint8_t source, uint16_t attempts,
) except NO_NOTE:
    channel.deferral.open()
    return channel.deferral.notes.put(record.seq, source, NOTE_DELIVERED, attempts, 0, 0)


def unnoted_count(ChannelCore channel not None):
    """Count the messages that `note_attempts` has to store a note for."""
    cdef uint32_t slot
    cdef uint64_t number, count = 0
    cdef ReadyRing ring
    for slot in range(channel.slots.capacity):
        count += channel.slots.used(slot) != NULL and channel.slots.slots[slot].note == NO_NOTE
    for ring in (channel.ready, channel.dead_letters.pending, channel.dead_letters.unsynced):
        for number in range(ring.first, ring.end()):
            count += ring.at(number).note == NO_NOTE
    return count
