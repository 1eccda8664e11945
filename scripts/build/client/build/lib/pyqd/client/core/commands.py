"""Encoder of a client's commands. Names are checked here, so that a wrong one does not cost a connection.

Source: docs/nsq/tcp-protocol.md, "Commands"; docs/protocol-extensions.md, "Due times" and "DMPUB".
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from pyqd.client.errors import InvalidNameError, SettingError
from pyqd.primitives.names import is_valid_name_str

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAGIC: Final = b"  V2"
NOP: Final = b"NOP\n"
CLS: Final = b"CLS\n"
# Most programs publish to a few topics.
LINES_KNOWN_MAX: Final = 1024

_int32 = struct.Struct(">i").pack
_int32_pair = struct.Struct(">ii").pack
_time_and_size = struct.Struct(">qi").pack


def check_topic(name: str) -> None:
    """Check the name of a topic. Raises: InvalidNameError."""
    _check_name(name, "topic")


def check_channel(name: str) -> None:
    """Check the name of a channel. Raises: InvalidNameError."""
    _check_name(name, "channel")


def _check_name(name: object, kind: str) -> None:
    if not isinstance(name, str) or not is_valid_name_str(name):
        raise InvalidNameError(
            f"{name!r} is not the name of a {kind}: 1 to 64 of the characters a-z, A-Z, 0-9, '.', '_' and '-'; "
            f"'#ephemeral' may be at the end"
        )


def identify(fields: Mapping[str, object]) -> bytes:
    """Return IDENTIFY. fields: of its JSON body."""
    return _with_body(b"IDENTIFY\n", json.dumps(dict(fields)).encode())


def auth(secret: str) -> bytes:
    """Return AUTH."""
    return _with_body(b"AUTH\n", secret.encode())


def sub(topic: str, channel: str) -> bytes:
    """Return SUB. Raises: InvalidNameError."""
    check_topic(topic)
    check_channel(channel)
    return f"SUB {topic} {channel}\n".encode()


def rdy(count: int) -> bytes:
    """Return RDY."""
    return b"RDY %d\n" % count


def fin(message_id: bytes) -> bytes:
    """Return FIN."""
    return b"FIN " + message_id + b"\n"


def req(message_id: bytes, delay_ms: int) -> bytes:
    """Return REQ. Raises: SettingError for a negative delay."""
    return b"REQ %b %d\n" % (message_id, _not_negative(delay_ms))


def touch(message_id: bytes) -> bytes:
    """Return TOUCH."""
    return b"TOUCH " + message_id + b"\n"


def pub(topic: str, body: Buffer) -> bytes:
    """Return PUB of one message. Raises: InvalidNameError; SettingError for an empty body."""
    # _with_body in place, and a cache with one argument: half the time of the plain form.
    if type(body) is bytes and body:
        return b"".join((_pub_line(topic), _int32(len(body)), body))
    return _with_body(_pub_line(topic), body)


def dpub(topic: str, body: Buffer, delay_ms: int) -> bytes:
    """Return DPUB of a message that is due after a delay. Raises: InvalidNameError, SettingError."""
    return _with_body(b"%b%d\n" % (_line_start("DPUB", topic), _not_negative(delay_ms)), body)


def dpub_at(topic: str, body: Buffer, due_ms: int) -> bytes:
    """Return DPUB of a message with a due time, in Unix ms. Only pyqd knows the form. Raises: as dpub."""
    return _with_body(b"%b@%d\n" % (_line_start("DPUB", topic), _not_negative(due_ms)), body)


def mpub(topic: str, bodies: Sequence[Buffer]) -> bytes:
    """Return MPUB. Raises: InvalidNameError; SettingError for an empty body, and without a body."""
    parts: list[Buffer] = []
    total = 4
    for body in bodies:
        size = _size_of(body)
        parts += (_int32(size), body)
        total += 4 + size
    return _batch(_mpub_line(topic), total, len(bodies), parts)


def dmpub(topic: str, bodies_with_ms: Sequence[tuple[Buffer, int]], at: bool) -> bytes:
    """Return DMPUB, which only pyqd knows: a time for each message, in ms. at: the times are due times since 1970.

    Raises: InvalidNameError; SettingError for an empty body, a negative time, and without a body.
    """
    parts: list[Buffer] = []
    total = 4
    for body, time_ms in bodies_with_ms:
        size = _size_of(body)
        parts += (_time_and_size(_not_negative(time_ms), size), body)
        total += 12 + size
    line = _line_start("DMPUB", topic) + (b"@each\n" if at else b"each\n")
    return _batch(line, total, len(bodies_with_ms), parts)


def _batch(line: bytes, total_bytes: int, count: int, parts: Sequence[Buffer]) -> bytes:
    if not count:
        raise SettingError("a batch has at least one message")
    return b"".join((line, _int32_pair(total_bytes, count), *parts))


def _with_body(line: bytes, body: Buffer) -> bytes:
    return b"".join((line, _int32(_size_of(body)), body))


def _size_of(body: Buffer) -> int:
    # Bytes are by far the most frequent, and a view of them costs as much as the rest of a command.
    size = len(body) if type(body) is bytes else memoryview(body).nbytes
    if not size:
        raise SettingError("a body has at least one byte")
    return size


def _not_negative(time_ms: int) -> int:
    if time_ms < 0:
        raise SettingError(f"a time of {time_ms} ms is negative")
    return time_ms


@lru_cache(LINES_KNOWN_MAX)
def _pub_line(topic: str) -> bytes:
    check_topic(topic)
    return f"PUB {topic}\n".encode()


@lru_cache(LINES_KNOWN_MAX)
def _mpub_line(topic: str) -> bytes:
    check_topic(topic)
    return f"MPUB {topic}\n".encode()


@lru_cache(LINES_KNOWN_MAX)
def _line_start(command: str, topic: str) -> bytes:
    check_topic(topic)
    return f"{command} {topic} ".encode()
