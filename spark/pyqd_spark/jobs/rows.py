"""Columns of a drained table, and the row groups of a file that gather its rows.

The columns are those of format("pyqd") without those that are directories or may change.

`partition` is left out: it is the index of a node in a list that grows; the node's name says the same permanently.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from pyqd_spark.decode import SCHEMA as SOURCE_SCHEMA
from pyqd_spark.landing import Landed, Landing

LEFT_OUT: Final = frozenset({"topic", "partition"})
COLUMNS: Final = [name for name in SOURCE_SCHEMA.names if name not in LEFT_OUT]
SCHEMA: Final = pa.schema([SOURCE_SCHEMA.field(name) for name in COLUMNS])

# Size that fits a reader's memory and compresses well.
GROUP_BYTES = 16 << 20
GROUP_ROWS = 1 << 20


class RowGroups:
    """Row groups of a file in the making: a page of a log alone is too small for one. rows: number of added rows."""

    def __init__(self, landing: Landing) -> None:
        self.landing = landing
        self.rows = 0
        self._waiting: list[pa.Table] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0

    def add(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Add rows; write a row group when there are enough. Raises: StorageError."""
        if rows.num_rows == 0:
            return
        self._waiting.append(rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows]))
        self.rows += rows.num_rows
        self._waiting_rows += rows.num_rows
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= GROUP_BYTES or self._waiting_rows >= GROUP_ROWS:
            self._write()

    def land(self) -> Landed:
        """Write the buffered rows and make the file visible. Raises: StorageError."""
        self._write()
        return self.landing.land()

    def _write(self) -> None:
        if self._waiting:
            self.landing.write(pa.concat_tables(self._waiting))
            self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0
