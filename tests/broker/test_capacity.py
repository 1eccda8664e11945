"""Tests of pyqd.broker.capacity."""

import logging
from pathlib import Path

import pytest

from pyqd.broker.broker import Broker
from pyqd.broker.capacity import MEMORY_LOOK_S, MEMORY_RESERVE_BYTES, Capacity
from pyqd.hot.diskqueue.mapping import unmanaged_count
from pyqd.hot.primitives.clock import wall
from pyqd.primitives import machine
from pyqd.primitives.errors import MachineLimitReached
from tests.support.storage import body_of, options_for


class Machine:
    """Memory and time as a test wants them."""

    def __init__(self) -> None:
        self.memory_bytes = MEMORY_RESERVE_BYTES
        self.now_s = 0.0

    def capacity(self, connection_max: int | None = None) -> Capacity:
        return Capacity(None, connection_max, lambda: self.memory_bytes, lambda: self.now_s)

    def change(self, memory_bytes: int) -> None:
        self.memory_bytes = memory_bytes
        self.now_s += MEMORY_LOOK_S


def test_without_memory_nothing_is_created_and_existing_objects_keep_working(tmp_path: Path) -> None:
    computer = Machine()
    broker = Broker(options_for(tmp_path), capacity=computer.capacity())
    broker.load()
    channel = broker.topic("t").channel("c")
    computer.change(MEMORY_RESERVE_BYTES - 1)
    with pytest.raises(MachineLimitReached, match=r"cannot create topic u: less than .* memory\.max"):
        broker.topic("u")
    with pytest.raises(MachineLimitReached, match="cannot create channel d of topic t: ") as refused:
        broker.topic("t").channel("d")
    assert refused.value.code == "OUT_OF_MEMORY"
    assert broker.health().startswith("NOK - less than")
    for _ in range(200):
        broker.topic("t").publish_body(body_of(1, 1000), wall())
    assert channel.depth == 200
    computer.change(MEMORY_RESERVE_BYTES)
    assert broker.health() == "OK"
    broker.topic("u").channel("d")
    broker.close()


def test_memory_that_many_new_channels_take_within_a_moment_is_noticed(tmp_path: Path) -> None:
    computer = Machine()
    computer.memory_bytes = 2 * MEMORY_RESERVE_BYTES
    broker = Broker(options_for(tmp_path), capacity=computer.capacity())
    broker.load()
    topic = broker.topic("t")
    numbers = iter(range(200))

    def create() -> None:
        for number in numbers:
            topic.channel(f"c{number}")
            computer.memory_bytes -= MEMORY_RESERVE_BYTES // 64

    with pytest.raises(MachineLimitReached):
        create()
    assert computer.memory_bytes >= MEMORY_RESERVE_BYTES // 4
    broker.close()


def test_a_limit_is_logged_once_when_it_is_reached_and_once_when_it_is_not(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    computer = Machine()
    capacity = computer.capacity()
    for memory_bytes in (0, 1, 0, MEMORY_RESERVE_BYTES, MEMORY_RESERVE_BYTES, 0):
        computer.change(memory_bytes)
        capacity.refusal()
        capacity.connection_refusal()
    levels = [record.levelname for record in caplog.records]
    assert levels == ["ERROR", "INFO", "ERROR"]


def test_connections_are_refused_at_their_limit_and_topics_are_not() -> None:
    capacity = Machine().capacity(connection_max=2)
    capacity.connection_count = lambda: 1
    assert capacity.connection_refusal() == ""
    capacity.connection_count = lambda: 2
    assert "RLIMIT_NOFILE" in capacity.connection_refusal()
    capacity.check("topic t")
    capacity.http_extra = 1
    assert capacity.http_refusal() == ""
    capacity.connection_count = lambda: 3
    assert "RLIMIT_NOFILE" in capacity.http_refusal()


def test_files_outside_the_arena_are_limited() -> None:
    Capacity(file_max=unmanaged_count() + 1).check("topic t")
    with pytest.raises(MachineLimitReached, match=r"vm\.max_map_count"):
        Capacity(file_max=unmanaged_count()).check("topic t")


def test_the_limits_of_this_machine_are_read() -> None:
    assert machine.mapping_max() > machine.mapping_count() > 0
    assert machine.descriptor_max() > 0
    assert machine.available_bytes() > 0
