"""Traced topics, and the log of their events: opened, kept within its limits, read.

The events are the compiled half's (pyx/broker/trace.pyx). The log is made when the first topic is traced. If it cannot
be opened, no topic is traced, and the broker serves: a trace is never a reason to refuse a message.

Source: docs/trace.md.
"""

import errno
import logging
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Final, NamedTuple, Protocol

from pyqd.broker.channel import Channel
from pyqd.broker.message_lookup import FINISHED, UNKNOWN, change_on_channel
from pyqd.broker.owners import OwningBroker
from pyqd.broker.replay import Pause, no_pause, yield_or_read
from pyqd.broker.topic import LOG_DIRECTORY, Topic
from pyqd.config.options import Options
from pyqd.diskqueue.damage import BAD
from pyqd.diskqueue.files import PAGE_BYTES
from pyqd.diskqueue.segment_jobs import SegmentJobs
from pyqd.diskqueue.space_limit import SEGMENT_BYTES_MIN, DiskReserve, SpaceLimit
from pyqd.fallback.records import HEADER_BYTES, ORDINAL_MASK, spans
from pyqd.hot.broker.channel import ChannelCore
from pyqd.hot.broker.trace import OPEN_BYTES, THRESHOLD_MAX, TraceLog, TracePlace, check_open
from pyqd.hot.diskqueue.log import Log
from pyqd.hot.diskqueue.logreader import LogReader
from pyqd.hot.diskqueue.mapping import Mapping
from pyqd.hot.primitives.clock import wall
from pyqd.primitives.errors import CorruptionError, DiskFull, LaterFormatError, StorageError

TRACE_DIRECTORY: Final = "trace"
OPEN_FILE: Final = "open"
# Least bytes of an event that shares none: a page of so many bytes has at most one event for each.
EVENT_BYTES: Final = 16
# Of a page, as their headers are read on the loop. A reader that has caught up seals a small block with each poll.
BLOCKS_MAX: Final = 1000
SEGMENT_BYTES_MAX: Final = 8 << 20
SEGMENTS_MIN: Final = 16
# Beside the segments with events: one under way to be reused, and one that is made meanwhile.
SEGMENTS_SPARE: Final = 2
# Keys of the counters in /stats.
STATS: Final = ("oldest", "next", "bytes", "events", "lost", "overwritten")

_BLOCK = struct.Struct("<HHIq")

logger = logging.getLogger(__name__)


class TraceSetting(NamedTuple):
    """Setting of a traced topic. rate: fraction of its messages, above 0 and up to 1. body_bytes: to keep of a body."""

    rate: float
    body_bytes: int = 0

    @property
    def threshold(self) -> int:
        """Number of 2**32 fingerprints of ids whose messages are traced."""
        return round(self.rate * THRESHOLD_MAX)


class BlockPage(NamedTuple):
    """Blocks read. first: position of the first event. next: the next page begins there. oldest: that is kept."""

    data: bytes
    first: int
    next: int
    oldest: int


class TraceSpace(SpaceLimit):
    """Limit on the space of the log of events. bytes_max: returns the limit that counts now.

    Events must not take the space that messages need. So no segment is made for them while less than twice the floor of
    the disk reserve would stay free; the events are lost instead, and publishing goes on until the floor is reached.
    """

    def __init__(self, reserve: DiskReserve, bytes_max: Callable[[], int]) -> None:
        self._reserve = reserve
        self._bytes_max = bytes_max
        self.log: Log | None = None

    def segment_bytes(self) -> int:
        """Return the size of a segment, so that there are many: they are overwritten one by one."""
        return max(SEGMENT_BYTES_MIN, min(self._bytes_max() // SEGMENTS_MIN, SEGMENT_BYTES_MAX))

    def chain_bytes_max(self) -> int:
        """Return the bytes that segments with events may take."""
        return max(self._bytes_max() - SEGMENTS_SPARE * self.segment_bytes(), SEGMENT_BYTES_MIN)

    def chain_bytes(self) -> int:
        """Return the bytes that segments with events take."""
        return 0 if self.log is None else self.log.size_bytes() - self.log.pool.spare_bytes()

    def used_bytes(self) -> int:
        """Return the bytes that all segments take."""
        return 0 if self.log is None else self.log.size_bytes() + self.log.pool.retiring_bytes

    def is_short(self, need_bytes: int) -> bool:
        """Return whether the disk has too little space for a segment."""
        return self._reserve.available_bytes() < need_bytes + self._reserve.floor_bytes

    @contextmanager
    def claim(self, need_bytes: int, want_bytes: int, on_disk: bool = True) -> Iterator[int]:
        """Keep space for a segment until it is made. Yields: its size. Raises: DiskFull, StorageError."""
        if on_disk and self.is_short(need_bytes):
            least_bytes = 2 * self._reserve.floor_bytes
            raise DiskFull(
                "reserve", "trace events", errno.ENOSPC, f"less than {least_bytes} bytes would be left free on the disk"
            )
        with self._reserve.claim(need_bytes, want_bytes, on_disk) as size_bytes:
            yield size_bytes

    def spare_bytes(self, want_bytes: int) -> int:
        """Return the size that a spare segment may be made with now; 0 for none."""
        return 0 if self.is_short(want_bytes) or self.used_bytes() + want_bytes > self._bytes_max() else want_bytes

    def allows_spare(self, size_bytes: int) -> bool:
        """Return whether a segment that was made or drained may be kept as a spare."""
        return self.used_bytes() + size_bytes <= self._bytes_max()


class TracedBroker(OwningBroker, Protocol):
    """The broker, as its trace sees it."""

    root: str
    epoch: int
    topics: dict[str, Topic]

    @property
    def segment_jobs(self) -> SegmentJobs: ...


class Tracing:
    """Trace of one broker's messages."""

    def __init__(self, broker: TracedBroker) -> None:
        self._broker = broker
        self._files = broker.files
        self._directory = os.path.join(broker.root, TRACE_DIRECTORY)
        self.space = TraceSpace(broker.reserve, lambda: broker.options.trace_retention_bytes)
        self.log: TraceLog | None = None
        self._reader: LogReader | None = None
        # The active segment when segments were trimmed last.
        self._trimmed_at = 0
        self._syncing = False
        self.overwritten_count = 0
        # Called when there are events again: for readers that wait at the end.
        self.waiting: list[Callable[[], object]] = []

    # Settings.

    def load(self) -> None:
        """Open the log that an earlier run left, before the topics."""
        if self._files.exists(self._directory):
            self.open()

    def setting_of(self, topic: Topic) -> TraceSetting | None:
        """Return the setting of a topic: its own, or that of the flags; None if the topic is not traced."""
        options = self._broker.options
        own = topic.own_trace
        if own is not None:
            threshold, body_bytes = own
            return TraceSetting(threshold / THRESHOLD_MAX, body_bytes) if threshold else None
        if options.trace_rate and any(fnmatchcase(topic.name, pattern) for pattern in options.trace_topic or ()):
            return TraceSetting(options.trace_rate, options.trace_body_bytes)
        return None

    def set_own(self, topic: Topic, setting: TraceSetting | None) -> None:
        """Change a topic's own setting, at once and over restarts; None: the flags count. A rate of 0: not traced."""
        topic.own_trace = None if setting is None else (setting.threshold, setting.body_bytes)
        self.apply(topic)

    def apply(self, topic: Topic) -> None:
        """Put a topic's setting in force, for its channels too."""
        setting = self.setting_of(topic)
        if setting is None and topic.trace is None:
            return
        log = None if setting is None else self.log or self.open()
        place = None
        if setting is not None and log is not None:
            place = TracePlace(log, topic.name, "", setting.threshold, setting.body_bytes)
        topic.trace_as(place, [channel_place(place, channel) for channel in topic.channels])

    def apply_to_new(self, channel: Channel) -> None:
        """Trace a new channel as its topic, before the topic gives it messages."""
        channel.trace_as(channel_place(channel.topic.trace, channel))

    def change_options(self, before: Options, after: Options) -> bool:
        """Put changed flags of the log in force. Returns: whether those of topics have changed, too: see `apply`."""
        if before.trace_retention_bytes != after.trace_retention_bytes:
            self._trimmed_at = 0
            self.trim()
        names = ("trace_topic", "trace_rate", "trace_body_bytes")
        return any(getattr(before, name) != getattr(after, name) for name in names)

    # The log.

    def open(self) -> TraceLog | None:
        """Open the log, or make it. Returns: None if that fails; then nothing is traced until it is tried again."""
        try:
            try:
                self.log = self._open_log()
            except CorruptionError as error:
                if isinstance(error, LaterFormatError):
                    raise
                self._set_aside(error)
                self.log = self._open_log()
        except (StorageError, CorruptionError) as error:
            logger.error("TRACE: cannot open the log of events: %s; no message is traced", error)
            return None
        self._reader = LogReader(self.log.log)
        return self.log

    def _open_log(self) -> TraceLog:
        self._files.make_directory(self._directory)
        mapping = self._open_block(os.path.join(self._directory, OPEN_FILE))
        log = Log(
            self._files,
            os.path.join(self._directory, LOG_DIRECTORY),
            self.space.segment_bytes(),
            self._broker.epoch,
            self._broker.power_failed,
        )
        log.pool.jobs = self._broker.segment_jobs
        log.pool.limit = self.space
        self.space.log = log
        node_id, power_failed = self._broker.options.node_id, self._broker.power_failed
        return TraceLog(log, mapping, node_id, power_failed, self.tell_waiting, self.trim)

    def _open_block(self, path: str) -> Mapping:
        if self._files.exists(path):
            try:
                mapping = self._files.open_mapped(path)
                mapping.require_readable()
                check_open(mapping)
            except LaterFormatError:
                raise
            except CorruptionError as error:
                logger.error("TRACE: %s; the events in it are lost", error)
                self._files.remove(path)
            else:
                return mapping
        return self._files.new_mapped(path, OPEN_BYTES, True)

    def _set_aside(self, error: CorruptionError) -> None:
        """Move a damaged log out of the way, replacing one that was damaged before. Raises: StorageError."""
        aside = self._directory + BAD
        self._files.remove_tree(aside)
        self._files.rename(self._directory, aside)
        logger.error("TRACE: %s; the damaged log of events is kept in %s, and a new log begins", error, aside)

    def recover(self) -> None:
        """After a start, with all topics loaded: add the events of a publish or cancel that a kill interrupted."""
        if self.log is None:
            return
        if self.log.unfinished_publish is not None:
            name, guid, client = self.log.unfinished_publish
            topic = self._broker.topics.get(name)
            if topic is not None:
                topic.add_events_after(guid, client)
        if self.log.unfinished_cancel is not None:
            self._recover_cancel(*self.log.unfinished_cancel)
        self.log.finish_recovery()

    def _recover_cancel(self, topic_name: str, channel_name: str, guid: int) -> None:
        topic = self._broker.topics.get(topic_name)
        channel = None if topic is None else topic.channels_by_name.get(channel_name)
        if topic is None or channel is None or channel.trace is None:
            return
        outcome = change_on_channel(topic, channel, guid, lambda _: None, no_pause, no_pause)
        # Unknown: the log has trimmed it, as all channels are done with it.
        if outcome is not None and outcome.status in (FINISHED, UNKNOWN):
            channel.trace.place.add_cancel(guid)

    def tell_waiting(self) -> None:
        """Wake the readers that wait for events."""
        for wake in self.waiting:
            wake()

    def trim(self) -> None:
        """Remove the oldest events beyond the limit of bytes. Does nothing unless a segment has been added."""
        log = None if self.log is None else self.log.log
        if log is None or log.active.number == self._trimmed_at:
            return
        self._trimmed_at = log.active.number
        kept_bytes = self.space.chain_bytes() - self.space.chain_bytes_max()
        segment = log.first
        while segment is not log.active and kept_bytes > 0 and segment.next is not None:
            kept_bytes -= segment.file_bytes
            segment = segment.next
        self._trim_below(segment.first_ordinal)

    def trim_expired(self) -> None:
        """Remove the events that are older than --trace-retention-time, as far as whole segments are."""
        time_ns = self._broker.options.trace_retention_time_ns
        if self.log is None or self._reader is None or not time_ns:
            return
        log, since_ns = self.log.log, wall() - time_ns
        floor = log.first.first_ordinal
        if log.active.count and (self._reader.timestamp_of(log.end - 1) or since_ns) < since_ns:
            # Nothing is added any more: without this, the last segment would stay for ever.
            log.shrink()
            floor = log.end
        for position, _, _, created_ns, _ in self._reader.segments()[1:]:
            if created_ns < since_ns:
                floor = max(floor, position & ORDINAL_MASK)
        self._trim_below(floor)

    def _trim_below(self, ordinal: int) -> None:
        if self.log is None or ordinal <= self.log.log.first.first_ordinal:
            return
        before = self.log.oldest_position
        self.log.log.trim_below(ordinal)
        self.overwritten_count += self.log.oldest_position - before

    def tend(self) -> None:
        """Keep the log within its limits, and write it to stable storage in a thread: once every few seconds."""
        try:
            self.trim_expired()
        except StorageError as error:
            logger.warning("TRACE: cannot remove old events: %s; this is retried every few seconds", error)
        if self.log is None or self._syncing:
            return
        log = self.log.log
        ranges, end = log.dirty_ranges()
        if not ranges:
            return
        self._syncing = True

        def job() -> None:
            for segment, start_bytes, length_bytes in ranges:
                self._files.sync(segment.mapping, start_bytes, length_bytes)

        def done(_result: None, error: BaseException | None) -> None:
            self._syncing = False
            if error is None:
                log.mark_synced(ranges, end)
            else:
                logger.warning("TRACE: cannot sync events to stable storage: %s; the sync is retried", error)

        self._broker.in_background(job, done)

    def note_stop(self) -> None:
        """Add the events of clients that a clean stop disconnects with messages in flight."""
        for topic in self._broker.topics.values():
            for channel in topic.channels:
                channel.trace_stop()

    def close(self) -> None:
        """Write all events to stable storage, as a clean stop does. A failure is logged."""
        if self.log is None:
            return
        self.log.seal()
        ranges, end = self.log.log.dirty_ranges()
        try:
            for segment, start_bytes, length_bytes in ranges:
                self._files.sync(segment.mapping, start_bytes, length_bytes)
            self._files.sync(self.log.mapping, 0, PAGE_BYTES)
            self._files.sync_directory(os.path.join(self._directory, LOG_DIRECTORY))
            self._files.sync_directory(self._directory)
        except StorageError as error:
            logger.error(
                "TRACE: cannot sync events to stable storage: %s; a power failure may lose the last ones", error
            )
        else:
            self.log.log.mark_synced(ranges, end)

    def stats(self) -> dict[str, int] | None:
        """Return the counters, those of events since the start; None if nothing has been traced in this directory."""
        if self.log is None:
            return None
        log = self.log
        values = (
            log.oldest_position,
            log.next_position,
            self.space.used_bytes(),
            log.event_count + log.next_position - log.sealed_position,
            log.lost_count,
            self.overwritten_count,
        )
        return dict(zip(STATS, values, strict=True))

    # Reads.

    def has_events(self, position: int) -> bool:
        """Return whether there is an event at a position or after it, sealed or not."""
        return self.log is not None and self.log.next_position > max(position, self.log.oldest_position)

    def read(self, position: int, bytes_max: int, pause: Pause) -> BlockPage:
        """Read whole blocks, from the one with the event at a position on, or from the next one that is kept.

        bytes_max: also limits the events, to one for each EVENT_BYTES. A page has BLOCKS_MAX blocks at most. If the
        reader has come to the end, the open block is sealed. pause: yields to the event loop.
        """
        if self.log is None or self._reader is None:
            return BlockPage(b"", position, position, position)
        log, reader = self.log, self._reader
        if max(position, log.oldest_position) >= log.sealed_position:
            log.seal()
            if position >= log.sealed_position:
                return BlockPage(b"", log.sealed_position, log.sealed_position, log.oldest_position)

        def place() -> int:
            # The block before that one may have the event.
            return max(log.log.first.first_ordinal, reader.ordinal_after_guid(position) - 1)

        while not (reader.prepare_guid(position) and reader.prepare(place(), bytes_max)):
            yield_or_read(self._broker, reader.presence, pause)
        oldest = log.oldest_position
        ordinal = place()
        while True:
            # The page ends with its segment: the pages of the next one were not asked for.
            end = min(log.log.end, log.log.end_of_segment(ordinal))
            data, count, following = reader.read_raw(ordinal, end, bytes_max, BLOCKS_MAX)
            if (count and end_position(data) > position) or following >= log.log.end:
                break
            # Only the block before, or all was damaged or trimmed.
            ordinal = following
            self._prepare(ordinal, bytes_max, pause)
        if count == 0:
            return BlockPage(b"", log.sealed_position, log.sealed_position, oldest)
        kept_bytes = bytes_with(data, bytes_max // EVENT_BYTES)
        if kept_bytes < len(data):
            data = data[:kept_bytes]
            return BlockPage(data, first_position(data), end_position(data), oldest)
        self._prepare(following, 0, pause)
        return BlockPage(data, first_position(data), self._position_of(following, data), oldest)

    def _prepare(self, ordinal: int, bytes_max: int, pause: Pause) -> None:
        """Have a block in memory, and so many bytes from there on, as far as its segment goes."""
        assert self._reader is not None
        while not self._reader.prepare(ordinal, bytes_max):
            yield_or_read(self._broker, self._reader.presence, pause)

    def _position_of(self, ordinal: int, data: bytes) -> int:
        """Return the position of the block with an ordinal; data: the blocks before it."""
        assert self.log is not None
        assert self._reader is not None
        if ordinal >= self.log.log.end:
            return self.log.sealed_position
        found, count, _ = self._reader.read_raw(ordinal, ordinal + 1, 1)
        return (first_position(found) if count else 0) or end_position(data)


def channel_place(place: TracePlace | None, channel: ChannelCore) -> TracePlace | None:
    assert isinstance(channel, Channel)
    return None if place is None else TracePlace(place.log, channel.topic.name, channel.name, place.threshold)


def first_position(data: bytes) -> int:
    """Return the position of the first event in records; 0 if the first record stands for a lost one."""
    return next(blocks_in(data))[1]


def end_position(data: bytes) -> int:
    """Return the position after the last event in records."""
    return max((position + row_count for _, position, row_count in blocks_in(data) if position), default=0)


def bytes_with(data: bytes, rows_max: int) -> int:
    """Return the bytes of the first records with so many events together, at least those of one record with events."""
    rows = 0
    for at, _, row_count in blocks_in(data):
        if rows and rows + row_count > rows_max:
            return at
        rows += row_count
    return len(data)


def blocks_in(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield offset, first position and number of events of each record; 0 and 0 if it stands for a lost one."""
    for at, (_, _, _, position, *_) in spans(data)[0]:
        yield at, position, _BLOCK.unpack_from(data, at + HEADER_BYTES)[2] if position else 0
