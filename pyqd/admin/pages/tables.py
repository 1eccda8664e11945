"""Tables whose search, filter, sorting and paging are in the URL, and done on the server."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from flask import request
from markupsafe import Markup, escape

from pyqd.admin.site import path_here

PAGE_SIZES: Final = (25, 50, 100, 500)
PAGE_SIZE: Final = 50
LONG: Final = 20
TAG: Final = re.compile(r"<(tr|td|th)(?=[\s>])([^>]*)>")
SPAN: Final = re.compile(r'colspan="(\d+)"')


@dataclasses.dataclass(frozen=True, slots=True)
class PageColumn:
    """A column. name: in the URL. key: sorts rows; None if the column cannot sort. is_number: aligned to the right.

    has_sum: the sum of the keys is in the last row.
    """

    name: str
    title: str
    key: Callable[[Any], Any] | None = None
    is_number: bool = False
    help: str = ""
    has_sum: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Filter:
    """A choice of rows. name: in the URL. test: tells whether a row belongs to it."""

    name: str
    title: str
    test: Callable[[Any], bool]


@dataclasses.dataclass(slots=True)
class PageTable:
    """One page of rows, and the values for the links around it.

    filters: each with the number of its rows among those that the search finds; found is the number of all of these.
    chosen: name of the filter in force, empty for none. sums: over all rows that match, by the names of columns.
    """

    columns: Sequence[PageColumn]
    rows: list[Any]
    total: int
    matching: int
    page: int
    page_count: int
    page_size: int
    sort: str
    descending: bool
    search: str
    filters: Sequence[tuple[Filter, int]] = ()
    chosen: str = ""
    found: int = 0
    sums: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def is_long(self) -> bool:
        """True if a reader may want to search the rows."""
        return self.total > LONG

    def sort_url(self, column: PageColumn) -> str:
        """Return the link that sorts by a column; numbers begin with the greatest."""
        is_current = column.name == self.sort
        descending = not self.descending if is_current else column.is_number
        return changed_url(sort=f"-{column.name}" if descending else column.name, page="")

    def page_url(self, page: int) -> str:
        return changed_url(page=str(page) if page > 1 else "")

    def filter_url(self, name: str) -> str:
        return changed_url(show=name, page="")

    def everything_url(self) -> str:
        return changed_url(q="", show="", page="")

    def sizes(self) -> list[tuple[int, str]]:
        """Return the sizes of pages with their links; none for a table that fits on the smallest page."""
        if self.matching <= PAGE_SIZES[0]:
            return []
        return [(size, changed_url(size="" if size == PAGE_SIZE else str(size), page="")) for size in PAGE_SIZES]


def table_of(
    rows: Iterable[Any],
    columns: Sequence[PageColumn],
    *,
    text_of: Callable[[Any], str],
    sort: str = "",
    filters: Sequence[Filter] = (),
) -> PageTable:
    """Return the page of rows that the URL asks for.

    text_of: the text that is searched. sort: the default, `-name` for descending.
    """
    everything = list(rows)
    search = request.args.get("q", "").strip()
    found = [row for row in everything if search.lower() in text_of(row).lower()] if search else everything
    found_count = len(found)
    groups = {each.name: [row for row in found if each.test(row)] for each in filters}
    chosen = request.args.get("show", "")
    chosen = chosen if chosen in groups else ""
    found = groups.get(chosen, found)
    wanted = request.args.get("sort", sort) or sort
    descending = wanted.startswith("-")
    column = next((each for each in columns if each.name == wanted.lstrip("-") and each.key is not None), None)
    if column is not None:
        found.sort(key=column.key, reverse=descending)
    size = number_of(request.args.get("size", ""), PAGE_SIZE)
    size = size if size in PAGE_SIZES else PAGE_SIZE
    page_count = max(1, -(-len(found) // size))
    page = min(max(1, number_of(request.args.get("page", ""), 1)), page_count)
    shown = found[(page - 1) * size : page * size]
    return PageTable(
        columns,
        shown,
        len(everything),
        len(found),
        page,
        page_count,
        size,
        "" if column is None else column.name,
        descending,
        search,
        [(each, len(groups[each.name])) for each in filters],
        chosen,
        found_count,
        {each.name: sum(map(each.key, found)) for each in columns if each.has_sum and each.key is not None},
    )


def labelled(rows: str, titles: Sequence[str]) -> Markup:
    """Return the rows of a table whose cells name their columns: a narrow screen shows each row as a card.

    rows: HTML, safe. titles: of the columns, HTML or plain text; an empty one gives no name.
    """
    column = 0

    def name(tag: re.Match[str]) -> str:
        nonlocal column
        if tag[1] == "tr":
            column = 0
            return tag[0]
        title = titles[column] if column < len(titles) else ""
        spanned = SPAN.search(tag[2])
        column += int(spanned[1]) if spanned else 1
        return f'<td data-label="{escape(title)}"{tag[2]}>' if tag[1] == "td" and title and not spanned else tag[0]

    return Markup(TAG.sub(name, rows))


def sorted_by(columns: Iterable[PageColumn], name: str, key: Callable[[Any], Any]) -> list[PageColumn]:
    """Return columns, the named one with a key that is known only now."""
    return [dataclasses.replace(each, key=key) if each.name == name else each for each in columns]


def number_of(text: str, default: int) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else default


def changed_url(**changes: str) -> str:
    """Return the current URL with other parameters; an empty value removes one."""
    query = {name: value for name, value in request.args.items() if name != "fragment"} | changes
    text = urlencode({name: value for name, value in query.items() if value})
    return path_here() + (f"?{text}" if text else "")
