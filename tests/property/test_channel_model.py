"""Topics and channels against a plain model, over kills, clean stops, full disks, pauses and actions of clients."""

import dataclasses
import shutil
import struct
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pyqd.broker import segment_rewriter
from pyqd.hot.primitives.clock import mono, wall
from pyqd.primitives.durations import HOUR_NS, MINUTE_NS, SECOND_NS
from pyqd.primitives.errors import DiskFull
from tests.support.examples import examples
from tests.support.invariants import check_topic
from tests.support.storage import FullFiles, body_of, broker_on, consumer_on, frames_of, run_all_wakes

# Each test takes long, by itself or with the programs that it starts.
pytestmark = pytest.mark.slow

DONE, NOT_IN_FLIGHT, NOT_OWNER = range(3)
QUEUED, IN_FLIGHT, FAR, DUE = "queued", "in flight", "far", "due"
NAMES = ("a", "b")
SIZES = st.one_of(st.integers(8, 200), st.sampled_from([1000, 9000, 30_000, 70_000]))


@dataclasses.dataclass
class Message:
    """One message of one channel."""

    state: str
    attempts: int = 0
    # The attempts when it was last deferred; None: it was not, or a clean stop has noted that it was due.
    deferred_attempts: int | None = None
    # A note has its attempts.
    noted: bool = False
    owner: int | None = None

    def defer(self, state):
        self.state, self.deferred_attempts, self.noted = state, self.attempts, True


class ChannelMachine(RuleBasedStateMachine):
    """One topic with up to two channels; the model knows the state of every message in every channel."""

    def __init__(self):
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.broker: Any = None
        self.brokers: list[Any] = []
        self.limits = segment_rewriter.REWRITTEN_AGE_NS, segment_rewriter.REWRITTEN_LOG_BYTES_MIN
        segment_rewriter.REWRITTEN_AGE_NS = segment_rewriter.REWRITTEN_LOG_BYTES_MIN = 0

    def teardown(self):
        segment_rewriter.REWRITTEN_AGE_NS, segment_rewriter.REWRITTEN_LOG_BYTES_MIN = self.limits
        if self.broker is not None:
            self.finish_everything()
        self.broker = None
        self.brokers.clear()
        shutil.rmtree(self.directory)

    @initialize(ahead=st.booleans())
    def begin(self, ahead):
        self.files = self.new_files()
        self.ahead = ahead
        self.count = 0
        self.sizes = {}
        self.held = {}
        self.model = {}
        self.paused = False
        self.published = 0
        self.open()

    def new_files(self):
        return FullFiles()

    def broker_on_disk(self):
        return broker_on(self.directory, self.files)

    def open(self):
        self.broker = self.broker_on_disk()
        if not self.ahead:
            self.broker.in_background = self.broker.segment_jobs.in_background = lambda job, done: None
        self.topic = self.broker.topic("t")
        self.guids = {}
        self.consumers = {name: [consumer_on(self.topic.channel(name)) for _ in range(2)] for name in self.model}

    def body(self, number):
        return body_of(number, self.sizes[number])

    def deliver(self, number, state):
        """Note a message as published."""
        self.published += 1
        if self.model and not self.paused:
            for messages in self.model.values():
                messages[number] = Message(state, 0, None if state == QUEUED else 0)
        else:
            self.held[number] = state

    def show_held(self):
        if self.model and not self.paused:
            for number, state in self.held.items():
                for messages in self.model.values():
                    messages[number] = Message(state, 0, None if state == QUEUED else 0)
            self.held = {}

    @staticmethod
    def times_of(state):
        """Return the time of publishing and the due time of a message."""
        # A due time that has passed when it is published is none.
        return {QUEUED: (wall(), 0), DUE: (5, 17), FAR: (wall(), wall() + HOUR_NS)}[state]

    def new_number(self, size):
        self.count += 1
        self.sizes[self.count] = size
        return self.count

    @rule(size=SIZES, state=st.sampled_from([QUEUED, QUEUED, FAR, DUE]), full=st.booleans())
    def publish(self, size, state, full):
        number = self.new_number(size)
        self.files.room = 0 if full else None
        try:
            self.topic.publish_body(self.body(number), *self.times_of(state))
        except DiskFull:
            assert full
        else:
            self.deliver(number, state)
        self.files.room = None

    @rule(
        sizes=st.lists(SIZES, min_size=1, max_size=40),
        state=st.sampled_from([QUEUED, QUEUED, FAR, DUE]),
        full=st.booleans(),
    )
    def publish_batch(self, sizes, state, full):
        numbers = [self.new_number(size) for size in sizes]
        self.files.room = 0 if full else None
        try:
            self.topic.publish_frames(frames_of([self.body(number) for number in numbers]), *self.times_of(state))
        except DiskFull:
            assert full
        else:
            for number in numbers:
                self.deliver(number, state)
        self.files.room = None

    @rule(name=st.sampled_from(NAMES))
    def make_channel(self, name):
        if name not in self.model:
            self.model[name] = {}
            channel = self.topic.channel(name)
            self.consumers[name] = [consumer_on(channel) for _ in range(2)]
            self.show_held()

    @rule(name=st.sampled_from(NAMES))
    def delete_channel(self, name):
        for consumer in list(self.consumers.get(name, ())):
            self.topic.channel(name).remove_consumer(consumer)
        assert self.topic.delete_channel(name) == (name in self.model)
        self.model.pop(name, None)
        self.consumers.pop(name, None)

    def take_one(self, name, owner):
        consumer = self.consumers[name][owner]
        taken = self.topic.channel(name).take_message(consumer)
        queued = {number for number, message in self.model[name].items() if message.state == QUEUED}
        if taken is None:
            assert not queued
            return False
        guid, attempts, _, body = taken
        (number,) = struct.unpack_from("<Q", body)
        assert body == self.body(number)
        assert number in queued
        assert self.guids.setdefault(number, guid) == guid
        message = self.model[name][number]
        message.attempts += 1
        assert attempts == message.attempts
        message.state, message.owner = IN_FLIGHT, owner
        message.noted = message.noted or message.deferred_attempts is not None
        return True

    @precondition(lambda self: self.model)
    @rule(name=st.sampled_from(NAMES), owner=st.integers(0, 1), count=st.integers(1, 60))
    def take(self, name, owner, count):
        if name in self.model:
            for _ in range(count):
                if not self.take_one(name, owner):
                    break

    @precondition(lambda self: self.model)
    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 60))
    def take_and_finish_one_by_one(self, name, count):
        if name in self.model:
            before = {number for number, message in self.model[name].items() if message.state == IN_FLIGHT}
            for _ in range(count):
                if not self.take_one(name, 0):
                    break
                (number,) = {
                    number for number, message in self.model[name].items() if message.state == IN_FLIGHT
                } - before
                self.answer_one(name, number, "finish", False)
                self.broker.scheduler.run_wakes()

    def in_flight(self, name, pick):
        flying = [number for number, message in self.model.get(name, {}).items() if message.state == IN_FLIGHT]
        return sorted(flying)[pick % len(flying)] if flying else None

    @precondition(lambda self: self.model)
    @rule(
        name=st.sampled_from(NAMES),
        picks=st.lists(st.integers(0, 100), min_size=1, max_size=40),
        what=st.sampled_from(["finish", "finish", "requeue", "far", "due", "touch", "other"]),
        full=st.booleans(),
    )
    def answer(self, name, picks, what, full):
        self.files.room = 0 if full else None
        for pick in picks:
            number = self.in_flight(name, pick)
            if number is not None:
                self.answer_one(name, number, what, full)
        self.files.room = None

    def answer_one(self, name, number, what, full):
        channel, message, guid = self.topic.channel(name), self.model[name][number], self.guids[number]
        owner, other = self.consumers[name][message.owner], self.consumers[name][1 - message.owner]
        if what == "other":
            assert channel.finish_message(other, guid) == NOT_OWNER
            assert channel.requeue_message(other, guid, 0) == NOT_OWNER
        elif what == "touch":
            assert channel.touch_message(owner, guid) == DONE
        elif what == "finish":
            assert channel.finish_message(owner, guid) == DONE
            del self.model[name][number]
            assert channel.finish_message(owner, guid) == NOT_IN_FLIGHT
        elif what == "requeue":
            assert channel.requeue_message(owner, guid, 0) == DONE
            message.state = QUEUED
        else:
            try:
                assert channel.requeue_message(owner, guid, {"far": HOUR_NS, "due": 1}[what]) == DONE
            except DiskFull:
                assert full
            else:
                message.defer({"far": FAR, "due": DUE}[what])

    def each_message(self):
        return [message for messages in self.model.values() for message in messages.values()]

    @rule(late=st.booleans())
    def run_timers(self, late):
        run_all_wakes(self.broker)
        self.broker.scheduler.run_timers(mono() + (MINUTE_NS + SECOND_NS if late else 1))
        for message in self.each_message():
            if message.state == DUE or (late and message.state == IN_FLIGHT):
                message.state = QUEUED

    @rule()
    def run_wakes(self):
        self.broker.scheduler.run_wakes()

    @rule(full=st.booleans())
    def rewrite(self, full):
        """No message changes its state when finished ones give way to gaps."""
        self.topic.note_given(self.topic.end)
        self.files.room = 0 if full else None
        segment_rewriter.rewrite_old_segments(self.topic)
        self.files.room = None

    @rule(paused=st.booleans())
    def pause_topic(self, paused):
        self.topic.pause(paused)
        self.paused = paused
        self.show_held()

    @rule(name=st.sampled_from(NAMES), wakes=st.booleans())
    def empty_channel(self, name, wakes):
        if name in self.model:
            if wakes:
                self.broker.scheduler.run_wakes()
            self.topic.channel(name).empty()
            self.model[name] = {}

    @rule()
    def empty_topic(self):
        self.topic.empty()
        self.held = {}

    @rule()
    def stop_and_start(self):
        self.broker.close()
        self.open()
        for message in self.each_message():
            if message.state not in (QUEUED, IN_FLIGHT):
                continue
            if message.attempts != message.deferred_attempts:
                message.state, message.noted = QUEUED, message.noted or message.attempts > 0
            elif message.noted:
                message.state = DUE
            else:
                message.noted, message.deferred_attempts = True, None

    @rule()
    def kill_and_start(self):
        self.brokers.append(self.broker)
        self.open()
        for message in self.each_message():
            if message.state in (QUEUED, IN_FLIGHT):
                message.state = DUE if message.attempts == message.deferred_attempts else QUEUED
                if not message.noted:
                    message.attempts = min(message.attempts, 1)

    def finish_everything(self):
        """Every message that was published and is not finished comes, and nothing else."""
        self.pause_topic(False)
        self.make_channel("a")
        self.run_timers(True)
        for name in self.model:
            while self.take_one(name, 0):
                pass
            for number in list(self.model[name]):
                if self.model[name][number].state == IN_FLIGHT:
                    self.answer_one(name, number, "finish", False)
            assert {message.state for message in self.model[name].values()} <= {FAR}
        self.agrees()
        self.broker.scheduler.run_wakes()
        assert self.each_message() or self.topic.log.first is self.topic.log.active

    @invariant()
    def agrees(self):
        if self.broker is None:
            return
        check_topic(self.topic)
        assert sorted(self.topic.channels_by_name) == sorted(self.model)
        assert (self.topic.depth, self.topic.paused) == (len(self.held), self.paused)
        assert self.topic.message_count == self.published
        for name, messages in self.model.items():
            channel = self.topic.channel(name)
            states = [message.state for message in messages.values()]
            found = (channel.depth, channel.in_flight_count, channel.deferred_count)
            assert found == (states.count(QUEUED), states.count(IN_FLIGHT), states.count(FAR) + states.count(DUE))
            for owner, consumer in enumerate(self.consumers[name]):
                flying = [message for message in messages.values() if message.state == IN_FLIGHT]
                assert consumer.in_flight == sum(message.owner == owner for message in flying)


TestChannelMachine = ChannelMachine.TestCase
TestChannelMachine.settings = settings(max_examples=examples(25), stateful_step_count=40)


class LongChannelMachine(ChannelMachine):
    """The same machine; its tests are a class of their own."""


TestChannelMachineAtLength = pytest.mark.slow(LongChannelMachine.TestCase)
TestChannelMachineAtLength.settings = settings(max_examples=examples(100), stateful_step_count=40)
