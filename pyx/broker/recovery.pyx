"""Recovery of a channel: messages that an earlier run delivered and did not finish wait for redelivery.

The files say nearly all. Below the ledger's cursor, a record without a bit and without a due time was delivered; one
with a due time waits for it, unless a note says that it was delivered. Notes have the due times of the channel's own
too, and the deliveries so far of messages that were deferred, or unfinished at a clean stop.

The order: `begin_at` if a channel takes over messages, then `recover`, `recover_queued` and `end_recovery`. The topic
counts the deferred messages when it knows the readable end (`Deferral.begin`). Nothing has subscribed yet, and the
log's segments may not have been verified.
"""

cimport cython
from libc.stdint cimport uint16_t, uint32_t, uint64_t

from pyqd.hot.broker.channel cimport ChannelCore
from pyqd.hot.broker.slots cimport ReadyEntry, ReadyRing
from pyqd.hot.diskqueue.dues cimport Dues
from pyqd.hot.diskqueue.ledger cimport Ledger
from pyqd.hot.diskqueue.log cimport Log, Position
from pyqd.hot.diskqueue.mapping cimport store_barrier
from pyqd.hot.diskqueue.notefiles cimport NOTE_DEFERRED, NOTE_DELIVERED, Note
from pyqd.hot.diskqueue.notes cimport NO_NOTE, Notes
from pyqd.hot.primitives.clock cimport mono_ns
from pyqd.hot.wire.record cimport ORDINAL_MASK, RECORD_LOST, Record, ordinal_after, record_ordinal, record_span


def start_ledger(Ledger ledger not None, Position position not None, bint paused=False):
    """Make a fresh ledger begin at a position of the log. paused: the channel is paused from the start on."""
    ledger.reset(position.ordinal)
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
    assert channel.slots.count() == 0, "the channel was recovered before"
    start_ledger(channel.ledger, position)
    channel.cursor.move_to(position.segment, position.offset)


def cursor_position(Ledger ledger not None, Log log not None):
    """Return the Position of a ledger's cursor in its log, from the place it stored if that is still right."""
    return log.position_at(
        ledger.header.cursor_segment, ledger.header.cursor_offset, ledger.header.cursor)


cdef int resume(ChannelCore channel, const Record* record, uint32_t slot) except -1:
    """Let a message wait, for its due time or for redelivery, as its note says."""
    cdef const Note* note = channel.deferral.notes.at(slot)
    if record.due_ns != 0:
        channel.deferral.superseded.add(record_ordinal(record))
    if note.kind == NOTE_DEFERRED and not channel.dead_letters.is_spent(note.attempts):
        return channel.deferral.wait_for(slot, note.due_ns & ~1)
    return channel.dead_letters.add_returned(record, note.attempts, slot)


def recover(ChannelCore channel not None, bint power_failed):
    """After a start: delivered and unfinished messages wait for redelivery, in order.

    Without a note one delivery is presumed, so that attempts do not read as a first delivery again. Cost: O(unfinished
    messages below the cursor), and a walk over the part of the log that has those of them that wait for no due time.
    """
    cdef Ledger ledger = channel.ledger
    cdef Dues dues = channel.readable.dues
    cdef Notes notes = channel.deferral.notes
    cdef uint64_t cursor = ledger.header.cursor
    cdef uint64_t ordinal = ledger.unfinished_from(0, cursor)
    cdef uint64_t index = dues.lower_bound(ordinal)
    cdef uint32_t note
    # A delivery that is presumed makes no dead letter of a message that a power failure has kept from its client.
    cdef uint16_t presumed = 0 if power_failed and channel.dead_letters.is_spent(1) else 1
    cdef const Record* record
    cdef RecordWalk walk = RecordWalk(channel.readable.log)
    assert len(channel.dispatcher.consumers) == 0 and channel.slots.count() == 0, "messages were delivered before"
    while ordinal < cursor:
        while index < dues.end and dues.at(index).seq & ORDINAL_MASK < ordinal:
            index += 1
        note = NO_NOTE
        if index < dues.end and dues.at(index).seq & ORDINAL_MASK == ordinal:
            note = NO_NOTE if notes is None else notes.find(dues.at(index).seq)
            record = NULL
            if note != NO_NOTE:
                record = walk.record_at(ordinal)
        else:
            record = walk.record_at(ordinal)
            if record == NULL and walk.is_lost:
                ledger.try_finish(ordinal)
            elif record != NULL:
                note = NO_NOTE if notes is None else notes.find(record.seq)
                if note == NO_NOTE:
                    channel.dead_letters.add_returned(record, presumed, NO_NOTE)
        if record != NULL and note != NO_NOTE:
            resume(channel, record, note)
        ordinal = ledger.unfinished_from(ordinal + 1, cursor)


@cython.final
cdef class RecordWalk:
    """Walk of a start over records of a log, by ascending ordinals."""

    cdef Log log
    cdef Position position
    cdef uint64_t offset
    cdef bint is_lost                    # `record_at` has found a record that damage has taken

    def __init__(self, Log log not None):
        self.log = log

    cdef const Record* record_at(self, uint64_t ordinal) except? NULL:
        """Return the record of an ordinal; NULL: it is lost, or lies in a hole."""
        cdef const Record* record
        self.is_lost = False
        if self.position is None or ordinal >= self.position.segment.end_ordinal():
            self.position = self.log.locate(ordinal)
            self.log.ready(self.position.segment)
            self.offset = self.position.offset
        if self.position.ordinal > ordinal:
            return NULL
        record = <const Record*> (self.position.segment.base + self.offset)
        while ordinal_after(record) <= ordinal:
            self.offset += record_span(record.size_bytes)
            record = <const Record*> (self.position.segment.base + self.offset)
        self.is_lost = record.flags & RECORD_LOST != 0
        if self.is_lost:
            return NULL
        return record


def recover_queued(ChannelCore channel not None):
    """After a start: messages at or past the cursor that have notes were deferred, or rescheduled while queued."""
    cdef Notes notes = channel.deferral.notes
    cdef Log log = channel.readable.log
    cdef uint32_t slot
    cdef uint64_t ordinal
    cdef Position position
    cdef const Record* record
    if notes is None:
        return
    for slot in notes.found_slots():
        ordinal = notes.at(slot).seq & ORDINAL_MASK
        if ordinal < channel.ledger.header.cursor or ordinal >= log.end or channel.ledger.is_finished(ordinal):
            continue
        position = log.locate(ordinal)
        log.ready(position.segment)
        record = <const Record*> (position.segment.base + position.offset)
        if position.ordinal == ordinal and record.seq == notes.at(slot).seq and not record.flags & RECORD_LOST:
            notes.find(record.seq)
            if record.due_ns == 0:
                channel.deferral.add_overridden(ordinal)
            resume(channel, record, slot)


def end_recovery(ChannelCore channel not None):
    """Drop the notes of messages that are finished, or gone, and set the timer of those that wait."""
    if channel.deferral.notes is not None:
        channel.deferral.notes.end_recovery()
    channel.set_next_timer(mono_ns())


def note_attempts(ChannelCore channel not None, bint stores=True):
    """Store a note for each message that was delivered, is not finished and has none, as a clean stop does.

    stores: False: only count these messages. Returns: their number. Raises: StorageError, after notes of some of them;
    another call continues.
    """
    cdef uint32_t slot
    cdef uint64_t number, count = 0
    cdef ReadyEntry* entry
    cdef ReadyRing ring
    for slot in range(channel.slots.capacity):
        if channel.slots.used(slot) != NULL and channel.slots.slots[slot].note == NO_NOTE:
            count += 1
            if stores:
                channel.slots.slots[slot].note = note_attempts_of(
                    channel, channel.slots.slots[slot].record, channel.slots.slots[slot].attempts)
    for ring in (channel.ready, channel.dead_letters.pending, channel.dead_letters.unsynced):
        for number in range(ring.first, ring.end()):
            entry = ring.at(number)
            if entry.note == NO_NOTE:
                count += 1
                if stores:
                    entry.note = note_attempts_of(channel, entry.record, entry.attempts)
    return count


cdef uint32_t note_attempts_of(ChannelCore channel, const Record* record, uint16_t attempts) except NO_NOTE:
    channel.deferral.open()
    return channel.deferral.notes.put(record.seq, NOTE_DELIVERED, attempts, 0, 0)
