"""Background syncs that make the broker's data durable against power loss.

Accepted messages and FINs lie in mapped pages and survive the process; msync(2) makes them survive the machine. It runs
in a thread, one job at a time: every --sync-timeout, or as soon as --sync-every messages have been appended since the
last began. The loop gathers the dirty ranges of a bounded number of topics for each job and records the outcome. It
never waits for the disk.

A topic's *dirty version* is a tuple of numbers that change with its files. A topic with the version of its last sync is
skipped; an idle topic costs no more than that comparison. The code that creates or removes a file counts the changed
names in the topic's directories (`Names`). A start after anything but a clean stop takes none of the names for durable.
Files of due times and notes count theirs themselves (`NoteFiles`): a power failure may take one, and a start makes the
due times again that no sync has covered.

Order in a job: logs, ledgers, names, and then the states of topics whose names had changed. A state says how far
channels with durable names were given messages (pyx/broker/topic.pyx). Together with the states go the headers of
ledgers whose bits reach one lap further than at the previous sync: such a header may trust these bits only when the
ring is on stable storage.

Invariants: 1. One job runs at a time. 2. A version is recorded only when everything it covers is on stable storage.

Source: docs/storage.md, "Syncs"; msync(2).
"""

import errno
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import gevent
from gevent.event import Event

from pyqd.broker.broker import Broker
from pyqd.broker.channel import Channel
from pyqd.broker.owners import OwningTopic
from pyqd.broker.replay import no_pause
from pyqd.broker.topic import DirtyVersion, Topic
from pyqd.diskqueue.reliable_sync import DirtyRange, ReliableSync, dirty_range
from pyqd.diskqueue.unsynced import Gathered, Names
from pyqd.hot.diskqueue import arena
from pyqd.hot.diskqueue.ledger import Ledger
from pyqd.hot.diskqueue.log import Log
from pyqd.hot.diskqueue.notefiles import NoteFiles, SlotFile
from pyqd.hot.diskqueue.notes import NoteFile, Notes
from pyqd.hot.diskqueue.segment import Segment
from pyqd.net.greenlets import spawn_service
from pyqd.net.loop_driver import yield_to_loop
from pyqd.primitives.durations import SECOND_NS
from pyqd.primitives.errors import StorageError

# Bounds the work of gathering in one pass of the loop, and the time a shutdown waits for a running job.
DIRTY_TOPICS_PER_JOB = 64
TOPICS_PER_SLICE = 256
LEDGER_HEADER_BYTES = 4096
# Each msync flushes the disk's cache; from this number on, one flush of the whole file system is cheaper.
RANGES_MANY = 128
# If publishers wait for the disk, each flush costs them the time of one. A flush of the file system holds them up
# altogether, for it also writes the pages that are only prepared: 190 ms with 100 topics.
RANGES_MANY_BESIDE_COMMITS = 1024
# Then a range of this size or more is also written out before its sync.
LARGE_BYTES = 64 << 10
# Checks of the number of appended messages per --sync-timeout.
COUNT_CHECKS_PER_TIMEOUT = 8

InThread = Callable[[Callable[[], None]], None]

logger = logging.getLogger(__name__)


class SyncedLedger(NamedTuple):
    """Ledger in a job: its state when it was gathered.

    bits_from: the first record of which the file had a bit, or one that grows to replace it. window_from: the same of
    the file alone.
    """

    ledger: Ledger
    bits_from: int
    window_from: int
    floor: int
    reset_count: int
    change_count: int


class SyncedSlots(NamedTuple):
    """Notes or due times in a job: their changed files, and the number of all changes."""

    store: NoteFiles
    files: list[tuple[SlotFile, int]]
    change_count: int


class SyncedLog(NamedTuple):
    """Log in a job: its dirty ranges, and the end that they reach."""

    log: Log
    ranges: list[tuple[Segment, int, int]]
    end: int


class Job:
    """Dirty bytes of some topics, gathered on the loop and written in a thread."""

    def __init__(self) -> None:
        self.versions: list[tuple[str, DirtyVersion]] = []
        self.directories: list[str] = []
        self.names: list[tuple[Names, Gathered]] = []
        self.ranges: list[DirtyRange] = []
        self.states: list[DirtyRange] = []
        self.given: list[tuple[OwningTopic, int]] = []
        self.logs: list[SyncedLog] = []
        # Topics whose due times are synced up to an ordinal.
        self.dues: list[tuple[OwningTopic, int]] = []
        self.ledgers: list[SyncedLedger] = []
        self.headers: list[tuple[SyncedLedger, DirtyRange]] = []
        self.slots: list[SyncedSlots] = []
        self.dropped: list[tuple[Notes, list[NoteFile]]] = []
        self.topics: list[OwningTopic] = []
        self.took_s = 0.0
        # Publishers wait for the disk meanwhile: a large range is written out in slices before it is synced.
        self.gives_way = False
        self._ledgers_gathered: set[Ledger] = set()

    def add(self, topic: Topic, version: DirtyVersion) -> None:
        self.versions.append((topic.name, version))
        self.add_topic(topic)
        channels = [channel for channel in topic.changed_channels() if channel.directory is not None]
        self.add_channels(channels)
        for channel in channels:
            if channel.notes is not None:
                self.add_slots(channel.notes.store)
        self.add_names(topic)

    def add_channels(self, channels: Sequence[Channel]) -> None:
        for channel in channels:
            for ledger in channel.ledgers():
                self.add_ledger(ledger)
            if channel.notes is not None:
                self.dropped.append((channel.notes, channel.notes.dropped_files()))

    def add_topic(self, topic: OwningTopic) -> None:
        self.topics.append(topic)
        state = dirty_range(topic.mapping, 0, topic.mapping.size_bytes)
        if topic.names:
            self.states.append(state)
            self.given.append((topic, topic.end))
        else:
            topic.note_given(topic.end)
            self.ranges.append(state)
        # In this order: an entry of dues is stored before its record.
        self.add_log(topic.log)
        # A full disk may keep them in memory.
        if topic.dues.store.directory is not None:
            self.add_slots(topic.dues.store)
            self.dues.append((topic, topic.log.end))

    def add_names(self, topic: OwningTopic) -> None:
        """Gather the names in a topic's directories that are not durable, with their new ledgers."""
        gathered = topic.names.gather()
        self.names.append((topic.names, gathered))
        self.directories += gathered
        for change in gathered.values():
            for ledger in change.ledgers:
                self.add_ledger(ledger)

    def add_slots(self, store: NoteFiles) -> None:
        """Gather the changed files of notes or due times, whole, and their new names."""
        files = store.dirty_files()
        self.ranges += [dirty_range(file.mapping, 0, file.mapping.size_bytes) for file, _ in files]
        self.directories += store.changed_directories()
        self.slots.append(SyncedSlots(store, files, store.change_count))

    def add_ledger(self, ledger: Ledger) -> None:
        """Gather a whole ledger, sealed, once."""
        if ledger in self._ledgers_gathered:
            return
        self._ledgers_gathered.add(ledger)
        ledger.seal()
        targets = ledger.sync_targets()
        self.ranges += [dirty_range(mapping, 0, length_bytes) for mapping, length_bytes in targets]
        gathered = SyncedLedger(
            ledger, ledger.bits_from, ledger.window_from, ledger.floor, ledger.reset_count, ledger.change_count
        )
        self.ledgers.append(gathered)
        if ledger.has_bits_in_doubt():
            self.headers.append((gathered, dirty_range(targets[0][0], 0, LEDGER_HEADER_BYTES)))

    def add_log(self, log: Log) -> None:
        ranges, end = log.dirty_ranges()
        self.ranges += [dirty_range(segment.mapping, start, length) for segment, start, length in ranges]
        self.logs.append(SyncedLog(log, ranges, end))
        # A segment that was never synced may be a new file.
        if log.directory is not None and any(start == 0 for _, start, _ in ranges):
            self.directories.append(log.directory)

    def run(self, syncs: ReliableSync) -> None:
        """Write all to stable storage. Blocks; touches no object of the loop. Raises: StorageError."""
        started_s = time.perf_counter()
        if self.gives_way:
            for mapping, start_bytes, length_bytes, _ in self.ranges:
                if length_bytes >= LARGE_BYTES:
                    syncs.files.write_out(mapping, start_bytes, length_bytes)
        many_count = RANGES_MANY_BESIDE_COMMITS if self.gives_way else RANGES_MANY
        many = len(self.ranges) + len(self.states) + len(self.headers) >= many_count
        self.write(syncs, self.ranges, self.directories, many)
        for topic, end in self.given:
            topic.note_given(end)
        for (ledger, _, window_from, _, reset_count, _), (mapping, *_) in self.headers:
            # The mapping that was written: the ledger may have grown into another file since.
            ledger.trust_bits(mapping, window_from, reset_count)
        behind = self.states + [header for _, header in self.headers]
        if behind:
            self.write(syncs, behind, [], many)
        self.took_s = time.perf_counter() - started_s

    def write(self, syncs: ReliableSync, ranges: list[DirtyRange], directories: list[str], many: bool) -> None:
        """Write ranges and directories one by one, or sync the whole file system if there are many."""
        if many and syncs.sync_file_system(ranges):
            return
        for each in ranges:
            syncs.sync(*each)
        for directory in dict.fromkeys(directories):
            try:
                syncs.files.sync_directory(directory)
            except StorageError as error:
                # The topic or channel was deleted meanwhile.
                if error.errno != errno.ENOENT:
                    raise

    def note(self) -> None:
        """Record the durable ends of logs, due times, ledgers and notes."""
        for log, ranges, end in self.logs:
            log.mark_synced(ranges, end)
        for topic, log_end in self.dues:
            if not topic.exiting:
                topic.note_dues_synced(log_end)
        for ledger, bits_from, _, floor, reset_count, change_count in self.ledgers:
            ledger.note_synced(bits_from, reset_count, change_count)
            ledger.note_floor_synced(floor, reset_count)
        for store, files, change_count in self.slots:
            store.note_synced(files, change_count)
        for notes, dropped_files in self.dropped:
            notes.remove_dropped(dropped_files)
        for names, gathered in self.names:
            names.note_synced(gathered)
        for topic in self.topics:
            topic.settle_dead_letters()


def ignore(_event: object) -> None:
    """Ignore the duration of a sync, or an error: it has been logged, and health is bad."""


class Syncer:
    """Background syncs of the broker's data.

    in_thread: runs a function in a thread and waits for it while the loop goes on; gevent's threadpool by default.
    on_timed: is called with the seconds of each job. on_internal_error: is called with an error that is not a
    StorageError; health is bad from then on, and the next sync is attempted as usual. on_end: is called after each sync
    of everything dirty.
    """

    def __init__(
        self,
        broker: Broker,
        in_thread: InThread | None = None,
        *,
        on_timed: Callable[[float], None] = ignore,
        on_internal_error: Callable[[BaseException], None] = ignore,
        on_end: Callable[[], object] = no_pause,
    ) -> None:
        self._broker = broker
        broker.has_syncer = True
        self._on_timed = on_timed
        self._on_internal_error = on_internal_error
        self._on_end = on_end
        self._in_thread = in_thread or gevent.get_hub().threadpool.apply
        self._synced: dict[str, DirtyVersion] = {}
        self._wanted = Event()
        self._appended_count = 0
        self._greenlet: gevent.Greenlet[[], None] | None = None

    def start(self) -> None:
        """Start the periodic syncs. Topics that the load has found durable count as synced."""
        for topic in self._broker.topics.values():
            if topic.durable_version is not None:
                self._synced[topic.name] = topic.durable_version
        self._appended_count = self._broker.accepted_count()
        if self._broker.journals():
            self._broker.journal.start(self._wanted.set)
        if self._broker.journal.has_former:
            # Until a sync, each kill adds its files to those that the next start reads.
            self._wanted.set()
        self._greenlet = spawn_service("syncer", self._run, self._on_internal_error)

    def stop(self) -> None:
        """Stop the periodic syncs. `sync_all` syncs the ranges that are still dirty."""
        if self._greenlet is not None:
            self._greenlet.kill(block=False)
            self._greenlet = None

    def note(self) -> None:
        """Schedule a sync if --sync-every messages have been appended since the last began. Cost: O(topics).

        With --sync-every=1 the journal has put them on stable storage already.
        """
        if self._broker.journals():
            return
        if self._broker.accepted_count() - self._appended_count >= self._broker.options.sync_every:
            self._wanted.set()

    def _run(self) -> None:
        while True:
            timeout_s = self._broker.options.sync_timeout_ns / SECOND_NS
            for _ in range(COUNT_CHECKS_PER_TIMEOUT):
                if self._wanted.wait(timeout_s / COUNT_CHECKS_PER_TIMEOUT):
                    break
                self.note()
            self._wanted.clear()
            self.sync_dirty()

    def sync_dirty(self) -> bool:
        """Sync everything that changed since its last sync. Returns: whether all syncs succeeded. Switches: yes."""
        self._appended_count = self._broker.accepted_count()
        begun = arena.begin_sync()
        kept = self._broker.journal.rotate()
        done = self._do_all(self._jobs(pause=yield_to_loop), self._in_thread)
        if done:
            arena.end_sync(begun)
            self._broker.journal.release(kept)
        self._on_end()
        return done

    def sync_all(self) -> bool:
        """Sync everything and block the loop meanwhile, for a stop. Returns: whether all syncs succeeded.
        Switches: no.
        """
        # Twice: dead letters are finished when they are on stable storage.
        return all(self._do_all(self._jobs(pause=no_pause), run_inline) for _ in range(2))

    def _jobs(self, pause: Callable[[], None]) -> Iterable[Job]:
        """Yield jobs that together cover all dirty ranges; each gathers its ranges when the caller takes it."""
        topics = self._broker.topics
        for name in self._synced.keys() - topics.keys():
            del self._synced[name]
        job = self._new_job()
        for index, topic in enumerate(list(topics.values()), 1):
            if topic.directory is not None and topics.get(topic.name) is topic:
                version = topic.dirty_version()
                if version != self._synced.get(topic.name):
                    job.add(topic, version)
            if len(job.versions) == DIRTY_TOPICS_PER_JOB:
                yield job
                job = self._new_job()
            if index % TOPICS_PER_SLICE == 0:
                pause()
        if job.versions:
            yield job

    def _new_job(self) -> Job:
        job = Job()
        job.gives_way = self._broker.journals()
        return job

    def _do_all(self, jobs: Iterable[Job], in_thread: InThread) -> bool:
        failed_count = 0
        try:
            for job in jobs:
                failed_count += not self._do(job, in_thread)
        except Exception as error:
            self._broker.note_failed_sync(error)
            logger.critical("internal error in a sync", exc_info=error)
            self._on_internal_error(error)
            return False
        if failed_count == 0:
            self._broker.note_synced()
        return failed_count == 0

    def _do(self, job: Job, in_thread: InThread) -> bool:
        if not do(self._broker, job, in_thread):
            return False
        self._on_timed(job.took_s)
        self._synced.update(job.versions)
        return True


def do(broker: Broker, job: Job, in_thread: InThread) -> bool:
    """Run a job and record its outcome. Returns: whether all of it is on stable storage. Switches: as in_thread."""
    try:
        in_thread(lambda: job.run(broker.syncs))
    except StorageError as error:
        broker.note_failed_sync(error)
        return False
    job.note()
    return True


def sync_channel(broker: Broker, channel: Channel) -> bool:
    """Make a channel and its name durable now, independently of the syncer. Returns: as `do`. Switches: yes."""
    job = Job()
    job.add_topic(channel.topic)
    job.add_channels([channel])
    job.add_names(channel.topic)
    return do(broker, job, gevent.get_hub().threadpool.apply)


def run_inline(function: Callable[[], None]) -> None:
    """Run a function at once in the calling greenlet."""
    function()
