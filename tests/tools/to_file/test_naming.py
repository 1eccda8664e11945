"""Names of output files."""

from __future__ import annotations

import os
import time

import pytest

from pyqd.tools.to_file.naming import FileNames, NameFormatError, format_time, host_of

# 2026-11-23 15:04:05 UTC, a Monday.
MOMENT_S = 1795446245


@pytest.fixture(autouse=True)
def utc(monkeypatch):
    """Local time is UTC."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def names_of(form="<TOPIC>.<HOST><REV>.<DATETIME>.log", datetime_form="%Y-%m-%d_%H", suffix="", **options):
    return FileNames.of(form, datetime_form, suffix, "orders", "web1", **{"keeps_revision": True, **options})


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("%Y-%m-%d_%H", "2026-11-23_15"),
        ("%y%m%d-%H%M%S", "261123-150405"),
        ("%A %a %B %b %I%p", "Monday Mon November Nov 03PM"),
        ("%Z %z", "UTC +0000"),
        ("100%%", "100%"),
        ("%%Y", "%Y"),
        ("%j %", "%j %"),
        ("2006 Jan 15", "2006 Jan 15"),
    ],
)
def test_a_time_has_the_conversions_of_the_format(form, text):
    assert format_time(form, MOMENT_S) == text


@pytest.mark.parametrize(
    ("identifier", "text"),
    [("", "web1"), ("<SHORT_HOST>-a", "web1-a"), ("<HOSTNAME>", "web1.example.org"), ("other", "other")],
)
def test_the_host_is_the_short_name_unless_an_identifier_is_given(identifier, text):
    assert host_of(identifier, "web1.example.org") == text


def test_every_token_of_the_format_is_replaced():
    names = names_of("<TOPIC>/<DATETIME>/<HOST>.<PID><REV>.log", suffix=".gz")
    name = names.at(MOMENT_S)
    assert names.revised(name, 7) == f"orders/2026-11-23_15/web1.{os.getpid()}-000007.log.gz"


def test_a_suffix_is_not_repeated():
    assert names_of("<TOPIC><REV>.gz", suffix=".gz").at(MOMENT_S) == "orders<REV>.gz"


def test_a_plain_file_has_a_revision_only_if_its_name_is_in_use():
    names = names_of(keeps_revision=False)
    name = names.at(MOMENT_S)
    assert names.revised(name, 0) == "orders.web1.2026-11-23_15.log"
    assert names.revised(name, 1) == "orders.web1-000001.2026-11-23_15.log"


def test_a_format_without_revision_is_refused_where_files_need_one():
    with pytest.raises(NameFormatError, match="missing <REV>"):
        names_of("<TOPIC>.log")
    assert names_of("<TOPIC>.log", keeps_revision=False).has_revision is False


@pytest.mark.parametrize("topic", [".", ".."])
def test_a_topic_whose_name_is_a_way_out_of_the_directory_is_refused(topic):
    with pytest.raises(NameFormatError, match="out of"):
        FileNames.of("<TOPIC>/<DATETIME><REV>", "%Y", "", topic, "web1", keeps_revision=True)


def test_the_revision_of_a_file_is_read_from_its_name():
    names = names_of("<TOPIC>/<DATETIME>/<HOST>.<PID><REV>.log")
    assert names.parse("orders/2020-01-01_00/web1.1234-000012.log") == ("orders/2020-01-01_00/web1.1234<REV>.log", 12)


@pytest.mark.parametrize(
    "name", ["orders/2020/web1.x-000012.log", "orders/2020/web1.1-12.log", "other/2020/web1.1-000012.log"]
)
def test_other_files_are_not_taken_for_output(name):
    assert names_of("<TOPIC>/<DATETIME>/<HOST>.<PID><REV>.log").parse(name) is None


def test_the_wildcard_finds_files_of_any_time_revision_and_process():
    names = names_of("[a]<TOPIC>.<PID><REV>.<DATETIME>.log", "%Y/%m%%%d")
    assert names.wildcard() == "[[]a]orders.*-*.*/*%*.log"
