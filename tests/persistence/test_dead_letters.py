"""Dead letters, killed at any instruction and cut off at any page: always in one of the two topics at least."""

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyqd.broker.channel_settings import ChannelSettings
from pyqd.durability.syncer import Syncer, run_inline
from pyqd.hot.primitives.clock import mono, wall
from pyqd.primitives.durations import HOUR_NS, SECOND_NS
from tests.persistence.stepping import states_of
from tests.support.examples import examples
from tests.support.invariants import check_topic
from tests.support.power import PowerFiles
from tests.support.storage import body_of, broker_on, consumer_on, number_in

LIMITS = ChannelSettings(max_attempts=2, dead_letter_topic="dead")


def letters_in(broker: Any) -> set[int]:
    topic = broker.topics.get("dead")
    return set() if topic is None else {number_in(body) for *_, body in topic.log.records()}


def unfinished_in(broker: Any) -> set[int]:
    """Return the remaining messages of the channel, in any state."""
    channel = broker.topics["t"].channels_by_name["c"]
    return {
        number_in(body) for ordinal, *_, body in channel.topic.log.records() if not channel.ledger.has_finished(ordinal)
    }


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="single steps of x86-64")
@pytest.mark.parametrize("deferred", [False, True])
def test_a_kill_at_any_instruction_leaves_it_in_one_of_the_two(tmp_path: Path, deferred: bool) -> None:
    directory = tmp_path / "data"
    directory.mkdir()
    broker = broker_on(directory)
    broker.topic("dead").channel("d")
    channel = broker.topic("t").channel("c")
    channel.set_limits(LIMITS)
    consumer = consumer_on(channel)
    channel.topic.publish_body(body_of(1, 20), wall())
    for delay_ns in (1 if deferred else 0, 0):
        guid = channel.take_message(consumer)[0]
        assert channel.requeue_message(consumer, guid, delay_ns) == 0
        if delay_ns:
            broker.scheduler.run_timers(mono() + 1)
    assert channel.dead_letters_pending == 1
    seen = []
    for state in states_of(directory, broker.scheduler.run_wakes):
        found = broker_on(state)
        seen.append((1 in unfinished_in(found), 1 in letters_in(found)))
    assert set(seen) == {(True, False), (True, True), (False, True)}
    assert seen == sorted(seen, key=[(True, False), (True, True), (False, True)].index)


class World:
    """A channel whose messages go to another topic after two attempts, on a disk that forgets."""

    def __init__(self, root: Path, seed: int, chance: float) -> None:
        self.root = root
        self.random = random.Random(seed)
        self.files = PowerFiles(root, "0", seed, chance)
        self.count = 0
        self.durable = 0
        self.finished: set[int] = set()
        self.open()

    def open(self) -> None:
        self.broker = broker_on(self.root, self.files)
        self.syncer = Syncer(self.broker, run_inline)
        self.channel = self.broker.topic("t").channel("c")
        self.channel.dead_letters.durable = True
        if "dead" not in self.broker.topics:
            self.broker.topic("dead")
        if self.channel.limits != LIMITS:
            self.channel.set_limits(LIMITS)
        self.consumer = consumer_on(self.channel)
        self.in_flight: list[tuple[int, int]] = []

    def publish(self) -> None:
        for _ in range(self.random.randrange(1, 30)):
            self.count += 1
            self.channel.topic.publish_body(body_of(self.count, self.random.choice((8, 900, 9000))), wall())

    def consume(self) -> None:
        for _ in range(self.random.randrange(1, 30)):
            taken = self.channel.take_message(self.consumer)
            if taken is None:
                break
            guid, attempts, _, body = taken
            assert attempts <= LIMITS.max_attempts
            self.in_flight.append((guid, number_in(body)))
        for _ in range(self.random.randrange(1, 30)):
            if not self.in_flight:
                break
            guid, number = self.in_flight.pop(self.random.randrange(len(self.in_flight)))
            if self.random.random() < 0.2:
                assert self.channel.finish_message(self.consumer, guid) == 0
                self.finished.add(number)
            else:
                delay_ns = self.random.choice((0, 0, 1, HOUR_NS))
                assert self.channel.requeue_message(self.consumer, guid, delay_ns) == 0

    def turn(self) -> None:
        self.broker.scheduler.run_timers(mono() + 2 * SECOND_NS)
        self.broker.scheduler.run_wakes()

    def sync(self) -> None:
        count = self.count
        assert self.syncer.sync_dirty()
        self.durable = count

    def kill(self) -> None:
        self.open()
        self.agrees(set(range(1, self.count + 1)))

    def lose_power(self) -> None:
        after = self.root.parent / f"{self.root.name}x"
        self.files.cut(after)
        self.files.close()
        shutil.rmtree(self.root)
        self.root = after
        boot = str(int(self.files.boot) + 1)
        self.files = PowerFiles(after, boot, self.random.randrange(1000), self.files.chance)
        self.open()
        self.agrees(set(range(1, self.durable + 1)))
        # Messages lost with the power are not awaited any more.
        self.finished |= set(range(self.durable + 1, self.count + 1))

    def agrees(self, expected: set[int]) -> None:
        """Every message is finished, unfinished, or a dead letter."""
        missing = expected - self.finished - unfinished_in(self.broker) - letters_in(self.broker)
        assert not missing
        check_topic(self.broker.topics["t"])

    def drain(self) -> None:
        """Give everything back until it is a dead letter."""
        for _ in range(10):
            while (taken := self.channel.take_message(self.consumer)) is not None:
                self.in_flight.append((taken[0], number_in(taken[3])))
            for guid, _ in self.in_flight:
                assert self.channel.requeue_message(self.consumer, guid, 0) == 0
            self.in_flight.clear()
            while self.channel.dead_letters_pending:
                self.turn()
            self.sync()
        assert self.channel.dead_letters_unsynced == 0
        assert self.channel.depth == 0


STEPS = st.lists(
    st.sampled_from(["publish", "consume", "consume", "turn", "turn", "sync", "write_back", "kill", "lose_power"]),
    max_size=40,
)


@pytest.mark.slow
@settings(max_examples=examples(30))
@given(steps=STEPS, seed=st.integers(0, 1000), chance=st.sampled_from([0.0, 0.3, 0.9]))
def test_whatever_fails_no_message_is_in_neither(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], seed: int, chance: float
) -> None:
    root = tmp_path_factory.mktemp("world") / "0"
    root.mkdir()
    world = World(root, seed, chance)
    world.sync()
    for step in steps:
        if step == "write_back":
            world.files.write_back()
        else:
            getattr(world, step)()
    world.agrees(set(range(1, world.count + 1)))
    world.drain()
    world.agrees(set(range(1, world.count + 1)))
    world.files.close()
    shutil.rmtree(root.parent)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_no_order_of_written_pages_loses_a_dead_letter(tmp_path: Path, seed: int) -> None:
    root = tmp_path / "0"
    root.mkdir()
    world = World(root, seed, 0.5)
    for _ in range(10):
        world.publish()
        world.sync()
        for step in (world.consume, world.consume, world.consume, world.turn, world.lose_power):
            step()
    world.drain()
    world.agrees(set(range(1, world.count + 1)))
    world.files.close()
