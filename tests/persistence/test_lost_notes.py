"""Notes that are gone before a start: no message is lost, and none comes back."""

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from pyqd.broker import message_lookup
from pyqd.hot.primitives.clock import mono, wall
from pyqd.primitives.durations import HOUR_NS, MINUTE_NS
from tests.persistence.views import views_in
from tests.support.invariants import check_topic
from tests.support.storage import body_of, broker_on, consumer_on

OPERATIONS_PER_RUN = 120
RUNS = 4


class Client:
    """Random operations on a channel of a broker, of those that make, change and free notes."""

    def __init__(self, broker: Any, chosen: random.Random) -> None:
        self.topic = broker.topic("t")
        self.channel = self.topic.channel("c")
        self.consumer = consumer_on(self.channel)
        self.chosen = chosen
        self.held: list[int] = []

    def operate(self) -> None:
        chosen = self.chosen
        operations = (self.publish, self.take, self.take, self.finish, self.requeue, self.release, self.change)
        chosen.choice(operations)()
        check_topic(self.topic)

    def publish(self) -> None:
        due_ns = self.chosen.choice((0, 0, 1, wall() + HOUR_NS))
        self.topic.publish_body(body_of(self.topic.log.end), wall(), due_ns)

    def take(self) -> None:
        message = self.channel.take_message(self.consumer)
        if message is not None:
            self.held.append(message[0])

    def finish(self) -> None:
        if self.held:
            self.channel.finish_message(self.consumer, self.held.pop(self.chosen.randrange(len(self.held))))

    def requeue(self) -> None:
        if self.held:
            guid = self.held.pop(self.chosen.randrange(len(self.held)))
            self.channel.requeue_message(self.consumer, guid, self.chosen.choice((0, 1, MINUTE_NS, HOUR_NS)))

    def release(self) -> None:
        self.topic.broker.scheduler.run_timers(mono() + 1)
        self.topic.broker.scheduler.run_wakes()

    def change(self) -> None:
        guids = [guid for _, guid, *_ in self.topic.log.records()]
        due_ns = self.chosen.choice((wall(), wall() + HOUR_NS))
        change = self.chosen.choice((message_lookup.cancel, message_lookup.reschedule_to(self.topic, due_ns)))
        if guids:
            message_lookup.change_message(self.topic, [self.channel], self.chosen.choice(guids), change, lambda: None)


def bodies_in(directory: Path) -> list[bytes]:
    """Return the bodies of all unfinished messages that a start on a copy of the directory finds, sorted."""
    copy = directory.parent / "copy"
    shutil.copytree(directory, copy)
    view = views_in(copy)["c"]
    shutil.rmtree(copy)
    return sorted(body for body, _ in (*view.queued, *view.deferred))


def test_a_start_removes_files_that_a_kill_has_left_half_made(tmp_path):
    broker = broker_on(tmp_path)
    client = Client(broker, random.Random(1))
    client.publish()
    client.take()
    client.channel.requeue_message(client.consumer, client.held[0], HOUR_NS)
    notes = tmp_path / "topics" / "t.topic" / "c.channel" / "notes"
    for name in ("1.making", "ahead.7"):
        (notes / name).write_bytes(bytes(64 << 10))
    assert broker_on(tmp_path).topic("t").channel("c").deferred_count == 1
    assert [path.name for path in notes.iterdir()] == ["0"]


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_deleting_the_notes_before_a_start_loses_and_revives_no_message(tmp_path, seed, closed):
    chosen = random.Random(seed)
    directory = tmp_path / "data"
    directory.mkdir()
    notes = directory / "topics" / "t.topic" / "c.channel" / "notes"
    broker = broker_on(directory)
    for _ in range(RUNS):
        client = Client(broker, chosen)
        for _ in range(OPERATIONS_PER_RUN):
            client.operate()
        if closed:
            broker.close()
        expected = bodies_in(directory)
        assert notes.exists()
        shutil.rmtree(notes)
        assert bodies_in(directory) == expected
        broker = broker_on(directory)
        check_topic(broker.topic("t"))
