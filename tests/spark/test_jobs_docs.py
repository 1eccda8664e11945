"""docs/spark-jobs.md works: every block of it runs here unchanged, in an empty home directory."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pyqd_spark import cli
from tests.meta.repository import ROOT
from tests.spark.drained import files, numbers
from tests.support import resident_spark
from tests.support.pages import sections_of
from tests.support.reader import Reader

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PAGE = ROOT / "docs" / "spark-jobs.md"
DRAINED = list(range(1, 20101))


@pytest.mark.spark
def test_the_page_can_be_followed_word_by_word(make_reader: Callable[[Path], Reader]) -> None:
    reader = make_reader(PAGE)
    resident_spark.install(reader.machine)
    for blocks in sections_of(PAGE).values():
        for block in blocks:
            reader.follow(block)
    tour = reader.machine.home / "tour"
    assert numbers(tour / "table") == numbers(tour / "held") == DRAINED
    assert numbers(tour / "submitted", "orders") == DRAINED
    assert numbers(tour / "submitted", "orders.again") == DRAINED[:5000]
    assert [report["rows"] for report in json.loads((tour / "report.json").read_text())] == [100]
    assert [run["open"] for run in [json.loads((tour / "lives.json").read_text())["run"]]] == [0]
    columns = pq.read_schema(files(tour / "lives")[0]).names
    assert "wait_s" in columns
    assert all(f"`{name}`" in PAGE.read_text() for name in columns)
    assert len((tour / "parcels.txt").read_text().splitlines()) == 1000
    assert all((tour / name / "report.html").exists() for name in ("profile", "live"))


def test_the_tables_of_the_page_name_all_flags_of_a_drain_and_all_columns_of_a_profile() -> None:
    from pyqd_spark.jobs.rows import COLUMNS

    text = PAGE.read_text()
    parser = cli.parser()
    flags = re.findall(r"--[a-z-]+", " ".join(parser.format_help().split()))
    named = set(re.findall(r"`(--[a-z-]+)`", text))
    assert named <= {*flags, "--help"}
    assert {"--topic", "--start", "--hold", "--rate", "--small-bytes"} <= named
    assert all(f"`{name}`" in text for name in COLUMNS)
