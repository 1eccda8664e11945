"""Many kills of a broker without sockets, each at a random time of random work, against a model of the work."""

import dataclasses
import json
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from pyqd.hot.primitives.clock import mono, wall
from pyqd.primitives.durations import HOUR_NS
from tests.persistence.views import deferred_in, view_of
from tests.support.readiness import is_readable
from tests.support.storage import body_of, broker_on, consumer_on, frames_of, number_in

KILLS = 100
RUN_S_MAX = 0.012
# Over all channels. Each check reads all of them, so most of the time goes to old messages beyond this.
MESSAGES_MAX = 900
WAIT_S = 20.0
SIZES = (20, 20, 20, 100, 3000, 20_000)


@dataclasses.dataclass
class Message:
    """A message in one channel. due_ns: (earliest, latest) it may be due; None: it is not deferred."""

    number: int
    due_ns: tuple[int, int] | None = None
    handed_out: bool = False


Model = dict[str, dict[int, Message]]


class Worker:
    """The child: does random operations, and says of each before and after, one line of JSON each."""

    def __init__(self, directory: Path, seed: int, first: int, fd: int) -> None:
        self.fd = fd
        self.rng = random.Random(seed)
        self.number = first
        self.broker: Any = broker_on(directory)
        self.topic = self.broker.topic("t")
        self.channels = {name: self.topic.channel(name) for name in "abc"}
        self.consumers = {name: consumer_on(channel) for name, channel in self.channels.items()}
        self.in_flight: dict[str, dict[int, int]] = {name: {} for name in self.channels}
        self.say("ready", "")

    def say(self, phase: str, what: str, **details: Any) -> None:
        os.write(self.fd, json.dumps([phase, what, details]).encode() + b"\n")

    def body(self) -> bytes:
        body = body_of(self.number, self.rng.choice(SIZES))
        self.number += 1
        return body

    def publish(self) -> None:
        due_ns = wall() + HOUR_NS if self.rng.random() < 0.3 else 1 if self.rng.random() < 0.3 else 0
        self.say("begin", "publish", numbers=[self.number], due=due_ns)
        self.topic.publish_body(self.body(), wall(), due_ns)

    def publish_many(self) -> None:
        count = self.rng.randint(1, 12)
        self.say("begin", "publish", numbers=list(range(self.number, self.number + count)), due=0)
        self.topic.publish_frames(frames_of([self.body() for _ in range(count)]), wall())

    def take(self) -> None:
        name = self.rng.choice("aab")
        self.say("begin", "take", channel=name)
        numbers = []
        for _ in range(self.rng.randint(1, 20)):
            taken = self.channels[name].take_message(self.consumers[name])
            if taken is None:
                break
            numbers.append(int.from_bytes(taken[3][:8], "little"))
            self.in_flight[name][numbers[-1]] = taken[0]
        self.say("end", "take", channel=name, numbers=numbers)

    def answer(self) -> None:
        name = self.rng.choice("aab")
        if not self.in_flight[name]:
            return
        number = self.rng.choice(list(self.in_flight[name]))
        guid = self.in_flight[name].pop(number)
        channel, consumer = self.channels[name], self.consumers[name]
        lot = self.rng.random()
        if lot < 0.7:
            self.say("begin", "finish", channel=name, number=number)
            assert channel.finish_message(consumer, guid) == 0
        else:
            delay_ns = self.rng.choice([0, 1, HOUR_NS])
            self.say("begin", "requeue", channel=name, number=number, delay=delay_ns, now=wall())
            assert channel.requeue_message(consumer, guid, delay_ns) == 0
        self.say("end", "", now=wall())

    def work(self) -> None:
        while True:
            lot = self.rng.random()
            if lot < 0.2:
                self.publish()
                self.say("end", "")
            elif lot < 0.3:
                self.publish_many()
                self.say("end", "")
            elif lot < 0.5:
                self.take()
            elif lot < 0.95:
                self.answer()
            else:
                self.broker.scheduler.run_timers(mono() + 1)
            self.broker.scheduler.run_wakes()


def run_child(directory: Path, seed: int, first: int, seconds: float) -> list[Any]:
    """Let a child work for a time and kill it. Returns: its output."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            Worker(directory, seed, first, writer).work()
        finally:
            os._exit(1)
    os.close(writer)
    said = bytearray()
    deadline_s = time.monotonic() + WAIT_S
    kill_s = None if seconds > RUN_S_MAX / 4 else time.monotonic() + seconds
    with open(reader, "rb", buffering=0) as pipe:
        while kill_s is None or time.monotonic() < kill_s:
            assert time.monotonic() < deadline_s, "the child is not ready"
            if is_readable(pipe, 0.0005):
                data = pipe.read(1 << 16)
                assert data, "the child has ended by itself"
                said += data
            if kill_s is None and said:
                kill_s = time.monotonic() + seconds
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        while data := pipe.read(1 << 16):
            said += data
    return [json.loads(line) for line in said.splitlines()]


def apply(model: Model, what: str, begun: dict[str, Any], ended: dict[str, Any]) -> None:
    if what == "publish":
        due_ns = (begun["due"], begun["due"]) if begun["due"] > 1 else None
        for messages in model.values():
            messages.update({number: Message(number, due_ns) for number in begun["numbers"]})
    elif what == "take":
        for number in ended["numbers"]:
            message = model[begun["channel"]][number]
            message.handed_out = True
    elif what == "finish":
        del model[begun["channel"]][begun["number"]]
    elif what == "requeue" and begun["delay"] > 1:
        message = model[begun["channel"]][begun["number"]]
        message.due_ns = (begun["now"] + begun["delay"], ended["now"] + begun["delay"])


def agrees(messages: dict[int, Message], view: Any) -> bool:
    """Return whether a channel shows exactly these messages, each in its state."""
    found = {number_in(body): (body, attempts) for body, attempts in view.queued}
    waiting = {number_in(body): (body, due_ns) for body, due_ns in view.deferred}
    if len(found) != len(view.queued) or len(waiting) != len(view.deferred):
        return False
    for number, message in messages.items():
        body, value = (waiting if message.due_ns else found).get(number, (b"", 0))
        if not body or body != body_of(number, len(body)):
            return False
        if message.due_ns is None:
            if message.handed_out and value < 2:
                return False
        elif not message.due_ns[0] <= value <= message.due_ns[1]:
            return False
        else:
            message.due_ns = (value, value)
    return len(messages) == len(found) + len(waiting)


def check(directory: Path, model: Model, under_way: tuple[str, dict[str, Any]] | None) -> int:
    """Start on a copy and compare; the operation in progress was done or was not, in each channel.

    Returns: in how many channels it was.
    """
    copy = directory.parent / "copy"
    shutil.copytree(directory, copy)
    try:
        topic: Any = broker_on(copy).topics.get("t")
        views = (
            {name: view_of(channel) for name, channel in topic.channels_by_name.items()} if topic is not None else {}
        )
    finally:
        shutil.rmtree(copy)
    after = {name: {number: dataclasses.replace(each) for number, each in model[name].items()} for name in model}
    if under_way is not None and under_way[0] != "take":
        apply(after, under_way[0], under_way[1], {"now": wall()})
    done = 0
    for name, messages in model.items():
        if name not in views:
            assert not messages
            continue
        if not agrees(messages, views[name]):
            assert agrees(after[name], views[name]), (name, under_way, views[name])
            model[name] = after[name]
            done += 1
    return done


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [1, 2])
def test_the_state_after_a_kill_at_a_random_time_matches_the_model(tmp_path, seed):
    rng = random.Random(seed)
    directory = tmp_path / "data"
    directory.mkdir()
    model: Model = {name: {} for name in "abc"}
    first = 0
    operations = 0
    for _ in range(KILLS):
        under_way = None
        for phase, what, details in run_child(directory, rng.randrange(1 << 32), first, rng.random() * RUN_S_MAX):
            if phase == "begin":
                under_way = (what, details)
                first = max([first, *(number + 1 for number in details.get("numbers", ()))])
            elif phase == "end":
                assert under_way is not None
                apply(model, *under_way, details)
                under_way = None
                operations += 1
        check(directory, model, under_way)
        if sum(map(len, model.values())) > MESSAGES_MAX:
            # The data is sound: continue with an empty directory.
            shutil.rmtree(directory)
            directory.mkdir()
            model = {name: {} for name in "abc"}
    assert operations > KILLS


def test_the_view_of_a_channel_separates_deferred_from_queued_messages(tmp_path):
    topic = broker_on(tmp_path).topic("t")
    channel = topic.channel("c")
    due_ns = wall() + HOUR_NS
    topic.publish_body(body_of(1), wall(), due_ns)
    topic.publish_body(body_of(2), wall())
    assert deferred_in(channel) == [(body_of(1), due_ns)]
    view = view_of(channel)
    assert (view.queued, view.deferred) == (((body_of(2), 1),), ((body_of(1), due_ns),))
