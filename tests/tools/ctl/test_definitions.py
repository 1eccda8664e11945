"""pyqctl definitions export and import, against real brokers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import Daemon
from tests.tools.ctl.conftest import Ctl, address_of


def exported(ctl: Ctl, topic: str) -> dict[str, Any]:
    """Return the definitions of topics whose names begin like that of a test."""
    document: dict[str, Any] = ctl("definitions", "export").json()
    return {**document, "topics": [each for each in document["topics"] if each["topic"].startswith(topic)]}


def entry(topic: str, *channels: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"topic": topic, "paused": False, "retention": None, "channels": list(channels), **more}


def channel(name: str, **more: Any) -> dict[str, Any]:
    return {"channel": name, "paused": False, "limits": None, **more}


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(*topics: dict[str, Any], **more: Any) -> str:
        path = tmp_path / "definitions.json"
        path.write_text(json.dumps({"format": 1, "topics": topics, **more}))
        return str(path)

    return write


def test_definitions_come_back_after_everything_was_deleted(ctl: Ctl, topic: str, write: Any) -> None:
    limits = {"rate": 0.5, "burst": 3, "max_attempts": 4, "dead_letter_topic": f"{topic}-dead"}
    ctl("create", topic, "email")
    ctl("create", topic, "gone#ephemeral")
    ctl("limits", topic, "email", "--rate=0.5", "--burst=3", "--max-attempts=4", f"--dead-letter-topic={topic}-dead")
    ctl("create", topic, "audit")
    ctl("pause", topic, "audit")
    ctl("retention", topic, "--time=72h", "--bytes=1GiB", "--yes")
    ctl("create", f"{topic}-other")
    ctl("pause", f"{topic}-other")
    wanted = [
        entry(
            topic,
            channel("audit", paused=True),
            channel("email", limits=limits),
            retention={"bytes": 1 << 30, "time": "72h0m0s"},
        ),
        entry(f"{topic}-dead"),
        entry(f"{topic}-other", paused=True),
    ]
    assert exported(ctl, topic) == {"format": 1, "topics": wanted}
    for name in (topic, f"{topic}-dead", f"{topic}-other"):
        ctl("delete", name, "--yes")
    file = write(*wanted)
    planned = ctl("definitions", "import", file, "--dry-run").json()["changes"]
    assert exported(ctl, topic)["topics"] == []
    done = ctl("definitions", "import", file).json()["changes"]
    assert [{**row, "state": "done"} for row in planned] == done
    assert {row["state"] for row in planned} == {"would be done"}
    assert exported(ctl, topic) == {"format": 1, "topics": wanted}
    assert ctl("definitions", "import", file).json() == {"changes": []}


def test_what_a_file_does_not_name_stays(ctl: Ctl, topic: str, write: Any) -> None:
    ctl("create", topic, "email")
    ctl("create", topic, "audit")
    ctl("pause", topic, "email")
    ctl("limits", topic, "email", "--rate=100")
    # The broker chooses the burst that is missing here, and 72h is what it shows as 72h0m0s.
    file = write({"topic": topic, "retention": {"time": "72h"}, "channels": [{"channel": "email"}]})
    assert [row["action"] for row in ctl("definitions", "import", file).json()["changes"]] == ["retention"]
    file = write({"topic": topic, "retention": {"time": "72h"}, "channels": [channel("email", limits={"rate": 100})]})
    assert [row["action"] for row in ctl("definitions", "import", file).json()["changes"]] == ["unpause"]
    assert ctl("definitions", "import", file).json() == {"changes": []}
    (found,) = exported(ctl, topic)["topics"]
    assert [each["channel"] for each in found["channels"]] == ["audit", "email"]
    assert found["channels"][1]["limits"] == {"rate": 100, "burst": 100}
    file = write(entry(topic, channel("email")))
    ran = ctl("definitions", "import", file)
    assert (ran.code, "Keep fewer finished messages" in ran.err) == (2, True)
    assert [row["action"] for row in ctl("definitions", "import", file, "-y").json()["changes"]] == [
        "retention",
        "limits",
    ]
    (found,) = exported(ctl, topic)["topics"]
    assert (found["retention"], found["channels"][1]["limits"]) == (None, None)


def test_a_change_that_fails_is_reported_and_the_others_are_made(ctl: Ctl, topic: str, write: Any) -> None:
    limits = {"max_attempts": 3, "dead_letter_topic": topic}
    file = write(entry(topic, channel("email", limits=limits), channel("later")))
    ran = ctl("definitions", "import", file)
    assert ran.code == 1
    assert "the dead-letter topic must be another topic" in ran.err
    rows = json.loads(ran.out)["changes"]
    assert [(row["action"], row["channel"], row["state"]) for row in rows] == [
        ("create", None, "done"),
        ("create", "email", "done"),
        ("limits", "email", "failed"),
        ("create", "later", "done"),
    ]
    assert "must be another topic" in rows[2]["error"]


def test_brokers_that_differ_are_named_and_become_equal(
    both: Ctl, broker: Daemon, second_broker: Daemon, topic: str, write: Any
) -> None:
    broker.http("POST", "/topic/create", topic=topic)
    both("create", topic, "email")
    broker.http("POST", "/channel/pause", topic=topic, channel="email")
    ran = both("definitions", "export")
    assert f"{address_of(second_broker)}: channel email of topic {topic} differs from that of another" in ran.err
    (found,) = [each for each in ran.json()["topics"] if each["topic"] == topic]
    (row,) = both("definitions", "import", write(found)).json()["changes"]
    assert (row["node"], row["action"], row["channel"]) == (address_of(second_broker), "pause", "email")
    assert topic not in both("definitions", "export").err


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ("{", "not JSON"),
        ("[]", "expected an object, found []"),
        ('{"format": 2}', "format 2 is not known; this pyqctl reads 1"),
        ('{"format": 1, "topic": []}', "unknown key 'topic'; known are format, topics"),
        ('{"format": 1, "topics": [{}]}', "topics[0]: 'topic' is missing"),
        ('{"format": 1, "topics": [{"topic": "a b"}]}', "topics[0]: 'a b' is not the name of a topic"),
        ('{"format": 1, "topics": [{"topic": "a", "paused": 1}]}', "topics[0]: 'paused': 1 is not valid"),
        ('{"format": 1, "topics": [{"topic": "a", "retention": {"time": "x"}}]}', "topics[0]: retention: "),
        (
            '{"format": 1, "topics": [{"topic": "a", "channels": [{"channel": "c", "limits": {"rates": 1}}]}]}',
            "topics[0]: channels[0].limits: unknown key 'rates'; known are rate, burst, max_attempts",
        ),
    ],
)
def test_a_mistake_in_a_file_is_named_with_its_place(ctl: Ctl, document: str, text: str) -> None:
    ran = ctl("definitions", "import", "-", input=document)
    assert (ran.code, ran.out) == (2, "")
    assert text in ran.err
