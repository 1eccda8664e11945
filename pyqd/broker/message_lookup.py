"""Messages changed by their id: cancelled, rescheduled or made due at once, on one channel or on each.

Looking a message up may take long, so it is done in steps; `pause` is called between them and yields to the event loop.
If a ledger has to grow first, `wait` is called until its sync in a thread has ended; it is `pause` unless given. The
message is changed right after the step that found it, so that no consumer comes in between.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from pyqd.broker.channel import Channel
from pyqd.broker.peek import DEAD_LETTER, DEFERRED, IN_FLIGHT, READY
from pyqd.broker.replay import Pause, prepare_in_steps, yield_or_read
from pyqd.broker.topic import Topic
from pyqd.hot.broker.message_lookup import (
    AT_DEAD_LETTER,
    AT_DEFERRED,
    AT_FINISHED,
    AT_HELD,
    AT_IN_FLIGHT,
    AT_NOTED,
    AT_QUEUED,
    AT_RETURNED,
    AT_UNKNOWN,
    MessageLookup,
)
from pyqd.primitives.errors import StorageError

DONE: Final = "done"
FINISHED: Final = "finished"
HELD: Final = "held"
UNKNOWN: Final = "unknown"
FAILED: Final = "failed"

REFUSAL_OF: Final = {AT_IN_FLIGHT: IN_FLIGHT, AT_FINISHED: FINISHED, AT_HELD: HELD, AT_UNKNOWN: UNKNOWN}
STATE_OF: Final = {
    AT_QUEUED: READY,
    AT_RETURNED: READY,
    AT_DEFERRED: DEFERRED,
    AT_NOTED: DEFERRED,
    AT_DEAD_LETTER: DEAD_LETTER,
}

CHANNELS_PER_SLICE: Final = 8

Change = Callable[[MessageLookup], None]

logger = logging.getLogger(__name__)


class Outcome(NamedTuple):
    """Result of a change. channel: None if the topic holds the message for channels to come. was: the state before.

    error: that of the disk, if the status is FAILED.
    """

    channel: str | None
    status: str
    was: str | None = None
    error: StorageError | None = None


def cancel(lookup: MessageLookup) -> None:
    """Finish a message unread. Raises: StorageError."""
    lookup.cancel()


def reschedule_to(topic: Topic, due_ns: int, at_once: bool = False) -> Change:
    """Return the change that makes a message due at a time (Unix); a time that has passed: at once.

    at_once: for its trace, which does not show a due time then.
    """
    return lambda lookup: lookup.reschedule(due_ns, topic.reader, at_once)


def change_message(
    topic: Topic, channels: Iterable[Channel], guid: int, change: Change, pause: Pause, wait: Pause | None = None
) -> list[Outcome]:
    """Change a message on channels, one by one. Raises: TopicGone."""
    outcomes: list[Outcome] = []
    for channel in channels:
        if len(outcomes) % CHANNELS_PER_SLICE == CHANNELS_PER_SLICE - 1:
            pause()
        outcome = change_on_channel(topic, channel, guid, change, pause, wait or pause)
        if outcome is not None:
            outcomes.append(outcome)
    if not topic.channels_by_name and is_held(topic, guid, pause):
        outcomes.append(Outcome(None, HELD))
    if any(outcome.status != UNKNOWN for outcome in outcomes):
        # The message is known, so a channel that has nothing of it is done with it.
        outcomes = [outcome._replace(status=FINISHED) if outcome.status == UNKNOWN else outcome for outcome in outcomes]
    return outcomes


def change_on_channel(
    topic: Topic, channel: Channel, guid: int, change: Change, pause: Pause, wait: Pause
) -> Outcome | None:
    """Change a message on one channel. Returns: None if the channel was deleted meanwhile. Raises: TopicGone."""
    lookup = MessageLookup(channel, guid)
    growths_max = 2
    while True:
        prepare_in_steps(topic, lambda: topic.reader.prepare_guid(guid), pause)
        if channel.exiting:
            return None
        if lookup.step(topic.reader):
            # Of two ledgers at most, once: if one cannot grow, the change gets the reason. A growth that goes on for
            # another reason does not count.
            is_own = not channel.grows
            if growths_max == 0 or lookup.place not in STATE_OF or not lookup.make_room(change is cancel):
                break
            growths_max -= is_own
            while channel.grows:
                wait()
            lookup = MessageLookup(channel, guid)
        yield_or_read(topic.broker, topic.reader.presence, pause)
    state = STATE_OF.get(lookup.place)
    if state is None:
        return Outcome(channel.name, REFUSAL_OF[lookup.place])
    if state == DEAD_LETTER and change is not cancel:
        # The state is the status, too.
        return Outcome(channel.name, DEAD_LETTER)
    try:
        change(lookup)
    except StorageError as error:
        logger.error(
            "TOPIC(%s): cannot change message %016x in channel %s: %s; the message is unchanged",
            topic.name,
            guid,
            channel.name,
            error,
        )
        return Outcome(channel.name, FAILED, state, error)
    if lookup.place not in STATE_OF:
        # Its record was verified for the change, and is damaged.
        return Outcome(channel.name, REFUSAL_OF[lookup.place])
    return Outcome(channel.name, DONE, state)


def is_held(topic: Topic, guid: int, pause: Pause) -> bool:
    """Return True if the topic has a message that no channel was given. Raises: TopicGone."""
    prepare_in_steps(topic, lambda: topic.reader.prepare_guid(guid), pause)
    ordinal = topic.reader.ordinal_of_guid(guid)
    return ordinal is not None and ordinal >= topic.end
