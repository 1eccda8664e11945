"""Operations of a schedule: actions of clients, operators, the kernel, the disk and the clock.

Each is a method `do_NAME` of whole numbers that choose among the existing objects, so that a schedule keeps most of its
meaning if some steps are removed. `WEIGHTS` says how often a generated schedule has each.
"""

import random
import re
import struct
from collections.abc import Callable
from typing import Any

from pyqd.diskqueue.journal import FILES_MAX
from pyqd.hot.diskqueue import arena
from pyqd.hot.primitives.guid import to_hex
from pyqd.hot.wire.record import span_bytes
from pyqd.primitives.durations import SECOND_NS
from pyqd.primitives.errors import LimitReached, StorageError
from tests.simulation.clients import Client
from tests.simulation.disk import AGAIN, BROKEN, MAP, NAMES, OPEN, REST, SPACE, SYNC, Fault
from tests.simulation.features import FINS, UNMAPPING, kinds_of
from tests.simulation.mirror import ROOT
from tests.simulation.model import DEFERRED, GRAVEYARD, IN_FLIGHT, QUEUED, Channel, Copy, Message, Topic, expect
from tests.simulation.world import CUT, KILL, MAPPED_MIN, World
from tests.support.storage import SEGMENT_BYTES_MIN, body_of

TOPICS = ("a", "b", "e#ephemeral")
CHANNELS = ("x", "y", "z#ephemeral")
SIZES = (8, 9, 16, 40, 200, 900, 3000, 20_000)
BATCHES = (1, 2, 3, 7, 20, 90)
# Of messages of which most are finished at once.
STRAGGLE_COUNT = 70
RDY_MAX = 99
# Of the messages that fill a segment.
FILLING_SIZE = SIZES.index(900)
# So many of them are a commit of two blocks of the journal.
COMMITTED = 5
DELAYS_MS = (1, 500, 3_000, 70_000)
ADVANCES_NS = (SECOND_NS // 1000, SECOND_NS, 11 * SECOND_NS, 61 * SECOND_NS)
JUMPS_NS = (-3_600 * SECOND_NS, -SECOND_NS, -(1 << 21), SECOND_NS, 3_600 * SECOND_NS)
# Smaller jumps of the wall clock leave the delays of requeues as they are: pyx/broker/deferral.pyx.
JUMP_NS_MIN = 50 * SECOND_NS // 1000
FAULTS = (SPACE, SYNC, OPEN, MAP)
CHANCES = (0.0, 0.1, 0.5, 0.9, 1.0)
IDENTIFY = b'{"heartbeat_interval": 36000000}'
MS_NS = 1_000_000


class Operations(World):
    """A world with the operations on it."""

    def do(self, name: str, *numbers: int) -> None:
        """Do one step of a schedule."""
        function: Callable[..., None] = getattr(self, f"do_{name}")
        if name in PLANS:
            function(*numbers)
        else:
            self.step(lambda: function(*numbers))

    # Plans for the next step.

    def do_fail(self, kind: int, skipped: int, times: int) -> None:
        kinds = kinds_of(self.features, FAULTS)
        self.next_fault = Fault(kinds[kind % len(kinds)], skipped, times)

    def do_fail_write(self, kind: int, skipped: int, times: int) -> None:
        self.next_fault = Fault((REST, BROKEN, NAMES)[kind % 3], skipped, times)

    def do_fail_again(self, skipped: int, spread: int, times: int) -> None:
        self.next_fault = Fault(AGAIN, skipped % (1 + spread), times)

    def do_fail_commit(self, skipped: int) -> None:
        self.next_fault = Fault(SYNC, skipped)

    def do_die_at_call(self, number: int, cut: int, seed: int) -> None:
        self.death = ("call", number)
        self.plan_death(cut, seed)

    def do_die_at_store(self, number: int, cut: int, seed: int) -> None:
        self.death = ("store", number)
        self.plan_death(cut, seed)

    def plan_death(self, cut: int, seed: int) -> None:
        """Plan the next death: a kill, or a power cut that keeps a given share of the dirty pages."""
        self.after_death = (CUT if cut else KILL, seed, CHANCES[(cut - 1) % len(CHANCES)])

    # The machine.

    def do_kill(self) -> None:
        self.plan_death(0, 0)
        self.die()

    def do_cut(self, chance: int, seed: int) -> None:
        self.plan_death(1 + chance % len(CHANCES), seed)
        self.fault_count += 1
        self.die()

    def do_spoil(self, how: int, chance: int, seed: int) -> None:
        """End the process in some way, or let it be for now; pages are unreadable when the next one starts."""
        self.spoil_seed = seed
        self.end(how, chance, seed)

    def end(self, how: int, chance: int, seed: int) -> None:
        self.fault_count += 1
        if how == 0:
            self.do_stop()
        elif how == 1:
            self.do_cut(chance, seed)
        elif how < 4:
            self.do_kill()

    def do_spoil_spare(self, how: int, chance: int, seed: int) -> None:
        """Do as `do_spoil` to the files of drained segments."""
        self.spoils_spares = True
        self.do_spoil(how, chance, seed)

    def do_lose_notes(self, how: int, chance: int, seed: int) -> None:
        """End the process in some way, or let it be for now; no channel has notes when the next one starts."""
        self.loses_notes = True
        self.end(how, chance, seed)

    def do_advance(self, number: int) -> None:
        by_ns = ADVANCES_NS[number % len(ADVANCES_NS)]
        self.wall_ns += by_ns
        self.mono_ns += by_ns
        self.set_clocks()
        self.expire()

    def do_jump(self, number: int) -> None:
        by_ns = JUMPS_NS[number % len(JUMPS_NS)]
        self.wall_ns += abs(by_ns) if self.spoiled else by_ns
        self.set_clocks()

    def do_write_back(self, chance: int, seed: int) -> None:
        self.torn = True
        self.disk.write_back(random.Random(seed), CHANCES[chance % len(CHANCES)])

    def do_map_few(self, number: int) -> None:
        """Let so many files be mapped at a time."""
        if UNMAPPING in self.features:
            arena.configure(MAPPED_MIN + number % 16)

    def do_fill(self, free_pages: int) -> None:
        self.disk.fill(free_pages)

    def do_free(self) -> None:
        self.disk.free()

    # Background.

    def do_job(self, number: int, to_the_end: int) -> None:
        if self.alive.jobs:
            self.alive.run_job(number, bool(to_the_end))

    def do_jobs(self) -> None:
        for _ in range(1000):
            if not self.alive.jobs:
                return
            self.alive.run_job(0, True)
            self.alive.turn()

    def do_newest_job(self) -> None:
        """Do the job that came last, before others that wait."""
        if self.alive.jobs:
            self.alive.run_job(len(self.alive.jobs) - 1, True)

    def do_begin_sync(self) -> None:
        if self.alive.syncing is None:
            stamp = self.model.tick()

            def ended(done: bool) -> None:
                if done and not self.died():
                    self.model.note_synced(stamp)
                    self.torn = self.deletions_left = False

            self.alive.begin_sync(ended)

    def do_sync(self) -> None:
        self.do_jobs()
        is_left = self.deletions_left or self.died() or bool(self.alive.jobs or self.alive.broker.removals_failed)
        if not is_left and not self.is_disturbed:
            self.model.deletions_synced = self.model.tick()
        if self.alive.syncing is None:
            self.do_begin_sync()
        self.do_jobs()

    def do_housekeep(self) -> None:
        self.alive.broker.retry_write()
        self.alive.housekeeper.reclaim_all()

    def do_stop(self) -> None:
        """SIGTERM, and a start with the next step."""
        self.leave_reset()
        process = self.alive
        self.doubt.numbers = {}
        stamp = self.model.tick()
        synced = process.stop()
        if self.died():
            return
        if synced:
            self.model.note_synced(stamp)
            if not self.is_disturbed:
                self.model.deletions_synced = stamp
        self.drop_ended()
        self.plan_death(0, 0)
        self.die()
        self.ended_cleanly = not self.is_disturbed

    def drop_ended(self) -> None:
        """Forget all clients, as the server has closed their connections."""
        for client in self.clients:
            client.receive()
        for topic in list(self.model.topics.values()):
            for channel in list(topic.channels.values()):
                for copy in channel.copies.values():
                    if copy.state == IN_FLIGHT:
                        copy.state = QUEUED
        for client in self.clients:
            client.close()
        self.clients.clear()

    # Topics and channels.

    def topic_at(self, number: int) -> Topic | None:
        """Return one of the topics that there are."""
        topics = sorted(self.model.topics)
        return self.model.topics[topics[number % len(topics)]] if topics else None

    def channel_at(self, number: int) -> tuple[Topic, Channel] | tuple[None, None]:
        """Return one of the channels that there are."""
        found = self.channels()
        return found[number % len(found)] if found else (None, None)

    def broker_topic(self, topic: Topic) -> Any:
        """Return the broker's topic."""
        return self.alive.broker.topics[topic.name]

    def broker_channel(self, topic: Topic, channel: Channel) -> Any:
        """Return the broker's channel."""
        return self.broker_topic(topic).channels_by_name[channel.name]

    def refused(self, function: Callable[[], object]) -> bool:
        """Call a function that the system may refuse. Returns: whether it did."""
        try:
            function()
        except (StorageError, LimitReached) as error:
            expect(self.is_disturbed, f"{type(error).__name__} on a sound disk: {error}")
            return True
        return False

    def do_create_topic(self, number: int) -> None:
        name = TOPICS[number % len(TOPICS)]
        self.doubt.topics.add(name) if name not in self.model.topics else None
        if not self.refused(lambda: self.alive.broker.topic(name)) and not self.died():
            self.model.add_topic(name)

    def do_create_channel(self, topic_number: int, number: int) -> None:
        topic, name = self.topic_at(topic_number), CHANNELS[number % len(CHANNELS)]
        if topic is None:
            return
        self.make_channel(topic.name, name)

    def make_channel(self, topic_name: str, name: str) -> None:
        """Make a topic and a channel that are missing."""
        if topic_name not in self.model.topics:
            self.doubt.topics.add(topic_name)
        self.doubt.channels.add((topic_name, name))
        known = self.model.topics.get(topic_name)
        if topic_name == GRAVEYARD and known is not None and not known.channels and name.endswith("#ephemeral"):
            # The lost letters include the topic's held ones, and end with the process.
            self.letters_lost = True

        def make() -> None:
            self.alive.broker.topic(topic_name).channel(name)

        refused = self.refused(make)
        if self.died():
            return
        if topic_name in self.alive.broker.topics:
            topic = self.model.add_topic(topic_name)
            if not refused:
                self.model.add_channel(topic, name, self.wall_ns)

    def note_dropping(self, topic: Topic) -> None:
        """Note that the coming deletion of messages of a topic may take dead letters, also if a kill interrupts it."""
        self.letters_lost = self.letters_lost or topic.name == GRAVEYARD

    def do_delete_topic(self, number: int) -> None:
        topic = self.topic_at(number)
        if topic is None:
            return
        self.doubt.topics.add(topic.name)
        self.note_dropping(topic)
        self.facts.deleted.add(topic.name)
        if not self.refused(lambda: self.alive.broker.delete_topic(topic.name)) and not self.died():
            self.model.delete_topic(topic.name)
            self.leave(topic.name, None)

    def do_delete_channel(self, number: int) -> None:
        topic, channel = self.channel_at(number)
        if topic is None or channel is None:
            return
        self.doubt.channels.add((topic.name, channel.name))
        self.note_dropping(topic)
        if topic.ephemeral:
            self.doubt.topics.add(topic.name)
        if not self.refused(lambda: self.broker_topic(topic).delete_channel(channel.name)) and not self.died():
            self.model.delete_channel(topic, channel.name)
            self.leave(topic.name, channel.name)

    def leave(self, topic: str, channel: str | None) -> None:
        """Note that the clients of a deleted channel have none any more."""
        for client in self.clients:
            if client.channel is not None and client.channel[0] == topic and channel in (None, client.channel[1]):
                client.channel = None

    def do_pause_topic(self, number: int, paused: int) -> None:
        topic = self.topic_at(number)
        if topic is None:
            return
        self.doubt.paused.add((topic.name, ""))
        self.broker_topic(topic).pause(bool(paused))
        if not self.died():
            topic.paused, topic.paused_stamp = bool(paused), self.model.tick()
            self.model.show_held(topic, self.wall_ns)

    def do_pause_channel(self, number: int, paused: int) -> None:
        topic, channel = self.channel_at(number)
        if topic is None or channel is None:
            return
        self.doubt.paused.add((topic.name, channel.name))
        self.broker_channel(topic, channel).pause(bool(paused))
        if not self.died():
            channel.paused, channel.paused_stamp = bool(paused), self.model.tick()

    def do_empty_topic(self, number: int) -> None:
        topic = self.topic_at(number)
        if topic is None:
            return
        self.doubt.numbers[topic.name, ""] = set(topic.held)
        self.note_dropping(topic)
        if not self.refused(self.broker_topic(topic).empty) and not self.died():
            topic.emptied = self.model.tick()
            topic.missing = 0
            topic.held.clear()

    def do_empty_channel(self, number: int) -> None:
        """Empty a channel: the one that is prepared for it, if there is one."""
        topic, channel = self.channel_at(number)
        for each_topic, each in self.channels() if self.alive.resetting is not None else ():
            if self.broker_channel(each_topic, each) is self.alive.resetting:
                topic, channel = each_topic, each
        if topic is None or channel is None:
            return
        self.doubt.numbers[topic.name, channel.name] = set(channel.copies)
        self.doubt.resets.add((topic.name, channel.name))
        self.note_dropping(topic)
        found = self.broker_channel(topic, channel)
        found.empty()
        if self.alive.resetting is found:
            self.leave_reset()
        if not self.died():
            self.note_reset(channel, {})

    def do_begin_empty(self, number: int) -> None:
        """Prepare to empty a channel, which the next `empty_channel` of it does. Its deliveries wait until then."""
        self.leave_reset()
        channels = [self.broker_channel(*each) for each in self.channels()]
        # A reset needs another file if messages were finished out of order, or since the last sync.
        ledgers = [(found.ledger, found) for found in channels]
        finished = [found for ledger, found in ledgers if ledger.finished_count != 0 or ledger.bits_from < ledger.floor]
        choice = finished or channels
        if not choice:
            return
        found = choice[number % len(choice)]
        if found.directory is not None and not found.grows:
            self.alive.resetting = found
            found.begin_reset(found.readable.end, found.readable.end)

    def do_leave_reset(self) -> None:
        self.leave_reset()

    def leave_reset(self) -> None:
        """Let the channel deliver again that `do_begin_empty` has prepared to be emptied, if there is one."""
        if self.alive.resetting is not None:
            self.alive.resetting.leave_reset()
            self.alive.resetting = None

    def note_reset(self, channel: Channel, copies: dict[int, Copy]) -> None:
        """Note that a channel has other messages from now on."""
        channel.note_reset(self.model.tick())
        if self.is_disturbed:
            # A disk that refuses a new ledger has the former one reset in place, with FINs that a power cut may undo.
            channel.kept.clear()
        for number in channel.copies:
            channel.done[number] = channel.reset
        channel.copies = copies
        for copy in copies.values():
            copy.stamp = channel.reset
        channel.twice.clear()
        for client in self.clients:
            if client.channel is not None and client.channel[1] == channel.name:
                client.in_flight = 0

    # Publishing.

    def new_messages(self, count: int, size: int, due_ns: int) -> list[Message]:
        """Return messages with new numbers."""
        stamp = self.model.tick()
        messages = []
        for _ in range(count):
            self.number_count += 1
            messages.append(Message(self.number_count, SIZES[size % len(SIZES)], stamp, due_ns))
        return messages

    def publisher(self) -> Client | None:
        """Return a client without pending answers, connected if there is none."""
        for client in self.clients:
            if client.channel is None and not client.answers and not client.closed and client.in_flight == 0:
                return client
        if len(self.clients) >= 12:
            return None
        return self.connect()

    def connect(self) -> Client:
        """Return a new client that has introduced itself."""
        self.client_count += 1
        client = Client(self.client_count, self.alive.connect(self.client_count), self.on_message)
        self.clients.append(client)
        client.answers.append(lambda data: expect(data == b"OK", "IDENTIFY is answered", data))
        client.send(b"  V2IDENTIFY\n" + struct.pack(">i", len(IDENTIFY)) + IDENTIFY)
        self.alive.hub.run_until_idle()
        client.receive()
        return client

    def publish(self, topic_name: str, messages: list[Message], command: bytes) -> None:
        """Send a command that publishes, and record its outcome."""
        client = self.publisher()
        if client is None or self.died():
            return
        if topic_name not in self.model.topics:
            self.doubt.topics.add(topic_name)
        self.doubt.batch = (topic_name, messages)
        found = self.alive.broker.topics.get(topic_name)
        before = 0 if found is None else found.message_count
        counts: list[int] = []

        def answered(data: bytes | None) -> None:
            expect(data == b"OK", "a publish is answered", data)
            self.facts.published.update(each.number for each in messages)
            topic = self.model.topics.get(topic_name)
            if topic is not None and messages[0].number in topic.messages:
                self.model.acknowledge(topic, messages, self.sync_each and not topic.ephemeral, max(counts, default=0))

        client.answers.append(answered)
        client.send(command)
        self.alive.hub.run_until_idle()
        self.store_slices(topic_name)
        if self.died():
            return
        found = self.alive.broker.topics.get(topic_name)
        if found is None:
            expect(self.is_disturbed, "a publish has made no topic")
            return
        topic = self.model.add_topic(topic_name)
        accepted = found.message_count - before
        expect(accepted in (0, len(messages)), "accepted", accepted, len(messages))
        if accepted:
            self.model.publish(topic, messages, self.wall_ns)
            counts.append(found.message_count)
        else:
            expect(self.is_disturbed, "a publish was refused on a sound disk", client.errors)

    def store_slices(self, topic_name: str) -> None:
        """Run the turns that a batch in slices needs, and those that others want meanwhile."""
        topic = None if self.died() else self.alive.broker.topics.get(topic_name)
        while topic is not None and topic.busy and not self.died():
            self.alive.broker.scheduler.run_wakes()
            self.alive.hub.run_until_idle()

    def topic_name(self, number: int) -> str:
        """Return the name of a topic to publish to."""
        return TOPICS[number % len(TOPICS)]

    def do_pub(self, topic: int, size: int) -> None:
        name, messages = self.topic_name(topic), self.new_messages(1, size, 0)
        body = body_of(messages[0].number, messages[0].size_bytes)
        self.publish(name, messages, b"PUB %s\n%s" % (name.encode(), with_size(body)))

    def do_dpub(self, topic: int, size: int, delay: int) -> None:
        delay_ms = DELAYS_MS[delay % len(DELAYS_MS)]
        name, messages = self.topic_name(topic), self.new_messages(1, size, self.wall_ns + delay_ms * MS_NS)
        body = body_of(messages[0].number, messages[0].size_bytes)
        self.publish(name, messages, b"DPUB %s %d\n%s" % (name.encode(), delay_ms, with_size(body)))

    def do_mpub(self, topic: int, count: int, size: int) -> None:
        self.publish_batch(topic, BATCHES[count % len(BATCHES)], size % 6)

    def do_fill_segment(self) -> None:
        """Publish to the first topic as much as a segment takes."""
        self.publish_batch(0, SEGMENT_BYTES_MIN // span_bytes(SIZES[FILLING_SIZE]), FILLING_SIZE)

    def do_commit(self, topic: int, size: int) -> None:
        """Publish a message, and run the jobs that wait for a thread."""
        self.do_pub(topic, size)
        self.do_jobs()

    def do_fill_journal(self, count: int) -> None:
        """Publish to the first topic so many times, each a commit of its own: some files of the journal fill."""
        for _ in range(1 + count):
            if not self.died():
                self.publish_batch(0, COMMITTED, FILLING_SIZE)
                self.do_jobs()

    def do_delete_first(self) -> None:
        """Delete the first topic."""
        self.do_delete_topic(0)

    def do_empty_first(self) -> None:
        """Empty the first topic and its channels: its segments become spares, apart from the last."""
        self.do_empty_topic(0)
        topic = self.topic_at(0)
        for number in range(len(topic.channels) if topic is not None else 0):
            if not self.died():
                self.do_empty_channel(number)

    def publish_batch(self, topic: int, count: int, size: int) -> None:
        """MPUB messages of a size, as many as told."""
        name, messages = self.topic_name(topic), self.new_messages(count, size, 0)
        bodies = b"".join(with_size(body_of(each.number, each.size_bytes)) for each in messages)
        batch = struct.pack(">i", len(messages)) + bodies
        self.publish(name, messages, b"MPUB %s\n%s" % (name.encode(), with_size(batch)))

    def do_dmpub(self, topic: int, count: int, size: int, delay: int) -> None:
        """Each message has a time of its own; every third none."""
        name, messages = self.topic_name(topic), self.new_messages(BATCHES[count % len(BATCHES)], size % 6, 0)
        parts = []
        for index, each in enumerate(messages):
            delay_ms = DELAYS_MS[(delay + index) % len(DELAYS_MS)] if index % 3 else 0
            each.due_ns = self.wall_ns + delay_ms * MS_NS if delay_ms else 0
            parts.append(struct.pack(">q", delay_ms) + with_size(body_of(each.number, each.size_bytes)))
        batch = struct.pack(">i", len(messages)) + b"".join(parts)
        self.publish(name, messages, b"DMPUB %s each\n%s" % (name.encode(), with_size(batch)))

    # Consuming.

    def do_sub(self, topic: int, channel: int, rdy: int) -> None:
        self.do_sub_at(topic % len(TOPICS), channel, rdy)

    def do_sub_at(self, topic: int, channel: int, rdy: int) -> None:
        if len(self.clients) >= 12:
            return
        topic_name, name = [*TOPICS, GRAVEYARD][topic], CHANNELS[channel % len(CHANNELS)]
        client = self.connect()
        if topic_name not in self.model.topics:
            self.doubt.topics.add(topic_name)
        known = self.model.topics.get(topic_name)
        if known is None or name not in known.channels:
            self.doubt.channels.add((topic_name, name))
        client.answers.append(lambda data: expect(data == b"OK", "SUB is answered", data))
        client.send(b"SUB %s %s\n" % (topic_name.encode(), name.encode()))
        self.alive.hub.run_until_idle()
        if self.died():
            return
        client.receive()
        found = self.alive.broker.topics.get(topic_name)
        if found is None or client.take_errors():
            expect(self.is_disturbed, "SUB is refused on a sound disk")
            if found is not None:
                self.model.add_topic(topic_name)
            client.closed = True
            return
        self.model.add_channel(self.model.add_topic(topic_name), name, self.wall_ns)
        client.channel = (topic_name, name)
        self.ready(client, rdy)

    def ready(self, client: Client, rdy: int) -> None:
        """Set a client's RDY."""
        client.rdy = rdy % (RDY_MAX + 1)
        client.send(b"RDY %d\n" % client.rdy)

    def consumer_at(self, number: int) -> Client | None:
        """Return one of the clients that are subscribed."""
        clients = [client for client in self.clients if client.channel is not None and not client.closed]
        return clients[number % len(clients)] if clients else None

    def do_rdy(self, number: int, rdy: int) -> None:
        client = self.consumer_at(number)
        if client is not None:
            self.ready(client, rdy)

    def do_hang_up(self, number: int) -> None:
        client = self.consumer_at(number)
        if client is not None:
            client.receive()
            client.close()
            if client.channel is not None and client.channel[1].endswith("#ephemeral"):
                self.doubt.channels.add(client.channel)
                self.doubt.topics.update({client.channel[0]} & {"e#ephemeral"})

    def do_hang_up_all(self) -> None:
        for client in self.clients:
            client.close()

    def held_by(self, number: int, pick: int, count: int) -> tuple[Client, Topic, Channel, list[Copy]] | None:
        """Return a client, and some of its messages in flight."""
        holders = []
        for client in self.clients:
            if client.channel is None or client.closed:
                continue
            topic = self.model.topics[client.channel[0]]
            channel = topic.channels[client.channel[1]]
            copies = [each for each in channel.copies.values()
                      if each.state == IN_FLIGHT and each.owner == client.number]  # fmt: skip
            if copies:
                holders.append((client, topic, channel, copies))
        if not holders:
            return None
        client, topic, channel, copies = holders[number % len(holders)]
        chosen = [copies[(pick + index) % len(copies)] for index in range(min(count, len(copies)))]
        return client, topic, channel, chosen

    def answer(self, client: Client, command: bytes, copy: Copy, topic: Topic) -> bool:
        """Send FIN, REQ or TOUCH. Returns: whether it was done."""
        client.take_errors()
        client.send(command % to_hex(topic.messages[copy.number].guid))
        self.alive.hub.run_until_idle()
        if self.died():
            return False
        client.receive()
        errors = client.take_errors()
        if errors:
            expect(self.is_disturbed and not client.closed, "refused:", command, errors)
            return False
        expect(not client.closed, "closed by", command)
        assert client.channel is not None
        kind = {b"FIN": "finished", b"REQ": "requeued", b"TOU": "touched"}[command[:3]]
        self.facts.note(kind, topic.messages[copy.number].guid, client.channel[1], copy.attempts)
        return True

    def do_fin(self, number: int, pick: int, count: int) -> None:
        self.finish(self.held_by(number, pick, 1 + count % 40))

    def do_fin_most(self, number: int, pick: int) -> None:
        """Finish all messages of a client but the first one or two, as far as it takes more."""
        for _ in range(6):
            held = self.held_by(number, 0, 1000)
            if held is None or self.died():
                return
            client, topic, channel, copies = held
            self.finish((client, topic, channel, copies[1 + pick % 2 :]))

    def do_sub_first(self) -> None:
        """Subscribe to the first topic."""
        self.do_sub_at(0, 0, 99)

    def do_fin_newest(self, number: int, kept: int) -> None:
        """FIN the messages that a client has in flight, but for the oldest."""
        held = self.held_by(number, 1 + kept, STRAGGLE_COUNT + RDY_MAX)
        if held is not None:
            client, topic, channel, copies = held
            self.finish((client, topic, channel, copies[: -(1 + kept)]))

    def do_straggle(self, number: int, kept: int) -> None:
        """Publish many messages to the first topic, and finish those that a client has, but for the oldest."""
        if all(client.closed or client.channel is None or client.channel[0] != TOPICS[0] for client in self.clients):
            self.do_sub_at(0, number, RDY_MAX)
        for operation in (lambda: self.publish_batch(0, STRAGGLE_COUNT, 0), self.do_jobs, self.do_jobs):
            if not self.died():
                operation()
            if not self.died():
                self.do_fin_newest(number, kept)

    def finish(self, held: tuple[Client, Topic, Channel, list[Copy]] | None) -> None:
        """FIN some messages, one by one."""
        if held is None:
            return
        client, topic, channel, copies = held
        for copy in copies:
            self.doubt.numbers[topic.name, channel.name] = {copy.number}
            found = self.alive.broker.topics[topic.name].channels_by_name[channel.name]
            self.finishing = (topic.name, channel.name, copy.number, found.finish_count)
            is_done = self.answer(client, b"FIN %s\n", copy, topic)
            self.finishing = None
            if is_done:
                self.note_finished(topic, channel, copy.number)
                client.in_flight -= 1
            elif self.died():
                return

    def do_req(self, number: int, pick: int, count: int, delay: int) -> None:
        held = self.held_by(number, pick, 1 + count % 4)
        if held is None:
            return
        client, topic, channel, copies = held
        asked_ms = (0, *DELAYS_MS)[delay % (1 + len(DELAYS_MS))]
        attempts_max = channel.limits.max_attempts if channel.limits is not None else 0
        for copy in copies:
            # The test does not wait for a dead letter.
            delay_ms = 0 if attempts_max and copy.attempts >= attempts_max else asked_ms
            self.doubt.moved[topic.name, channel.name] = {copy.number}
            if self.answer(client, b"REQ %%s %d\n" % asked_ms, copy, topic):
                copy.state = DEFERRED if delay_ms else QUEUED
                copy.due_ns = self.wall_ns + delay_ms * MS_NS if delay_ms else 0
                copy.due_mono_ns = max(1, self.mono_ns + delay_ms * MS_NS - JUMP_NS_MIN) if delay_ms else 0
                copy.due_reached = copy.noted_due = False
                copy.counted = copy.counted or delay_ms != 0
                channel.moved.update([copy.number] if delay_ms else [])
                copy.stamp = self.model.tick()
                client.in_flight -= 1
            elif self.died():
                return

    def do_touch(self, number: int, pick: int) -> None:
        held = self.held_by(number, pick, 1)
        if held is not None:
            client, topic, _, (copy,) = held
            if self.answer(client, b"TOUCH %s\n", copy, topic):
                copy.deadline_ns = min(self.mono_ns + 60 * SECOND_NS, copy.delivered_ns + 900 * SECOND_NS)

    # At the end of each schedule.

    def finale(self) -> None:
        """Drain and delete everything: all owed messages come, and all space is reclaimed."""
        self.next_fault = self.death = None
        self.do("leave_reset")
        self.do("free")
        for topic in [topic for topic in self.model.topics.values() if not topic.channels and not topic.ephemeral]:
            self.do("create_channel", sorted(self.model.topics).index(topic.name), 0)
        self.do("hang_up_all")
        for index in range(len(self.model.topics)):
            self.do("pause_topic", index, 0)
        topics = list(self.model.topics.values())
        waiting = [copy for topic in topics for channel in topic.channels.values() for copy in channel.copies.values()]
        due_ns = [copy.due_ns for copy in waiting]
        due_ns += [message.due_ns for topic in topics for message in topic.messages.values()]
        self.wall_ns = max([self.wall_ns, *due_ns]) + 3_600 * SECOND_NS
        self.mono_ns = max([self.mono_ns, *(copy.due_mono_ns + JUMP_NS_MIN for copy in waiting)])
        for _ in range(3):
            self.do("advance", 3)
        for name, topic in list(self.model.topics.items()):
            for channel in list(topic.channels.values()):
                self.do("pause_channel", self.channels().index((topic, channel)), 0)
                if name != GRAVEYARD:
                    self.drain(name, channel)
        self.do("sync")
        self.do("sync")
        self.do("jobs")
        self.drain_graveyard()
        self.check_drained()
        self.check_trace()
        while self.model.topics:
            self.do("delete_topic", 0)
        self.do("jobs")
        # Files that could not be removed are removed later.
        self.do("housekeep")
        self.do("jobs")
        self.check_space()

    def channels(self) -> list[tuple[Topic, Channel]]:
        """Return all channels, in the order of `channel_at`."""
        return [(topic, channel) for _, topic in sorted(self.model.topics.items())
                for _, channel in sorted(topic.channels.items())]  # fmt: skip

    def drain(self, topic_name: str, channel: Channel) -> None:
        """Consume a channel to the end."""
        self.do("sub", TOPICS.index(topic_name), CHANNELS.index(channel.name), 99)
        for _ in range(500):
            self.drop_spent(topic_name, channel)
            if not channel.copies:
                # One that may come twice may wait for its page to be read.
                self.do("jobs")
            if not channel.copies or channel.muddled:
                break
            before = len(channel.copies)
            self.do("fin", len(self.clients) - 1, 0, 39)
            if FINS in self.features:
                self.do("sync")
            if len(channel.copies) == before:
                # Deliveries may wait for a job in which a ledger grows.
                self.do("jobs")
                self.do("advance", 3)
                self.do("jobs")
                expect(channel.count(IN_FLIGHT), f"{topic_name}/{channel.name} keeps back", sorted(channel.copies))
        expect(not channel.copies or channel.muddled, f"{topic_name}/{channel.name} keeps", sorted(channel.copies))

    def drop_spent(self, topic_name: str, channel: Channel) -> None:
        """Record as dead letters the remaining messages with too many attempts in an empty channel."""
        left = {number for number, copy in channel.copies.items() if channel.spends(copy) and copy.state != IN_FLIGHT}
        if left and left == set(channel.copies):
            self.do("sync")
            found = self.alive.broker.topics[topic_name].channels_by_name[channel.name]
            if found.depth + found.deferred_count + found.in_flight_count == 0:
                self.vanished |= left
                channel.copies.clear()

    def drain_graveyard(self) -> None:
        """Consume the dead letters."""

    def check_drained(self) -> None:
        """Check that no delivered and finished message remains."""
        for topic in self.alive.broker.topics.values():
            known = self.model.topics[topic.name]
            if known.held or topic.name == GRAVEYARD or any(each.muddled for each in known.channels.values()):
                # An ephemeral one without a channel, for instance.
                continue
            # On a full disk, a start leaves lost records unfinished that need a larger ledger, until the next start.
            may_keep = self.was_disturbed and topic.name in self.spoiled
            may_keep = may_keep and any(
                list(each.ledger.unfinished(each.ledger.cursor)) for each in topic.channels_by_name.values()
            )
            drained = topic.log.first is topic.log.active
            expect(drained or may_keep, f"{topic.name} keeps segments of finished messages")
            for channel in topic.channels_by_name.values():
                counts = (channel.depth, channel.deferred_count, channel.in_flight_count)
                expect(counts == (0, 0, 0), f"{topic.name}/{channel.name} is not empty:", counts)

    def check_space(self) -> None:
        """Check that the disk is as empty as at the first start."""
        # One that was half overwritten in place, on a full disk, is kept aside.
        node_files = re.compile(rf"{ROOT}/node\.json(\.bad(\.\d+)?)?")
        left = [path for path in self.disk.paths() if not node_files.fullmatch(path)]
        journal = [path for path in left if path.startswith(f"{ROOT}/journal/")]
        expect(len(journal) <= FILES_MAX, "the journal has too many files:", journal)
        left = [path for path in left if path not in journal and not path.startswith(f"{ROOT}/trace")]
        expect(not left, "files are left:", left)


def with_size(body: bytes) -> bytes:
    """Return a body behind its size."""
    return struct.pack(">i", len(body)) + body


PLANS = ("fail", "fail_again", "fail_commit", "fail_write", "die_at_call", "die_at_store")
