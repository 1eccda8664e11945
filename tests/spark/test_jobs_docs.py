"""docs/spark-jobs.md does what it says: its commands and its Python run here, in order, against a real broker."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pyqd_spark import cli
from tests.meta.repository import ROOT
from tests.spark.drained import numbers
from tests.spark.test_docs import Reader, flags_of_broker, sections
from tests.support.server import Daemon

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PAGE = ROOT / "docs" / "spark-jobs.md"
PROGRAM_FILE = "$(python3 -c 'import pyqd_spark.cli as cli; print(cli.__file__)')"
DRAINED = list(range(1, 20101))


class Follower(Reader):
    """Follows the page; our own command runs in this process, in the session of the tests."""

    def run(self, command: str) -> None:
        words = shlex.split(self.here(command))
        if words[0] == "spark-submit":
            # That it takes our program is tested where a driver is killed; a JVM of its own would be slow here.
            words = words[words.index("drain") - 1 :]
        if words[0] in ("pyq_spark", PROGRAM_FILE):
            assert cli.main([*words[1:], "--quiet"]) == cli.DONE, command
        else:
            super().run(command)


SECTIONS = sections(PAGE.read_text())


@pytest.fixture
def session_of_the_tests(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def kept(parsed: Any) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(cli, "spark_of", kept)


@pytest.mark.usefixtures("session_of_the_tests")
def test_the_page_can_be_followed_word_by_word(
    request: pytest.FixtureRequest, make_broker: Callable[..., Daemon], tmp_path: Path
) -> None:
    flags = flags_of_broker([block for blocks in SECTIONS.values() for block in blocks])
    reader = Follower(request.getfixturevalue, make_broker(*(flags or [])), tmp_path)
    for blocks in SECTIONS.values():
        for block in blocks:
            reader.follow(block)
    assert numbers(tmp_path / "table") == numbers(tmp_path / "held") == DRAINED
    assert numbers(tmp_path / "submitted", "orders") == DRAINED
    assert numbers(tmp_path / "submitted", "orders.again") == DRAINED[:5000]
    assert [report["rows"] for report in json.loads((tmp_path / "report.json").read_text())] == [100]
    assert all((tmp_path / name / "report.html").exists() for name in ("profile", "live"))


def test_the_tables_of_the_page_name_all_flags_of_a_drain_and_all_columns_of_a_profile() -> None:
    from pyqd_spark.jobs.rows import COLUMNS

    text = PAGE.read_text()
    parser = cli.parser()
    flags = re.findall(r"--[a-z-]+", " ".join(parser.format_help().split()))
    named = set(re.findall(r"`(--[a-z-]+)`", text))
    assert named <= {*flags, "--help"}
    assert {"--topic", "--start", "--hold", "--rate", "--small-bytes"} <= named
    assert all(f"`{name}`" in text for name in COLUMNS)
