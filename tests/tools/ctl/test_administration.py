"""pyqctl create, pause, unpause, empty and delete, against real brokers and a lookup daemon."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lookupd.conftest import LookupDaemon
from tests.lookupd.conftest import running as lookup_running
from tests.support.nsq import Client
from tests.support.server import Daemon, free_port, pyqd, running, wait_until
from tests.tools.ctl.conftest import Ctl, address_of


def states(ran_json: dict[str, list[dict[str, str]]]) -> list[tuple[str, str]]:
    return [(row["node"], row["state"]) for row in ran_json["results"]]


def test_a_topic_and_a_channel_are_created(ctl: Ctl, broker: Daemon, topic: str) -> None:
    assert states(ctl("create", topic).json()) == [(address_of(broker), "done")]
    assert broker.topics()[topic]["channels"] == []
    assert ctl("create", topic, "tail#ephemeral").code == 0
    assert [channel["channel_name"] for channel in broker.topics()[topic]["channels"]] == ["tail#ephemeral"]


def test_a_channel_begins_at_the_place_that_is_asked_for(ctl: Ctl, broker: Daemon, topic: str) -> None:
    ctl("create", topic, "first")
    broker.http("POST", "/pub", b"x", topic=topic)
    ctl("create", topic, "late")
    ctl("create", topic, "early", "--start=earliest")
    depths = {row["channel"]: row["depth"] for row in ctl("channels", topic).json()["channels"]}
    assert depths == {"first": 1, "late": 0, "early": 1}


def test_a_place_needs_a_channel(ctl: Ctl, topic: str) -> None:
    ran = ctl("create", topic, "--start=earliest")
    assert (ran.code, ran.out) == (2, "")


def test_topics_and_channels_are_paused_and_unpaused(ctl: Ctl, broker: Daemon, topic: str) -> None:
    ctl("create", topic, "email")
    assert ctl("pause", topic).code == 0
    assert broker.topics()[topic]["paused"]
    assert ctl("unpause", topic).code == 0
    assert not broker.topics()[topic]["paused"]
    assert ctl("pause", topic, "email").code == 0
    assert broker.topics()[topic]["channels"][0]["paused"]
    assert ctl("unpause", topic, "email").code == 0
    assert not broker.topics()[topic]["channels"][0]["paused"]


def test_a_channel_is_emptied_and_deleted(ctl: Ctl, broker: Daemon, topic: str) -> None:
    ctl("create", topic, "email")
    with Client(broker.tcp_address) as client:
        client.mpub(topic, [b"x"] * 3)
    assert ctl("empty", topic, "email", "--yes").code == 0
    assert broker.topics()[topic]["channels"][0]["depth"] == 0
    assert ctl("delete", topic, "email", "--yes").code == 0
    assert broker.topics()[topic]["channels"] == []
    assert ctl("delete", topic, "-y").code == 0
    assert topic not in broker.topics()


@pytest.mark.parametrize(
    ("action", "channel", "question"),
    [
        ("empty", (), "Drop 1 message of topic {topic} on {address}?"),
        ("empty", ("email",), "Drop 2 messages of channel email of topic {topic} on {address}?"),
        ("delete", (), "Delete topic {topic} with 3 messages on {address}?"),
        ("delete", ("email",), "Delete channel email of topic {topic} with 2 messages on {address}?"),
    ],
)
def test_without_a_terminal_nothing_is_destroyed_unless_yes_is_given(
    ctl: Ctl, broker: Daemon, topic: str, action: str, channel: tuple[str, ...], question: str
) -> None:
    ctl("create", topic, "email")
    for _ in range(2):
        broker.http("POST", "/pub", b"x", topic=topic)
    broker.http("POST", "/topic/pause", topic=topic)
    broker.http("POST", "/pub", b"x", topic=topic)
    ran = ctl(action, topic, *channel)
    assert ran.code == 2
    assert question.format(topic=topic, address=address_of(broker)) in ran.err
    assert "add --yes" in ran.err
    counted = broker.topics()[topic]
    assert (counted["depth"], counted["channels"][0]["depth"]) == (1, 2)


@pytest.mark.parametrize("action", ["pause", "unpause", "empty", "delete"])
def test_what_no_broker_has_ends_with_exit_code_4(both: Ctl, topic: str, action: str) -> None:
    yes = ("--yes",) if action in ("empty", "delete") else ()
    assert both(action, topic, *yes).code == 4
    both("create", topic)
    ran = both(action, topic, "absent", *yes)
    assert (ran.code, ran.out) == (4, "")
    assert "CHANNEL_NOT_FOUND" in ran.err
    if yes:
        # The counters for the question show it already.
        assert both(action, topic, "absent").code == 4


def test_brokers_without_the_topic_are_no_failure(both: Ctl, broker: Daemon, second_broker: Daemon, topic: str) -> None:
    broker.http("POST", "/topic/create", topic=topic)
    assert states(both("pause", topic).json()) == [
        (address_of(broker), "done"),
        (address_of(second_broker), "not found"),
    ]


def test_a_broker_that_does_not_answer_is_reported_beside_the_results(bare: Ctl, broker: Daemon, topic: str) -> None:
    absent = f"127.0.0.1:{free_port()}"
    ran = bare("create", topic, "-a", absent, "-a", address_of(broker))
    assert ran.code == 3
    assert states(json.loads(ran.out)) == [(absent, "failed"), (address_of(broker), "done")]
    assert f"{absent}: POST /topic/create: Connection refused" in ran.err


@pytest.mark.parametrize(
    "command", [("create", "a b"), ("pause", "a", "b c"), ("delete", "*", "-y"), ("empty", "-y", "")]
)
def test_an_invalid_name_is_not_sent(bare: Ctl, command: tuple[str, ...]) -> None:
    assert bare(*command, "-a", "127.0.0.1:1").code == 2


@pytest.fixture(scope="module")
def registered(lookup: LookupDaemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A broker that the lookup daemon names."""
    flags = (f"-lookupd-tcp-address=127.0.0.1:{lookup.ports['TCP']}", "-broadcast-address=127.0.0.1")
    with running(Daemon(pyqd(), tmp_path_factory.mktemp("registered"), flags)) as started:
        wait_until(lambda: lookup.ask("GET", "/nodes")[1]["producers"] != [], "the broker is registered")
        yield started


@pytest.fixture
def found(lookup: LookupDaemon, registered: Daemon, tmp_path: Path) -> Ctl:
    """pyqctl with the address of the lookup daemon."""
    return Ctl(tmp_path, variable="PYQD_LOOKUPD_HTTP_ADDRESS", address=f"127.0.0.1:{lookup.ports['HTTP']}")


def test_brokers_are_found_by_lookup_daemons(found: Ctl, lookup: LookupDaemon, registered: Daemon, topic: str) -> None:
    rows = found("create", topic, "email").json()["results"]
    assert [row["node"] for row in rows] == [f"127.0.0.1:{lookup.ports['HTTP']}", address_of(registered)]
    assert lookup.ask("GET", f"/channels?topic={topic}")[1] == {"channels": ["email"]}
    (row,) = found("nodes").json()["nodes"]
    assert row["node"] == address_of(registered)
    assert [daemon["connected"] for daemon in row["lookup_daemons"]] == [True]
    assert found("pause", topic, "email").code == 0
    assert registered.topics()[topic]["channels"][0]["paused"]


def test_a_deleted_topic_leaves_no_registration(found: Ctl, lookup: LookupDaemon, topic: str) -> None:
    found("create", topic, "email")
    rows = found("delete", topic, "--yes").json()["results"]
    assert [row["state"] for row in rows] == ["done", "done"]
    assert topic not in lookup.ask("GET", "/topics")[1]["topics"]


def test_a_registration_without_a_topic_is_deleted(found: Ctl, lookup: LookupDaemon, topic: str) -> None:
    lookup.ask("POST", f"/topic/create?topic={topic}")
    assert found("delete", topic, "--yes").code == 0
    assert topic not in lookup.ask("GET", "/topics")[1]["topics"]
    assert found("delete", topic, "--yes").code == 4


def test_the_deletion_of_a_registration_without_a_topic_is_asked(
    found: Ctl, lookup: LookupDaemon, registered: Daemon, topic: str
) -> None:
    lookup.ask("POST", f"/channel/create?topic={topic}&channel=email")
    for name, channel in ((f"topic {topic}", ()), (f"channel email of topic {topic}", ("email",))):
        ran = found("delete", topic, *channel)
        question = f"Delete {name} with 0 messages on {address_of(registered)}?"
        assert (ran.code, question in ran.err) == (2, True), ran.err


def test_a_lookup_daemon_that_does_not_answer_is_reported(found: Ctl, lookup: LookupDaemon, registered: Daemon) -> None:
    absent = f"127.0.0.1:{free_port()}"
    ran = found("nodes", PYQD_LOOKUPD_HTTP_ADDRESS=f"{absent},127.0.0.1:{lookup.ports['HTTP']}")
    assert ran.code == 3
    assert [row["node"] for row in json.loads(ran.out)["nodes"]] == [address_of(registered)]
    assert ran.err.startswith(f"pyqctl: {absent}: GET /nodes: Connection refused")


def test_watch_tells_of_a_lookup_daemon_that_does_not_answer(
    found: Ctl, lookup: LookupDaemon, registered: Daemon
) -> None:
    absent = f"127.0.0.1:{free_port()}"
    addresses = f"{absent},127.0.0.1:{lookup.ports['HTTP']}"
    ran = found("watch", "--count=1", "--interval=200ms", PYQD_LOOKUPD_HTTP_ADDRESS=addresses)
    errors = [json.loads(line)["errors"] for line in ran.out.splitlines()]
    assert errors == [[f"{absent}: GET /nodes: Connection refused"]] * 2


@pytest.mark.slow
def test_a_lookup_daemon_without_brokers_is_reported(tmp_path: Path) -> None:
    with lookup_running(LookupDaemon((sys.executable, "-m", "pyqd.apps.lookupd"), tmp_path / "log")) as empty:
        ctl = Ctl(tmp_path, variable="PYQD_LOOKUPD_HTTP_ADDRESS", address=f"127.0.0.1:{empty.ports['HTTP']}")
        ran = ctl("topics")
        assert (ran.code, ran.err) == (3, "pyqctl: no broker is known: the lookup daemons name none\n")
        assert ctl("create", "orders", "email").code == 0
        assert empty.ask("GET", "/channels?topic=orders")[1] == {"channels": ["email"]}
        ran = ctl("delete", "orders")
        assert (ran.code, "Delete topic orders with 0 messages on no broker?" in ran.err) == (2, True), ran.err
        assert ctl("delete", "orders", "--yes").code == 0
        assert ctl("delete", "orders", "--yes").code == 4


def test_nsqd_is_administered_as_well(go_ctl: Ctl, go_broker: Daemon, topic: str) -> None:
    assert go_ctl("create", topic, "email").code == 0
    assert go_ctl("pause", topic, "email").code == 0
    assert go_broker.topics()[topic]["channels"][0]["paused"]
    go_broker.http("POST", "/pub", b"x", topic=topic)
    wait_until(lambda: go_broker.topics()[topic]["channels"][0]["depth"] == 1, "the message is in the channel")
    assert go_ctl("empty", topic, "email", "--yes").code == 0
    assert go_ctl("unpause", topic, "email").code == 0
    assert go_ctl("delete", topic, "--yes").code == 0
    assert topic not in go_broker.topics()
    assert go_ctl("pause", topic).code == 4


def test_nsqd_is_not_sent_a_place_that_it_would_ignore(go_ctl: Ctl, go_broker: Daemon, topic: str) -> None:
    ran = go_ctl("create", topic, "email", "--start=earliest")
    assert ran.code == 6
    assert f"{address_of(go_broker)}: --start needs pyqd, and this broker is nsqd" in ran.err
    assert topic not in go_broker.topics()
