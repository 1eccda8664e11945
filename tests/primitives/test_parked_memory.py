"""Memory of a deferred message."""

import pytest

from pyqd.hot.primitives.clock import wall
from pyqd.primitives.durations import HOUR_NS
from tests.support.storage import broker_on

BYTES_MAX = 48
# The arrays have doubled several times in their mappings.
COUNT = 300_000


@pytest.mark.slow
def test_a_deferred_message_takes_at_most_48_bytes_however_many_no_sync_has_covered(tmp_path):
    broker = broker_on(tmp_path, max_bytes_per_file=8 << 20)
    topic = broker.topic("t")
    channel = topic.channel("c")
    channel.parking.durable = True
    now_ns = wall()
    for count in range(1, COUNT + 1):
        topic.publish_body(b"12345678", now_ns, now_ns + HOUR_NS)
        if count > 1000 and count % 997 == 0:
            assert channel.parked.memory_bytes() <= BYTES_MAX * count
    assert channel.deferred_count == COUNT
    channel.settle(channel.parked.log.end)
    assert channel.parked.memory_bytes() <= BYTES_MAX * COUNT
    broker.close()
