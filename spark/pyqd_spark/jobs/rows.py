"""Pages of a log as rows of a table: those of format("pyqd") without the columns that are directories or may change.

`partition` is left out: it is the index of a node in a list that grows; the node's name says the same permanently.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import pyarrow as pa

from pyqd_spark.brokers import Page
from pyqd_spark.decode import SCHEMA as SOURCE_SCHEMA
from pyqd_spark.decode import batch_of, decode
from pyqd_spark.jobs.plan import Range
from pyqd_spark.plan import LogRange

LEFT_OUT: Final = frozenset({"topic", "partition"})
COLUMNS: Final = [name for name in SOURCE_SCHEMA.names if name not in LEFT_OUT]
SCHEMA: Final = pa.schema([SOURCE_SCHEMA.field(name) for name in COLUMNS])


class Rows(NamedTuple):
    """Rows of a page. body_bytes: of all bodies. damaged: number of damaged records, which are left out."""

    batch: pa.RecordBatch
    body_bytes: int
    damaged: int


def read_page(page: Page, part: Range, expected: int, *, skip_damaged: bool) -> Rows:
    """Return the rows of a page of a range. expected: the requested position.

    skip_damaged: leave out damaged records. Raises: ValueError for a damaged record that is not to be left out, or if
    the start of the next record is unknown.
    """
    columns = decode(page.data, expected, True, skip_damaged)
    one = LogRange(
        topic=part.topic,
        node=part.node,
        partition=0,
        address="",
        created=part.created,
        first=part.first,
        stop=part.stop,
    )
    batch = batch_of(columns, one).select(COLUMNS)
    return Rows(batch, len(columns.bodies or b""), columns.damaged)
