"""The simulated machine with its broker and clients: lives, deaths, and the checks after each step.

A step of a schedule is one call of `World.step`. Operations are in `operations`; this module has their common parts.
"""

import gc
import random
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from pyqd.hot.diskqueue import arena
from pyqd.hot.primitives import clock
from pyqd.hot.primitives.guid import to_hex
from pyqd.primitives.durations import SECOND_NS
from pyqd.primitives.errors import StartupError
from tests.simulation import deaths
from tests.simulation.adoption import Adoption, noted_ids
from tests.simulation.clients import Client
from tests.simulation.disk import AGAIN, WITHOUT_LIMIT, Disk, Fault, SimulatedFiles
from tests.simulation.facts import TraceFacts
from tests.simulation.features import ABSENT, BODILESS, FINS, TRACE, UNMAPPING, WRITES, Features
from tests.simulation.mirror import ROOT, Mirror
from tests.simulation.model import (
    DEFERRED,
    GRAVEYARD,
    IN_FLIGHT,
    QUEUED,
    Channel,
    Copy,
    Doubt,
    Model,
    Topic,
    Violation,
    expect,
)
from tests.simulation.process import SYNC_NEVER, Failures, Process, options_of
from tests.simulation.unreadable import Excuses, spoil
from tests.support.invariants import check_topic
from tests.support.storage import body_of

WALL_START_NS = 1_700_000_000 * SECOND_NS
MONO_START_NS = 1_000 * SECOND_NS
KILL, CUT = "kill", "cut"
# Files that stay accessible, and that may be mapped at least; those of the daemon (pyx/diskqueue/arena.pyx).
RECENT_MIN, MAPPED_MIN = 3, 6
ARENA_DEFAULTS = (16, 32)


def names_in(paths: Iterable[str]) -> set[tuple[str, str]]:
    """Return (topic, channel), or (topic, ""), of the files and directories at some paths."""
    found = set()
    for path in paths:
        topic, _, rest = f"{path}/".removeprefix(f"{ROOT}/topics/").partition(".topic/")
        channel, _, _ = rest.rpartition(".channel/")
        found.add((topic, channel))
    return found


class World:
    """One machine. sync_each: --sync-every=1. features: faults beside those of all schedules."""

    def __init__(self, sync_each: bool, features: Features) -> None:
        self.sync_each = sync_each
        self.features = features
        self.lib = deaths.library()
        self.disk = Disk()
        self.model = Model()
        self.failures = Failures()
        self.wall_ns, self.mono_ns = WALL_START_NS, MONO_START_NS
        self.clients: list[Client] = []
        self.client_count = 0
        self.number_count = 0
        self.operation_count = self.fault_count = 0
        self.doubt = Doubt()
        self.errors: list[BaseException] = []
        self.process: Process | None = None
        self.files: SimulatedFiles | None = None
        # How the process is to die in the next step: at a call or a store, of a kill or a power cut.
        self.death: tuple[str, int] | None = None
        self.after_death: tuple[str, int, float] = (KILL, 0, 0.0)
        self.next_fault: Fault | None = None
        self.stopped_cleanly = self.ended_cleanly = False
        self.power_failed = False
        # Whether the process died in the middle of a step: it may have handed out messages that no client was sent.
        self.died_within = self.dies_between = False
        # Numbers of messages that were delivered often enough to be dead letters; of those that have gone; of letters.
        self.spent: set[int] = set()
        self.vanished: set[int] = set()
        self.letters: set[int] = set()
        self.letters_lost = False
        # Numbers of letters whose records lie in pages that cannot be read.
        self.letters_unreadable: set[int] = set()
        # Whether there was ever a want of room, which may leave deferred messages in the queue.
        self.was_disturbed = False
        # Whether the kernel may have written one page of a ledger and not the other since the last sync. Then finished
        # messages may come again.
        self.torn = False
        # Whether a process died since the last sync, and deletions with it that were still to be made durable.
        self.deletions_left = False
        # Whether a power cut has ever left a gap of records that were not promised.
        self.was_damaged = False
        # Channels, and topics as (topic, ""), of which a process kept a file in memory for want of room when it died.
        self.forgotten: set[tuple[str, str]] = set()
        # Topics whose state a start has made anew, with the stamp of that start. Until a sync it does not say what the
        # channels were given.
        self.made_anew: dict[str, int] = {}
        # Channels and topics that could neither be made nor be removed again.
        self.half_made: set[tuple[str, str]] = set()
        # Seed for the pages that become unreadable with the next start; their excuses, until a start has used them.
        self.spoil_seed: int | None = None
        self.spoils_spares = False
        self.spoiled: set[str] = set()
        self.wall_latest_ns = 0
        self.excuses = Excuses()
        # The next start finds no notes; this one has found none.
        self.loses_notes = self.notes_lost = False
        # With --sync-fin: the FIN in progress, as (topic, channel, number, FINs of the channel before), and the FINs
        # that the running rounds cover: of (topic, channel) the messages with the stamps of their FINs, 0: the FIN in
        # progress.
        self.finishing: tuple[str, str, int, int] | None = None
        self.fin_rounds: list[dict[tuple[str, str], dict[int, int]]] = []
        self.facts = TraceFacts()
        self.mapped_max = arena.mapped_max()
        if UNMAPPING in self.features:
            arena.set_limits_for_tests(RECENT_MIN, MAPPED_MIN, silent=True)
            arena.configure(2 * MAPPED_MIN)
        self.set_clocks()
        self.start()

    @property
    def alive(self) -> Process:
        """The running process; fails between two runs."""
        assert self.process is not None
        return self.process

    def set_clocks(self) -> None:
        """Hold the clocks of the compiled modules, and record the messages whose due time has come."""
        clock.hold(self.wall_ns, self.mono_ns)
        for topic in self.model.topics.values():
            for channel in topic.channels.values():
                for copy in channel.copies.values():
                    if copy.state == DEFERRED and copy.early_ns(self.wall_ns, self.mono_ns) <= 0:
                        copy.due_reached = True

    def note_error(self, error: BaseException) -> None:
        """Record an error that no client caused."""
        self.errors.append(error)

    def died(self) -> bool:
        """Return True if the process has died in this step."""
        return self.files is not None and self.files.dead

    @property
    def is_disturbed(self) -> bool:
        """Return True if an operation may be refused: a fault is planned, or the disk is nearly full."""
        if any(topic.own_limits[2] for topic in self.model.topics.values()):
            return True
        return self.disk.limit_pages != WITHOUT_LIMIT or (self.files is not None and self.files.fault is not None)

    # A step: plans are armed, the operation runs, the process may be dead then.

    def step(self, operation: Callable[[], None]) -> None:
        """Run one operation with its plans, and check its visible effects."""
        self.operation_count += 1
        self.wall_ns += 1000
        self.mono_ns += 1000
        self.wall_latest_ns = max(self.wall_latest_ns, self.wall_ns)
        self.set_clocks()
        if self.process is None:
            self.start()
            if self.process is None:
                return
        self.arm()
        self.was_disturbed = self.was_disturbed or self.is_disturbed
        self.ended_cleanly = self.dies_between = False
        try:
            operation()
            if not self.died():
                self.finish_pass()
        except Violation:
            if not self.died():
                raise
        except Exception as error:
            if not self.died():
                raise Violation(f"{type(error).__name__}: {error}") from error
        finally:
            self.disarm()
        if self.died():
            self.died_within = self.died_within or not self.dies_between
            self.bury()
            self.stopped_cleanly = self.ended_cleanly
        else:
            self.check()
            self.doubt = Doubt()

    def arm(self) -> None:
        """Arm the plans for the next operation."""
        assert self.files is not None
        self.files.fault, self.next_fault = self.next_fault, None
        self.facts.exact = self.facts.exact and not self.is_disturbed and not self.spoiled
        self.files.calls, self.files.die_at = 0, 0
        if self.files.fault is not None and self.files.fault.kind == AGAIN:
            arena.refuse(self.files.fault.skipped, self.files.fault.times)
        self.fault_count += (self.files.fault is not None) + (self.death is not None)
        if self.death is None:
            # A file that cannot be mapped again ends the process as a kill does.
            self.after_death = (KILL, 0, 0.0)
            if UNMAPPING not in self.features:
                return
        self.lib.deaths_watch_sockets(
            deaths.sockets_of([client.sock.fileno() for client in self.clients]), len(self.clients)
        )
        kind, number = self.death or ("", 0)
        if kind == "call":
            self.files.die_at = number
        elif kind == "store":
            self.lib.deaths_arm(number)

    def disarm(self) -> None:
        """Take it away; a death that did not come comes now."""
        if not self.died():
            arena.refuse(0, 0)
        if self.death is not None:
            if self.death[0] == "store":
                self.lib.deaths_disarm()
            if not self.died():
                self.lib.deaths_die()
            self.death = None

    def finish_pass(self) -> None:
        """Run the loop until it is idle, and let clients read."""
        process = self.alive
        process.turn()
        for _ in range(1000):
            if self.died() or sum(client.receive() for client in self.clients if client.reads) == 0:
                break
            process.turn()
        self.drop_closed()

    def drop_closed(self) -> None:
        """Forget the clients whose connection has ended."""
        if self.died():
            return
        for client in [client for client in self.clients if client.closed]:
            self.clients.remove(client)
            client.close()
            self.note_gone(client)

    def note_gone(self, client: Client) -> None:
        """Record that a consumer has left its channel: its messages wait for their time-out."""
        if client.channel is None:
            return
        topic = self.model.topics.get(client.channel[0])
        channel = topic.channels.get(client.channel[1]) if topic else None
        if topic is None or channel is None:
            return
        name = client.channel
        if channel.ephemeral and not any(other.channel == name for other in self.clients):
            self.model.delete_channel(topic, channel.name)

    # Lives.

    def start(self) -> None:
        """Start the broker; a death or a fault may be planned for that too."""
        self.spoil()
        if self.loses_notes:
            self.disk.lose("notes", "dues")
            self.loses_notes, self.notes_lost = False, True
        arena.refuse(0, 0)
        files = SimulatedFiles(self.disk, self.lib, in_parts=WRITES in self.features)
        self.files = files
        if ABSENT in self.features:
            files.absent = random.Random(self.disk.used_pages)
        if UNMAPPING in self.features:
            self.lib.deaths_follow(*arena.hooks())
            files.mirror = Mirror(self.disk.root)
        options = options_of(
            1 if self.sync_each else SYNC_NEVER,
            FINS in self.features,
            TRACE in self.features,
            0 if BODILESS in self.features else 8,
        )
        process = Process(files, options, self.note_error)
        if process.fin_sync is not None:
            process.fin_sync.on_begin = self.note_fins_gathered
            process.fin_sync.on_success = self.note_fins_synced
        self.fin_rounds.clear()
        dies = self.death is not None
        self.arm()
        self.was_disturbed = self.was_disturbed or self.is_disturbed
        try:
            process.start()
        except StartupError as error:
            if not dies and files.fault is None:
                raise Violation(f"the broker does not start: {error}") from error
            failed = True
        else:
            failed = False
        finally:
            self.disarm()
        if failed or self.died():
            self.note_mended(process)
        if self.died():
            self.process = process
            self.bury(in_start=True)
            return
        if failed:
            # Retried, as an operator does. An exit leaves the same state as a kill.
            self.lib.deaths_die()
            process.end()
            self.stopped_cleanly = False
            return
        self.process = process
        Adoption(self).run()
        self.made_anew |= {topic: self.model.stamp for topic, channel in self.forgotten if channel == ""}
        self.forgotten.clear()
        self.half_made.clear()
        self.excuses = Excuses()
        self.notes_lost = False
        self.doubt = Doubt()
        self.stopped_cleanly = self.power_failed = self.died_within = False
        self.check()
        self.check_trace()

    def note_mended(self, process: Process) -> None:
        """Note the damage by a power cut that a start may have mended before it ended: the next start reports none."""
        self.was_damaged = self.was_damaged or (self.power_failed and process.broker.damage.found_count != 0)

    def spoil(self) -> None:
        """Make pages unreadable, as planned: the page cache is dropped while no process runs."""
        if self.spoil_seed is None:
            return
        self.facts.exact, self.facts.has_unreadable = False, True
        for path, inode, pages in spoil(self.disk, random.Random(self.spoil_seed), self.spoils_spares):
            self.excuses.add(self.disk, path, inode, pages)
            self.was_damaged = True
        self.letters_unreadable |= self.excuses.letters()
        self.spoiled |= self.excuses.topics
        # The record of the given ids may be unreadable. An id contains its time, so the clock must not go back then.
        self.wall_ns = max(self.wall_ns, self.wall_latest_ns) + SECOND_NS
        self.set_clocks()
        self.forgotten |= self.excuses.ledgers
        self.spoil_seed = None
        self.spoils_spares = False

    def bury(self, in_start: bool = False) -> None:
        """End everything of a dead process; cut the power if it died of that."""
        assert self.process is not None
        for index, client in enumerate(self.clients):
            if not in_start:
                client.receive(self.lib.deaths_sent(index))
            client.close()
        self.clients.clear()
        self.forgotten |= names_in(self.process.broker.placeholders.paths)
        self.half_made |= names_in(self.process.broker.half_made)
        # Now, as its private pages follow the files as long as nothing was stored there.
        self.process.end()
        self.process = None
        self.failures.found.clear()
        self.errors.clear()
        self.deletions_left = True
        kind, seed, chance = self.after_death
        if kind == CUT:
            self.torn = self.torn or 0.0 < chance < 1.0
            self.facts.exact = False
            self.disk.cut(random.Random(seed), chance)
            self.power_failed = True
            self.mono_ns = MONO_START_NS
        self.stopped_cleanly = False

    def die(self) -> None:
        """Die between two operations."""
        self.lib.deaths_watch_sockets(
            deaths.sockets_of([client.sock.fileno() for client in self.clients]), len(self.clients)
        )
        self.lib.deaths_die()
        self.dies_between = True

    def check_trace(self) -> None:
        """Compare the trace events with what clients have seen."""
        if TRACE in self.features and not self.is_disturbed:
            self.facts.check(self.alive.broker)

    # Comparison of the broker with the model.

    def check(self) -> None:
        """Compare counts with the model."""
        for error in self.errors:
            raise Violation(f"{type(error).__name__}: {error}") from error
        expect(not self.failures.found, "logged as critical:", *self.failures.found)
        touched = self.files.unreadable.touched() if self.files is not None else []
        expect(not touched, "ended by SIGBUS at", *touched)
        broker = self.alive.broker
        expect(set(broker.topics) == set(self.model.topics), "topics", set(broker.topics), set(self.model.topics))
        for topic in self.model.topics.values():
            self.check_topic(topic, broker.topics[topic.name])

    def check_topic(self, topic: Topic, found: Any) -> None:
        """Compare one topic."""
        check_topic(found)
        expect(
            set(found.channels_by_name) == set(topic.channels),
            "channels",
            set(found.channels_by_name),
            set(topic.channels),
        )
        if topic.name == GRAVEYARD:
            return
        expect(found.own_limits == topic.own_limits, f"limits of {topic.name}", found.own_limits, topic.own_limits)
        expect(found.depth - topic.missing == len(topic.held), f"depth of {topic.name}", found.depth, len(topic.held))
        expect(found.paused == topic.paused, f"pause of {topic.name}", found.paused)
        expect(found.message_count == topic.count, f"messages of {topic.name}", found.message_count, topic.count)
        for channel in topic.channels.values():
            self.check_channel(channel, found.channels_by_name[channel.name])

    def check_channel(self, channel: Channel, found: Any) -> None:
        """Compare one channel."""
        if channel.muddled:
            return
        in_flight = channel.count(IN_FLIGHT)
        waiting = len(channel.copies) - in_flight
        not_due = sum(
            copy.state == DEFERRED and not copy.due_reached and not channel.spends(copy)
            for copy in channel.copies.values()
        )
        counts = (found.depth, found.deferred_count, found.in_flight_count)
        expect(found.in_flight_count == in_flight, f"in flight of {channel.name}", counts, in_flight)
        spent = sum(copy.state != IN_FLIGHT and channel.spends(copy) for copy in channel.copies.values())
        least, most = waiting - spent, waiting + channel.twice.total() + channel.lost
        expect(least <= found.depth + found.deferred_count <= most, f"waiting in {channel.name}", counts, least, most)
        # While its ledger grows or pages are read in a background job, a channel may count deferred messages of an
        # earlier run as queued.
        unsure = self.was_disturbed or found.grows or found.reads_in
        expect(found.deferred_count >= not_due or unsure, f"deferred in {channel.name}", counts, not_due)
        expect(found.paused == channel.paused, f"pause of {channel.name}", found.paused)
        expect(0 <= found.message_count <= self.number_count, f"message count of {channel.name}", found.message_count)
        if found.grows or found.reads_in or (found.held_up and channel.lost and self.was_disturbed):
            # It may have come to the end of its ring, or to pages on the disk: messages wait for the background job. On
            # a full disk those behind a lost record beyond the ring's end wait until the ledger can grow.
            return
        if found.depth > found.dead_letters_pending + channel.lost and not found.paused and found.rate_limit is None:
            for consumer in found.consumers:
                expect(
                    consumer.in_flight + consumer.unsynced_count >= consumer.rdy,
                    f"{found.depth} messages of {channel.name} are not delivered to a consumer that can take them",
                )

    # FINs that outlive a power cut.

    def note_fins_gathered(self, channels: list[Any]) -> dict[tuple[str, str], dict[int, int]]:
        """Record the FINs that a new round of --sync-fin covers. Returns: these."""
        covers: dict[tuple[str, str], dict[int, int]] = {}
        for found in channels:
            topic = self.model.topics.get(found.topic.name)
            channel = topic.channels.get(found.name) if topic is not None else None
            if channel is None:
                continue
            name = (found.topic.name, found.name)
            covers[name] = dict(channel.done)
            if self.finishing is not None and self.finishing[:2] == name and found.finish_count > self.finishing[3]:
                covers[name][self.finishing[2]] = 0
        self.fin_rounds.append(covers)
        return covers

    def note_finished(self, topic: Topic, channel: Channel, number: int) -> None:
        """Note in the model, and for the rounds that had it already, that a message is finished."""
        self.model.finish(channel, number)
        for covers in self.fin_rounds:
            numbers = covers.get((topic.name, channel.name), {})
            if numbers.get(number) == 0:
                numbers[number] = channel.done[number]

    def note_fins_synced(self, covers: dict[tuple[str, str], dict[int, int]]) -> None:
        """Record that a round is complete: the messages it covers must not come again."""
        self.fin_rounds.remove(covers)
        if self.died():
            return
        for (topic_name, name), numbers in covers.items():
            topic = self.model.topics.get(topic_name)
            channel = topic.channels.get(name) if topic is not None else None
            if channel is not None:
                channel.kept.update({number: at for number, at in numbers.items() if at > channel.created})

    # Messages that come.

    def on_message(self, client: Client, guid: int, attempts: int, body: bytes) -> None:
        """Check a delivery, and note it."""
        if client.channel is not None:
            self.facts.note("sent", guid, client.channel[1], attempts)
        number = int.from_bytes(body[:8], "little")
        if client.channel is None or client.channel[0] not in self.model.topics:
            return
        topic = self.model.topics[client.channel[0]]
        channel = topic.channels.get(client.channel[1])
        if channel is None:
            return
        name = f"{topic.name}/{channel.name}"
        if topic.name == GRAVEYARD:
            expect(number in self.spent, "a dead letter of a message that was not delivered too often:", number)
            self.letters.add(number)
            client.send(b"FIN %s\n" % to_hex(guid))
            return
        message = topic.messages.get(number)
        expect(message is not None, f"{name} delivers what nobody has published:", number)
        assert message is not None
        expect(body == body_of(number, message.size_bytes), f"{name} delivers another body of", number)
        expect(message.guid in (0, guid), f"{name}: another id of", number, hex(guid), hex(message.guid))
        message.guid = guid
        expect(topic.number_of.setdefault(guid, number) == number, f"{name}: one id of two messages", hex(guid))
        copy = channel.copies.get(number)
        if channel.muddled or (number in channel.twice and copy is not None and copy.state == IN_FLIGHT):
            channel.muddled = True
            client.send(b"FIN %s\n" % to_hex(guid))
            channel.copies.pop(number, None)
            return
        if number in channel.twice and copy is None:
            channel.twice -= Counter((number,))
            copy = channel.copies[number] = Copy(number, QUEUED, attempts=attempts - 1)
        expect(copy is not None, f"{name} delivers again what was finished:", number)
        assert copy is not None
        expect(copy.state != IN_FLIGHT, f"{name} delivers what is in flight:", number)
        # Of two, each has its own due time and attempts.
        is_other = number in channel.twice
        has_come = copy.due_reached or is_other
        early_ns = 0 if has_come else max(0, copy.early_ns(self.wall_ns, self.mono_ns))
        expect(early_ns == 0, f"{name} delivers early:", number, early_ns)
        expect(attempts == copy.attempts + 1 or is_other, f"{name}: attempts of", number, attempts, copy.attempts + 1)
        if copy.counted and attempts == 1:
            # On a full disk there is no note.
            copy.counted = guid in noted_ids(self.alive.broker.topics[topic.name].channels_by_name[channel.name])
        copy.attempts = attempts
        channel.delivered[number] = max(attempts, channel.delivered.get(number, 0))
        copy.state, copy.owner = IN_FLIGHT, client.number
        copy.delivered_ns = self.mono_ns
        copy.deadline_ns = self.mono_ns + 60 * SECOND_NS
        copy.stamp = self.model.tick()
        client.in_flight += 1
        if channel.spends(copy):
            self.spent.add(number)

    def expire(self) -> None:
        """Take timed-out messages back in the model; the broker does so in its next run."""
        for topic in self.model.topics.values():
            for channel in topic.channels.values():
                for copy in channel.copies.values():
                    if copy.state == IN_FLIGHT and copy.deadline_ns <= self.mono_ns:
                        copy.state = QUEUED
                        for client in self.clients:
                            if client.number == copy.owner:
                                client.in_flight -= 1

    def close(self) -> None:
        """Release everything."""
        for client in self.clients:
            client.close()
        self.clients.clear()
        self.lib.deaths_die()
        if self.process is not None:
            self.process.end()
        self.process = self.files = None
        self.lib.deaths_forget()
        clock.hold(0, 0)
        gc.collect(1)
        if UNMAPPING in self.features:
            self.lib.deaths_follow(0, 0, 0)
            arena.refuse(0, 0)
            arena.set_limits_for_tests(*ARENA_DEFAULTS, silent=False)
            arena.configure(self.mapped_max)
