"""Ranges of topic logs as Arrow record batches: fetched ahead, decoded in compiled code, and checked
for completeness.
"""

import logging
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Final

import pyarrow as pa

from pyqd_spark.brokers import (
    LOG_PAGE_BYTES,
    BrokerClient,
    LogPage,
    OtherNodeError,
    PositionBeyondEndError,
    PositionGoneError,
    TopicNotFoundError,
    ordinal_of,
)
from pyqd_spark.discovery import lose
from pyqd_spark.plan import LogRange
from pyqd_spark.read_options import ReadSettings

try:
    from pyqd.hot.wire.columns import Columns
    from pyqd.hot.wire.columns import decode as decode
except ImportError:  # For a copy of the Python modules without the compiled ones.
    from pyqd.fallback.columns import Columns, decode  # type: ignore[assignment]

# Pages that are fetched, or wait to be decoded.
PAGES_AHEAD: Final = 3

SCHEMA: Final = pa.schema(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("node", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("timestamp_ns", pa.int64(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("deferred_until", pa.timestamp("us", tz="UTC"), nullable=True),
    ]
)
SCHEMA_WITHOUT_BODY: Final = pa.schema(list(SCHEMA)[1:])

logger = logging.getLogger(__name__)


def read_range(settings: ReadSettings, one: LogRange) -> Iterator[pa.RecordBatch]:
    """Yield all messages of a range, in order. Reading it again yields the same.

    Raises: DataLossError if some are missing and failOnDataLoss is true; BrokerError.
    """
    expected = one.first
    for page in ahead(pages_of(settings, one)):
        columns = decoded(settings, one, page, expected)
        if columns.lost:
            missing(settings, one, columns.lost, f"between {expected} and {columns.following}", columns.damaged)
        expected = max(expected, columns.following)
        if columns.rows:
            yield batch_of(columns, one.topic, one.node, one.partition)
    left = ordinal_of(one.stop) - ordinal_of(expected)
    if expected < one.stop and left > 0:
        missing(settings, one, left, f"from {expected} to the end of the range, {one.stop}")


def decoded(settings: ReadSettings, one: LogRange, page: LogPage, expected: int) -> Columns:
    """Return the columns of a page. Raises: DataLossError if it is damaged and failOnDataLoss is true."""
    try:
        return decode(page.data, expected, settings.include_body, False)
    except ValueError as error:
        lose(settings, f"{place_of(one)}: the records from {page.first} on cannot be decoded: {error}")
    return decode(page.data, expected, settings.include_body, True)


def place_of(one: LogRange) -> str:
    return f"topic {one.topic} at node {one.node} ({one.address})"


def missing(settings: ReadSettings, one: LogRange, count: int, where: str, damaged: int = 0) -> None:
    """Raise an error for missing records, or log them and go on. Raises: DataLossError."""
    how = f", {damaged} of them with a wrong checksum" if damaged else ""
    lose(settings, f"{place_of(one)}: {count} messages {where} cannot be read{how}")


def pages_of(settings: ReadSettings, one: LogRange) -> Iterator[LogPage]:
    """Yield the pages of a range; if a part is gone, the pages of the rest.

    The reader notices the missing positions. Raises: DataLossError, BrokerError.
    """
    first = one.first
    with BrokerClient(one.address, settings.connection) as client:
        while first < one.stop:
            try:
                for page in client.pages(one.topic, one.node, first, one.stop, LOG_PAGE_BYTES):
                    check_created(one, page)
                    yield page
                return
            except PositionGoneError as error:
                lose(settings, f"{place_of(one)}: {error}; the oldest message kept has {error.earliest}")
                # The records may also have gone while pages were read; earlier pages were yielded.
                first = max(first + 1, error.earliest)
            except (PositionBeyondEndError, TopicNotFoundError, OtherNodeError) as error:
                lose(settings, f"{place_of(one)}: {error}")
                return


def check_created(one: LogRange, page: LogPage) -> None:
    """Check that a topic was not deleted and created again. Raises: OtherNodeError."""
    if one.created and page.created and page.created != one.created:
        raise OtherNodeError(f"{one.address}: topic {one.topic} was deleted and re-created")


def ahead(pages: Iterator[LogPage]) -> Iterator[LogPage]:
    """Yield pages while a thread fetches the next ones."""
    pool = ThreadPoolExecutor(1, "pyqd-pages")
    waiting = deque(pool.submit(next, pages, None) for _ in range(PAGES_AHEAD))
    try:
        while (page := waiting.popleft().result()) is not None:
            waiting.append(pool.submit(next, pages, None))
            yield page
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def batch_of(columns: Columns, topic: str, node: str, partition: int) -> pa.RecordBatch:
    """Return a record batch over the buffers of the columns, without a copy."""
    rows = columns.rows
    arrays = [
        constant(topic, rows),
        constant(node, rows),
        constant(partition, rows),
        values(pa.int64(), rows, columns.positions),
        values(SCHEMA.field("timestamp").type, rows, columns.timestamps_us),
        values(pa.int64(), rows, columns.timestamps_ns),
        texts(pa.string(), rows, columns.id_offsets, columns.ids),
        values(SCHEMA.field("deferred_until").type, rows, columns.dues_us, columns.due_bits, columns.due_count),
    ]
    if columns.body_offsets is None or columns.bodies is None:
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA_WITHOUT_BODY)
    return pa.RecordBatch.from_arrays(
        [texts(pa.binary(), rows, columns.body_offsets, columns.bodies), *arrays], schema=SCHEMA
    )


def values(
    kind: pa.DataType, rows: int, data: bytes, valid_bits: bytes | None = None, valid_count: int = 0
) -> pa.Array:
    """Return an array over a buffer of numbers; valid_bits marks those that are not null."""
    bits = None if valid_bits is None else pa.py_buffer(valid_bits)
    nulls = 0 if valid_bits is None else rows - valid_count
    return pa.Array.from_buffers(kind, rows, [bits, pa.py_buffer(data)], nulls)


def texts(kind: pa.DataType, rows: int, offsets: bytes, data: bytes) -> pa.Array:
    """Return an array over the buffers of values of different sizes."""
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)], 0)


def constant(value: str | int, rows: int) -> pa.Array:
    """Return an array with the same value in each row."""
    size = 1 << max(rows - 1, 0).bit_length()
    return repeated(value, size).slice(0, rows)


@lru_cache(maxsize=64)
def repeated(value: str | int, size: int) -> pa.Array:
    """Return an array of that size, cached for the next page."""
    return pa.repeat(pa.scalar(value, pa.int32() if isinstance(value, int) else pa.string()), size)
