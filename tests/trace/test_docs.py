"""docs/trace.md works: its commands run as they are written, and its queries give these rows on each database."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from pyqd.fallback.trace_states import OUTCOMES
from pyqd.trace.database import Database
from pyqd.trace.migrations.versions.v0001_first import VIEWS
from tests.meta.repository import ROOT
from tests.support.machine import Machine
from tests.support.pages import sections_of
from tests.support.reader import Reader
from tests.support.trace_log import TraceLog
from tests.trace.conftest import Store

PAGE = ROOT / "docs" / "trace.md"
SECTIONS = sections_of(PAGE)
TIMES = ("published_at", "noticed_at")


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    """Somebody who follows the page on a machine of their own."""
    machine = Machine(tmp_path)
    reader = Reader(machine, PAGE)
    yield reader
    reader.close()
    machine.close()


def follow(reader: Reader, section: str) -> None:
    for block in SECTIONS[section]:
        reader.follow(block)


def answer(reader: Reader, *words: str) -> Any:
    """Return what pyq_trace says about the database that the reader has made."""
    output = reader.machine.directory / "answer"
    process = reader.machine.start(["pyq_trace", *words, "--json"], output)
    assert process.wait(60) == 0, output.read_text()
    return json.loads(output.read_text())


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_the_first_story_can_be_followed_word_by_word(reader: Reader) -> None:
    follow(reader, "A first story")
    # The last command is `pyqctl trace`, which shows the story as JSON if its output is no terminal.
    (story,) = json.loads(reader.printed[reader.printed.rindex('{\n  "stories"') :])["stories"]
    assert (story["topic"], story["body"], story["channels"][0]["state"]) == ("orders", "order 1", "finished")
    assert [step["event"] for step in story["steps"]] == ["published", "stored", "sent", "finished"]


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_php_program_prints_the_id_of_its_message(reader: Reader) -> None:
    if shutil.which("php") is None or b"curl" not in subprocess.run(["php", "-m"], capture_output=True).stdout:
        pytest.skip("php, or its curl extension, is not installed")
    *blocks, last = SECTIONS["Ids for publishers"]
    for block in blocks:
        reader.follow(block)
    reader.follow(last)
    published = reader.printed.partition("published ")[2][:16]
    (story,) = answer(reader, "show", published)["stories"]
    assert (story["message_id"], story["topic"]) == (published, "orders")


def test_the_page_names_all_views_and_outcomes() -> None:
    text = PAGE.read_text()
    assert all(f"`{name}`" in text for name in (*VIEWS, *OUTCOMES))


def test_the_queries_of_the_page_give_what_their_titles_say(database: Database, log: TraceLog, store: Store) -> None:
    for guid, client in ((10, "10.0.0.1:1"), (11, "10.0.0.1:1"), (12, "10.0.0.9:9")):
        log.add("published", guid, client=client, size=100 * (guid - 9))
        log.add("stored", guid, channel="email")
    for attempt, end in ((1, "requeued"), (2, "timed_out"), (3, "finished")):
        log.add("sent", 10, channel="email", client="10.0.0.2:2", attempt=attempt)
        log.add(end, 10, channel="email", client="10.0.0.2:2", attempt=attempt)
    log.add("sent", 11, channel="email", client="10.0.0.3:3", attempt=1)
    log.add("requeued", 11, channel="email", client="10.0.0.3:3", attempt=1)
    log.add("sent", 11, channel="sms", client="10.0.0.4:4", attempt=1)
    log.add("finished", 11, channel="sms", client="10.0.0.4:4", attempt=1)
    log.add("sent", 12, channel="email", client="10.0.0.2:2", attempt=1)
    log.add("finished", 12, channel="email", client="10.0.0.2:2", attempt=1)
    log.add("stored", 11, channel="email", reason="seek", count=1)
    log.skip(5)
    log.add("published", 13, "returns", client="10.0.0.9:9")
    store()
    queries = [block.text for block in SECTIONS["Tables"] if block.language == "sql"]
    found = []
    with database.transaction("read", reading=True) as connection:
        for query in queries:
            rows = connection.execute(sa.text(query)).mappings().all()
            found.append([tuple(value for name, value in row.items() if name not in TIMES) for row in rows])
    assert found == [
        [
            ("email", attempt, "10.0.0.2:2", end)
            for attempt, end in ((1, "requeued"), (2, "timed_out"), (3, "finished"))
        ],
        [("000000000000000b",), ("000000000000000c",)],
        [("10.0.0.2:2", "requeued", 1), ("10.0.0.2:2", "timed_out", 1), ("10.0.0.3:3", "requeued", 1)],
        [("000000000000000a", "email", 3)],
        [("10.0.0.1:1", 2, 300), ("10.0.0.9:9", 1, 300)],
        [("broker:4151", 5)],
    ]
