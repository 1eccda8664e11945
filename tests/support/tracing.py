"""Reading of a broker's trace events, decoded into rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pyqd.fallback import trace_rows
from pyqd.hot.wire import trace_events

PAGES_MAX = 10_000


class Row(SimpleNamespace):
    """One event, with the columns of docs/trace.md as attributes."""

    @property
    def guid(self) -> int:
        return int(self.message_id, 16)


def rows_of(decoded: Any) -> list[Any]:
    """Return decoded columns as rows."""
    columns = trace_rows.lists(decoded)
    return [Row(**dict(zip(columns, values, strict=True))) for values in zip(*columns.values(), strict=True)]


def pages_of(broker: Any, position: int = 0, bytes_max: int = 1 << 20) -> list[Any]:
    """Return all pages of a broker's log from a position on, as the route reads them."""
    pages: list[Any] = []
    for _ in range(PAGES_MAX):
        page = broker.tracing.read(position, bytes_max, lambda: None)
        if not page.data:
            return pages
        pages.append(page)
        position = page.next
    raise AssertionError("the log does not come to an end")


def events_of(broker: Any, position: int = 0, bytes_max: int = 1 << 20, *, skip_damaged: bool = False) -> list[Any]:
    """Return all events of a broker from a position on, gaps included. skip_damaged: as for `decode`."""
    rows, expected = [], position
    for page in pages_of(broker, position, bytes_max):
        decoded = trace_events.decode(page.data, expected, skip_damaged)
        rows += rows_of(decoded)
        expected = decoded.following
    return rows


def kinds_of(rows: list[Any]) -> list[str]:
    return [row.kind for row in rows]
