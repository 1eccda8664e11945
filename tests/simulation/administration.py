"""Operations of operators: seek, changes by id, limits, retention, quota; readers by position; publishing over HTTP."""

from typing import Any

from pyqd.broker import message_lookup, peek, replay
from pyqd.broker.channel_settings import ChannelSettings
from pyqd.hot.broker.intake import enqueue_frames, must_queue
from pyqd.hot.primitives.clock import wall
from pyqd.primitives.durations import SECOND_NS
from pyqd.primitives.errors import StorageError
from tests.simulation.adoption import rows_of
from tests.simulation.model import DEFERRED, GRAVEYARD, IN_FLIGHT, QUEUED, Channel, Copy, Message, Topic, expect
from tests.simulation.operations import BATCHES, CHANNELS, DELAYS_MS, MS_NS, TOPICS, Operations
from tests.simulation.process import Outcome
from tests.support.snapshot import snapshot
from tests.support.storage import body_of, frames_of

RETENTIONS = (0, 100_000, 1_000_000)
RETENTION_TIMES_NS = (0, 30 * SECOND_NS, 3_600 * SECOND_NS)
QUOTAS = (0, 300_000, 1_000_000)


class Administration(Operations):
    """A world with its operators."""

    # Seek.

    def kept(self, topic: Topic) -> list[tuple[int, int, int]]:
        """Return (ordinal, number, due time) of all that can be read by its position in the topic's log."""
        log = self.broker_topic(topic).log
        records = log.records(log.earliest)
        return [(ordinal, int.from_bytes(body[:8], "little"), due) for ordinal, _, _, due, body in records]

    def place_of(self, topic: Topic, pick: int) -> replay.LogPlace:
        """Return a place in a topic's log."""
        kept = self.kept(topic)
        if pick % 4 == 0 or not kept:
            return replay.LogPlace(earliest=True)
        if pick % 4 == 1:
            return replay.LogPlace()
        ordinal = kept[pick // 4 % len(kept)][0]
        return replay.LogPlace(position=self.broker_topic(topic).reader.position_of(ordinal))

    def after_seek(self, topic: Topic, place: replay.LogPlace) -> dict[int, Copy]:
        """Return the messages of a channel after it was moved to a place."""
        found = self.broker_topic(topic)
        target = min(replay.find(found, place, lambda: None), found.end)
        return {
            number: Copy(number, DEFERRED if due_ns else QUEUED, due_ns, 0, due_ns != 0, due_ns <= self.wall_ns)
            for ordinal, number, due_ns in self.kept(topic)
            if target <= ordinal < found.end
        }

    def do_seek(self, number: int, pick: int) -> None:
        topic, channel = self.channel_at(number)
        if topic is not None and channel is not None and topic.name != GRAVEYARD:
            self.seek(topic, channel, self.place_of(topic, pick))

    def seek(self, topic: Topic, channel: Channel, place: replay.LogPlace) -> None:
        """Move a channel; cancelled messages may come again or not."""
        copies = self.after_seek(topic, place)
        name = (topic.name, channel.name)
        self.doubt.numbers[name] = set(copies) ^ set(channel.copies) | channel.cancelled
        self.doubt.moved[name] = set(copies) | set(channel.copies)
        self.doubt.resets.add(name)
        found = self.broker_channel(topic, channel)
        promised: dict[str, Any] = {}
        self.leave_reset()

        def promise() -> None:
            promised.update(replay.preview(found.topic, found, place, lambda: None))
            # While the seek waited, segments may have been rewritten.
            copies.clear()
            copies.update(self.after_seek(topic, place))

        def wait() -> None:
            self.let_grow(found.topic)
            # Messages may have become due meanwhile.
            promise()

        def move() -> None:
            promise()
            done = replay.move(found.topic, found, place, lambda: None, wait)
            expect(all(promised[key] == done[key] for key in ("to", "redeliver", "skip")), "dry run", promised, done)

        try:
            if self.refused(move) or self.died():
                return
        except replay.PositionGone:
            expect(found.topic.log.earliest > 0, "a position that is kept is refused")
            return
        rows = rows_of(found.topic, found, peek.READY) + rows_of(found.topic, found, peek.DEFERRED)
        numbers = {row.number for row in rows}
        expect(set(copies) - channel.cancelled <= numbers, f"{name} lost by a seek", sorted(set(copies) - numbers))
        expect(numbers <= set(copies), f"{name} has after a seek", sorted(numbers - set(copies)))
        expect(len(rows) == len(numbers), f"{name} has twice after a seek", rows)
        self.note_reset(channel, {number: copies[number] for number in copies if number in numbers})
        if self.was_damaged:
            channel.lost = found.depth + found.deferred_count - len(rows)

    def do_create_channel_at(self, topic_number: int, number: int, pick: int) -> None:
        topic, name = self.topic_at(topic_number), CHANNELS[number % len(CHANNELS)]
        if topic is None or name in topic.channels or topic.name == GRAVEYARD:
            return
        place = self.place_of(topic, pick)
        self.make_channel(topic.name, name)
        if not self.died() and name in topic.channels:
            self.seek(topic, topic.channels[name], place)

    # By id.

    def do_cancel(self, topic_number: int, pick: int) -> None:
        self.change(topic_number, pick, None)

    def do_reschedule(self, topic_number: int, pick: int, delay: int) -> None:
        delays_ms = (-1_000, 0, *DELAYS_MS)
        self.change(topic_number, pick, self.wall_ns + delays_ms[delay % len(delays_ms)] * MS_NS)

    def change(self, topic_number: int, pick: int, due_ns: int | None) -> None:
        """Cancel a message on all channels, or give it another due time."""
        topic = self.topic_at(topic_number)
        if topic is None or topic.name == GRAVEYARD:
            return
        found = self.broker_topic(topic)
        records = [(guid, int.from_bytes(body[:8], "little")) for _, guid, *_, body in found.log.records()]
        if not records:
            return
        guid, number = records[pick % len(records)]
        self.leave_reset()
        for channel in topic.channels.values():
            place = self.doubt.numbers if due_ns is None else self.doubt.moved
            place[topic.name, channel.name] = {number}
        change = message_lookup.cancel if due_ns is None else message_lookup.reschedule_to(found, due_ns)
        outcomes = message_lookup.change_message(
            found, list(found.channels_by_name.values()), guid, change, lambda: self.let_grow(found)
        )
        if self.died():
            if due_ns is None:
                # A cancellation is noted for seeks first. Whether it was is not known, as it was not answered.
                for channel in topic.channels.values():
                    channel.cancelled.add(number)
            return
        for outcome in outcomes:
            if outcome.channel is not None:
                self.note_changed(topic, topic.channels[outcome.channel], number, outcome.status, due_ns)

    def let_grow(self, topic: Any) -> None:
        """Do the newest job while a request waits for the growth of a channel's ledger."""
        if any(channel.grows for channel in topic.channels_by_name.values()):
            self.alive.run_job(len(self.alive.jobs) - 1, True)

    def note_changed(self, topic: Topic, channel: Channel, number: int, status: str, due_ns: int | None) -> None:
        """Check an answer against the model, and change it likewise."""
        copy = channel.copies.get(number)
        if number in channel.twice or channel.spends(copy):
            if status == message_lookup.DONE and due_ns is None:
                # The other one of two may be there still; a seek leaves both out.
                channel.copies.pop(number, None)
                channel.cancelled.add(number)
            return
        name = f"{topic.name}/{channel.name}"
        if status == message_lookup.FAILED:
            expect(self.is_disturbed, f"{name}: a change failed on a sound disk")
            return
        wanted = (
            message_lookup.FINISHED
            if copy is None
            else peek.IN_FLIGHT
            if copy.state == IN_FLIGHT
            else message_lookup.DONE
        )
        lost = wanted == message_lookup.FINISHED and status == message_lookup.UNKNOWN
        allowed = status == wanted or lost or number in topic.held
        expect(allowed, f"{name}: a change of {number} is answered", status, wanted)
        if status != message_lookup.DONE or copy is None:
            return
        if due_ns is None:
            channel.cancelled.add(number)
            self.model.finish(channel, number)
        elif due_ns > self.wall_ns or copy.state == DEFERRED:
            copy.state, copy.due_ns, copy.due_mono_ns, copy.counted = DEFERRED, due_ns, 0, True
            channel.moved.add(number)
            copy.due_reached, copy.noted_due = due_ns <= self.wall_ns, False
            copy.stamp = self.model.tick()

    # Requests.

    def do_read(self, topic_number: int, pick: int) -> None:
        topic = self.topic_at(topic_number)
        if topic is None:
            return
        found = self.broker_topic(topic)
        try:
            answer = replay.read_range(found, self.place_of(topic, pick), replay.POSITION_MAX, 1 << 16, lambda: None)
        except (replay.PositionGone, replay.PositionBeyondEnd):
            return
        expect(answer.first <= answer.next <= max(answer.end, answer.next), "positions", answer[:4])
        replay.positions(found, None, lambda: None)

    def do_look(self) -> None:
        """Statistics, health and pages of messages, which change nothing."""
        broker = self.alive.broker
        snapshot(broker, 0, self.alive.server.producers)
        broker.health()
        for topic in self.model.topics.values():
            found = self.broker_topic(topic)
            for channel in topic.channels.values() if topic.name != GRAVEYARD else ():
                rows = rows_of(found, found.channels_by_name[channel.name], peek.IN_FLIGHT)
                numbers = {copy.number for copy in channel.copies.values() if copy.state == IN_FLIGHT}
                expect({row.number for row in rows} == numbers, "in flight", len(rows), len(numbers))

    # Limits.

    def do_limit(self, number: int, rate: int, attempts: int) -> None:
        topic, channel = self.channel_at(number)
        if topic is None or channel is None or topic.name == GRAVEYARD:
            return
        attempts %= 4
        limits = ChannelSettings(float(rate % 3 * 5), 0.0, attempts, GRAVEYARD if attempts else "")
        if attempts and not self.make_graveyard():
            return
        self.doubt.moved[topic.name, channel.name] = set(channel.copies)
        self.broker_channel(topic, channel).set_limits(limits)
        if not self.died():
            channel.note_limits(limits, self.model.tick())
            self.spent.update(copy.number for copy in channel.copies.values() if channel.spends(copy))

    def make_graveyard(self) -> bool:
        """Make the topic for dead letters with a channel. Returns: whether it is there."""
        topic = self.model.topics.get(GRAVEYARD)
        if topic is None or not topic.channels:
            self.make_channel(GRAVEYARD, CHANNELS[0])
        topic = self.model.topics.get(GRAVEYARD)
        return not self.died() and topic is not None and bool(topic.channels)

    def do_retain(self, topic_number: int, size: int, time: int) -> None:
        retention_bytes = RETENTIONS[size % len(RETENTIONS)]
        time_ns = RETENTION_TIMES_NS[time % len(RETENTION_TIMES_NS)]
        self.set_own(topic_number, retention_bytes=retention_bytes, retention_time_ns=time_ns)

    def set_own(self, topic_number: int, **limits: int) -> None:
        """Change a topic's own retention or quota."""
        topic = self.topic_at(topic_number)
        if topic is None:
            return
        found = self.broker_topic(topic)
        self.doubt.limits.add(topic.name)
        found.quota.set_own(**limits)
        if not self.died():
            topic.own_limits, topic.own_stamp = found.own_limits, self.model.tick()

    def do_quota(self, topic_number: int, size: int) -> None:
        self.set_own(topic_number, bytes_max=QUOTAS[size % len(QUOTAS)])

    # Clients of other kinds.

    def do_http_pub(self, topic_number: int, count: int, size: int, delay: int) -> None:
        """POST /pub and /mpub, of which a request waits for its sync like any other."""
        name = TOPICS[topic_number % len(TOPICS)]
        delay_ms = (0, 0, *DELAYS_MS)[delay % (2 + len(DELAYS_MS))]
        due_ns = self.wall_ns + delay_ms * MS_NS if delay_ms else 0
        messages = self.new_messages(BATCHES[count % len(BATCHES)], size % 6, due_ns)
        if name not in self.model.topics:
            self.doubt.topics.add(name)
        self.doubt.batch = (name, messages)
        accepted: list[bool] = []

        def publish() -> None:
            try:
                topic = self.alive.broker.topic(name)
                frames = frames_of([body_of(each.number, each.size_bytes) for each in messages])
                if must_queue(topic, frames):
                    outcome = Outcome()
                    queued = enqueue_frames(topic, frames, wall(), due_ns)
                    queued.on_done = lambda: outcome.set(None)
                    outcome.get()
                    if queued.error is not None:
                        raise queued.error
                else:
                    topic.publish_frames(frames, wall(), due_ns)
            except StorageError as error:
                expect(self.is_disturbed, f"refused on a sound disk: {error}")
                return
            accepted.append(True)
            if self.sync_each and not topic.ephemeral:
                self.wait_and_acknowledge(name, topic, messages)

        self.alive.run_greenlet(publish)
        self.alive.hub.run_until_idle()
        self.store_slices(name)
        if self.died():
            return
        if name in self.alive.broker.topics:
            topic = self.model.add_topic(name)
            if accepted:
                self.model.publish(topic, messages, self.wall_ns)

    def wait_and_acknowledge(self, name: str, topic: Any, messages: list[Message]) -> None:
        """Wait for the sync of a request, and note its answer."""
        process = self.process
        try:
            process.commit.wait([topic])  # type: ignore[union-attr]
        except StorageError:
            return
        if self.process is process and not self.died() and name in self.model.topics:
            known = self.model.topics[name]
            if messages[0].number in known.messages:
                self.model.acknowledge(known, messages, True)

    # At the end of each schedule.

    def finale(self) -> None:
        """Lift all limits first."""
        self.next_fault = self.death = None
        self.do("free")
        # An ephemeral topic may end with a step.
        for name in sorted(self.model.topics):
            for step in (("retain", 0, 0), ("quota", 0)):
                if name in self.model.topics:
                    self.do(step[0], sorted(self.model.topics).index(name), *step[1:])
        for names in [(topic.name, channel.name) for topic, channel in self.channels()]:
            now = [(topic.name, channel.name) for topic, channel in self.channels()]
            if names in now:
                self.do("limit", now.index(names), 0, 0)
        super().finale()

    def drain_graveyard(self) -> None:
        """Consume all dead letters, and compare them with the messages that the channels have lost."""
        topic = self.model.topics.get(GRAVEYARD)
        if topic is not None and topic.channels:
            # A power cut may have taken the channel away that had them.
            for name in list(topic.channels):
                self.do("sub_at", GRAVEYARD_NUMBER, CHANNELS.index(name), 99)
            for _ in range(3):
                self.do("advance", 3)
            count = -1
            while count < len(self.letters):
                # With --sync-fin the next ones come when the FINs of the former are synced.
                count = len(self.letters)
                self.do("jobs")
                self.do("advance", 3)
        if not self.letters_lost:
            missing = self.vanished - self.letters - self.letters_unreadable
            expect(not missing, "dead letters are lost:", sorted(missing))


GRAVEYARD_NUMBER = len(TOPICS)
