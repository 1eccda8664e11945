"""Pages of a log as the rows of a table: those of format("pyqd"), without what the directories say and what may change.

`partition` is left out, as it is the place of a node in a list that grows; the node says the same for good.
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
    """The rows of a page. body_bytes: of all bodies. damaged: how many records were left out, as they are damaged."""

    batch: pa.RecordBatch
    body_bytes: int
    damaged: int


def read_page(page: Page, part: Range, expected: int, *, skip_damaged: bool) -> Rows:
    """Return the rows of a page of a range. expected: the position that was asked for.

    skip_damaged: leave out what is damaged. Raises: ValueError where something is, and it is not to be left out, or it
    cannot be told where the next record begins.
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
