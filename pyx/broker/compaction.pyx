"""Compaction: a few unfinished messages do not keep the space of all others in their segments.

An old segment of a topic's log is rewritten without the records that all channels have finished, see
pyx/diskqueue/rewrite.pyx. Segments whose records a channel has not been given stay: these are a queue. The slots and
rings of the channels point at records, so they are repointed when the new file gets its place. Rewritten segments that
are small become one file with their neighbours: an unfinished message keeps all later segments in the chain.

Invariants: those of the channel hold between any two messages moved.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from pyqd.hot.broker.channel cimport ChannelCore
from pyqd.hot.broker.slots cimport ReadyEntry, ReadyRing, Slot
from pyqd.hot.broker.topic cimport TopicCore
from pyqd.hot.diskqueue.exceptions cimport FINISHED_SINCE, index_from
from pyqd.hot.diskqueue.ledger cimport Ledger
from pyqd.hot.diskqueue.log cimport Log
from pyqd.hot.diskqueue.rewrite cimport Rewrite
from pyqd.hot.diskqueue.segment cimport Segment
from pyqd.hot.primitives.bitmap cimport window_after_word, window_mask, window_set, window_set_range, window_word
from pyqd.hot.primitives.clock cimport wall_ns
from pyqd.hot.primitives.releases cimport PAGE_BYTES
from pyqd.hot.wire.record cimport Record

from pyqd.hot.diskqueue.rewrite import are_neighbours

cdef enum:
    # A segment is rewritten if less than one in so many of its messages is unfinished ...
    SHARE_NEW = 10
    # ... or in so many, if so many segments follow it.
    SHARE_OLD = 2
    SEGMENTS_BEHIND_MAX = 4
    SEGMENTS_PER_RUN = 256

# A message that stays unfinished for long keeps a file of a page or more for so many bytes of rewritten segments.
cdef uint64_t MERGED_BYTES_MAX = 64 << 10
# Bits of so many ordinals are read at once.
cdef uint64_t MERGED_ORDINALS_MAX = 1 << 24


cdef int64_t stopped_growing_ns(Segment segment) noexcept:
    """Return when a segment stopped growing (Unix): when the next one began; the active one has not."""
    return segment.next.header().created_ns if segment.next is not None else wall_ns()


cdef int add_unfinished(Rewrite rewrite, Ledger ledger) except -1:
    """Add the records that a channel has not finished to those that a rewriting keeps."""
    cdef uint64_t at = max(rewrite.start, ledger.header.floor)
    cdef uint64_t index = index_from(&ledger.exceptions, rewrite.start)
    cdef uint64_t limit = max(at, min(rewrite.end, ledger.bits_end()))
    assert ledger.header.cursor >= rewrite.end, "a queue is not rewritten"
    while index < ledger.exceptions.count and ledger.exceptions.ordinals[index] & ~FINISHED_SINCE < rewrite.end:
        if not ledger.exceptions.ordinals[index] & FINISHED_SINCE:
            window_set(rewrite.to.needed, rewrite.to.capacity_bits, ledger.exceptions.ordinals[index])
        index += 1
    while at < min(limit, rewrite.end):
        rewrite.to.needed[window_word(rewrite.to.capacity_bits, at)] |= (
            ~ledger.words[window_word(ledger.capacity_bits, at)] & window_mask(at, limit))
        at = window_after_word(at)
    if limit < rewrite.end:
        window_set_range(rewrite.to.needed, rewrite.to.capacity_bits, limit, rewrite.end)
    return 0


cdef Rewrite rewrite_of(TopicCore topic, list segments):
    """Return the rewriting of some segments, with the records that the channels need as of now."""
    cdef Rewrite rewrite = Rewrite(topic.log, segments)
    cdef ChannelCore channel
    for channel in topic.channels:
        add_unfinished(rewrite, channel.ledger)
    return rewrite


cdef uint64_t share_max(Log log, Segment segment) except 0:
    """Return the number of records of which one at most may be unfinished if a segment is to be rewritten."""
    cdef int behind = 0
    while segment is not log.active and behind < SEGMENTS_BEHIND_MAX:
        segment = segment.next
        behind += 1
    return SHARE_OLD if behind == SEGMENTS_BEHIND_MAX else SHARE_NEW


cdef Rewrite sparse(TopicCore topic, Segment segment):
    """Return the rewriting of a segment if few of its records are unfinished and it takes more than a page."""
    cdef uint64_t share = share_max(topic.log, segment)
    cdef uint64_t kept_count = segment.kept_count()
    cdef ChannelCore channel
    cdef Rewrite rewrite
    if segment.tail <= PAGE_BYTES:
        return None
    for channel in topic.channels:
        if channel.ledger.unfinished_in(segment.first_ordinal, segment.end_ordinal()) * share >= kept_count:
            return None
    rewrite = rewrite_of(topic, [segment])
    return rewrite if rewrite.needed_count() * share < kept_count else None


cdef list small_neighbours(Segment segment, uint64_t end, refused):
    """Return the rewritten segments from one on, up to an ordinal, that are small enough to become one file."""
    cdef list found = [segment]
    cdef uint64_t start = segment.first_ordinal
    cdef uint64_t total_bytes = segment.tail
    cdef Segment following = segment.next
    while (
        segment.rewrites != 0 and following.rewrites != 0 and are_neighbours(segment, following)
        and following.end_ordinal() <= end and following.number not in refused
        and total_bytes + following.tail <= MERGED_BYTES_MAX
        and following.end_ordinal() - start <= MERGED_ORDINALS_MAX
    ):
        total_bytes += following.tail
        found.append(following)
        segment, following = following, following.next
    return found


def next_rewrite(TopicCore topic not None, uint64_t start, uint64_t end, int64_t stopped_ns, refused):
    """Find the next segment from an ordinal on that few unfinished messages keep, or neighbours that were rewritten.

    end: segments that reach beyond it stay. stopped_ns: so do those that have grown since (Unix). refused: numbers of
    others that stay. Returns: (Rewrite or None, ordinal to look on from, 0 for the beginning). Cost: the 64th part of
    the records of SEGMENTS_PER_RUN segments, for each channel.
    """
    cdef ChannelCore channel
    cdef Segment segment = topic.log.segment_of(start)
    cdef Rewrite rewrite
    cdef list found
    end = min(end, topic.readable.end)
    if topic.log.directory is not None:
        # A power failure may take the name of a channel, and the topic holds its messages again.
        end = min(end, max(topic.state.given_below, <uint64_t> 1) - 1)
    for channel in topic.channels:
        end = min(end, channel.ledger.header.cursor)
    for _ in range(SEGMENTS_PER_RUN):
        if segment is topic.log.active or segment.end_ordinal() > end or stopped_growing_ns(segment) > stopped_ns:
            return None, 0
        if segment.number not in refused and segment.count != 0:
            found = small_neighbours(segment, end, refused)
            rewrite = rewrite_of(topic, found) if len(found) > 1 else sparse(topic, segment)
            if rewrite is not None:
                return rewrite, segment.first_ordinal
        segment = segment.next
    return None, segment.first_ordinal


cdef int repoint_ring(ReadyRing ring, Rewrite rewrite) except -1:
    cdef uint64_t number
    cdef ReadyEntry* entry
    cdef const Record* record
    for number in range(ring.first, ring.end()):
        entry = ring.at(number)
        record = rewrite.moved(entry.record)
        if record != NULL:
            entry.record = record
    return 0


cdef int repoint(ChannelCore channel, Rewrite rewrite) except -1:
    """Let the messages in flight, for redelivery and on their way as dead letters point to the new file."""
    cdef uint32_t slot
    cdef const Slot* held
    cdef const Record* record
    assert channel.cursor.segment.number != 0, "the cursor stands in a segment that was replaced"
    repoint_ring(channel.ready, rewrite)
    repoint_ring(channel.dead_letters.pending, rewrite)
    repoint_ring(channel.dead_letters.unsynced, rewrite)
    for slot in range(channel.slots.capacity):
        held = channel.slots.used(slot)
        if held == NULL:
            continue
        record = rewrite.moved(held.record)
        if record != NULL:
            channel.slots.slots[slot].record = record
    return 0


def replace_segments(TopicCore topic not None, Rewrite rewrite not None, uint64_t retained_from):
    """Put a rewritten file in the place of its segments, unless these have changed or a channel needs more of them now.

    Returns: whether it took their place. Raises: StorageError (nothing changed). Cost: a comparison of addresses for
    each message in flight or in a ring, which reads no record.
    """
    cdef ChannelCore channel
    # Readers that have come to the end of a segment leave it.
    topic.trim()
    if not rewrite.is_current() or topic.readable.end < rewrite.end or retained_from < rewrite.end:
        return False
    for channel in topic.channels:
        if channel.ledger.header.cursor < rewrite.end:
            return False
    # A seek, or a new channel, may want messages again that were finished when the file was made.
    if not rewrite.covers(rewrite_of(topic, rewrite.segments)):
        return False
    rewrite.take_place()
    for channel in topic.channels:
        repoint(channel, rewrite)
    topic.trim()
    return True
