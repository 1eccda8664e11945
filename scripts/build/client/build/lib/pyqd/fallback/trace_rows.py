"""Decoded trace events as Python lists, or as an Arrow record batch over the decoder's buffers.

Both have the columns of docs/trace.md, "Columns", with None or null where an event has no value.
"""

import importlib
from array import array
from typing import Any, Final

from pyqd.fallback.columns import ID_BYTES
from pyqd.hot.wire.trace_events import KINDS, TraceColumns

NAMES: Final = (
    "position",
    "timestamp_ns",
    "kind",
    "message_id",
    "topic",
    "channel",
    "client",
    "user_agent",
    "attempt",
    "size_bytes",
    "due_ns",
    "delay_ms",
    "count",
    "reason",
    "body",
)


def lists(decoded: TraceColumns) -> dict[str, list[Any]]:
    """Return a list for each column, by name."""
    return {
        "position": array("q", decoded.positions).tolist(),
        "timestamp_ns": array("q", decoded.timestamps_ns).tolist(),
        "kind": [KINDS[kind] for kind in decoded.kinds],
        "message_id": _ids(decoded),
        "topic": _texts(decoded.topics, decoded.topic_indexes),
        "channel": _texts(decoded.channels, decoded.channel_indexes),
        "client": _texts(decoded.clients, decoded.client_indexes),
        "user_agent": _texts(decoded.user_agents, decoded.user_agent_indexes),
        "attempt": _numbers("i", decoded.attempts, decoded.attempt_bits),
        "size_bytes": _numbers("i", decoded.sizes, decoded.size_bits),
        "due_ns": _numbers("q", decoded.dues_ns, decoded.due_bits),
        "delay_ms": _numbers("q", decoded.delays_ms, decoded.delay_bits),
        "count": _numbers("q", decoded.counts, decoded.count_bits),
        "reason": _texts(decoded.reasons, decoded.reason_indexes),
        "body": _bodies(decoded),
    }


def _ids(decoded: TraceColumns) -> list[str | None]:
    offsets = array("i", decoded.id_offsets)
    text = decoded.ids.decode("ascii")
    return [text[at : at + ID_BYTES] if at != offsets[row + 1] else None for row, at in enumerate(offsets[:-1])]


def _texts(values: list[str | None], indexes: bytes) -> list[str | None]:
    return [values[index] for index in array("i", indexes)]


def _has(bits: bytes, row: int) -> bool:
    return bool(bits[row >> 3] & 1 << (row & 7))


def _numbers(code: str, values: bytes, bits: bytes) -> list[int | None]:
    if not any(bits):
        return [None] * len(array(code, values))
    return [value if _has(bits, row) else None for row, value in enumerate(array(code, values))]


def _bodies(decoded: TraceColumns) -> list[bytes | None]:
    if not any(decoded.body_bits):
        return [None] * decoded.rows
    offsets = array("i", decoded.body_offsets)
    return [
        decoded.bodies[offsets[row] : offsets[row + 1]] if _has(decoded.body_bits, row) else None
        for row in range(decoded.rows)
    ]


def record_batch(decoded: TraceColumns) -> Any:
    """Return a pyarrow.RecordBatch over the buffers, without a copy. Texts are dictionary-encoded, as is the kind.

    Raises: ImportError without pyarrow.
    """
    pa = importlib.import_module("pyarrow")
    rows = decoded.rows

    def numbers(kind: Any, values: bytes, bits: bytes | None = None) -> Any:
        return pa.Array.from_buffers(kind, rows, [None if bits is None else pa.py_buffer(bits), pa.py_buffer(values)])

    def texts(values: list[str | None], indexes: Any) -> Any:
        return pa.DictionaryArray.from_arrays(indexes, pa.array(values, pa.string()))

    def sized(kind: Any, offsets: bytes, values: bytes, bits: bytes) -> Any:
        return pa.Array.from_buffers(kind, rows, [pa.py_buffer(bits), pa.py_buffer(offsets), pa.py_buffer(values)])

    columns = (
        numbers(pa.int64(), decoded.positions),
        numbers(pa.int64(), decoded.timestamps_ns),
        texts(KINDS, numbers(pa.int8(), decoded.kinds)),
        sized(pa.string(), decoded.id_offsets, decoded.ids, decoded.id_bits),
        texts(decoded.topics, numbers(pa.int32(), decoded.topic_indexes)),
        texts(decoded.channels, numbers(pa.int32(), decoded.channel_indexes)),
        texts(decoded.clients, numbers(pa.int32(), decoded.client_indexes)),
        texts(decoded.user_agents, numbers(pa.int32(), decoded.user_agent_indexes)),
        numbers(pa.int32(), decoded.attempts, decoded.attempt_bits),
        numbers(pa.int32(), decoded.sizes, decoded.size_bits),
        numbers(pa.int64(), decoded.dues_ns, decoded.due_bits),
        numbers(pa.int64(), decoded.delays_ms, decoded.delay_bits),
        numbers(pa.int64(), decoded.counts, decoded.count_bits),
        texts(decoded.reasons, numbers(pa.int32(), decoded.reason_indexes)),
        sized(pa.binary(), decoded.body_offsets, decoded.bodies, decoded.body_bits),
    )
    return pa.RecordBatch.from_arrays(list(columns), names=list(NAMES))
