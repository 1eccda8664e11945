"""Tables of the pages: search, filters, order and pages by URL."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest
from flask import Flask

from pyqd.admin.pages.tables import Filter, PageColumn, PageTable, labelled, table_of

ROWS = list(range(60))
COLUMNS = (PageColumn("number", "Number", lambda row: row, is_number=True),)
FILTERS = (Filter("even", "Even", lambda row: row % 2 == 0), Filter("huge", "Huge", lambda row: row > 1000))


def table(query: str) -> PageTable:
    with Flask(__name__).test_request_context(f"/rows{query}"):
        return table_of(ROWS, COLUMNS, text_of=str, sort="number", filters=FILTERS)


def counts(found: PageTable) -> dict[str, int]:
    return {each.name: count for each, count in found.filters}


def test_sums_are_of_all_rows_that_match() -> None:
    columns = (PageColumn("number", "Number", lambda row: row, has_sum=True), PageColumn("text", "Text", str))
    with Flask(__name__).test_request_context("/rows?q=1&size=25"):
        assert table_of(ROWS, columns, text_of=str).sums == {"number": 1 + sum(range(10, 20)) + 21 + 31 + 41 + 51}


def test_cells_name_their_columns_for_narrow_screens() -> None:
    rows = '<tr><th scope="row">a</th><td class="number">1</td><td></td></tr><tr><td colspan="2">b</td><td>2</td></tr>'
    assert labelled(rows, ["Name", "A & B", ""]) == (
        '<tr><th scope="row">a</th><td data-label="A &amp; B" class="number">1</td><td></td></tr>'
        '<tr><td colspan="2">b</td><td>2</td></tr>'
    )


def test_filters_tell_how_many_rows_they_have() -> None:
    found = table("")
    assert (counts(found), found.found, found.chosen) == ({"even": 30, "huge": 0}, 60, "")


def test_a_filter_shows_its_rows_only() -> None:
    found = table("?show=even&sort=-number")
    assert (found.rows[:2], found.matching, found.total) == ([58, 56], 30, 60)


def test_a_filter_works_on_what_the_search_finds() -> None:
    found = table("?q=1&show=even")
    assert (found.rows, found.found) == ([10, 12, 14, 16, 18], 15)


def test_an_unknown_filter_shows_all_rows() -> None:
    assert table("?show=odd").matching == 60


@pytest.mark.parametrize(("size", "shown"), [("25", 25), ("100", 60), ("7", 50)])
def test_pages_have_the_size_of_the_url_if_it_is_a_known_one(size: str, shown: int) -> None:
    assert len(table(f"?size={size}").rows) == shown


@pytest.mark.parametrize(("query", "count"), [("?q=1", 0), ("", 4)])
def test_a_small_table_has_no_choice_of_sizes(query: str, count: int) -> None:
    with Flask(__name__).test_request_context(f"/rows{query}"):
        assert len(table_of(ROWS, COLUMNS, text_of=str).sizes()) == count


def test_links_keep_the_rest_of_the_url() -> None:
    with Flask(__name__).test_request_context("/rows?q=1&sort=-number&page=2&size=25&fragment=1"):
        found = table_of(ROWS, COLUMNS, text_of=str, filters=FILTERS)
        urls = [found.filter_url("even"), found.everything_url()]
    assert [parse_qs(urlsplit(url).query) for url in urls] == [
        {"q": ["1"], "sort": ["-number"], "size": ["25"], "show": ["even"]},
        {"sort": ["-number"], "size": ["25"]},
    ]
