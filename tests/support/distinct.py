"""A broker in which every counter and gauge has a value of its own, so that two that are mixed up show."""

from pathlib import Path
from typing import Any

from pyqd.broker.channel_settings import NO_LIMITS, ChannelSettings
from pyqd.durability.syncer import Syncer, run_inline
from pyqd.hot.primitives.clock import mono
from pyqd.primitives.durations import HOUR_NS, SECOND_NS
from tests.support.storage import broker_on, consumer_on, publish

BODY_BYTES = 16
CHANNEL_VALUES = {
    "depth": 40,
    "backend_depth": 31,
    "in_flight": 27,
    "deferred": 11,
    "messages": 108,
    "finished": 22,
    "requeued": 25,
    "timed_out": 4,
    "clients": 7,
    "dead_letters": 8,
    "dead_letters_waiting": 6,
}
TOPIC_VALUES = {
    "depth": 12,
    "backend_depth": 9,
    "messages": 120,
    "message_bytes": 120 * BODY_BYTES,
    "disk_bytes": 2 * 65536,
    "damage": 3,
    "damage_lost": 5,
}
assert len(set(CHANNEL_VALUES.values())) == len(CHANNEL_VALUES)
assert len(set(TOPIC_VALUES.values())) == len(TOPIC_VALUES)


IN_FLIGHT_TIMEOUT_NS = 1


def take(channel: Any, consumer: Any, count: int) -> list[int]:
    return [channel.take_message(consumer)[0] for _ in range(count)]


def requeue(channel: Any, consumer: Any, guids: list[int], delay_ns: int = 0) -> None:
    for guid in guids:
        assert channel.requeue_message(consumer, guid, delay_ns) == 0


def distinct_broker(path: Path, **flags: Any) -> Any:
    """Return a broker with the topic `orders` and its channel `email`, both paused, and the values above."""
    broker = broker_on(path, mem_queue_size=3, **flags)
    topic = broker.topic("orders")
    channel = topic.channel("email")
    consumer, hasty, *_ = [consumer_on(channel) for _ in range(CHANNEL_VALUES["clients"])]
    hasty.msg_timeout_ns = IN_FLIGHT_TIMEOUT_NS
    limits = ChannelSettings(max_attempts=1, dead_letter_topic="dead")
    broker.topic("dead")
    channel.set_limits(limits)
    publish(topic, CHANNEL_VALUES["dead_letters"], BODY_BYTES)
    requeue(channel, consumer, take(channel, consumer, CHANNEL_VALUES["dead_letters"]))
    broker.scheduler.run_wakes()
    Syncer(broker, run_inline).sync_all()
    broker.delete_topic("dead")
    channel.set_limits(NO_LIMITS)
    publish(topic, 100, BODY_BYTES)
    take(channel, hasty, CHANNEL_VALUES["timed_out"])
    broker.scheduler.run_timers(mono() + SECOND_NS)
    requeue(channel, consumer, take(channel, consumer, CHANNEL_VALUES["deferred"]), HOUR_NS)
    for guid in take(channel, consumer, CHANNEL_VALUES["finished"]):
        channel.finish_message(consumer, guid)
    take(channel, consumer, CHANNEL_VALUES["in_flight"])
    channel.set_limits(limits)
    requeue(channel, consumer, take(channel, consumer, CHANNEL_VALUES["dead_letters_waiting"]))
    broker.scheduler.run_wakes()
    channel.pause(True)
    topic.pause(True)
    publish(topic, TOPIC_VALUES["depth"], BODY_BYTES)
    topic.log.damage.add(TOPIC_VALUES["damage"], TOPIC_VALUES["damage_lost"], 1000)
    return broker
