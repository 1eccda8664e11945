"""A topic's files and life: opened, recovered, closed; its channels made and deleted.

Its traffic is the compiled half's.
"""

import contextlib
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice
from typing import Protocol

from pyqd.broker.channel import Channel
from pyqd.broker.owners import OwningBroker
from pyqd.broker.topic_quota import TopicQuota
from pyqd.diskqueue.damage import BAD, DAMAGED_DIRECTORY, SetAside, reused, set_aside
from pyqd.diskqueue.files import MAKING
from pyqd.diskqueue.segment_jobs import SegmentJobs
from pyqd.diskqueue.space_limit import SpaceLimit
from pyqd.diskqueue.unsynced import Names
from pyqd.hot.broker.topic import (
    TOPIC_STATE_SIZE,
    TopicCore,
    check_state,
    created_of,
    due_ends_of,
    is_half_made,
    known_end_of,
)
from pyqd.hot.diskqueue.dues import Dues, open_dues
from pyqd.hot.diskqueue.ledger import Ledger
from pyqd.hot.diskqueue.log import Log
from pyqd.hot.diskqueue.logreader import LogReader
from pyqd.hot.diskqueue.mapping import Mapping
from pyqd.hot.diskqueue.notefiles import NoteFiles
from pyqd.hot.primitives import releases
from pyqd.hot.wire.trace_events import REASONS
from pyqd.primitives.errors import CorruptionError, DiskFull, LimitReached, StorageError
from pyqd.primitives.names import channel_of_dir, is_ephemeral_str, is_valid_name_str

LOG_DIRECTORY = "log"
STATE_FILE = "state"
DUES_DIRECTORY = "dues"
KNOWN_ENTRIES = (LOG_DIRECTORY, DUES_DIRECTORY, STATE_FILE, DAMAGED_DIRECTORY)

# Names, the number of their changes, and the sum of all other changes of the topic's files.
DirtyVersion = tuple[Names, int, int]

CHANNEL_DELETED = REASONS.index("channel_deleted")

# A channel takes some 20 us.
CHANNELS_DROPPED_AT_ONCE = 25

logger = logging.getLogger(__name__)


class TopicObserver(Protocol):
    """Receiver of the events of a broker. Every method returns at once and neither switches greenlets nor raises.

    Topics and channels that the start loads from disk are not reported.
    """

    def topic_created(self, topic: "Topic") -> None:
        """Handle a new topic, before its first channel and its first message."""

    def topic_deleted(self, topic: "Topic") -> None:
        """Handle the deletion of a topic with its channels, which it still names. Its name is free again."""

    def channel_created(self, topic: "Topic", channel: str) -> None:
        """Handle a new channel."""

    def channel_deleted(self, topic: "Topic", channel: str) -> None:
        """Handle the deletion of a channel whose topic remains. Its name is free again."""


class TopicTracing(Protocol):
    """Settings of traces."""

    def apply(self, topic: "Topic") -> None: ...
    def apply_to_new(self, channel: Channel) -> None: ...


class TopicBroker(OwningBroker, Protocol):
    """The broker, as its topics see it."""

    observer: TopicObserver | None

    @property
    def tracing(self) -> TopicTracing: ...


class Topic(TopicCore):
    """One topic.

    Its directory holds its state, its log, and a directory for each channel. The directories alone say which topics
    and channels exist: no list beside them could contradict them. An ephemeral topic has no directory.
    found: the names in the directory that an earlier run left; None: the topic is new.
    Raises: StorageError, CorruptionError. Source: docs/storage.md, "Topic".
    """

    name: str
    broker: "TopicBroker"
    directory: str | None

    def __init__(
        self, broker: "TopicBroker", name: str, directory: str | None, *, found: Sequence[str] | None = None
    ) -> None:
        self.broker = broker
        self.name = name
        self.files = broker.files
        self.directory = directory
        self.names = Names()
        # The file `state` was there, and is damaged; the reason, unless a kill has left it half made.
        self.state_lost = False
        self.state_damage = ""
        if directory is not None and (found is None or not broker.names_durable):
            self.names.changed(os.path.dirname(directory))
            self.names.changed(directory)
        # Channels and changes of names when all of their files were held.
        self.held_version: tuple[int, int] | None = None
        # Its version when the start found all of it on stable storage.
        self.durable_version: DirtyVersion | None = None
        # Of `pyqd.broker.reclaimer`: the end of the log when it last saw another one, and that time.
        self.quiet_end = -1
        self.quiet_since_ns = 0
        # Of `pyqd.broker.segment_rewriter`: whether a job is under way, the ordinal to look on from, the replaced files
        # that are still there, the reason of the last failure, and the numbers of segments that are damaged.
        self.rewriting = False
        self.rewritten_below = 0
        self.rewrite_refusal = ""
        self.not_rewritable: set[int] = set()
        self.channels_by_name: dict[str, Channel] = {}
        self.dead_letter_sources: set[Channel] = set()
        mapping = self.open_state(None if directory is None else f"{directory}/{STATE_FILE}", found)
        log_directory = None if directory is None else f"{directory}/{LOG_DIRECTORY}"
        journaled = None
        if found is not None and log_directory is not None:
            # A start that did not end may have set the damaged one aside, and begun a blank one.
            lost = self.state_lost or (
                created_of(mapping) == 0 and any(entry.startswith(STATE_FILE + BAD) for entry in found)
            )
            journaled = broker.take_journaled(name, log_directory, created_of(mapping), lost)
        log = self.open_log(log_directory, found, known_end_of(mapping))
        if found is not None and broker.journals():
            log.find_durable_end({} if journaled is None else journaled.ends())
        state = None if journaled is None else journaled.state
        super().__init__(
            log,
            self.open_dues(log, due_ends_of(mapping, state), found is not None and DUES_DIRECTORY in found),
            broker.scheduler,
            mapping,
            node_id=broker.options.node_id,
            memory_count_max=broker.options.mem_queue_size,
            ephemeral=is_ephemeral_str(name),
            power_failed=broker.power_failed,
            created_ns=broker.next_created_ns(),
            journaled=state,
        )
        self.reader = LogReader(log)
        self.quota = TopicQuota(self)
        log.pool.limit = self.dues.store.limit = self.quota
        if self.state_damage:
            self.note_set_aside(None, self.state_damage)

    def note_set_aside(self, channel: str | None, reason: str) -> None:
        """Report a file of the topic, or of a channel of it, that a start could not use."""
        self.log.damage.add(1, 0, 0)
        self.broker.set_aside.append(SetAside(self.name, channel, reason))

    def open_log(self, directory: str | None, found: Sequence[str] | None, known: tuple[int, int]) -> Log:
        """Open the topic's log, or make it. found: the names that the start has found; None: the topic is new.

        known: as for `Broker.new_log`.
        """
        if directory is not None and found is not None:
            if LOG_DIRECTORY in found:
                return self.broker.new_log(directory, True, True, known)
            self.broker.placeholders.make_directory(directory, partial(self.names.changed, os.path.dirname(directory)))
        return self.broker.new_log(directory, found is not None, known=known)

    def open_dues(self, log: Log, ends: tuple[int, int], found: bool) -> Dues:
        """Open the index of the log's due times. ends: of `due_ends_of`. found: its directory is there."""
        directory = None if self.directory is None else f"{self.directory}/{DUES_DIRECTORY}"
        return open_dues(
            self.files,
            directory,
            SpaceLimit(),
            log,
            due_below=ends[0],
            synced_below=ends[1],
            power_failed=self.broker.power_failed,
            found=found,
            prepare=None if directory is None else self.prepare_slots,
        )

    def prepare_slots(self, store: NoteFiles, path: str, size_bytes: int) -> None:
        """Make a file for due times or notes in a thread. If that fails, the one that needs it gets the error."""
        broker = self.broker

        def make() -> Mapping:
            with broker.reserve.claim(size_bytes, size_bytes):
                return self.files.new_mapped(path, size_bytes, True)

        def done(mapping: Mapping | None, _error: BaseException | None) -> None:
            store.offer(mapping)

        if self.quota.allows_spare(size_bytes):
            broker.in_background(make, done)
        else:
            store.offer(None)

    def open_state(self, path: str | None, found: Sequence[str] | None) -> Mapping:
        """Map the topic's state, a fresh one if there is none that can be used.

        found: the names that the start has found, which must survive a full disk; None: the topic is new.
        """
        aside = None
        if path is not None and (self.files.exists(path) if found is None else STATE_FILE in found):
            try:
                mapping = self.files.open_mapped(path)
                mapping.require_readable()
                check_state(mapping)
            except CorruptionError as error:
                content = None
                with contextlib.suppress(StorageError):
                    content = self.files.read_range(path, 0, TOPIC_STATE_SIZE)
                # Zeros only: the power failed before the topic was on stable storage.
                self.state_lost = content is None or any(content)
                aside = set_aside(self.files, path, error, "the topic is not paused, and its counters begin at 0")
                if content is None or not is_half_made(content):
                    self.state_damage = str(error)
                self.names.changed(os.path.dirname(path))
            else:
                return mapping
        try:
            return self.files.new_mapped(path, TOPIC_STATE_SIZE, True)
        except DiskFull:
            made = None if path is None or aside is None else reused(self.files, aside, path, TOPIC_STATE_SIZE)
            if made is not None:
                return made
            if path is None or found is None:
                raise
            return self.broker.placeholders.map(
                path, TOPIC_STATE_SIZE, partial(self.names.changed, os.path.dirname(path))
            )

    def load_channels(self, entries: Sequence[str]) -> None:
        """Open the channels that an earlier run left. entries: the names in the topic's directory."""
        assert self.directory is not None, "an ephemeral topic leaves nothing"
        for entry in sorted(entries):
            if entry in KNOWN_ENTRIES:
                continue
            name = channel_of_dir(entry)
            if name is None:
                self.pass_over(entry)
                continue
            # A start with many idle channels is held up by each question to the file system: no other is asked.
            found = self.files.entries_of(f"{self.directory}/{entry}")
            if found is None:
                logger.warning("skipping %s in %s: not a directory", entry, self.directory)
            else:
                self.channels_by_name[name] = Channel(self, name, found=set(found))
        if self.broker.power_failed:
            self.hand_over_held()
        else:
            self.report_known_end()
        for channel in self.channels_by_name.values():
            channel.load_found()
        self.channels.extend(self.channels_by_name.values())
        # Before messages that an earlier run held are given to the channels.
        self.broker.tracing.apply(self)
        self.recover()
        self.note_found_durable()

    def report_known_end(self) -> None:
        """Report records that a channel has seen and the log has not, if nothing else has told of them."""
        known_end = max((channel.ledger.known_end for channel in self.channels_by_name.values()), default=0)
        if known_end > self.log.end and self.log.damage.lost_count == 0:
            self.log.damage.missing(self.log.end, known_end)

    def pass_over(self, entry: str) -> None:
        """Remove the leftovers of a channel whose creation was killed, and warn of any other unknown entry."""
        assert self.directory is not None
        if channel_of_dir(entry.removesuffix(MAKING)) is not None:
            self.files.remove_tree(os.path.join(self.directory, entry))
        elif not entry.startswith(STATE_FILE + BAD):
            logger.warning("skipping %s in %s: not a channel", entry, self.directory)

    def note_found_durable(self) -> None:
        """Record whether all that the start has found is on stable storage. The topic's files are mapped now."""
        if self.names:
            return
        if self.log.dirty_ranges()[0] or self.dues.store.dirty_files():
            return
        self.log.mark_synced([], self.log.end)
        self.durable_version = self.dirty_version()

    def dirty_version(self) -> DirtyVersion:
        """Return a value that differs after any change of the topic's files. Cost: O(channels), in C."""
        return (self.names, self.names.change_count, self.change_sum())

    def hand_over_held(self) -> None:
        """After a power failure: give to a channel the messages that were given only to lost channels.

        The lost ones were created after the last completed sync of names. Their messages are held again. If channels
        remain that were created after them, the one that begins first takes these messages over.
        """
        if not self.channels_by_name:
            return
        channel = min(self.channels_by_name.values(), key=lambda channel: channel.ledger.start)
        if channel.ledger.start > self.end:
            logger.warning(
                "TOPIC(%s): channel %s takes over %d messages of channels removed by the power failure",
                self.name,
                channel.name,
                channel.ledger.start - self.end,
            )
            channel.begin_at(self.log.locate(self.end))

    def channel(self, name: str) -> Channel:
        """Return the channel of that name (valid), made if it is missing. Raises: StorageError, LimitReached."""
        channel = self.channels_by_name.get(name)
        if channel is None:
            assert is_valid_name_str(name), "the caller checks names"
            assert not self.exiting, "a deleted topic has no directory for a channel"
            limit = self.broker.options.max_channels_per_topic
            if limit and len(self.channels_by_name) >= limit:
                raise LimitReached("TOO_MANY_CHANNELS", f"channel {name} of topic {self.name} exceeds limit of {limit}")
            self.broker.capacity.check(f"channel {name} of topic {self.name}")
            channel = Channel(self, name)
            self.channels_by_name[name] = channel
            self.broker.tracing.apply_to_new(channel)
            self.attach(channel)
            logger.info("TOPIC(%s): new channel(%s)", self.name, name)
            if self.broker.observer is not None:
                self.broker.observer.channel_created(self, name)
        return channel

    def delete_channel(self, name: str) -> bool:
        """Delete a channel with all it holds and close its clients. Returns: whether it was there.

        Raises: StorageError (nothing changed). A kill leaves the channel whole or none of it. Switches: no.
        """
        channel = self.channels_by_name.get(name)
        if channel is None:
            return False
        logger.info("TOPIC(%s): deleting channel %s", self.name, name)
        directory, moved = channel.directory, ""
        if directory is not None:
            assert self.directory is not None
            channel.hold_files()
            moved = self.broker.discard(directory)
            self.names.forget(directory)
            self.names.changed(self.directory)
        channel.trace_dropped(CHANNEL_DELETED)
        self.drop_channel(channel)
        if self.broker.observer is not None:
            self.broker.observer.channel_deleted(self, name)
        if directory is not None:
            self.broker.remove_discarded(directory, moved)
        if self.ephemeral and not self.channels_by_name:
            self.broker.delete_topic(self.name)
        return True

    def drop_channel(self, channel: Channel) -> None:
        """Forget a channel whose directory has been moved or removed, and close its consumers."""
        assert self.channels_by_name.get(channel.name) is channel
        channel.exiting = True
        for consumer in channel.close_consumers():
            consumer.client.close()
        channel.abandon()
        del self.channels_by_name[channel.name]
        self.detach(channel)

    def abandon(self) -> None:
        """Drop all channels and the log, after the topic's files have been moved or removed. Switches: no.

        Of many channels some are dropped at once and the others in the topic's next runs.
        """
        self.exiting = True
        self.refuse_queued()
        for channel in self.channels_by_name.values():
            channel.exiting = True
        self.drop_channels()

    def drop_channels(self) -> bool:
        """Drop some channels of a deleted topic, and the log with the last one. Returns: True if channels remain."""
        assert self.exiting, "the topic is not deleted"
        for name, channel in list(islice(self.channels_by_name.items(), CHANNELS_DROPPED_AT_ONCE)):
            logger.info("TOPIC(%s): deleting channel %s", self.name, name)
            self.drop_channel(channel)
        if self.channels_by_name:
            self.on_drop_wanted = self.drop_channels
            return True
        self.on_drop_wanted = None
        self.names.forget_all()
        super().abandon()
        self.reader = LogReader(self.log)
        self.settle_dead_letters()
        return False

    def refuse_queued(self) -> None:
        """Refuse the publishes that are stored in slices, or wait for these."""
        if self.intake is not None:
            self.intake.refuse_all()

    def settle_dead_letters(self) -> None:
        """Let channels finish the messages whose dead letters lie here and are durable, or were deleted."""
        for channel in list(self.dead_letter_sources):
            if not channel.exiting:
                channel.settle_dead_letters()
            if channel.exiting or not channel.dead_letters_unsynced:
                self.dead_letter_sources.discard(channel)

    def files_moved(self, moved: str) -> None:
        """Set the paths of log and due times until they are removed. moved: the topic's directory now."""
        self.log.files_moved(os.path.join(moved, LOG_DIRECTORY))
        self.dues.store.files_moved(os.path.join(moved, DUES_DIRECTORY))

    def ledgers(self) -> list[Ledger]:
        """Return the ledgers of the topic's channels."""
        return [ledger for channel in self.channels_by_name.values() for ledger in channel.ledgers()]

    def notes_bytes(self) -> int:
        """Return the bytes that the due times and the channels' notes take."""
        notes = [channel.notes for channel in self.channels_by_name.values()]
        return self.dues.store.size_bytes + sum(each.store.size_bytes for each in notes if each is not None)

    def lifted_quota(self) -> AbstractContextManager[None]:
        """Return a context in which the topic's files may grow without limit."""
        return self.quota.lifted()

    def remove_spares(self) -> None:
        """Remove all spare segments on the spot, for the space they take: the topic is closing."""
        self.log.pool.jobs = SegmentJobs()
        self.log.pool.drop_spares()
        releases.settle()

    def hold_files(self) -> None:
        """Keep state and ledgers mapped for good, as clients may hold the topic longer than it has files.

        Raises: StorageError.
        """
        for _ in self.hold_files_in_steps():
            pass

    def hold_files_in_steps(self) -> Iterator[None]:
        """Like `hold_files`, and yield between the channels, for a caller that lets the event loop go on.

        If no file has been replaced and no channel made since it ended, it has nothing to do. Raises: StorageError.
        """
        version = (len(self.channels_by_name), self.names.change_count)
        if self.held_version == version:
            return
        self.mapping.hold()
        for channel in list(self.channels_by_name.values()):
            if not channel.exiting:
                channel.hold_files()
            yield
        self.held_version = version

    def close(self) -> None:
        """Write the topic's state to its files and close them, as a clean stop does. Failures are logged."""
        self.exiting = True
        self.refuse_queued()
        for channel in self.channels_by_name.values():
            channel.close()
