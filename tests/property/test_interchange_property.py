"""Round trips of imports and exports, over arbitrary queues and files."""

import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyqd.broker.exporter import Exporter
from pyqd.broker.importer import Importer
from pyqd.diskqueue.files import Files
from pyqd.diskqueue.interchange import NsqdDirectory, NsqdQueue, encode_record
from tests.support.examples import examples
from tests.support.invariants import check_topic
from tests.support.nsqd_data import message, write_metadata, write_queue
from tests.support.storage import SEGMENT_BYTES_MIN, broker_on, consumer_on

pytestmark = pytest.mark.slow

NOW_NS = 1_800_000_000_000_000_000
# Content of a channel's queue: numbers of messages, each with its deliveries so far.
QUEUES = st.dictionaries(st.integers(0, 60), st.integers(0, 2) | st.just(65_534), max_size=40)
ORDERS = st.randoms(use_true_random=False)


@given(st.binary(max_size=300), st.binary(max_size=60))
def test_arbitrary_files_are_read_without_an_error(segment, meta):
    with tempfile.TemporaryDirectory() as path:
        (Path(path) / "t.diskqueue.000000.dat").write_bytes(segment)
        (Path(path) / "t.diskqueue.meta.dat").write_bytes(meta)
        found = list(NsqdQueue(NsqdDirectory(Files(), path), "t", lambda text: None).messages())
        assert b"".join(map(encode_record, found)) in segment


def taken(channel):
    """Take everything a channel has. Returns: {(body, attempts): how often}."""
    consumer = consumer_on(channel)
    found: Counter[tuple[bytes, int]] = Counter()
    while (delivered := channel.take_message(consumer)) is not None:
        found[delivered[3], delivered[1]] += 1
    return found


@settings(max_examples=examples(60))
@given(
    st.dictionaries(st.sampled_from("abcd"), QUEUES, min_size=1), st.sets(st.integers(61, 90)), st.booleans(), ORDERS
)
def test_queues_in_any_order_are_imported_delivered_and_exported_alike(queues, held, paused, random):
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "data"
        path.mkdir()
        write_metadata(path, {"t": sorted(queues)}, paused=("t",) if paused else ())
        expected = {}
        for name, numbers in queues.items():
            content = [message(number, attempts) for number, attempts in numbers.items()]
            random.shuffle(content)
            write_queue(path, f"t:{name}", content, segment_bytes_max=200)
            expected[name] = Counter({(entry.body, entry.attempts + 1): 1 for entry in content})
            if not paused:
                expected[name].update((message(number).body, 1) for number in held)
        write_queue(path, "t", [message(number) for number in sorted(held)])
        importer = Importer(Files(), str(path), node_id=7, segment_bytes_max=SEGMENT_BYTES_MIN, now=lambda: NOW_NS)
        report = importer.run()
        assert report is not None
        assert report.notes == []
        exported = Exporter(Files(), str(path), str(path.parent / "nsqd"), NOW_NS).run()
        depths = {queue.channel: queue.depth for queue in exported.queues}
        assert depths == {None: len(held) if paused else 0, **{name: sum(e.values()) for name, e in expected.items()}}
        for name in queues:
            written = NsqdQueue(NsqdDirectory(Files(), str(path.parent / "nsqd")), f"t:{name}", print).messages()
            assert Counter((entry.body, entry.attempts + 1) for entry in written) == expected[name]
        topic = broker_on(path).topic("t")
        assert topic.depth == depths[None]
        for name, channel in topic.channels_by_name.items():
            assert channel.depth == sum(expected[name].values())
            assert taken(channel) == expected[name]
        check_topic(topic)
