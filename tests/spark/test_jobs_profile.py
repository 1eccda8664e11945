"""Profiles: numbers by topic and minute, and a report that stands alone."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from pyqd_spark.jobs import profile_report
from pyqd_spark.jobs.errors import JobError
from pyqd_spark.jobs.profile import ProfileOptions, profile
from pyqd_spark.jobs.profile_report import every_minute, number, page, weighted_median
from pyqd_spark.options import CONNECTION, BrokerOptions, parse_options
from tests.spark.drained import QUIET, connection, options, publish, run
from tests.support.nsq import Client
from tests.support.server import Daemon

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Reports are drawn with matplotlib.
pytestmark = pytest.mark.slow

START = datetime(2026, 11, 21, 4, 0, tzinfo=timezone.utc)
TIMES = ("p50", "p99", "max")


def row(topic: str, minute: int, messages: int, **fields: Any) -> dict[str, Any]:
    values: dict[str, Any] = {"topic": topic, "minute": START + timedelta(minutes=minute), "messages": messages}
    values |= {"rate": messages / 60, "bytes": 100 * messages, "deferred": 0}
    values |= {f"size_{name}": 100 for name in TIMES}
    values |= {f"{kind}_{name}": None for kind in ("delay_ms", "lateness_ms") for name in TIMES}
    return values | fields


class Report(HTMLParser):
    """Content of a report for its reader: its texts, and the sources of its pictures."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.pictures: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "img":
            self.pictures.append(str(found["src"]))
        self.links += [str(found[name]) for name in ("href",) if name in found]


def test_a_report_has_its_plots_within_it_and_needs_nothing_else() -> None:
    late = {f"delay_ms_{name}": 60_000.0 for name in TIMES}
    shown = Report(page("Title", "table /t", [row("a", 0, 60), row("a", 3, 60), row("b", 1, 600, **late)]))
    assert [picture[:26] for picture in shown.pictures] == ["data:image/svg+xml;base64,"] * 2
    assert shown.links == []
    assert "720 messages with 70.3 KiB of bodies in 2 topics, from 2026-11-21 04:00 to 2026-11-21 04:04 UTC." in (
        " ".join(" ".join(shown.texts).split())
    )


def test_names_are_text_in_a_report_and_not_markup() -> None:
    text = page("<b>&", "<script>", [row("a#ephemeral", 0, 1)])
    assert "<script>" not in text
    assert "<b>" not in text
    assert "<b>&" in Report(text).texts


def test_the_topics_with_the_most_messages_come_first_and_only_they_have_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_report, "TOPICS_SHOWN", 1)
    shown = Report(page("t", "s", [row(f"t{number}", 0, 1 + number) for number in range(4)]))
    assert len(shown.pictures) == 1
    assert shown.texts.index("t3") < shown.texts.index("t0")
    assert "3 topics with fewer messages have no plots" in " ".join(shown.texts)


def test_the_same_numbers_make_the_same_report() -> None:
    rows = [row("a", 0, 60)]
    assert page("t", "s", rows) == page("t", "s", rows)


def test_minutes_without_messages_are_shown_too() -> None:
    rows = [row("a", 0, 1), row("a", 2, 1)]
    assert every_minute(rows) == [START + timedelta(minutes=minute) for minute in range(4)]


def test_the_median_over_minutes_counts_messages() -> None:
    rows = [row("a", 0, 10, size_p50=100), row("a", 1, 1, size_p50=5), row("a", 2, 2, size_p50=900)]
    assert weighted_median(rows, "size_p50") == 100


def test_numbers_have_the_digits_that_matter() -> None:
    assert [number(value) for value in (0.0, 0.01234, 1.5, 12.345, 99.96, 1234.5, 20.0)] == [
        "0",
        "0.0123",
        "1.5",
        "12.3",
        "100",
        "1,234",
        "20",
    ]


def test_a_connection_is_the_same_after_it_was_made_options() -> None:
    given = BrokerOptions(nsqd=("h:1", "i:2"), token="t", tls=True, tls_cert="c", tls_key="k", retry_timeout_s=1.5)
    assert BrokerOptions.of("x", parse_options("x", given.given(), CONNECTION)) == given


def test_a_profile_counts_a_table_and_the_topics_behind_it_alike(
    spark: SparkSession, broker: Daemon, topic: str, tmp_path: Path
) -> None:
    sizes = [*([10] * 50), *([200] * 49), 5000]
    with Client(broker.tcp_address) as client:
        client.mpub(topic, [bytes(size) for size in sizes])
        client.dpub(topic, 60_000, b"later")
    run(options(tmp_path / "table", broker, topics=(topic,)))
    text = profile(ProfileOptions(str(tmp_path / "p"), path=str(tmp_path / "table")), spark, QUIET)
    assert re.search(r"^101 messages", text)
    table = pq.read_table(tmp_path / "p" / "minutes").to_pylist()
    assert {row["topic"] for row in table} == {topic}
    assert sum(row["messages"] for row in table) == 101
    assert sum(row["bytes"] for row in table) == sum(sizes) + 5
    assert sum(row["deferred"] for row in table) == 1
    assert max(row["size_max"] for row in table) == 5000
    assert max(row["delay_ms_max"] or 0 for row in table) == pytest.approx(60_000, abs=100)
    assert Report((tmp_path / "p" / "report.html").read_text()).pictures
    live = ProfileOptions(str(tmp_path / "live"), connection=connection(broker), topics=(topic,), where="size > 0")
    with pytest.raises(JobError, match="--where 'size > 0'"):
        profile(live, spark, QUIET)
    profile(ProfileOptions(**{**vars(live), "where": "offset < 1000"}), spark, QUIET)
    assert pq.read_table(tmp_path / "live" / "minutes").to_pylist() == table


def test_paths_are_of_the_local_file_system_whatever_the_default_of_spark_is(
    spark: SparkSession, broker: Daemon, topic: str, tmp_path: Path
) -> None:
    publish(broker, topic, range(10))
    run(options(tmp_path / "table #1", broker, topics=(topic,)))
    elsewhere = spark.newSession()
    elsewhere.conf.set("fs.defaultFS", "hdfs://127.0.0.1:1")
    text = profile(ProfileOptions(str(tmp_path / "p"), path=str(tmp_path / "table #1")), elsewhere, QUIET)
    assert re.search(r"^10 messages", text)
    assert pq.read_table(tmp_path / "p" / "minutes").num_rows > 0


def test_a_profile_does_not_replace_files_of_others(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(JobError, match="holds other files"):
        profile(ProfileOptions(str(tmp_path), path=str(tmp_path)), spark, QUIET)
    assert (tmp_path / "mine").exists()
