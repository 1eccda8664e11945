"""Tests of pyqd.broker.offline_broker: it finds in a directory what a start finds, and changes nothing."""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyqd.broker.exporter import Exporter
from pyqd.broker.inspection import Inspection
from pyqd.broker.offline_broker import OfflineBroker
from pyqd.diskqueue.files import Files
from pyqd.diskqueue.interchange import NsqdDirectory, NsqdQueue
from pyqd.hot.primitives.clock import wall
from pyqd.primitives.durations import HOUR_NS
from pyqd.primitives.errors import StartupError
from tests.support.examples import examples
from tests.support.nsqd_data import snapshot
from tests.support.storage import body_of, broker_on, consumer_on, number_in, publish, run_all_wakes, take_all

OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["publish", "defer", "take", "finish", "requeue", "requeue later", "run", "pause", "empty"]),
        st.integers(0, 40),
    ),
    max_size=30,
)


def play(broker, operations):
    """Do to a topic and its channels what clients do."""
    topic = broker.topic("t")
    channels = [topic.channel(name) for name in ("a", "b")]
    consumers = [consumer_on(channel) for channel in channels]
    taken: tuple[list[int], list[int]] = [], []
    for name, number in operations:
        channel, consumer, mine = channels[number % 2], consumers[number % 2], taken[number % 2]
        if name == "publish":
            publish(topic, number, 900)
        elif name == "defer":
            publish(topic, number % 5, 900, due_ns=wall() + HOUR_NS)
        elif name == "take" and (message := channel.take_message(consumer)) is not None:
            mine.append(message[0])
        elif name == "finish" and mine:
            channel.finish_message(consumer, mine.pop(number % len(mine)))
        elif name.startswith("requeue") and mine:
            channel.requeue_message(consumer, mine.pop(number % len(mine)), HOUR_NS * (name == "requeue later"))
        elif name == "run":
            run_all_wakes(broker)
        elif name == "pause":
            topic.pause(number % 2 == 0)
        elif name == "empty" and number == 0:
            channel.empty()
            mine.clear()


def test_the_bytes_of_a_queue_are_those_of_its_log_or_ledger_with_due_times_or_notes(tmp_path):
    broker = broker_on(tmp_path)
    play(broker, [("publish", 1), ("publish", 2), ("take", 0), ("requeue later", 0), ("defer", 3)])
    topic = broker.topic("t")
    broker.close()
    inspection = Inspection(str(tmp_path), verify=False)
    expected = {
        (channel, name): sum(path.stat().st_size for path in Path(str(directory)).glob(pattern))
        for channel, directory in [(None, topic.directory), *((c.name, c.directory) for c in topic.channels)]
        for name, pattern in [("log", "log/*"), ("dues", "dues/*"), ("ledger", "ledger"), ("notes", "notes/*")]
    }
    assert expected[None, "dues"] == expected["a", "notes"] == 64 << 10
    assert {row.channel: row.bytes for row in inspection.rows} == {
        channel: sum(size for (each, _), size in expected.items() if each == channel) for channel in (None, "a", "b")
    }


@settings(max_examples=examples(40), deadline=None)
@given(OPERATIONS, st.booleans())
def test_a_directory_is_read_as_a_start_reads_it(operations, stops):
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "data"
        path.mkdir()
        broker = broker_on(path)
        play(broker, operations)
        if stops:
            broker.close()
        killed = Path(shutil.copytree(path, Path(directory) / "killed"))
        before = snapshot(killed)
        inspection = Inspection(str(killed), verify=True)
        exported = {}
        Exporter(Files(), str(killed), f"{directory}/nsqd", wall()).run()
        for name in ("a", "b"):
            queue = NsqdQueue(NsqdDirectory(Files(), f"{directory}/nsqd"), f"t:{name}", lambda _text: None)
            exported[name] = [(number_in(message.body), message.attempts) for message in queue.messages()]
        assert snapshot(killed) == before
        assert inspection.problems == []
        rows = {row.channel: row for row in inspection.rows}
        topic = broker_on(killed).topics["t"]
        assert (rows[None].depth, rows[None].cursor, rows[None].paused) == (topic.depth, topic.end, topic.paused)
        for name, channel in topic.channels_by_name.items():
            assert (rows[name].depth, rows[name].deferred) == (channel.depth, channel.deferred_count)
            assert (rows[name].floor, rows[name].cursor) == (channel.ledger.floor, channel.ledger.cursor)
            assert len(exported[name]) == channel.depth + channel.deferred_count
            queued = [
                (number_in(body), attempts - 1) for _, attempts, _, body in take_all(channel, consumer_on(channel))
            ]
            assert sorted(exported[name][: len(queued)]) == sorted(queued)


def test_topics_are_loaded_one_at_a_time(tmp_path):
    broker = broker_on(tmp_path)
    for number in range(30):
        publish(broker.topic(f"t{number:02}"), number + 1)
    broker.close()
    offline = OfflineBroker(str(tmp_path))
    found = []
    for each in offline.found_topics():
        assert list(offline.topics) == [each.name]
        assert each.topic is not None
        found.append(each.topic.depth)
    assert found == list(range(1, 31))
    assert not offline.topics


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "is not a data directory of pyqd: node.json is missing"),
        (b"{", "not a node file"),
        (b'{"format": 99, "epoch": 0, "boot": "", "clean": true}', "was written by a later pyqd - format 99"),
    ],
)
def test_a_directory_without_a_usable_node_file_is_refused(tmp_path, content, reason):
    if content is not None:
        (tmp_path / "node.json").write_bytes(content)
    before = snapshot(tmp_path)
    with pytest.raises(StartupError, match=reason):
        OfflineBroker(str(tmp_path))
    assert snapshot(tmp_path) == before


def test_a_topic_whose_segments_a_daemon_reuses_meanwhile_is_loaded_again(tmp_path, monkeypatch):
    broker = broker_on(tmp_path)
    publish(broker.topic("t"), 200, 1000)
    broker.close()
    offline = OfflineBroker(str(tmp_path))
    loads = []

    def reuse_once(path, name):
        loads.append(path)
        found = OfflineBroker.try_load(offline, path, name)
        if len(loads) < 3:
            segment = next(Path(path, "log").iterdir())
            content = segment.read_bytes()
            segment.unlink()
            (segment.parent / f"{1000 + len(loads)}.seg").write_bytes(content)
            if len(loads) == 2:
                raise AssertionError("contradicts itself")
        return found

    monkeypatch.setattr(offline, "try_load", reuse_once)
    (found,) = [each.topic.depth for each in offline.found_topics() if each.topic is not None]
    assert (found, len(loads)) == (200, 3)


def test_a_body_is_exported_whole_over_many_pages(tmp_path):
    (tmp_path / "data").mkdir()
    broker = broker_on(tmp_path / "data")
    topic = broker.topic("t")
    topic.channel("c")
    publish(topic, 2500, 3000)
    broker.close()
    Exporter(Files(), str(tmp_path / "data"), str(tmp_path / "nsqd"), wall()).run()
    queue = NsqdQueue(NsqdDirectory(Files(), str(tmp_path / "nsqd")), "t:c", lambda _text: None)
    assert [message.body for message in queue.messages()] == [body_of(number, 3000) for number in range(2500)]
