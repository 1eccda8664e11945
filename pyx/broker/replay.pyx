"""Seek: move a channel to another place of its topic's log.

    floor = cursor = target, no bit set

After a seek in either direction, the records before the target are finished, and the records from the target on count
as never handed out. They are delivered again, with attempts from 1. The ledger announces a reset before it is done, and
says in the same page that all parked records are dropped. So a kill or a power failure leaves the channel at the old
place with its parked records, or at the new place without. A FIN of a message that was in flight fails.

Messages published with a due time lie in the topic's log like all others. Those from the target on have to be parked
again, in the same pass (`ChannelCore.continue_parking`), as records are parked in order; a start does so too. Their
number is counted before, in slices (`SeekPlace`), so that depth and deferred count are right from the seek on.

Cancelled messages stay cancelled: a seek marks them as finished. The channel keeps a bit for each in
`cancelled.ledger`; a start marks those that a kill left unmarked.

Invariants: 1. the target is in `[log.earliest, readable.end]`. 2. holes at or above the floor are marked as finished,
up to `readable.end`.
"""

cimport cython
from libc.stdint cimport INT64_MAX

from pyqd.hot.broker.channel cimport ChannelCore
from pyqd.hot.broker.log_cursor cimport LogCursor
from pyqd.hot.broker.topic cimport TopicCore
from pyqd.hot.diskqueue.ledger cimport Ledger
from pyqd.hot.diskqueue.logreader cimport LogReader, record_at
from pyqd.hot.diskqueue.presence cimport Presence
from pyqd.hot.diskqueue.segment cimport SEGMENT_HEADER_BYTES
from pyqd.hot.primitives.debug cimport debug_require
from pyqd.hot.wire.record cimport RECORD_HEADER_BYTES, Record, ordinal_after, record_ordinal, record_span

cdef enum:
    RECORDS_PER_SLICE = 100000            # walked over in one step at most
    BYTES_PER_SLICE = 8 << 20             # the same in bytes


cdef uint64_t finished_in(Ledger ledger, uint64_t start, uint64_t end) noexcept:
    debug_require(ledger.header.floor <= ledger.header.cursor)
    return end - start - ledger.unfinished_in(start, end) if start < end else 0


cdef uint64_t missing_in(Log log, uint64_t start, uint64_t end) except? <uint64_t> -1:
    cdef uint64_t count = 0
    cdef uint64_t low, high
    assert start <= end
    for hole in log.holes:
        low, high = hole
        low, high = max(low, start), min(high, end)
        if low < high:
            count += high - low
    return count


cdef uint64_t cancelled_in(ChannelCore channel, uint64_t start, uint64_t end) noexcept:
    """Count the ordinals of `[start, end)` that were cancelled: a seek leaves them out."""
    cdef Ledger cancelled = channel.cancelled
    if cancelled is None:
        return 0
    return finished_in(cancelled, max(start, cancelled.header.floor), end)


def seek_target(ChannelCore channel not None, uint64_t ordinal):
    """Return the target of a seek to an ordinal: clamped to the kept and readable records, behind all gaps."""
    return min(max(ordinal, channel.readable.log.earliest), channel.readable.end)


def seek_effect(ChannelCore channel not None, uint64_t target):
    """Return the effect of a seek as counts, and change nothing. target: of `seek_target`.

    redeliver: messages that were delivered, dropped or parked before and will be delivered again; finished: of these
    had been finished or parked; skip: messages not finished and not parked that will not be delivered any more;
    in_flight, parked: the dropped ones among these; depth: afterwards.
    """
    cdef Ledger ledger = channel.ledger
    cdef Log log = channel.readable.log
    cdef uint64_t oldest = ledger.oldest_unfinished()
    cdef uint64_t cursor = ledger.header.cursor
    cdef uint64_t end = channel.readable.end
    cdef uint64_t ahead = max(target, cursor)
    cdef uint64_t left_out = cancelled_in(channel, target, end)
    cdef uint64_t holes, redeliver, finished, skip = 0
    # Finished ahead of the cursor: parked, dropped or cancelled before the cursor met them.
    finished = finished_in(ledger, ahead, end) - missing_in(log, ahead, end) - cancelled_in(channel, ahead, end)
    redeliver = finished
    if target < cursor:
        holes = missing_in(log, target, cursor) + cancelled_in(channel, target, cursor)
        redeliver += cursor - target - holes
        finished += finished_in(ledger, target, cursor) - holes
    if target > oldest:
        skip = ledger.unfinished_in(oldest, target)
    return {
        "redeliver": redeliver,
        "finished": finished,
        "skip": skip,
        "in_flight": channel.in_flight_count,
        "parked": channel.deferred_count,
        "depth": end - target - missing_in(log, target, end) - left_out,
    }


@cython.final
cdef class SeekPlace:
    """Place that a channel is to go to, and the number of deferred messages behind it, counted in bounded parts.

    Between two parts anything may be trimmed or cancelled; then the count begins again.
    """

    def __init__(self, ChannelCore channel not None):
        self.channel = channel

    cdef bint is_left_out(self, uint64_t ordinal) noexcept:
        cdef Ledger cancelled = self.channel.cancelled
        return cancelled is not None and ordinal >= cancelled.header.floor and cancelled.is_finished(ordinal)

    def step(self, TopicCore topic not None, LogReader reader not None, uint64_t target):
        """Continue to count, in a bounded step. reader: of the topic's log, prepared for the target.

        The presence of the reader names pages that the step has found absent. Returns: whether all is counted, as of
        now.
        """
        cdef const Record* record
        cdef Presence presence = reader.begin()
        cdef uint64_t left = RECORDS_PER_SLICE
        cdef uint64_t bytes_left = BYTES_PER_SLICE
        cdef uint64_t limit
        cdef uint64_t end = min(topic.readable.end, topic.state.deferred_below)
        cdef uint64_t found = 0
        cdef uint64_t change_count = 0 if self.channel.cancelled is None else self.channel.cancelled.change_count
        if (
            self.position is None or self.position.ordinal != target or not self.is_kept(topic.log)
            or self.change_count != change_count
        ):
            self.change_count = change_count
            self.segment = topic.log.segment_of(target)
            self.offset = reader.offset_of(self.segment, max(target, self.segment.first_ordinal), &found)
            if found < target:
                # Damage lies in between; finding the place mends it.
                self.position = topic.log.locate(target)
                self.segment, self.offset = self.position.segment, self.position.offset
            self.position = Position(self.segment, self.offset, target)
            self.ordinal = max(target, self.segment.first_ordinal)
            self.number = self.segment.number
            self.first_number = self.number
            self.count = 0
            self.begun_count += 1
        if self.ordinal < end and not presence.has(self.segment, self.offset, bytes_left):
            return False
        limit = self.offset + bytes_left - RECORD_HEADER_BYTES
        while self.ordinal < end and left and self.offset <= limit:
            left -= 1
            record = record_at(self.segment, self.offset, self.ordinal) if self.offset < self.segment.tail else NULL
            if record == NULL:
                # The segment's end, or damage, after which the channel finds the deferred messages by itself.
                if self.segment.next is None:
                    return True
                bytes_left = limit + RECORD_HEADER_BYTES - self.offset
                self.segment = self.segment.next
                self.offset = SEGMENT_HEADER_BYTES
                self.ordinal = self.segment.first_ordinal
                self.number = self.segment.number
                if self.ordinal < end and not presence.has(self.segment, self.offset, bytes_left):
                    return False
                limit = self.offset + bytes_left - RECORD_HEADER_BYTES
                continue
            self.count += record.due_ns != 0 and not self.is_left_out(record_ordinal(record))
            self.offset += record_span(record.size_bytes)
            self.ordinal = ordinal_after(record)
        return self.ordinal >= end

    cdef bint is_kept(self, Log log) noexcept:
        """Return True if the log still has the segments that were walked."""
        return (
            self.position.segment.number == self.first_number and self.segment.number == self.number
            and self.first_number >= log.first.number)


cdef uint64_t guid_before(LogCursor cursor) noexcept:
    """Return an id between those before a cursor and those from there on. The greatest at the end of the log."""
    debug_require(cursor.offset <= cursor.segment.tail)
    if cursor.offset == cursor.segment.tail:
        return <uint64_t> INT64_MAX
    return (<const Record*> (cursor.segment.base + cursor.offset)).guid - 1


cdef list marked_from(ChannelCore channel, uint64_t target):
    return [] if channel.cancelled is None else channel.cancelled.marked(target, channel.readable.log.end)


def seek_reach(ChannelCore channel not None, uint64_t target):
    """Return the last ordinal that the ledger marks as finished in a seek; the target if there is none after it."""
    cdef uint64_t end
    cdef uint64_t finished_end = target
    cdef list left_out = marked_from(channel, target)
    if left_out:
        finished_end = <uint64_t> left_out[len(left_out) - 1] + 1
    for _, end in channel.readable.log.holes:
        # Nothing is readable yet in a topic that was paused from the beginning.
        finished_end = max(finished_end, min(end, channel.readable.end))
    assert finished_end >= target
    return finished_end - 1 if finished_end > target else target


def seek(ChannelCore channel not None, uint64_t target, SeekPlace place=None):
    """Move a channel; its deferred messages are still to be parked again. target: of `seek_target`.

    place: that of the target, with all deferred messages after it counted in this slice. Returns: an id at or above
    those of the messages before the target, and below those after. Raises: StorageError if a hole or a cancelled
    message is beyond the ledger's window (nothing changed).
    """
    cdef Ledger ledger = channel.ledger
    cdef uint64_t ordinal
    cdef uint64_t reached = seek_reach(channel, target)
    cdef list left_out = marked_from(channel, target)
    if reached > target and not ledger.reset_reaches(target, channel.parking.parked_end(), reached):
        # All that may fail comes before the first change.
        ledger.reserve_bits(reached - target + 1)
    assert channel.readable.log.earliest <= target <= channel.readable.end
    channel.start_over(channel.readable.log.locate(target) if place is None else place.position)
    if place is not None:
        channel.parking.lag_counted(place.position, place.count)
    for ordinal in left_out:
        ledger.finish(ordinal)
    channel.cursor.finish_missing(target, channel.readable.end)
    assert ledger.header.cursor == target and channel.slots.count() == 0
    return guid_before(channel.cursor)
