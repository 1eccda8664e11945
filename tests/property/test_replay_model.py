"""Channels that are moved, and ranges that are read, against lists; with kills in between."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pyqd.broker import replay
from pyqd.broker.replay import LogPlace, no_pause
from pyqd.fallback import records
from pyqd.hot.primitives.clock import wall
from pyqd.primitives.durations import HOUR_NS
from tests.support.examples import examples
from tests.support.invariants import check_topic
from tests.support.storage import body_of, broker_on, consumer_on

# Each test takes long, by itself or with the programs that it starts.
pytestmark = pytest.mark.slow

SIZES = st.one_of(st.integers(8, 100), st.sampled_from([3000, 70_000]))
QUEUED, FLYING, DEFERRED, DONE = "queued", "flying", "deferred", "done"


class ReplayMachine(RuleBasedStateMachine):
    """A topic whose log is held, with a channel that seeks; the model is a state for each message."""

    def __init__(self):
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.topic: Any = None
        self.kept: list[Any] = []

    def teardown(self):
        self.topic = None
        self.kept.clear()
        shutil.rmtree(self.directory)

    @initialize()
    def begin(self):
        self.sizes: list[int] = []
        self.deferred: set[int] = set()
        self.states: list[str] = []
        self.flying: dict[int, int] = {}
        self.open()
        self.topic.channel("holder")

    def open(self):
        # A killed broker leaves its files' content; the object is kept, so that nothing closes them.
        self.kept.append(self.topic)
        self.topic = broker_on(self.directory).topic("t")
        self.channel = self.topic.channel("c")
        self.consumer = consumer_on(self.channel)

    @rule(size=SIZES, count=st.integers(1, 30), deferred=st.booleans())
    def publish(self, size, count, deferred):
        for _ in range(count):
            number = len(self.sizes)
            self.topic.publish_body(body_of(number, size), wall(), wall() + HOUR_NS if deferred else 0)
            self.sizes.append(size)
            self.states.append(DEFERRED if deferred else QUEUED)
            if deferred:
                self.deferred.add(number)

    @rule(count=st.integers(1, 40))
    def take(self, count):
        for _ in range(count):
            message = self.channel.take_message(self.consumer)
            if message is None:
                assert QUEUED not in self.states
                break
            number = int.from_bytes(message[3][:8], "little")
            assert message[3] == body_of(number, self.sizes[number])
            assert self.states[number] == QUEUED
            self.states[number] = FLYING
            self.flying[number] = message[0]

    @rule(data=st.data(), answer=st.sampled_from(["finish", "requeue", "defer"]))
    def answer(self, data, answer):
        if not self.flying:
            return
        number = data.draw(st.sampled_from(sorted(self.flying)))
        guid = self.flying.pop(number)
        if answer == "finish":
            assert self.channel.finish_message(self.consumer, guid) == 0
            self.states[number] = DONE
        else:
            assert self.channel.requeue_message(self.consumer, guid, HOUR_NS if answer == "defer" else 0) == 0
            self.states[number] = DEFERRED if answer == "defer" else QUEUED

    @rule(part=st.floats(0, 1))
    def seek(self, part):
        target = round(part * len(self.sizes))
        shown = replay.preview(self.topic, self.channel, LogPlace(position=target), no_pause)
        assert shown["in_flight"] == len(self.flying)
        assert shown["deferred"] == self.states.count(DEFERRED)
        assert replay.move(self.topic, self.channel, LogPlace(position=target), no_pause) == shown
        for number in range(len(self.sizes)):
            if number < target:
                self.states[number] = DONE
            else:
                self.states[number] = DEFERRED if number in self.deferred else QUEUED
        self.flying.clear()
        assert shown["depth"] == len(self.sizes) - target

    @rule()
    def kill(self):
        self.open()
        for number in self.flying:
            self.states[number] = QUEUED
        self.flying.clear()

    @rule(start=st.floats(0, 1), stop=st.floats(0, 1), bytes_max=st.integers(1, 200_000))
    def read(self, start, stop, bytes_max):
        start, stop = (round(part * len(self.sizes)) for part in sorted((start, stop)))
        found = []
        while start < stop:
            page = replay.read_range(self.topic, LogPlace(position=start), stop, bytes_max, no_pause)
            found += [(record.position, record.body) for record in records.decode(page.data)]
            assert page.records > 0
            start = page.next
        first = stop - len(found)
        assert found == [(number, body_of(number, self.sizes[number])) for number in range(first, stop)]

    @invariant()
    def the_counts_are_right(self):
        assert self.channel.depth == self.states.count(QUEUED)
        assert self.channel.in_flight_count == self.consumer.in_flight == len(self.flying)
        assert self.channel.deferred_count == self.states.count(DEFERRED)
        check_topic(self.topic)


TestReplay = ReplayMachine.TestCase
TestReplay.settings = settings(max_examples=examples(15), stateful_step_count=30)


class LongReplayMachine(ReplayMachine):
    """The same machine; its tests are a class of their own."""


TestReplayAtLength = pytest.mark.slow(LongReplayMachine.TestCase)
TestReplayAtLength.settings = settings(max_examples=examples(60), stateful_step_count=30)
