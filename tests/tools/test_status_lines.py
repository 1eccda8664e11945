"""Status lines of tools that pass messages on."""

from __future__ import annotations

import pytest

from pyqd.tools.status_lines import StatusLines, percentile, status_lines


@pytest.fixture
def lines(monkeypatch):
    found: list[str] = []
    monkeypatch.setattr("pyqd.tools.status_lines.log", found.append)
    return found


def test_a_line_comes_with_the_first_message_after_so_many(lines):
    status = StatusLines(100, "[x]:")
    status.note(0.010, 100)
    assert lines == []
    status.note(0.020)
    assert lines == ["[x]: finished 100 - 99th: 20.00ms - 95th: 10.00ms - avg: 10.10ms"]


@pytest.mark.parametrize("sizes", [[1] * 1000, [1000], [333, 333, 334], [7] * 142 + [6]])
def test_batches_count_as_single_messages_do(lines, sizes):
    status = StatusLines(250, "[x]:")
    for size in sizes:
        status.note(0.001, size)
    assert lines == ["[x]: finished 250 - 99th: 1.00ms - 95th: 1.00ms - avg: 1.00ms"] * 3


def test_no_line_comes_without_a_number(lines):
    StatusLines(0, "").note(0.001, 1000)
    assert lines == []


def test_few_messages_a_line_are_warned_about(lines):
    StatusLines(99, "")
    assert lines == ["Warning: use more than 100 status values for accurate percentiles (configured with 99)"]


def test_a_single_address_has_no_lines_of_its_own(lines):
    for addresses, prefixes in ((["a"], ["[aggregate]:"]), (["a", "b"], ["[aggregate]:", "[a]:", "[b]:"])):
        lines.clear()
        together, each = status_lines(100, addresses)
        for status in (together, *each):
            status.note(0.001, 101)
        assert [line.split()[0] for line in lines] == prefixes


def test_percentiles_are_those_of_the_original():
    ordered = [float(number) for number in range(1, 11)]
    assert [percentile(percent, ordered) for percent in (50, 95, 99)] == [7.0, 10.0, 10.0]
    assert percentile(99, [5.0]) == 5.0
