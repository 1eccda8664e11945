"""Reset of a channel: it resumes at a place of its topic's log, and forgets its delivered and parked messages.

Emptying is a reset to the end of the readable part. A seek is a reset to any place (pyx/broker/replay.pyx).
"""

from libc.stdint cimport INT64_MAX, uint64_t

from pyqd.hot.broker.consumer cimport Consumer
from pyqd.hot.wire.trace_events cimport REASON_EMPTIED


cdef int forget_deliveries(ChannelCore channel) except -1:
    """Forget messages in flight and waiting for redelivery; the ledger is about to be reset."""
    channel.slots.clear()
    channel.ready.clear()
    channel.dead_letters.clear()
    assert channel.slots.count() == 0 and channel.ready.count == 0
    return 0


cdef int start_over(ChannelCore channel, Position position) except -1:
    """Resume at a place of the log: messages before it are finished, delivered or parked ones are forgotten.

    Raises: StorageError, at most before anything is changed.
    """
    cdef Consumer consumer
    channel.ledger.reset(position.ordinal, channel.parking.parked_end())
    forget_deliveries(channel)
    for consumer in channel.dispatcher.consumers:
        consumer.in_flight = 0
    channel.cursor.move_to(position.segment, position.offset)
    channel.cursor.save_place()
    channel.parking.drop_all()
    channel.note_parking()
    # Nothing waits for space any more, and `empty` drops the timer that would retry.
    channel.waits.retry_ns = INT64_MAX
    channel.readable.request_trim()
    channel.readable.scheduler.request_wake(channel)
    assert channel.ledger.header.cursor == position.ordinal and channel.parking.unsettled_ahead == 0
    return 0


def empty(ChannelCore channel not None):
    """Drop the queued, in-flight and deferred messages; the clients' in-flight counts become zero."""
    cdef uint64_t count = 0 if channel.trace is None else channel.unfinished_count()
    start_over(channel, channel.readable.end_position())
    if channel.trace is not None:
        channel.trace.dropped_many(REASON_EMPTIED, count)
    # Nothing times out and nothing is due any more.
    channel.readable.scheduler.drop_timer(channel)
    assert channel.dispatcher.available() == 0, "messages are queued yet"


def abandon(ChannelCore channel not None):
    """Drop everything for good, as the channel's files are gone. It has no consumers any more."""
    cdef Position position = channel.readable.log.end_position()
    assert len(channel.dispatcher.consumers) == 0
    channel.cursor.move_to(position.segment, position.offset)
    forget_deliveries(channel)
    channel.parking.abandon()
    channel.waits.end()
    # The sync of a larger file may still run. Its path is free for the next channel of this name.
    channel.ledger.forget_growth()
    if channel.cancelled is not None:
        channel.cancelled.forget_growth()
    # No sync covers the parked messages any more.
    channel.in_parking = False
    channel.readable.parking.discard(channel)
    channel.readable.scheduler.drop_timer(channel)
