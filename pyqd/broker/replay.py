"""Re-reading of a topic: by position, by time, by a seek of a channel.

A position is a record's sequence number. Readers see the kept records that, with --sync-every=1, are on stable storage:
so no reader has seen a record that a power failure then removes.

Finding a place may need a walk over a segment, which is done in slices: `pause` is called between them and yields to
the event loop. Where the next pages are not in memory, a thread reads them instead. Afterwards the topic may be
deleted, and the place may be trimmed; so the last step is always one without a pause.

Source: docs/storage.md, "Reading by position".
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from pyqd.broker.channel import Channel
from pyqd.broker.owners import OwningBroker
from pyqd.broker.topic import Topic
from pyqd.fallback.records import FORMAT
from pyqd.hot.broker.replay import seek, seek_effect, seek_reach, seek_target
from pyqd.hot.diskqueue.presence import Presence
from pyqd.primitives.timestamps import parse_timestamp

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
POSITION_MAX: Final = 2**64 - 1
# Bytes copied in one pass of the loop.
BYTES_PER_SLICE: Final = 1 << 20
# Of a seek, while deliveries wait.
STEPS_IN_RESET_MAX: Final = 100

Pause = Callable[[], None]

logger = logging.getLogger(__name__)


class TopicGone(Exception):  # noqa: N818 (a condition, named as such by its users)
    """The topic was deleted meanwhile."""


class PositionGone(Exception):  # noqa: N818
    """The record is not kept any more. earliest: the position of the first that is."""

    def __init__(self, earliest: int) -> None:
        super().__init__(earliest)
        self.earliest = earliest


class PositionBeyondEnd(Exception):  # noqa: N818
    """No record has or had that position. next: the one that the next record gets."""

    def __init__(self, next_position: int) -> None:
        super().__init__(next_position)
        self.next = next_position


class LogPlace(NamedTuple):
    """Target in a log: one of these; none: the end."""

    earliest: bool = False
    position: int | None = None
    time_ns: int | None = None


class RecordRange(NamedTuple):
    """Records read. first, next: positions; the next read begins at next. end: position after the newest readable
    record.
    """

    first: int
    next: int
    end: int
    records: int
    data: bytes


def parse_place(text: str, now_ns: int) -> LogPlace:
    """Return the place that `earliest`, `latest`, a position or a timestamp stands for. Raises: ValueError."""
    if text == EARLIEST:
        return LogPlace(earliest=True)
    if text == LATEST:
        return LogPlace()
    if text.isascii() and text.isdigit():
        return LogPlace(position=parse_position(text))
    return LogPlace(time_ns=parse_timestamp(text, now_ns))


def parse_position(text: str) -> int:
    """Return a position, written as a decimal. Raises: ValueError."""
    # Python limits and HTTP does not the digits of a number.
    if not (text.isascii() and text.isdigit() and len(text) <= 20) or int(text) > POSITION_MAX:
        raise ValueError(f"not a position: {text!r}")
    return int(text)


def readable_end(topic: Topic) -> int:
    """Return the ordinal behind the last record that readers are shown."""
    log = topic.log
    if topic.broker.options.sync_every == 1 and not topic.ephemeral:
        return max(log.earliest, min(log.synced_end, log.end))
    return log.end


def find(topic: Topic, place: LogPlace, pause: Pause) -> int:
    """Return the ordinal of a place; the last step was without a pause.

    Raises: PositionGone, PositionBeyondEnd, TopicGone. A time before the kept records is their beginning.
    """
    reader = topic.reader
    time_ns = place.time_ns
    if time_ns is not None:
        prepare_in_steps(topic, lambda: reader.prepare_time(time_ns), pause)
        return max(reader.ordinal_at(time_ns), topic.log.earliest)
    if place.position is not None:
        check_position(topic, place.position)
        return reader.ordinal_of(place.position)
    return topic.log.earliest if place.earliest else topic.log.end


def check_position(topic: Topic, position: int) -> None:
    """Refuse a position that is not kept any more, or was never given out. Raises: PositionGone, PositionBeyondEnd."""
    reader = topic.reader
    earliest = reader.position_of(topic.log.earliest)
    if position < earliest:
        raise PositionGone(earliest)
    if position > reader.position_of(topic.log.end):
        raise PositionBeyondEnd(reader.position_of(readable_end(topic)))


def prepare_in_steps(topic: Topic, prepare: Callable[[], bool], pause: Pause) -> None:
    """Call `prepare` with pauses between until it returns True: the index is then built as far as the look-up needs.

    Raises: TopicGone, also if it was true already: after a stop nothing may be changed, and no sync follows.
    """
    while not topic.exiting:
        if prepare():
            return
        yield_or_read(topic.broker, topic.reader.presence, pause)
    raise TopicGone


def yield_or_read(broker: OwningBroker, presence: Presence, pause: Pause) -> None:
    """Yield to the event loop between two steps; after one that found pages absent, until a thread has read them."""
    segment = presence.absent
    if segment is None:
        pause()
        return
    mapping, start, end = segment.mapping, presence.absent_start, presence.absent_end
    if pause is not no_pause:
        broker.read_and_wait(lambda: broker.files.read_in(mapping, start, end - start))
    presence.note_read(segment, start, end)


def read_range(topic: Topic, place: LogPlace, stop: int, bytes_max: int, pause: Pause) -> RecordRange:
    """Read records from a place to before the position `stop`: whole ones, and at least one if there is one.

    bytes_max: of records. Raises: as `find`. If records are trimmed during a pause, the answer ends there; it is valid,
    and the answer to the next request names the gap.
    """
    reader, log = topic.reader, topic.log
    part_bytes = min(bytes_max, BYTES_PER_SLICE)
    prepare_in_steps(topic, lambda: reader.prepare(find(topic, place, pause), part_bytes), pause)
    ordinal = find(topic, place, no_pause)
    first = max(place.position or 0, reader.position_of(ordinal))
    parts: list[bytes] = []
    following, count, left, turn_left = first, 0, bytes_max, BYTES_PER_SLICE
    while True:
        until = min(readable_end(topic), reader.ordinal_of(stop))
        # The part ends with its segment: the pages of the next one were not asked for.
        part_end = min(until, log.end_of_segment(ordinal))
        data, found, behind = reader.read_raw(ordinal, part_end, min(left, BYTES_PER_SLICE))
        if parts and len(data) > left:
            break
        parts.append(data)
        count += found
        ordinal, following = behind, max(first, reader.position_of(behind))
        is_full = left <= BYTES_PER_SLICE and behind < part_end
        left -= len(data)
        turn_left -= len(data)
        if is_full or left <= 0 or ordinal >= until:
            break
        if turn_left <= 0:
            pause()
            turn_left = BYTES_PER_SLICE
        prepare_in_steps(topic, partial(reader.prepare, ordinal, part_bytes), pause)
        if topic.exiting:
            raise TopicGone
        if log.earliest > ordinal:
            break
    end = max(following, reader.position_of(readable_end(topic)))
    return RecordRange(first, following, end, count, parts[0] if len(parts) == 1 else b"".join(parts))


def positions(topic: Topic, place: LogPlace | None, pause: Pause) -> dict[str, Any]:
    """Return the range of readable positions, and the position of a place. Raises: as `find`."""
    reader, log = topic.reader, topic.log
    prepare_in_steps(topic, lambda: reader.prepare(max(readable_end(topic), 1) - 1), pause)
    at = None if place is None else reader.position_of(min(find(topic, place, pause), readable_end(topic)))
    first, end = log.earliest, readable_end(topic)
    rows = [row for row in reader.segments(first) if row[1]]
    shown = {
        "topic": topic.name,
        "node": topic.broker.node_name,
        "created": topic.created_ns,
        "format": FORMAT,
        "earliest": reader.position_of(first),
        "next": reader.position_of(end),
        "earliest_timestamp": reader.timestamp_of(first) if first < end else None,
        "newest_timestamp": reader.timestamp_of(end - 1) if first < end else None,
        "records": sum(row[1] for row in rows) - (log.end - end),
        "bytes": sum(row[2] for row in rows),
        "segments": [
            {"first": first_seq, "records": count, "bytes": size, "created": created_ns, "first_timestamp": timestamp}
            for first_seq, count, size, created_ns, timestamp in rows
        ],
        "channels": [
            {
                "channel": name,
                "floor": reader.position_of(channel.ledger.oldest),
                "next": reader.position_of(channel.ledger.cursor),
            }
            for name, channel in sorted(topic.channels_by_name.items())
        ],
    }
    if place is not None:
        shown["at"] = at
    return shown


def preview(topic: Topic, channel: Channel, place: LogPlace, pause: Pause) -> dict[str, Any]:
    """Return the effect of a seek, and change nothing. Raises: as `find`."""
    return effect(topic, channel, seek_target(channel, find(topic, place, pause)))


def effect(topic: Topic, channel: Channel, target: int) -> dict[str, Any]:
    """Return in positions and counts the effect of a seek of a channel to an ordinal."""
    position_of = topic.reader.position_of
    return {
        "topic": topic.name,
        "channel": channel.name,
        "from": position_of(channel.ledger.cursor),
        "to": position_of(target),
        **seek_effect(channel, target),
    }


def move(topic: Topic, channel: Channel, place: LogPlace, pause: Pause, wait: Pause | None = None) -> dict[str, Any]:
    """Move a channel: all messages from the place on are delivered again, all before it are finished.

    wait: called until a sync in a thread has ended; None: block. Returns: the effect, as `preview`. Raises: as `find`,
    StorageError.
    """
    while True:
        target = reachable_target(topic, channel, place, pause)
        with channel.prepared_reset(wait, target, seek_reach(channel, target)):
            for _ in range(STEPS_IN_RESET_MAX):
                if channel.is_closed():
                    raise TopicGone
                if seek_target(channel, target) != target:
                    break
                if topic.reader.prepare(target):
                    return move_now(topic, channel, target)
                yield_or_read(topic.broker, topic.reader.presence, pause)


def reachable_target(topic: Topic, channel: Channel, place: LogPlace, pause: Pause) -> int:
    """Return the ordinal that a channel is moved to, whose place in the log can be found at once."""
    while True:
        target = seek_target(channel, find(topic, place, pause))
        prepare_in_steps(topic, partial(topic.reader.prepare, target), pause)
        if channel.is_closed():
            raise TopicGone
        if seek_target(channel, target) == target:
            return target


def move_now(topic: Topic, channel: Channel, target: int) -> dict[str, Any]:
    """Move a channel to an ordinal. Returns: the effect. Raises: StorageError."""
    done = effect(topic, channel, target)
    guid = seek(channel, target, topic.reader)
    if channel.trace is not None:
        channel.trace.moved(guid, done["skip"], done["redeliver"])
    logger.info("TOPIC(%s): channel %s moved to position %d", topic.name, channel.name, done["to"])
    return done


def no_pause() -> None:
    """Continue at once."""
