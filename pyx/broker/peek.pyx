"""Read-only paged listing of a channel's messages. A page's cursor resumes after its last message.

Each state has an order in which a message keeps its place while it stays in the state. So a reader that resumes at the
end of the last page meets each of these once, whatever other messages come and go:

returned     the number of the entry in the ring; entries come at the end
dead letter  likewise, of those that wait to be published
queued       the ordinal in the topic's log
in flight    the slot
deferred     (due time, place): the ordinal of a message that waits for its publisher's due time, and the slot of the
             note of another one; after a restart slots differ, and the reader begins the due time again

A page costs as much as it shows, wherever it begins, with two exceptions. A queue is walked over finished and deferred
records; long runs of finished records are skipped by their bits, and the walk is made in slices. And a heap yields its
entries in order from the earliest only: a page within the first some thousands is taken from the top, without changing
the heap; a later one reads through the topic's index of due times and the notes, in slices, and keeps the best.

Records that are not in memory are read by a thread before the page is made. Messages in flight, returned ones and dead
letters are not asked for: a delivery, or the release of a due message, has read them before.

Shown messages are copied in the slice that reads them. A record of an earlier run that was never verified is verified
before it is shown.
"""

import heapq

cimport cython
from libc.stdint cimport INT64_MAX, int64_t, uint32_t, uint64_t

from pyqd.hot.broker.channel cimport ChannelCore
from pyqd.hot.broker.consumer cimport Consumer
from pyqd.hot.broker.deferral cimport Deferral
from pyqd.hot.broker.log_cursor cimport LogCursor
from pyqd.hot.broker.readable_log cimport ReadableLog
from pyqd.hot.broker.slots cimport ReadyEntry, ReadyRing, Slot
from pyqd.hot.broker.topic cimport TopicCore
from pyqd.hot.diskqueue.log cimport Log
from pyqd.hot.diskqueue.logreader cimport LogReader, record_at
from pyqd.hot.diskqueue.notefiles cimport Note
from pyqd.hot.diskqueue.presence cimport Presence
from pyqd.hot.diskqueue.segment cimport Segment
from pyqd.hot.primitives.clock cimport mono_ns, wall_ns
from pyqd.hot.primitives.debug cimport debug_require
from pyqd.hot.wire.record cimport (
    ORDINAL_MASK,
    RECORD_HEADER_BYTES,
    RECORD_LOST,
    RECORD_VALID,
    Record,
    ordinal_after,
    record_body,
    record_body_bytes,
    record_ordinal,
    record_span,
    record_verdict,
)

cdef enum:
    LISTING_BYTES_MAX = 4 << 20             # of bodies; a page ends with the one that goes beyond
    RECORDS_PER_SLICE = 20000             # walked over in one part ...
    BYTES_PER_SLICE = 1 << 20             # ... and bytes, or one record
    RUN_TO_SKIP = 1000                   # finished records that are skipped rather than walked over
    ENTRIES_FROM_TOP_MAX = 5000          # taken from a heap in order
    SLOTS_PER_SLICE = 50000
    SLOTS_PER_INSERT = 20                # cost of keeping one, in slots read

# The slots of notes follow all ordinals.
cdef uint64_t NOTES_FROM = <uint64_t> 1 << 62


cdef tuple row_of(const Record* record, uint64_t attempts, int64_t due_ns, uint64_t body_bytes_max):
    """Return (id, timestamp, attempts, size, position, due time, body)."""
    cdef uint64_t size_bytes = record_body_bytes(record)
    assert size_bytes != 0, "no message is empty"
    return (record.guid, record.timestamp_ns, attempts, size_bytes, record.seq, due_ns,
            record_body(record)[:min(size_bytes, body_bytes_max)])


def run_of(ChannelCore channel not None):
    """Return a number that names this run of a channel: slots of another one mean nothing."""
    return channel.ready.run


def waiting_page(
    ChannelCore channel not None, bint are_dead_letters, uint64_t number, uint64_t count_max, uint64_t body_bytes_max,
):
    """Return (rows, number to resume with, at the end?) of the messages that wait for redelivery.

    are_dead_letters: of the dead letters that wait to be published instead.
    """
    cdef ReadyRing ring = channel.dead_letters.pending if are_dead_letters else channel.ready
    cdef uint64_t end = ring.end()
    cdef const ReadyEntry* entry
    cdef uint64_t free_bytes = LISTING_BYTES_MAX
    rows = []
    number = max(number, ring.first)
    while number < end and <uint64_t> len(rows) < count_max and free_bytes:
        entry = ring.at(number)
        rows.append(row_of(entry.record, entry.attempts, entry.record.due_ns, body_bytes_max))
        free_bytes -= min(free_bytes, min(body_bytes_max, <uint64_t> record_body_bytes(entry.record)))
        number += 1
    return rows, number, number >= end


cdef object client_of(ChannelCore channel, uint64_t number):
    cdef Consumer consumer = channel.dispatcher.by_number.get(number)
    return None if consumer is None else consumer.client


def in_flight_page(ChannelCore channel not None, uint64_t slot, uint64_t count_max, uint64_t body_bytes_max):
    """Return (rows, slot to resume with, at the end?) of the messages in flight.

    A row has three more fields: the client or None if it has gone, the time of delivery, and the deadline (Unix).
    """
    cdef uint32_t at = <uint32_t> min(slot, <uint64_t> channel.slots.capacity)
    cdef int64_t since_mono_ns = wall_ns() - mono_ns()
    cdef uint64_t free_bytes = LISTING_BYTES_MAX
    cdef const Slot* held
    rows = []
    while at < channel.slots.capacity and <uint64_t> len(rows) < count_max and free_bytes:
        held = channel.slots.used(at)
        if held != NULL:
            rows.append(row_of(held.record, held.attempts, held.record.due_ns, body_bytes_max) + (
                client_of(channel, held.consumer), held.delivered_ns + since_mono_ns,
                channel.slots.deadline_of(at) + since_mono_ns))
            free_bytes -= min(free_bytes, min(body_bytes_max, <uint64_t> record_body_bytes(held.record)))
        at += 1
    assert at <= channel.slots.capacity
    return rows, at, at >= channel.slots.capacity


@cython.final
cdef class DeferredSearch:
    """Search for a page of deferred messages.

    after: (due time, place) of the last message before the page. A place is the ordinal of a message that waits for its
    publisher's due time, or NOTES_FROM and the slot of a note.
    """

    cdef readonly ChannelCore channel
    cdef LogCursor cursor
    cdef Deferral deferral
    cdef int64_t after_due_ns
    cdef int64_t after_place
    cdef uint64_t count_max
    cdef list best                       # (due_ns, place) in order; while all are read: a heap of (-due_ns, -place)
    cdef int64_t worst_due_ns            # of the best, once there are enough; others need not be looked at
    cdef int64_t worst_place
    cdef uint64_t next_index             # in the topic's dues: the reading has come there ...
    cdef uint64_t next_slot              # ... and to this slot of notes
    cdef bint reads_all
    cdef bint is_found                   # `best` is the page
    cdef uint64_t present_count          # its first records that are in memory, or were read

    def __init__(self, ChannelCore channel not None, tuple after not None, uint64_t count_max):
        self.channel = channel
        self.cursor, self.deferral = channel.cursor, channel.deferral
        self.after_due_ns, self.after_place = after
        self.count_max = count_max
        self.best = []

    def step(self):
        """Continue the search, in a bounded step. Returns: whether the page is found."""
        if self.is_found:
            return True
        if not self.reads_all and not self.see_some():
            return False
        if not self.reads_all and not self.step_near():
            self.reads_all = True
            self.worst_due_ns = INT64_MAX
            self.best = []
            self.next_index = self.cursor.readable.dues.lower_bound(self.cursor.ledger.oldest_unfinished())
        self.is_found = not self.reads_all or self.read_some()
        return self.is_found

    cdef bint see_some(self) except -1:
        """Let the channel see some of the deferred messages that it has not seen. Returns: whether none is left."""
        cdef uint64_t end = self.cursor.readable.due_end
        if self.deferral.dues_seen != end:
            self.deferral.see_to(min(end, self.deferral.dues_seen + SLOTS_PER_SLICE))
            self.channel.set_next_timer(mono_ns())
        return self.deferral.dues_seen == end

    cdef bint read_some(self) except -1:
        """Read some of the deferred messages, and keep the first of them. Returns: whether all are read."""
        cdef uint64_t cost = 0
        cdef const Note* entry
        cdef uint32_t slot
        while cost < SLOTS_PER_SLICE:
            cost += 1
            if self.next_index < self.deferral.dues_seen:
                entry = self.cursor.readable.dues.at(self.next_index)
                self.next_index += 1
                # Those up to there have left the heap, in which an entry is not searched for, or are due.
                if entry.due_ns > self.deferral.released_ns and not self.deferral.is_void(entry.seq & ORDINAL_MASK):
                    cost += SLOTS_PER_INSERT * self.keep(entry.due_ns, <int64_t> (entry.seq & ORDINAL_MASK))
            elif self.next_slot < self.deferral.waiting.slot_count_max:
                slot = <uint32_t> self.next_slot
                self.next_slot += 1
                if self.deferral.waiting.contains(slot):
                    cost += SLOTS_PER_INSERT * self.keep(
                        self.deferral.waiting.due_of(slot), <int64_t> (NOTES_FROM + slot))
            else:
                self.best = sorted([(-due_ns, -place) for due_ns, place in self.best])
                return True
        return False

    cdef const Note* note_at(self, uint64_t place, int64_t due_ns) except? NULL:
        """Return the note, or entry of dues, of the message that waits in a place; NULL: it has left the place."""
        cdef uint32_t slot = <uint32_t> place
        if place >= NOTES_FROM:
            if self.deferral.waiting.contains(slot) and self.deferral.waiting.due_of(slot) == due_ns:
                return self.deferral.notes.at(slot)
            return NULL
        if self.deferral.is_void(place):
            return NULL
        return self.deferral.entry_of(place)

    def has_page(self, Presence presence not None, uint64_t body_bytes_max):
        """Return whether the page can be made without waiting for the disk, once it is found."""
        cdef const Note* note
        assert self.is_found, "the search goes on"
        presence.absent = None
        while self.present_count < <uint64_t> len(self.best):
            due_ns, place = self.best[self.present_count]
            note = self.note_at(place, due_ns)
            if note != NULL and not self.deferral.is_present(presence, note, RECORD_HEADER_BYTES + body_bytes_max):
                return False
            self.present_count += 1
        return True

    cdef bint step_near(self) except -1:
        """Take the page from the tops of the heaps, in order. Returns: False if it is too far down."""
        cdef uint64_t left = ENTRIES_FROM_TOP_MAX
        cdef uint64_t index, child
        cdef bint is_note
        after = (self.after_due_ns, self.after_place)
        # (due time, place, in the heap of notes?, index there) of entries whose parents are all taken; a parent is
        # never later than its children.
        nearest = [*self.entry_in(False, 0), *self.entry_in(True, 0)]
        heapq.heapify(nearest)
        while left:
            left -= 1
            if not nearest or <uint64_t> len(self.best) == self.count_max:
                self.best.sort()
                # Of entries with one due time, one below in the heap may have the lower place.
                return not nearest or nearest[0][0] != self.best[len(self.best) - 1][0]
            due_ns, place, is_note, index = heapq.heappop(nearest)
            if (due_ns, place) > after and (is_note or not self.deferral.is_void(place)):
                self.best.append((due_ns, place))
            for child in range(2 * index + 1, 2 * index + 3):
                for entry in self.entry_in(is_note, child):
                    heapq.heappush(nearest, entry)
        return False

    cdef tuple entry_in(self, bint is_note, uint64_t index):
        """Return ((due time, place, is_note, index),) of an entry of a heap; () if there is none."""
        if is_note and index < self.deferral.waiting.count:
            return ((self.deferral.waiting.entries[index].due_ns,
                     NOTES_FROM + self.deferral.waiting.entries[index].slot, True, index),)
        if not is_note and index < self.deferral.published.count:
            return ((self.deferral.published.entries[index].due_ns,
                     self.deferral.published.entries[index].ref, False, index),)
        return ()

    cdef int keep(self, int64_t due_ns, int64_t place) except -1:
        """Keep a message if it is among the first so far. Returns: whether it is."""
        if due_ns < self.after_due_ns or (due_ns == self.after_due_ns and place <= self.after_place):
            return False
        if due_ns > self.worst_due_ns or (due_ns == self.worst_due_ns and place > self.worst_place):
            return False
        if <uint64_t> len(self.best) < self.count_max:
            heapq.heappush(self.best, (-due_ns, -place))
        else:
            heapq.heapreplace(self.best, (-due_ns, -place))
        if <uint64_t> len(self.best) == self.count_max:
            worst = self.best[0]
            self.worst_due_ns, self.worst_place = -worst[0], -worst[1]
        assert <uint64_t> len(self.best) <= self.count_max
        return True

    cdef tuple row_in(self, uint64_t place, int64_t due_ns, uint64_t body_bytes_max):
        """Return the row of the message in a place; None: it is not there."""
        cdef const Note* note = self.note_at(place, due_ns)
        cdef const Record* record = NULL
        if note != NULL:
            record = self.deferral.record_of(note)
        if record == NULL or self.channel.slots.find_record(record) >= 0:
            return None
        return row_of(record, note.attempts, note.due_ns, body_bytes_max)

    def page(self, uint64_t body_bytes_max):
        """Return (rows, (due time, place) to resume after, at the end?), once the page is found."""
        cdef uint64_t free_bytes = LISTING_BYTES_MAX
        cdef uint64_t seen = 0
        assert self.is_found, "the search goes on"
        after = (self.after_due_ns, self.after_place)
        rows = []
        for due_ns, place in self.best:
            if free_bytes == 0:
                break
            seen += 1
            after = (due_ns, place)
            row = self.row_in(place, due_ns, body_bytes_max)
            if row is not None:
                rows.append(row)
                free_bytes -= min(free_bytes, <uint64_t> len(row[6]))
        return rows, after, seen < self.count_max and seen == <uint64_t> len(self.best)


@cython.final
cdef class QueueWalk:
    """Walk for a page of messages in the topic's log that were never delivered.

    channel: None: the messages that the topic holds back from its channels. ordinal: where to begin.
    """

    cdef ReadableLog readable
    cdef readonly ChannelCore channel    # None: all that the topic holds
    cdef readonly uint64_t ordinal       # the walk goes on here
    cdef readonly list rows
    cdef uint64_t free_bytes             # of bodies that still fit in the page

    def __init__(self, TopicCore topic not None, ChannelCore channel, uint64_t ordinal):
        self.readable = topic.readable
        self.channel = channel
        self.ordinal = max(ordinal, self.readable.end if channel is None else channel.ledger.header.cursor)
        self.ordinal = self.next_unfinished(self.ordinal)
        self.rows = []
        self.free_bytes = LISTING_BYTES_MAX

    cdef uint64_t end(self) noexcept:
        return self.readable.log.end if self.channel is None else self.readable.end

    @property
    def at_end(self) -> bool:
        return self.ordinal >= self.end()

    cdef uint64_t next_unfinished(self, uint64_t ordinal) noexcept:
        """Return the first ordinal from one on that is not finished, or the end."""
        if self.channel is None or ordinal >= self.end():
            return ordinal
        debug_require(ordinal >= self.channel.ledger.header.cursor)
        return self.channel.ledger.next_unfinished(ordinal, self.end())

    cdef bint skips(self, const Record* record) except -1:
        debug_require(record.size_bytes != 0)
        if record.flags & RECORD_LOST:
            return True
        return self.channel is not None and (
            record.due_ns != 0 or self.channel.ledger.is_finished(record_ordinal(record))
            or self.channel.cursor.is_overridden(record_ordinal(record)))

    cdef bint is_at_cursor(self, Segment segment) noexcept:
        """Return whether the walk goes on at the channel's cursor, which knows the place of its record."""
        return (
            self.channel is not None and self.channel.cursor.segment is segment
            and max(self.ordinal, segment.first_ordinal) == self.channel.ledger.header.cursor)

    def prepare(self, LogReader reader not None, uint64_t body_bytes_max):
        """Prepare the next part of the walk, as LogReader.prepare does. Returns: whether it can be walked at once."""
        cdef uint64_t start = self.readable.end if self.channel is None else self.channel.ledger.header.cursor
        cdef Segment segment
        self.ordinal = self.next_unfinished(max(self.ordinal, start))
        reader.begin()
        if self.at_end:
            return True
        segment = self.readable.log.segment_of(self.ordinal)
        if self.is_at_cursor(segment):
            return reader.asked.has_record(segment, self.channel.cursor.offset, BYTES_PER_SLICE + body_bytes_max)
        return reader.prepare(self.ordinal, BYTES_PER_SLICE + body_bytes_max)

    def walk(self, LogReader reader not None, uint64_t count_max, uint64_t body_bytes_max):
        """Continue the walk over a bounded part. reader: of the log, after `prepare`. Returns: whether the page is
        full.

        The part ends with its segment. The cursor may have advanced meanwhile.
        """
        cdef Log log = self.readable.log
        cdef uint64_t start = self.readable.end if self.channel is None else self.channel.ledger.header.cursor
        cdef uint64_t left = RECORDS_PER_SLICE
        cdef uint64_t offset, limit, ordinal, unfinished
        cdef Segment segment
        cdef const Record* record
        self.ordinal = self.next_unfinished(max(self.ordinal, start))
        if self.at_end:
            return True
        segment = log.segment_of(self.ordinal)
        ordinal = max(self.ordinal, segment.first_ordinal)
        if self.is_at_cursor(segment):
            offset = self.channel.cursor.offset
        else:
            offset = reader.offset_of(segment, ordinal, &ordinal)
        assert offset <= segment.tail
        limit = offset + BYTES_PER_SLICE
        while left and ordinal < self.end():
            left -= 1
            record = record_at(segment, offset, ordinal) if offset < segment.tail else NULL
            if record == NULL:
                # The segment's end, or damage: the records after it cannot be found.
                ordinal = segment.end_ordinal() if segment.next is None else segment.next.first_ordinal
                break
            if offset + record_span(record.size_bytes) > limit and offset + BYTES_PER_SLICE != limit:
                break
            ordinal = ordinal_after(record)
            offset += record_span(record.size_bytes)
            if self.skips(record):
                unfinished = self.next_unfinished(ordinal)
                if unfinished > ordinal + RUN_TO_SKIP:
                    ordinal = unfinished
                    break
            elif not segment.unverified or record_verdict(
                    <const char*> record, segment.tail - (<const char*> record - segment.base), record.seq
            ) == RECORD_VALID:
                self.rows.append(row_of(record, 0, record.due_ns, body_bytes_max))
                self.free_bytes -= min(self.free_bytes, min(body_bytes_max, <uint64_t> record_body_bytes(record)))
                if <uint64_t> len(self.rows) == count_max or self.free_bytes == 0:
                    self.ordinal = ordinal
                    return True
        self.ordinal = ordinal
        return self.at_end
