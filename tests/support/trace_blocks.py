"""Blocks of trace events, encoded in Python by docs/trace.md: decoders are tested without the broker's encoder."""

import struct

from pyqd.hot.wire.trace_events import KINDS, REASONS
from tests.support.storage import record_bytes

KIND = {name: number for number, name in enumerate(KINDS)}
REASON = {name: number for number, name in enumerate(REASONS)}

VERSION = 1
EVENT_BYTES = 16
CONTEXT, PLACE, CLIENT, CHANNELS = range(64, 68)
HAS_DUE, HAS_BODY, IS_STORED, IS_BULK, IS_RUN = (1 << bit for bit in range(5))


def padded(entry):
    return entry + bytes(-len(entry) % EVENT_BYTES)


def place(topic, channel=b""):
    return padded(struct.pack("<BBB5x", PLACE, len(topic), len(channel)) + topic + channel)


def client(address, user_agent=b""):
    return padded(struct.pack("<BBH4x", CLIENT, len(address), len(user_agent)) + address + user_agent)


def channels(topic, *members):
    return padded(struct.pack("<BxHHxx", CHANNELS, topic, len(members)) + struct.pack(f"<{len(members)}H", *members))


def context(place_number, timestamp_ns, client_number=0):
    return struct.pack("<BxHHxxq", CONTEXT, place_number, client_number, timestamp_ns)


def event(kind, guid, *, attempt=0, value=0, due_ns=None, count=None, body=None, stored=False):
    flags = (
        (HAS_DUE if due_ns is not None else 0)
        | (HAS_BODY if body is not None else 0)
        | (IS_STORED if stored else 0)
        | (IS_BULK if count is not None else 0)
    )
    number = KIND[kind] if isinstance(kind, str) else kind
    found = struct.pack("<BBHIQ", number, flags, attempt if body is None else len(body), value, guid)
    if due_ns is not None:
        found += struct.pack("<q8x", due_ns)
    if count is not None:
        found += struct.pack("<q8x", count)
    return found + padded(body or b"")


def run(guid, *sizes, stored=False):
    flags = IS_RUN | (IS_STORED if stored else 0)
    found = struct.pack("<BBHIQ", KIND["published"], flags, 0, len(sizes) - 1, guid)
    return found + padded(struct.pack(f"<{len(sizes)}I", *sizes))


def block(first, row_count, *entries, dense_from=1, version=VERSION, node_id=7):
    return struct.pack("<HHIqqq", version, node_id, row_count, first, dense_from, 99) + b"".join(entries)


def record(body, *, seq=0, guid=1, timestamp_ns=5, flags=0):
    return record_bytes(seq, body, guid=guid, timestamp_ns=timestamp_ns, flags=flags)
