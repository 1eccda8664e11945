"""sample_rate: a consumer that wants a part of the messages; the others are discarded for its channel.

A server keeps a message when a random number of 0 to 99 is at most the rate. Bounds are so wide that chance does not
reach them.
"""

from __future__ import annotations

import pytest

from tests.support.nsq import Client
from tests.support.server import Daemon, wait_until
from tests.support.two_servers import Connect

MESSAGE_COUNT = 1000


def sampled(client: Client, server: Daemon, topic: str, sample_rate: int) -> int:
    """Let a client with this rate see MESSAGE_COUNT messages and return how many it was given."""
    client.identify(sample_rate=sample_rate)
    client.sub(topic, rdy_count=2500)
    assert server.http("POST", "/mpub", b"x\n" * MESSAGE_COUNT, topic=topic).status == 200

    def taken() -> bool:
        channel = server.channel(topic, "c")
        assert channel is not None
        return bool(channel["message_count"] == MESSAGE_COUNT and channel["depth"] == 0)

    wait_until(taken, "all messages taken from the channel")
    channel = server.channel(topic, "c")
    assert channel is not None
    count: int = channel["in_flight_count"]
    assert channel["deferred_count"] == 0
    assert channel["clients"][0]["message_count"] == count
    client.read_messages(count)
    client.expect_alive()
    return count


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sample_rate", "least", "most"), [(0, 1000, 1000), (99, 1000, 1000), (50, 350, 670), (1, 0, 120)]
)
def test_about_as_many_come_as_were_asked_for(
    client: Client, server: Daemon, topic: str, sample_rate: int, least: int, most: int
) -> None:
    assert least <= sampled(client, server, topic, sample_rate) <= most


@pytest.mark.slow
def test_sampling_in_one_channel_leaves_the_other(client: Client, connect: Connect, server: Daemon, topic: str) -> None:
    other = connect()
    other.sub(topic, "other", rdy_count=2500)
    assert sampled(client, server, topic, 10) < MESSAGE_COUNT
    assert len(other.read_messages(MESSAGE_COUNT)) == MESSAGE_COUNT
