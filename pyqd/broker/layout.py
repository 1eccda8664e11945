"""The small files of topics and channels as bytes, for those who read or write them without a broker.

The broker itself has them in C: topic.pxd and slots.pxd in pyqd/hot/broker/. Source: docs/storage.md, "Topic",
"Channel".
"""

import struct
from typing import NamedTuple

from pyqd.hot.broker.topic import TOPIC_STATE_SIZE
from pyqd.primitives.errors import CorruptionError

TOPIC_MAGIC = b"PYQDTOP\0"
TOPIC_VERSION = 1
# What an entry of the file `attempts` is about: a record of the topic's log, or of the channel's parked log.
FROM_TOPIC = 0
FROM_PARKED = 1

_TOPIC_STATE = struct.Struct("<8sIIQQQQQ")


class TopicState(NamedTuple):
    """The file `state` of a topic."""

    paused: bool
    held_from: int
    deferred_below: int
    last_guid: int
    message_count: int
    message_bytes: int


NO_STATE = TopicState(False, 0, 0, 0, 0, 0)


def pack_topic_state(state: TopicState) -> bytes:
    """Return the content of a topic's state file."""
    return _TOPIC_STATE.pack(TOPIC_MAGIC, TOPIC_VERSION, *state).ljust(TOPIC_STATE_SIZE, b"\0")


def parse_topic_state(content: bytes, path: str) -> TopicState:
    """Return the state in a file's content; path is for the error. Raises: CorruptionError."""
    if content[: len(TOPIC_MAGIC)] == bytes(len(TOPIC_MAGIC)):
        return NO_STATE
    if len(content) < _TOPIC_STATE.size or content[: len(TOPIC_MAGIC)] != TOPIC_MAGIC:
        raise CorruptionError(path, 0, "not the state of a pyqd topic")
    _, version, paused, *numbers = _TOPIC_STATE.unpack_from(content)
    if version != TOPIC_VERSION:
        raise CorruptionError(path, 8, f"topic format version {version}; this pyqd reads {TOPIC_VERSION}")
    return TopicState(bool(paused), *numbers)
