"""Seek: move a channel to another place of its topic's log.

    floor = cursor = target, no bit set

After a seek in either direction, the records before the target are finished, and the records from the target on count
as never handed out. They are delivered again, with attempts from 1. The ledger announces a reset before it is done, and
says in the same page that all notes are dropped. So a kill or a power failure leaves the channel at the old place with
its notes, or at the new place without. A FIN of a message that was in flight fails.

Messages published with a due time lie in the topic's log like all others. Those from the target on wait for their due
times again, or are due at once; the topic's index of due times tells their number.

Cancelled messages stay cancelled: a seek marks them as finished. The channel keeps a bit for each in
`cancelled.ledger`; a start marks those that a kill left unmarked.

Invariants: 1. the target is in `[log.earliest, readable.end]`. 2. holes at or above the floor are marked as finished,
up to `readable.end`.
"""

from libc.stdint cimport INT64_MAX, uint64_t

from pyqd.hot.broker.channel cimport ChannelCore
from pyqd.hot.broker.log_cursor cimport LogCursor
from pyqd.hot.diskqueue.ledger cimport Ledger
from pyqd.hot.diskqueue.log cimport Log, Position
from pyqd.hot.diskqueue.logreader cimport LogReader
from pyqd.hot.diskqueue.segment cimport Segment
from pyqd.hot.primitives.debug cimport debug_require
from pyqd.hot.wire.record cimport Record


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

    redeliver: messages that were delivered or dropped before and will be delivered again; finished: of these had been
    finished; skip: messages not finished that will not be delivered any more; in_flight, deferred: the dropped ones
    among these; depth: afterwards, deferred messages included.
    """
    cdef Ledger ledger = channel.ledger
    cdef Log log = channel.readable.log
    cdef uint64_t oldest = ledger.oldest_unfinished()
    cdef uint64_t cursor = ledger.header.cursor
    cdef uint64_t end = channel.readable.end
    cdef uint64_t ahead = max(target, cursor)
    cdef uint64_t left_out = cancelled_in(channel, target, end)
    cdef uint64_t holes, redeliver, finished, skip = 0
    # Finished ahead of the cursor: deferred, dropped or cancelled before the cursor met them.
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
        "deferred": channel.deferred_count,
        "depth": end - target - missing_in(log, target, end) - left_out,
    }


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


cdef Position place_of(Log log, uint64_t target, LogReader reader):
    """Return the Position of an ordinal. Cost: as of the reader's `offset_of`; without one a walk over a segment."""
    cdef Segment segment = log.segment_of(target)
    cdef uint64_t offset, found = 0
    if reader is not None:
        offset = reader.offset_of(segment, max(target, segment.first_ordinal), &found)
    # If damage lies in between, finding the place mends it.
    return log.locate(target) if found < target or reader is None else Position(segment, offset, target)


def seek(ChannelCore channel not None, uint64_t target, LogReader reader=None):
    """Move a channel. target: of `seek_target`. reader: of the log, prepared for the target; None: the log is walked.

    Returns: an id at or above those of the messages before the target, and below those after. Raises: StorageError if a
    hole or a cancelled message is beyond the ledger's window (nothing changed).
    """
    cdef Ledger ledger = channel.ledger
    cdef uint64_t ordinal
    cdef uint64_t reached = seek_reach(channel, target)
    cdef list left_out = marked_from(channel, target)
    if reached > target and not ledger.reset_reaches(target, reached):
        # All that may fail comes before the first change.
        ledger.reserve_bits(reached - target + 1)
    assert channel.readable.log.earliest <= target <= channel.readable.end
    channel.start_over(place_of(channel.readable.log, target, reader))
    for ordinal in left_out:
        channel.cursor.finish_range(ordinal, ordinal + 1)
    channel.cursor.finish_missing(target, channel.readable.end)
    assert ledger.header.cursor == target and channel.slots.count() == 0
    return guid_before(channel.cursor)
