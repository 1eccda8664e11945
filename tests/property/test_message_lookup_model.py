"""Messages that are looked up, cancelled and rescheduled by their id, among all other operations."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from pyqd.broker import message_lookup, peek
from pyqd.broker.broker import Broker
from pyqd.broker.replay import no_pause
from pyqd.durability.syncer import Syncer
from pyqd.hot.diskqueue.mapping import Mapping
from pyqd.hot.primitives.clock import wall
from pyqd.primitives.durations import HOUR_NS
from tests.property.test_channel_model import DUE, FAR, IN_FLIGHT, NAMES, QUEUED, SIZES, ChannelMachine
from tests.support.examples import examples
from tests.support.storage import FullFiles, number_in, options_for

# It writes thousands of small files, for which a busy disk takes a minute.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class UnsyncedFiles(FullFiles):
    """A disk that says at once that all is on stable storage."""

    def sync(self, mapping: Mapping, start_bytes: int, length_bytes: int) -> None:
        pass

    def sync_directory(self, path: str) -> None:
        pass


class AmendMachine(ChannelMachine):
    """The same model, with changes by id and listings."""

    @initialize(durable=st.booleans(), ahead=st.booleans())
    def begin(self, durable, ahead):
        self.durable = durable
        self.guid_of = {}
        self.syncer: Any = None
        self.in_log = 0
        super().begin(ahead)

    def new_files(self):
        return UnsyncedFiles()

    def broker_on_disk(self):
        broker = Broker(options_for(self.directory), self.files)
        self.syncer = Syncer(broker) if self.durable else None
        broker.load()
        return broker

    def new_number(self, size):
        self.note_ids()
        return super().new_number(size)

    def note_ids(self):
        """Note the id of each message of which the log has something: one is published after the other."""
        for _, guid, *_, body in self.topic.log.records():
            self.guid_of[number_in(body)] = guid

    @precondition(lambda self: self.durable)
    @rule()
    def sync(self):
        assert self.syncer.sync_all()

    @rule(
        name=st.sampled_from([*NAMES, None]),
        picks=st.lists(st.integers(0, 1000), min_size=1, max_size=20),
        what=st.sampled_from(["cancel", "far", "due"]),
        full=st.booleans(),
    )
    def change(self, name, picks, what, full):
        self.note_ids()
        for pick in picks:
            if self.guid_of:
                number = sorted(self.guid_of)[pick % len(self.guid_of)]
                self.files.room = 0 if full else None
                self.change_one(number, name, what, full)
                self.files.room = None

    def change_one(self, number, name, what, full):
        channels = [self.topic.channels_by_name[each] for each in self.model if name in (None, each)]
        due_ns = wall() + HOUR_NS if what == "far" else wall()
        change = message_lookup.cancel if what == "cancel" else message_lookup.reschedule_to(self.topic, due_ns)
        outcomes = message_lookup.change_message(self.topic, channels, self.guid_of[number], change, no_pause)
        if number in self.held:
            expected = [channel.name for channel in channels] or ([None] if not self.model else [])
            assert outcomes == [message_lookup.Outcome(each, message_lookup.HELD) for each in expected]
            return
        assert [outcome.channel for outcome in outcomes] == [channel.name for channel in channels]
        for channel, status, was, _ in outcomes:
            message = self.model[channel].get(number)
            if message is None:
                assert status in (message_lookup.FINISHED, message_lookup.UNKNOWN)
            elif message.state == IN_FLIGHT:
                assert status == peek.IN_FLIGHT
            elif status == message_lookup.FAILED:
                assert full
            else:
                assert status == message_lookup.DONE
                assert was == (peek.READY if message.state == QUEUED else peek.DEFERRED)
                self.note_changed(self.model[channel], number, what)

    def note_changed(self, messages, number, what):
        if what == "cancel":
            del messages[number]
        elif what == "far":
            messages[number].defer(FAR)
        elif messages[number].state != QUEUED:
            messages[number].defer(DUE)

    @rule(name=st.sampled_from(NAMES), count_max=st.sampled_from([1, 7, 1000]), size=SIZES)
    def look(self, name, count_max, size):
        if name in self.model:
            self.note_ids()
            states = {peek.READY: [QUEUED], peek.IN_FLIGHT: [IN_FLIGHT], peek.DEFERRED: [FAR, DUE]}
            for state, of_model in states.items():
                expected = {number for number, each in self.model[name].items() if each.state in of_model}
                assert self.looked_at(self.topic.channels_by_name[name], state, count_max, size) == expected

    def looked_at(self, channel, state, count_max, body_bytes_max):
        numbers = []
        cursor, dues = peek.Cursor(), []
        while True:
            page = peek.page_of_channel(self.topic, channel, state, cursor, count_max, body_bytes_max, no_pause)
            for row in page.rows:
                number = int.from_bytes(row.body[:8], "little")
                assert (self.guid_of.get(number, row.guid), self.sizes[number]) == (row.guid, row.size_bytes)
                assert row.body == self.body(number)[:body_bytes_max]
                assert row.attempts == self.model[channel.name][number].attempts
                numbers.append(number)
                dues.append(row.due_ns)
            if page.after is None:
                assert len(numbers) == len(set(numbers))
                assert state != peek.DEFERRED or dues == sorted(dues)
                return set(numbers)
            cursor = peek.parse_cursor(page.after, state)

    @rule(count_max=st.sampled_from([1, 1000]))
    def look_at_held(self, count_max):
        numbers = set()
        for state in (peek.READY, peek.DEFERRED):
            cursor = peek.Cursor()
            while True:
                page = peek.page_of_topic(self.topic, state, cursor, count_max, 8, no_pause)
                numbers |= {int.from_bytes(row.body, "little") for row in page.rows}
                if page.after is None:
                    break
                cursor = peek.parse_cursor(page.after, peek.READY)
        assert numbers == set(self.held)


TestAmendMachine = AmendMachine.TestCase
TestAmendMachine.settings = settings(max_examples=examples(200), stateful_step_count=40)
