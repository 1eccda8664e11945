"""A really full disk: a file system of a few MiB in memory, mounted by the test, and a daemon on it."""

import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.nsq import ERROR, Client, Message, fin, mpub
from tests.support.server import Daemon, pyqd, running, wait_until
from tests.support.small_disk import fill, mounted_or_skipped

pytestmark = pytest.mark.slow

DISK_BYTES = 8 << 20
TOPIC = "full"
BODY_BYTES = 4000
COUNT_MAX = 4000
# More than fit into -min-free-bytes.
RETURNED_COUNT = 400
# As many messages as a new ledger has bits for: finishing one that follows, before the first, takes a larger file.
RING_BITS_MIN = 8 * 4096


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mounted_or_skipped(tmp_path / "disk", DISK_BYTES) as path:
        yield path


def daemon_on(directory: Path, *flags: str) -> Daemon:
    """Return a daemon whose data, but not its log, is on the disk."""
    daemon = Daemon(pyqd(), directory, ["-min-free-bytes=1048576", *flags])
    daemon.log_path = directory.parent / "log"
    return daemon


@pytest.fixture
def daemon(disk: Path) -> Iterator[Daemon]:
    with running(daemon_on(disk)) as started:
        started.http("POST", "/topic/create", None, topic=TOPIC)
        started.http("POST", "/channel/create", None, topic=TOPIC, channel="c")
        yield started


def cut_power(daemon: Daemon) -> None:
    """Kill the daemon and have the next start take it for a power failure; written bytes are kept."""
    daemon.kill()
    node = json.loads((daemon.data_path / "node.json").read_text())
    (daemon.data_path / "node.json").write_text(json.dumps({**node, "boot": "another"}))


def body_of(number: int) -> bytes:
    return b"%d " % number + bytes(BODY_BYTES)


def number_of(message: Message) -> int:
    return int(message.body.split(b" ", 1)[0])


def publish_until_refused(daemon: Daemon, start: int = 0) -> int:
    """Publish until it is refused. Returns: the number after the last that was accepted."""
    for number in range(start, start + COUNT_MAX):
        reply = daemon.http("POST", "/pub", body_of(number), topic=TOPIC)
        if reply.status != 200:
            assert reply.status == 503
            return number
    raise AssertionError("the disk was never full")


def publish_as_space_returns(daemon: Daemon, start: int) -> int:
    """Publish more than fits into the space kept free: the drained segments go one by one, after syncs of the ledger.

    Returns: the number after the last message.
    """

    def is_accepted(number: int) -> bool:
        return daemon.http("POST", "/pub", body_of(number), topic=TOPIC).status == 200

    end = start + RETURNED_COUNT
    for number in range(start, end):
        wait_until(partial(is_accepted, number), "there is space for a message")
    return end


def consume(daemon: Daemon, count: int, topic: str = TOPIC) -> list[int]:
    with Client(daemon.tcp_address) as client:
        client.sub(topic, rdy_count=50)
        numbers = []
        for _ in range(count):
            message = client.read_message()
            numbers.append(number_of(message))
            client.fin(message)
        client.rdy(0)
        return numbers


def healthy(daemon: Daemon) -> bool:
    return daemon.http("GET", "/ping").status == 200


def test_a_full_disk_refuses_publishing_until_consuming_frees_space(daemon: Daemon) -> None:
    end = publish_until_refused(daemon)
    assert end * BODY_BYTES > DISK_BYTES // 4
    reply = daemon.http("GET", "/ping")
    assert reply.status == 500
    assert reply.body.startswith(b"NOK - ")
    with Client(daemon.tcp_address) as client:
        client.send(b"PUB %s\n" % TOPIC.encode() + (BODY_BYTES).to_bytes(4, "big") + bytes(BODY_BYTES))
        client.expect_fatal(
            "E_PUB_FAILED",
            f"PUB failed failed to store in topic {TOPIC} - less than 1048576 bytes would be left free on the disk",
        )
    assert consume(daemon, end) == list(range(end))
    wait_until(lambda: healthy(daemon), "health is well again")
    again = publish_until_refused(daemon, publish_as_space_returns(daemon, end))
    assert sorted(consume(daemon, again - end)) == list(range(end, again))
    daemon.wait_for_channel(TOPIC, "c", depth=0, in_flight_count=0)


@pytest.mark.parametrize("clean", [True, False])
def test_messages_accepted_on_a_full_disk_outlive_a_restart(daemon: Daemon, clean: bool) -> None:
    end = publish_until_refused(daemon)
    if clean:
        daemon.stop()
    else:
        daemon.kill()
    daemon.start()
    assert consume(daemon, end) == list(range(end))


@pytest.mark.slow
def test_messages_can_be_finished_while_others_fill_the_disk_to_the_last_byte(daemon: Daemon, disk: Path) -> None:
    end = publish_until_refused(daemon)
    fill(disk / "ballast")
    with Client(daemon.tcp_address) as client:
        client.sub(TOPIC, rdy_count=1)
        first = client.read_message()
        client.req(first, 60000)
        kind, data = client.read_frame()
        assert kind == ERROR
        assert data.startswith(b"E_REQ_FAILED REQ " + first.id + b" failed ")
        client.rdy(0)
        client.fin(first)
    daemon.wait_for_channel(TOPIC, "c", in_flight_count=0)
    assert consume(daemon, end - 1) == list(range(1, end))
    os.unlink(disk / "ballast")
    wait_until(lambda: healthy(daemon), "health is well again")
    publish_as_space_returns(daemon, end)


def test_deferred_messages_take_no_more_of_a_full_disk(daemon: Daemon, disk: Path) -> None:
    for number in range(COUNT_MAX):
        if daemon.http("POST", "/pub", body_of(number), topic=TOPIC, defer="600000").status != 200:
            break
    found = os.statvfs(disk)
    assert found.f_bavail * found.f_frsize >= 1 << 20
    daemon.wait_for_channel(TOPIC, "c", depth=0, deferred_count=number)
    daemon.restart()
    daemon.wait_for_channel(TOPIC, "c", depth=0, deferred_count=number)


@pytest.mark.slow
def test_a_fin_that_does_not_fit_the_ledger_is_refused_until_there_is_space(daemon: Daemon, disk: Path) -> None:
    with Client(daemon.tcp_address) as client:
        client.send(mpub(TOPIC, [b"x"] * (RING_BITS_MIN + 2)))
        client.expect_ok()
        client.sub(TOPIC, rdy_count=2)
        first = client.read_message()
        for number in range(RING_BITS_MIN - 1):
            if number == RING_BITS_MIN // 2:
                # Before the ledger grows, which it does ahead of need.
                fill(disk / "ballast")
            client.send(fin(client.read_message().id))
        beyond = client.read_message()
        for _ in range(2):
            client.fin(beyond)
            kind, data = client.read_frame()
            assert kind == ERROR
            assert data.startswith(b"E_FIN_FAILED FIN " + beyond.id + b" failed ")
            assert b"No space left on device" in data
        daemon.wait_for_channel(TOPIC, "c", in_flight_count=2, depth=1)
        os.unlink(disk / "ballast")
        client.fin(beyond)
        last = client.read_message()
        client.fin(last)
        client.fin(first)
        daemon.wait_for_channel(TOPIC, "c", in_flight_count=0, depth=0, deferred_count=0)


def hold(daemon: Daemon, topic: str, attempts: int) -> bytes:
    """Publish a message and have it delivered so often; it is in flight then until the client is gone. Returns: id."""
    daemon.http("POST", "/topic/create", None, topic=topic)
    daemon.http("POST", "/channel/create", None, topic=topic, channel="c")
    assert daemon.http("POST", "/pub", b"held", topic=topic).status == 200
    with Client(daemon.tcp_address) as client:
        client.sub(topic, rdy_count=1)
        for expected in range(1, attempts + 1):
            message = client.read_message()
            assert message.attempts == expected
            if expected < attempts:
                client.req(message, 0)
    return message.id


def attempts_now(daemon: Daemon, topic: str, message_id: bytes | None) -> int:
    """Consume a topic up to a message, or the first for None. Returns: the attempts that its delivery tells."""
    with Client(daemon.tcp_address) as client:
        client.sub(topic, rdy_count=1)
        while True:
            message = client.read_message()
            client.fin(message)
            if message_id in (message.id, None):
                return message.attempts


def test_a_stop_on_a_full_disk_closes_everything_and_names_the_unsaved_state(daemon: Daemon, disk: Path) -> None:
    for topic in ("none", "one", "two"):
        daemon.http("POST", "/topic/create", None, topic=topic)
    ids = {topic: hold(daemon, topic, 3) for topic in ("one", "two")}
    fill(disk / "ballast")
    daemon.stop()
    for topic in ids:
        assert f'cannot save the attempts of 1 messages of channel "c" of topic "{topic}"' in daemon.log_text()
    assert daemon.log_text().rstrip().endswith("NSQ: bye")
    assert not list(disk.rglob("*.new"))
    os.unlink(disk / "ballast")
    daemon.start()
    assert {topic: attempts_now(daemon, topic, ids[topic]) for topic in ids} == {"one": 2, "two": 2}


def test_a_stop_on_a_full_disk_gives_up_spare_segments_to_save_attempts(daemon: Daemon, disk: Path) -> None:
    held = hold(daemon, "one", 3)
    for number in range(10):
        assert daemon.http("POST", "/pub", body_of(number), topic="one").status == 200
    log = daemon.data_path / "topics" / "one.topic" / "log"

    def has_spare() -> bool:
        # The file is there before its space is, and before the daemon can give it up; the metric counts it after both.
        sizes = [segment.stat().st_size for segment in log.glob("*.seg")]
        told = f'pyqd_topic_disk_bytes{{topic="one"}} {sum(sizes)}\n'
        return len(sizes) == 2 and told.encode() in daemon.http("GET", "/metrics").body

    wait_until(has_spare, "a spare is ready")
    fill(disk / "ballast")
    daemon.stop()
    os.unlink(disk / "ballast")
    daemon.start()
    assert attempts_now(daemon, "one", held) == 4


def test_a_start_after_a_power_failure_takes_no_space_on_a_nearly_full_disk(daemon: Daemon, disk: Path) -> None:
    topics = [f"t{number}" for number in range(30)]
    for topic in topics:
        daemon.http("POST", "/topic/create", None, topic=topic)
        daemon.http("POST", "/channel/create", None, topic=topic, channel="c")
        assert daemon.http("POST", "/pub", b"kept", topic=topic).status == 200
    end = publish_until_refused(daemon)
    cut_power(daemon)
    free_bytes = os.statvfs(disk).f_bavail
    daemon.start()
    assert os.statvfs(disk).f_bavail == free_bytes
    assert consume(daemon, end) == list(range(end))
    for topic in topics:
        daemon.wait_for_channel(topic, "c", depth=1)
        assert attempts_now(daemon, topic, None) == 1
    publish_as_space_returns(daemon, end)


@pytest.mark.parametrize("stop", [Daemon.stop, Daemon.kill, cut_power])
def test_a_daemon_starts_on_a_disk_without_a_free_byte_and_is_drained(
    daemon: Daemon, disk: Path, stop: Callable[[Daemon], None]
) -> None:
    daemon.http("POST", "/topic/create", None, topic="empty")
    daemon.http("POST", "/channel/create", None, topic="empty", channel="c")
    end = publish_until_refused(daemon)
    fill(disk / "ballast")
    for _ in range(2):
        stop(daemon)
        daemon.start()
    # A spare that a thread was making at the refusal may be there now.
    end = publish_until_refused(daemon, end)
    assert consume(daemon, end) == list(range(end))
    os.unlink(disk / "ballast")
    wait_until(lambda: healthy(daemon), "health is well again")
    publish_as_space_returns(daemon, end)


def test_a_stop_on_a_full_disk_is_a_clean_one(daemon: Daemon, disk: Path) -> None:
    fill(disk / "ballast")
    daemon.stop()
    assert json.loads((daemon.data_path / "node.json").read_bytes())["clean"]


def overwrite(path: Path, offset: int, content: bytes) -> None:
    """Damage a file in the blocks that it has."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)


def synced_bytes(segment: Path) -> int:
    """Return how much of a segment is on stable storage, as its header says."""
    return int.from_bytes(segment.read_bytes()[56:64], "little")


def test_a_damaged_broker_on_a_full_disk_is_drained_after_a_power_failure(daemon: Daemon, disk: Path) -> None:
    count = 20
    for topic in ("ledger", "state", "record", "whole"):
        daemon.http("POST", "/topic/create", None, topic=topic)
        daemon.http("POST", "/channel/create", None, topic=topic, channel="c")
        for number in range(count):
            assert daemon.http("POST", "/pub", body_of(number)[:100], topic=topic).status == 200
    topics = daemon.data_path / "topics"
    (segment,) = (topics / "record.topic" / "log").iterdir()
    wait_until(lambda: synced_bytes(segment) >= 128 + count * 152, "the records are synced")
    fill(disk / "ballast")
    cut_power(daemon)
    overwrite(topics / "ledger.topic" / "c.channel" / "ledger", 0, b"?" * 64)
    overwrite(topics / "state.topic" / "state", 0, b"?" * 64)
    # The header of a segment, then records of a header, a body of 100 bytes and padding.
    overwrite(segment, 128 + 5 * 152 + 60, b"?" * 4)
    overwrite(daemon.data_path / "node.json", 0, b"?")
    daemon.start()
    expected = list(range(count))
    drained = {topic: consume(daemon, count, topic) for topic in ("ledger", "state", "whole")}
    assert drained == dict.fromkeys(drained, expected)
    assert consume(daemon, count - 1, "record") == [number for number in expected if number != 5]
    assert daemon.http("POST", "/pub", b"x", topic="whole").status == 503
    daemon.stop()
    os.unlink(disk / "ballast")
    daemon.start()
    for topic in ("ledger", "state", "record", "whole"):
        daemon.wait_for_channel(topic, "c", depth=0)
        assert daemon.http("POST", "/pub", body_of(count), topic=topic).status == 200
        assert consume(daemon, 1, topic) == [count]
