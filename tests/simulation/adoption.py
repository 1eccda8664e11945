"""After a start: compares the broker's messages with those it must and may have, and copies them into the model.

The broker is read through the listings for operators, which change nothing.
"""

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from pyqd.broker import peek
from pyqd.fallback.records import ORDINAL_MASK
from pyqd.hot.primitives.clock import wall
from tests.simulation.model import DEFERRED, GRAVEYARD, QUEUED, Channel, Copy, Topic, expect
from tests.simulation.segments import log_of, numbers_behind_bridges
from tests.support.storage import body_of

if TYPE_CHECKING:
    from tests.simulation.world import World

PAGE_ROWS = 1000


class Found(NamedTuple):
    """One message that the broker has."""

    number: int
    guid: int
    attempts: int
    due_ns: int
    state: str


def rows_of(topic: Any, channel: Any, state: str) -> list[Found]:
    """Return all messages of a channel, or held by a topic, in a state."""
    rows: list[Any] = []
    cursor = peek.Cursor()
    while True:
        if channel is None:
            page = peek.page_of_topic(topic, state, cursor, PAGE_ROWS, 1 << 20, lambda: None)
        else:
            page = peek.page_of_channel(topic, channel, state, cursor, PAGE_ROWS, 1 << 20, lambda: None)
        rows += page.rows
        if page.after is None:
            break
        cursor = peek.parse_cursor(page.after, peek.READY if channel is None else state)
    kept = DEFERRED if state == peek.DEFERRED else QUEUED
    for row in rows:
        number = int.from_bytes(row.body[:8], "little")
        expect(row.body == body_of(number, row.size_bytes), "a body that nobody has published:", row.body[:16])
    return [Found(int.from_bytes(row.body[:8], "little"), row.guid, row.attempts, row.due_ns, kept) for row in rows]


def noted_ids(channel: Any) -> set[int]:
    """Return the ids of the messages that have notes."""
    if channel.notes is None:
        return set()
    noted = {seq & ORDINAL_MASK for seq, *_ in channel.notes.rows().values()}
    return {guid for ordinal, guid, *_ in channel.topic.log.records() if ordinal in noted}


class Adoption:
    """One comparison."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.model = world.model
        self.doubt = world.doubt
        # Without node.json the broker recovers as after a power failure, though nothing is missing.
        self.power = world.power_failed or world.excuses.node
        self.clean = world.stopped_cleanly
        self.held_now: set[int] = set()
        self.forgotten = world.forgotten
        self.excuses = world.excuses

    def run(self) -> None:
        """Compare everything. Raises: Violation."""
        broker = self.world.alive.broker
        # After a power cut a segment may be missing of which nothing was promised; it is reported all the same.
        may_be = self.power or self.world.was_damaged or bool(broker.set_aside)
        for each in broker.set_aside:
            # A power cut may take the name of a new ledger, and bring back one that was set aside. It damages none.
            known = (each.topic, each.channel or "") in self.forgotten or each.topic in self.world.spoiled
            known = known or (self.power and ("is missing" in each.reason or "(EIO)" in each.reason))
            expect(known, "a file is set aside:", each)
        expect(broker.damage.found_count == 0 or may_be, "damage is reported:", broker.damage.as_dict())
        self.world.was_damaged = self.world.was_damaged or broker.damage.found_count != 0
        former, self.model.topics = self.model.topics, {}
        for name, found in broker.topics.items():
            topic = self.topic_for(name, former)
            self.model.topics[name] = topic
            self.adopt_topic(topic, found)
        for name, topic in former.items():
            if name not in self.model.topics:
                expect(self.may_vanish(topic), f"topic {name} is gone")
        if self.world.power_failed:
            self.model.deleted.clear()
            self.note_all_durable()

    def note_all_durable(self) -> None:
        """Count all messages that a power cut has left as durable, except those behind a bridge that is not durable."""
        not_yet: dict[str, set[int]] = {}
        for path, inode in self.world.disk.files() if self.world.was_damaged else ():
            log = log_of(path)
            if log is not None:
                # A further cut may remove the bridge, and with it the way to the records after it.
                not_yet.setdefault(log[0], set()).update(numbers_behind_bridges(inode.now(), inode.durable))
        self.model.note_synced(self.model.tick(), not_yet)

    def topic_for(self, name: str, former: dict[str, Topic]) -> Topic:
        """Return the model's topic for a topic of the broker."""
        topic = former.get(name)
        at, ghost = self.model.deleted.get(name, (0, None))
        # Without node.json and the topic's state, nothing tells that the journal's entries are of an earlier topic.
        mistaken = self.excuses.node and (name, "") in self.excuses.ledgers
        may_return = mistaken or (self.power and at > self.model.deletions_synced) or name in self.doubt.topics
        returns = ghost is not None and may_return
        if topic is None:
            # One that could not be made for want of room was removed again, which is not durable.
            may_be = returns or name in self.doubt.topics or (self.power and self.world.was_disturbed)
            may_be = may_be or (name, "") in self.world.half_made
            expect(may_be, f"topic {name} was deleted or never made")
            topic = Topic(name, 0)
        if returns and ghost is not None and (mistaken or name not in former or not self.is_durable_topic(topic)):
            # It may be the former topic. The demands on the new one do not apply then.
            topic.messages = {**ghost.messages, **topic.messages}
            topic.note_cancelled_before(ghost)
            # A topic made again may give the same ids.
            topic.number_of = {}
            for message in topic.messages.values():
                message.guid = 0
            for each in ghost.channels.values():
                topic.deleted.setdefault(each.name, self.model.stamp)
            for each_name in ghost.deleted:
                topic.deleted.setdefault(each_name, self.model.stamp)
            self.doubt.topics.add(name)
        return topic

    def is_durable_topic(self, topic: Topic) -> bool:
        """Return whether a power cut must leave a topic."""
        return topic.created <= self.model.synced or topic.acknowledged >= topic.created

    def may_vanish(self, topic: Topic) -> bool:
        """Return whether a topic may be missing."""
        if topic.ephemeral or topic.name in self.doubt.topics:
            return True
        return self.power and not self.is_durable_topic(topic)

    def channel_is_durable(self, topic: Topic, channel: Channel) -> bool:
        """Return whether a power cut must leave a channel."""
        return channel.created <= self.model.synced or topic.acknowledged > channel.created

    def adopt_topic(self, topic: Topic, found: Any) -> None:
        """Compare one topic."""
        self.adopt_pause(topic, found, (topic.name, ""))
        self.adopt_limits(topic, found)
        if topic.name == GRAVEYARD:
            topic.channels = {name: topic.channels.get(name, Channel(name, 0)) for name in found.channels_by_name}
            for name, each in topic.channels.items():
                each.paused = found.channels_by_name[name].paused
                each.created = each.created or self.model.stamp
            topic.created = topic.created or self.model.stamp
            return
        self.adopt_count(topic, found)
        if topic.name in self.world.spoiled:
            # Pages of messages show nothing of a segment behind a damaged record until it is mended.
            list(found.log.records())
        self.held_now = {row.number for state in (peek.READY, peek.DEFERRED) for row in rows_of(found, None, state)}
        former, topic.channels = topic.channels, {}
        held_before = topic.held
        for name, channel_found in found.channels_by_name.items():
            strange = self.is_strange(topic, former.get(name), name)
            topic.channels[name] = former.get(name) or Channel(name, 0)
            self.adopt_channel(topic, topic.channels[name], channel_found, strange, held_before)
        gone = [channel for name, channel in former.items() if name not in topic.channels]
        for channel in gone:
            may_be = (
                topic.name in self.doubt.topics
                or channel.ephemeral
                or (topic.name, channel.name) in self.doubt.channels
                or (self.power and not self.channel_is_durable(topic, channel))
            )
            expect(may_be, f"channel {topic.name}/{channel.name} is gone")
            if (topic.name, channel.name) in self.doubt.channels:
                # Its deletion was under way, and nothing has made that durable: a power cut may bring the channel back.
                topic.deleted[channel.name] = self.model.tick()
        back = [channel for name, channel in topic.channels.items() if name not in former]
        self.adopt_held(topic, found, gone, back, held_before)
        if self.world.power_failed:
            topic.deleted.clear()
        if self.world.power_failed or topic.name in self.excuses.topics:
            self.forget_lost_ids(topic, found)
        self.check_batch(topic)
        # A message that is present by chance is not on stable storage.
        self.model.tick()
        topic.created = topic.created or self.model.stamp
        for channel in topic.channels.values():
            channel.created = channel.created or self.model.stamp

    def forget_lost_ids(self, topic: Topic, found: Any) -> None:
        """Allow ids to be given again of which nothing is left on the disk: the state page may be older than that.

        An id tells its time, so that takes a clock that stands still or goes back.
        """
        kept = {guid for _, guid, *_ in found.log.records()}
        topic.number_of = {guid: number for guid, number in topic.number_of.items() if guid in kept}

    def adopt_count(self, topic: Topic, found: Any) -> None:
        """Compare the number of messages ever accepted."""
        count = found.message_count
        if self.power or topic.name in self.doubt.topics or (topic.name, "") in self.forgotten:
            expect(0 <= count <= self.world.number_count, f"messages of {topic.name}", count)
            known = topic.name not in self.doubt.topics and (topic.name, "") not in self.forgotten
            expect(count >= topic.acknowledged_count or not known, f"{topic.name} has forgotten that it had", count)
        elif self.doubt.batch is not None:
            expect(topic.count <= count, f"messages of {topic.name}", count, topic.count)
        else:
            expect(count == topic.count, f"messages of {topic.name}", count, topic.count)
        topic.count = count
        # Of a state that was begun again nothing is durable yet.
        topic.acknowledged_count = 0 if (topic.name, "") in self.forgotten else min(topic.acknowledged_count, count)

    def is_strange(self, topic: Topic, known: Channel | None, name: str) -> bool:
        """Return whether a channel may be another one than the one the model knows, if it knows one."""
        returns = self.power and topic.deleted.get(name, 0) > self.model.deletions_synced
        if known is None:
            may_be = returns or topic.name in self.doubt.topics or (topic.name, name) in self.doubt.channels
            # One that was refused is removed again, which is not durable.
            may_be = may_be or (self.power and self.world.was_disturbed)
            may_be = may_be or (topic.name, name) in self.world.half_made
            expect(may_be, f"channel {topic.name}/{name} was deleted or never made")
            return True
        return topic.name in self.doubt.topics or (returns and not self.channel_is_durable(topic, known))

    def adopt_pause(self, kept: Any, found: Any, name: tuple[str, str]) -> None:
        """Compare whether a topic or channel is paused."""
        unsure = name in self.doubt.paused or name[0] in self.doubt.topics or name in self.doubt.channels
        unsure = unsure or (self.power and kept.paused_stamp > self.model.synced) or kept.created == 0
        unsure = unsure or name in self.forgotten
        expect(unsure or found.paused == kept.paused, f"pause of {name}", found.paused)
        if found.paused != kept.paused:
            # Found after a kill in the middle of the change; no sync has covered it.
            kept.paused, kept.paused_stamp = found.paused, self.model.tick()

    def adopt_limits(self, topic: Topic, found: Any) -> None:
        """Compare retention and quota."""
        unsure = bool({topic.name} & (self.doubt.limits | self.doubt.topics)) or topic.created == 0
        unsure = unsure or (topic.name, "") in self.forgotten
        unsure = unsure or (self.power and topic.own_stamp > self.model.synced)
        expect(unsure or found.own_limits == topic.own_limits, f"limits of {topic.name}", found.own_limits)
        if found.own_limits != topic.own_limits:
            # Found after a kill in the middle of the change; no sync has covered it.
            topic.own_limits, topic.own_stamp = found.own_limits, self.model.tick()

    def adopt_channel_limits(self, topic: Topic, channel: Channel, found: Any) -> None:
        """Compare the limits of a channel, which are kept or changed whole."""
        name = (topic.name, channel.name)
        unsure = channel.limits is None or self.doubt.moved.get(name) is not None or name in self.forgotten
        unsure = unsure or (self.power and channel.limits_stamp > self.model.synced)
        expect(unsure or found.limits == channel.limits, f"limits of {topic.name}/{channel.name}", found.limits)
        channel.note_limits(found.limits, channel.limits_stamp if found.limits == channel.limits else self.model.tick())

    def adopt_held(
        self, topic: Topic, found: Any, gone: list[Channel], back: list[Channel], before: dict[int, int]
    ) -> None:
        """Compare the messages that no channel was given. back: channels whose deletion a power cut has undone."""
        rows = rows_of(found, None, peek.READY) + rows_of(found, None, peek.DEFERRED)
        numbers = {row.number for row in rows}
        topic.missing = 0
        if self.world.was_damaged:
            # A segment without promised messages; its messages count until a channel comes.
            topic.missing = found.depth - len(rows)
        expect(len(rows) == len(numbers) == found.depth - topic.missing, f"{topic.name} holds", len(rows), found.depth)
        anything = topic.name in self.doubt.topics
        maybe = self.maybe(topic, "")
        taken = any(name == topic.name and channel.endswith("#ephemeral") for name, channel in self.doubt.channels)
        must = set(before) if (not topic.channels or found.paused) and not taken else set()
        may = set(before)
        if found.paused:
            may |= {number for channel in topic.channels.values() for number in (*channel.copies, *channel.done)}
        if not topic.channels:
            for channel in gone:
                may |= set(channel.copies) | set(channel.done)
                in_doubt = (topic.name, channel.name) in self.doubt.channels
                if not channel.ephemeral and not channel.reset and not in_doubt:
                    must |= set(channel.copies)
        if self.power:
            must = {number for number in must if topic.messages[number].durable}
            must = must.difference(*(channel.copies for channel in back))
            may = set(topic.messages)
            if topic.emptied > self.model.synced:
                must = must & set(before)
        elif topic.emptied_in_doubt or (topic.name, "") in self.doubt.paused | self.forgotten:
            may = set(topic.messages)
            must = set() if topic.channels else must
        must -= self.excuses.numbers(topic.name, "")
        may |= self.excuses.numbers_behind(topic.name)
        if not anything:
            expect(must - maybe <= numbers, f"{topic.name} has lost", sorted(must - maybe - numbers))
        expect(numbers <= may | maybe or anything, f"{topic.name} holds again", sorted(numbers - may - maybe))
        self.note_unknown(topic, rows)
        topic.held = {row.number: self.model.stamp for row in sorted(rows)}
        again = self.power or found.paused or (topic.name, "") in self.forgotten
        topic.held_again = set(topic.held) if again else set()
        topic.emptied_in_doubt = False

    def maybe(self, topic: Topic, channel_name: str) -> set[int]:
        """Return the numbers that may be there or not, for the operation in progress."""
        none: set[int] = set()
        maybe = none | self.doubt.numbers.get((topic.name, channel_name), none)
        if self.doubt.batch is not None and self.doubt.batch[0] == topic.name:
            maybe |= {message.number for message in self.doubt.batch[1]}
        return maybe

    def note_unknown(self, topic: Topic, rows: list[Found]) -> None:
        """Take over the messages of an operation in progress, and the ids of all."""
        if self.doubt.batch is not None and self.doubt.batch[0] == topic.name:
            for message in self.doubt.batch[1]:
                topic.messages.setdefault(message.number, message)
        for row in rows:
            expect(row.number in topic.messages, f"{topic.name} has what nobody has published:", row.number)
            message = topic.messages[row.number]
            expect(message.guid in (0, row.guid), f"{topic.name}: another id of", row)
            message.guid = row.guid
            expect(
                topic.number_of.setdefault(row.guid, row.number) == row.number,
                f"{topic.name}: one id of two messages:", hex(row.guid), row.number, topic.number_of[row.guid],
            )  # fmt: skip

    def check_batch(self, topic: Topic) -> None:
        """Compare a batch that was being published: after a kill all of it is there or none.

        If a page before it cannot be read, the search for records behind the page may find some of the batch.
        """
        if self.doubt.batch is None or self.doubt.batch[0] != topic.name or self.power:
            return
        unsure = self.excuses.numbers_behind(topic.name, *topic.channels) | self.excuses.numbers(topic.name, "")
        numbers = {message.number for message in self.doubt.batch[1]} - unsure
        places: list[Any] = [topic.held, *(channel.copies for channel in topic.channels.values())]
        for place in places:
            there = numbers & set(place)
            expect(not there or there == numbers, f"{topic.name} has a part of a batch:", sorted(there))

    def adopt_channel(self, topic: Topic, channel: Channel, found: Any, strange: bool, held: dict[int, int]) -> None:
        """Compare one channel. strange: it may be another one than the one the model knows."""
        name = f"{topic.name}/{channel.name}"
        if not strange:
            self.adopt_pause(channel, found, (topic.name, channel.name))
            self.adopt_channel_limits(topic, channel, found)
        else:
            channel.note_limits(found.limits, self.model.stamp)
            # It may be the former channel, with its list of messages that a seek skips.
            channel.cancelled |= topic.cancelled_before.get(channel.name, set())
        channel.paused = found.paused
        self.note_spent(channel)
        ready, deferred = rows_of(found.topic, found, peek.READY), rows_of(found.topic, found, peek.DEFERRED)
        letters = rows_of(found.topic, found, peek.DEAD_LETTER)
        pending = found.dead_letters_pending
        expect(len(letters) == pending, f"dead letters of {name}", letters, pending)
        early = {row.number for row in letters} - self.world.spent
        expect(not early, f"{name} has dead letters of what was not delivered too often:", sorted(early))
        counts = (found.depth - len(letters), found.deferred_count, found.in_flight_count)
        channel.lost = 0
        if self.world.was_damaged:
            # Until they are due, deferred messages that damage has taken are counted.
            least = min(counts[1], len(deferred))
            channel.lost = counts[0] - len(ready) + counts[1] - least
            counts = (len(ready), least, counts[2])
        expect(counts == (len(ready), len(deferred), 0), f"counts of {name}", counts, len(ready), len(deferred))
        # Messages that a power cut has left twice stay so over further starts.
        twice_before, channel.twice = channel.twice, Counter()
        rows = self.by_number(channel, ready + deferred + letters, twice_before, name)
        self.note_unknown(topic, ready + deferred + letters)
        maybe = self.maybe(topic, channel.name)
        must, may = self.demanded(topic, channel, held)
        may |= twice_before.keys() | self.excuses.numbers_behind(topic.name, channel.name)
        in_doubt = strange or (topic.name, channel.name) in self.doubt.channels
        if not in_doubt:
            expect(must - maybe <= set(rows), f"{name} has lost", sorted(must - maybe - set(rows)))
            expect(set(rows) <= may | maybe, f"{name} has again what was finished:", sorted(set(rows) - may - maybe))
        for row in rows.values():
            if row.number not in twice_before:
                self.check_row(topic, channel, row, name, deferred)
        copies = channel.copies
        if (topic.name, channel.name) in self.doubt.resets or self.is_forgotten(name):
            # With a lost ledger, the channel has again what it may have had before.
            channel.note_reset(self.model.tick())
        noted = noted_ids(found)
        channel.copies = {
            number: self.copy_of(topic, row, copies.get(number), row.guid in noted)
            for number, row in sorted(rows.items())
        }
        channel.done = {number: at for number, at in channel.done.items() if number not in rows}
        if self.is_forgotten(name):
            # Until the next sync, a power cut may undo a seek or FIN that only the lost ledger had on stable storage.
            channel.synced = 0
        for number in copies.keys() - rows.keys():
            channel.done[number] = self.model.stamp
            dropped = number in maybe or (self.power and not topic.messages[number].durable)
            dropped = dropped or number in self.excuses.numbers(topic.name, channel.name)
            # A power cut may undo the seek by which the message came again: then it is finished as before.
            before = channel.before_reset
            dropped = dropped or (self.power and before is not None and number not in before)
            if channel.spends(copies[number]) and not dropped:
                self.world.vanished.add(number)
        if self.world.power_failed:
            channel.before_reset = None
        channel.muddled = False

    def may_be_spent(self, channel: Channel, copy: Copy) -> bool:
        """Return whether a message may be a dead letter by now: a delivery counts that no client was sent."""
        return channel.attempts_least != 0 and copy.attempts + self.world.died_within >= channel.attempts_least

    def note_spent(self, channel: Channel) -> None:
        """Note the messages that may become dead letters for this start."""
        spent = {number for number, copy in channel.copies.items() if self.may_be_spent(channel, copy)}
        if channel.attempts_least and (self.power or channel.name in {name for _, name in self.forgotten}):
            # A FIN may be undone, and its delivery counts.
            spent |= {number for number in channel.done if channel.delivered.get(number, 0) >= channel.attempts_least}
        self.world.spent |= spent

    def is_forgotten(self, name: str) -> bool:
        """Return whether a ledger of a channel, topic/channel, was in memory only and is lost."""
        topic, _, channel = name.partition("/")
        return (topic, channel) in self.forgotten

    def by_number(
        self, channel: Channel, found: list[Found], twice_before: Counter[int], name: str
    ) -> dict[int, Found]:
        """Return a found copy of each message, and record the others. twice_before: those that were there already."""
        undone = self.power or self.is_forgotten(name)
        rows: dict[int, Found] = {}
        for row in found:
            if row.number in rows:
                channel.twice[row.number] += 1
                most = twice_before[row.number] + undone
                expect(
                    channel.twice[row.number] <= most, f"{name} has {channel.twice[row.number] + 1} times", row, most
                )
            rows[row.number] = row
        return rows

    def demanded(self, topic: Topic, channel: Channel, held: dict[int, int]) -> tuple[set[int], set[int]]:
        """Return the messages that must be there, and those that may."""
        must, may = set(channel.copies), set(channel.copies)
        must = {number for number in must if not self.may_be_spent(channel, channel.copies[number])}
        if channel.before_reset is not None and self.power:
            must &= channel.before_reset
            may = set(topic.messages)
        if (topic.name, channel.name) in self.doubt.channels or (topic.name, "") in self.doubt.paused:
            may |= set(held)
        if {(topic.name, channel.name), (topic.name, "")} & self.forgotten:
            may = set(topic.messages)
        if self.power:
            must = {number for number in must if topic.messages[number].durable}
            may |= {number for number, at in channel.done.items() if at > channel.synced or self.world.torn}
            # Messages given only to channels that are gone may go to another one.
            may |= {number for number in topic.messages if number not in channel.done}
            may |= {number for number, message in topic.messages.items() if message.stamp > self.model.synced}
            if channel.created > self.model.synced or self.world.made_anew.get(topic.name, -1) >= self.model.synced:
                # Its beginning, or the topic's record of what it was given, was not durable either: messages that
                # others had taken over may be held, and so its own, again.
                may = set(topic.messages)
        kept = channel.kept.items() if not {(topic.name, channel.name), (topic.name, "")} & self.forgotten else ()
        may -= {number for number, at in kept if number not in channel.copies and channel.done.get(number) == at}
        may |= self.excuses.lost.get((topic.name, channel.name), set())
        # Messages that a paused topic holds again go to the channel when it is resumed.
        return must - self.held_now - self.excuses.numbers(topic.name, channel.name), may

    def check_row(self, topic: Topic, channel: Channel, row: Found, name: str, deferred: list[Found]) -> None:
        """Compare due time and attempts of one message."""
        copy = channel.copies.get(row.number)
        if copy is None:
            return
        moved = self.doubt.moved.get((topic.name, channel.name), set())
        unsure = (
            row.number in self.maybe(topic, channel.name) | moved
            or self.world.notes_lost
            or self.is_forgotten(name)
            or row.number in self.excuses.numbers(topic.name, channel.name)
        )
        # A power cut may undo a seek, or a change of the due time.
        has_one_due = row.number not in channel.moved and copy.due_ns == topic.messages[row.number].due_ns
        firm = not self.power or copy.stamp <= self.model.synced or has_one_due
        firm = firm and not unsure and not self.world.was_disturbed and not (self.power and copy.noted_due)
        # A due time of the channel's own is a note.
        firm = firm and (has_one_due or (topic.name, channel.name) not in self.excuses.notes)
        if copy.state == DEFERRED and not copy.due_reached and copy.due_ns > wall() and firm:
            expect(
                any((each.number, each.due_ns) == (row.number, copy.due_ns) for each in deferred),
                f"{name} would deliver early or at another time:", row, copy,
            )  # fmt: skip
        # A ledger that was made again knows of no delivery before, so that only the notes do.
        if self.power or unsure or (topic.name, channel.name) in self.excuses.notes:
            return
        if self.clean or copy.counted:
            most = copy.attempts + self.world.died_within
            expect(copy.attempts <= row.attempts <= most, f"{name}: attempts of", row, copy)
        elif copy.attempts and topic.messages[row.number].due_ns == 0:
            expect(row.attempts >= 1, f"{name}: attempts of", row, copy)

    def copy_of(self, topic: Topic, row: Found, before: Copy | None, noted: bool) -> Copy:
        """Return the model's copy of a found message. before: of the last run; noted: it has a note."""
        due_ns = row.due_ns if row.state == DEFERRED else 0
        noted_due = before is not None and (before.due_reached or before.noted_due)
        stamp = self.model.stamp
        message = topic.messages.get(row.number)
        counted = noted or (message is not None and message.due_ns != 0 and row.attempts == 0)
        return Copy(row.number, row.state, due_ns, row.attempts, counted, due_ns <= wall(), noted_due, stamp=stamp)
