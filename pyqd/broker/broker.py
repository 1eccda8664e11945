"""The broker: its topics, their directories, and the objects that topics share."""

import contextlib
import errno
import json
import logging
import os
import uuid
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from sortedcontainers import SortedList, SortedSet

from pyqd.broker.capacity import Capacity
from pyqd.broker.channel import Channel
from pyqd.broker.replay import no_pause
from pyqd.broker.topic import Topic, TopicObserver
from pyqd.broker.topic_quota import RESERVE_BYTES
from pyqd.broker.tracing import Tracing
from pyqd.config.options import Options
from pyqd.diskqueue.damage import BAD, DamageCount, SetAside, set_aside
from pyqd.diskqueue.files import MAKING, PAGE_BYTES, Files, FilesAhead
from pyqd.diskqueue.journal import Journal
from pyqd.diskqueue.placeholders import Placeholders
from pyqd.diskqueue.redo import JournaledTopic, Redo
from pyqd.diskqueue.reliable_sync import ReliableSync
from pyqd.diskqueue.segment_jobs import BackgroundJobs, Done, Job, log_failure
from pyqd.diskqueue.space_limit import SEGMENT_BYTES_MIN, DiskReserve
from pyqd.hot.diskqueue import arena
from pyqd.hot.diskqueue.log import Log
from pyqd.hot.primitives.clock import wall
from pyqd.hot.primitives.schedule import Scheduler
from pyqd.primitives.errors import CorruptionError, DiskFull, LimitReached, StartupError, StorageError
from pyqd.primitives.names import is_ephemeral_str, is_valid_name_str, topic_dir, topic_of_dir

TOPICS_DIRECTORY = "topics"
DISCARDED_DIRECTORY = "discarded"
JOURNAL_DIRECTORY = "journal"
NODE_FILE = "node.json"
PROBE_FILE = "probe"
NODE_FORMAT = 5
EPOCH_MAX = 1 << 16
# Each log goes on above the highest epoch that it has.
EPOCH_UNKNOWN = 0
NAMES_PER_SLICE = 64
# Changed options of a topic with a trace and a few channels take 50 us.
TOPICS_PER_SLICE = 32
BOOT_ID = "/proc/sys/kernel/random/boot_id"

logger = logging.getLogger(__name__)


def run_now(job: Job, done: Done) -> None:
    """Run a blocking job on the spot, for a broker without an event loop."""
    try:
        result = job()
    except StorageError as error:
        done(None, error)
    else:
        done(result, None)


def later_format(path: str, found: object) -> StartupError:
    """Return why a data directory cannot be read."""
    return StartupError(f"{path} was written by a later pyqd - format {found}; this pyqd reads {NODE_FORMAT}")


def earlier_format(path: str, found: int) -> StartupError:
    """Return why a data directory of a build before the first release cannot be read, and what to do."""
    return StartupError(
        f"{path} was written by an unreleased pyqd - format {found}; this pyqd reads {NODE_FORMAT}:"
        " export the directory with that build (pyqd export), and import that"
    )


def read_boot_id(files: Files) -> str:
    """Return the id that the kernel has given to this boot; "" if it gives none."""
    return files.read(BOOT_ID).decode().strip() if files.exists(BOOT_ID) else ""


def read_node(files: Files, path: str) -> dict[str, Any] | None:
    """Read the node file; None for a damaged one, which is set aside. Raises: StartupError for another format."""
    try:
        node = json.loads(files.read(path))
        found = node["format"]
        if isinstance(found, int) and found > NODE_FORMAT:
            raise later_format(path, found)
        if isinstance(found, int) and 0 < found < NODE_FORMAT:
            raise earlier_format(path, found)
        types = [type(node[key]) for key in ("format", "epoch", "boot", "clean")]
        if types == [int, int, str, bool] and found > 0 and 0 <= node["epoch"] < EPOCH_MAX:
            return dict(node)
        reason = "it contradicts itself"
    except (ValueError, KeyError, TypeError) as error:
        reason = str(error)
    except StorageError as error:
        if error.errno != errno.EIO:
            raise
        reason = str(error)
    wrong = CorruptionError(path, 0, f"not a node file: {reason}")
    set_aside(files, path, wrong, "sequence numbers continue in a new epoch, and the node has a new name")
    return None


def sync_names(files: Files, directory: str) -> None:
    """Make the names in a directory durable, unless it is gone itself. Raises: StorageError."""
    try:
        files.sync_directory(directory)
    except StorageError as error:
        if error.errno != errno.ENOENT:
            raise


def try_now(job: Job) -> None:
    """Do a job on the spot, whose failure shows later."""
    with contextlib.suppress(StorageError):
        job()


class Broker:
    """All topics of one data directory.

    options: limits and sizes. files: the operating system. in_background: runs (job, done) with the job in a thread and
    done(result, error) on the loop; the default runs both on the spot. prompt_in_background: the same for short
    jobs on segments whose result the logs soon need. read_in_background: the same for reads of messages: on a slow disk
    they take long, and other jobs must not queue behind them. read_and_wait: the same for a caller that waits: returns
    when the job has ended, in whatever way. Switches: it may. on_finished: with --sync-fin, called with a channel some
    of whose FINs wait for a sync. observer: learns which topics and channels come and go.
    Raises: StartupError for a data directory that cannot be served.
    """

    def __init__(
        self,
        options: Options,
        files: Files | None = None,
        in_background: Callable[[Job, Done], None] = run_now,
        prompt_in_background: Callable[[Job, Done], None] | None = None,
        capacity: Capacity | None = None,
        *,
        read_in_background: Callable[[Job, Done], None] | None = None,
        read_and_wait: Callable[[Job], None] = try_now,
        scheduler: Scheduler | None = None,
        on_finished: Callable[[Channel], object] | None = None,
        observer: TopicObserver | None = None,
    ) -> None:
        self.options = options
        self.capacity = capacity or Capacity()
        self.files = files or FilesAhead()
        self.in_background = in_background
        self.read_in_background = read_in_background or in_background
        self.read_and_wait = read_and_wait
        self.scheduler = scheduler or Scheduler()
        self.topics: dict[str, Topic] = {}
        # The keys of `topics` in order: sorting 100,000 names for each listing would hold the loop for 100 ms.
        self.topic_names = SortedList()
        self.failed_write: tuple[str, int] | None = None
        self.short_of_room = SortedSet()
        self.failed_sync: str | None = None
        self.write_failure_count = 0
        self.sync_failure_count = 0
        # Wall clock at the end of the last successful sync; 0 before the first one.
        self.synced_at_ns = 0
        # State of the data directory at the start: `new`, `clean`, `kill` or `power_failure`.
        self.last_stop = "new"
        self.damage = DamageCount()
        # Files of topics and channels that the start could not use.
        self.set_aside: list[SetAside] = []
        self.root = os.path.abspath(options.data_path or os.curdir)
        self.syncs = ReliableSync(self.files, self.root)
        self.placeholders = Placeholders(self.files)
        self.reserve = DiskReserve(self.files, self.root, max(options.min_free_bytes, RESERVE_BYTES))
        self.segment_jobs = BackgroundJobs(
            self.files,
            self.syncs,
            self.reserve,
            self.placeholders,
            in_background,
            prompt_in_background or in_background,
        )
        self.journal = Journal(
            self.files, os.path.join(self.root, JOURNAL_DIRECTORY), in_background, limit=self.reserve
        )
        self.redo: Redo | None = None
        self.epoch = 0
        # Set by a syncer: without one, nothing waits for a sync.
        self.has_syncer = False
        self.on_finished = on_finished
        self.observer = observer
        self.power_failed = False
        # The last stop left all names in the data directory on stable storage.
        self.names_durable = False
        self.boot = ""
        self.node_name = ""
        self.discarded_count = 0
        # Topics that a stop has closed.
        self.closed_count = 0
        # Directories of deleted topics and channels that could not be removed, with their present paths.
        self.removals_failed: list[tuple[str, str]] = []
        # Directories of topics and channels that could neither be made nor be removed again.
        self.half_made: set[str] = set()
        # The ends of the logs of deleted topics together.
        self.deleted_end = 0
        # New consumers and topics are refused: the daemon is about to stop. Later publishes are refused, too.
        self.draining = False
        self.refuses_publishes = False
        self.tracing = Tracing(self)

    def change_options(self, options: Options, pause: Callable[[], None] = no_pause) -> None:
        """Replace the options. Those of space and traces are passed on here; the others are read at their use.

        pause: is called after each few topics. If the options change again meanwhile, the rest gets the newer ones.
        """
        before, self.options = self.options, options
        self.reserve.floor_bytes = max(options.min_free_bytes, RESERVE_BYTES)
        trace_changed = self.tracing.change_options(before, options)
        for index, topic in enumerate(list(self.topics.values()), 1):
            if not topic.exiting:
                topic.quota.apply()
                if trace_changed:
                    self.tracing.apply(topic)
            if index % TOPICS_PER_SLICE == 0:
                pause()

    def load(self) -> None:
        """Open the data directory and every topic in it."""
        assert not self.topics, "a broker is loaded once"
        try:
            topics = os.path.join(self.root, TOPICS_DIRECTORY)
            self.files.make_directory(topics)
            self.files.check_reserving(self.root)
            self.load_node()
            self.files.distrusted = self.syncs.has_failure_note()
            self.syncs.reserve_failure_note()
            if not self.names_durable:
                # A topic that a killed run moved away, or made, must not come back, or go, with the power.
                self.files.sync_directory(topics)
            self.empty_discarded()
            for left in (PROBE_FILE, PROBE_FILE + MAKING):
                self.files.remove(os.path.join(self.root, left))
            # This call puts the arena's handler of faults first, once. No file is mapped before.
            arena.begin_load()
            try:
                self.load_journal()
                self.tracing.load()
                self.load_topics(topics)
            finally:
                arena.end_load()
            self.redo = None
            self.tracing.recover()
            self.note_loaded()
            if self.power_failed:
                self.last_stop = "power_failure"
        except (StorageError, CorruptionError) as error:
            raise StartupError(f"failed to load topics - {error}") from error

    def load_topics(self, directory: str) -> None:
        """Open every topic that an earlier run left. Raises: StorageError, CorruptionError."""
        names = {entry: topic_of_dir(entry) for entry in sorted(self.files.list_directory(directory))}
        # After a power failure the journal restores segments, and files seen before that would be out of date.
        files = Files() if self.power_failed else self.files
        with files.load_ahead(directory, [entry for entry, name in names.items() if name is not None]) as begin_next:
            for entry, name in names.items():
                if name is not None:
                    begin_next()
                path = f"{directory}/{entry}"
                found = None if name is None else self.files.entries_of(path)
                if name is None or found is None:
                    logger.warning("skipping %s in %s: not a topic", entry, directory)
                    continue
                topic = Topic(self, name, path, found=found)
                self.add_topic(topic)
                topic.load_channels(found)

    def empty_discarded(self) -> None:
        """Remove the leftovers of deletions in an earlier run, and keep the directory: so a deletion needs no space
        then. A failed removal is logged, and retried while the broker serves.
        """
        discarded = os.path.join(self.root, DISCARDED_DIRECTORY)
        if self.placeholders.make_directory(discarded, lambda: None):
            for entry in self.files.list_directory(discarded):
                path = os.path.join(discarded, entry)
                try:
                    (self.files.remove_tree if self.files.is_directory(path) else self.files.remove)(path)
                except StorageError as error:
                    self.keep_leftover(entry, path, error)

    def keep_leftover(self, entry: str, path: str, error: StorageError) -> None:
        """Register a leftover of a deletion that could not be removed."""
        log_failure(None, error)
        # The place that it had before is not known.
        self.removals_failed.append((path, path))
        if entry.isdecimal():
            # A rename to its name would fail.
            self.discarded_count = max(self.discarded_count, int(entry))

    def load_journal(self) -> None:
        """Read the journal of an earlier run; after a clean stop it has nothing that counts."""
        if self.names_durable:
            self.files.remove_tree(self.journal.directory)
            return
        self.redo = Redo(self.files, self.journal.directory)
        self.journal.keep_former(self.redo.former, self.redo.latest_created_ns, self.redo.commit_number)

    def take_journaled(
        self, topic_name: str, log_directory: str, created_ns: int, state_lost: bool
    ) -> JournaledTopic | None:
        """Return a topic's entries in the journal of an earlier run; None if there are none. Raises: StorageError.

        After a power failure the topic's records are restored first. created_ns: when the topic was created, 0 if its
        state is blank, or was damaged (state_lost).
        """
        self.journal.latest_created_ns = max(self.journal.latest_created_ns, created_ns)
        found = None if self.redo is None else self.redo.take(topic_name, created_ns, state_lost)
        if found is None:
            return None
        if self.power_failed:
            found.restore(log_directory)
        elif state_lost and not found.is_of(log_directory):
            # After a kill every file is there: these entries are of an earlier topic of that name.
            return None
        return found

    def next_created_ns(self) -> int:
        """Return the creation time for a new topic: no two topics have the same one, even if the clock is set back."""
        self.journal.latest_created_ns = max(wall(), self.journal.latest_created_ns + 1)
        return self.journal.latest_created_ns

    def note_loaded(self) -> None:
        """Write the facts that the next start must know of this run, before any client is served. Raises:
        StorageError.
        """
        changed: dict[str, Any] = {}
        # A closed log has no record of its epoch yet, so the next start would find it in no other file.
        self.epoch = max([self.epoch, *(topic.log.epoch for topic in self.topics.values() if topic.log.closed)])
        if self.epoch != self.node["epoch"]:
            changed["epoch"] = self.epoch
        if self.power_failed:
            # Not earlier: a kill while the start repairs the damage of a power failure is no reason to trust it.
            changed["boot"] = self.boot
            self.node.pop("epoch_boot", None)
        if changed:
            self.write_node(**changed)

    def load_node(self) -> None:
        """Read the description of the data directory; after a power failure begin a new epoch of sequence numbers.

        Writes of a killed process are still in the page cache, so its numbers are all known. After a power failure
        clients may have read numbers that are lost here: the epoch keeps a number from being given twice.
        """
        path = os.path.join(self.root, NODE_FILE)
        boot = read_boot_id(self.files)
        node: dict[str, Any] = {"format": NODE_FORMAT, "epoch": 0, "term": 0, "boot": boot, "clean": True}
        if self.files.exists(path):
            node = read_node(self.files, path) or {**node, "epoch": EPOCH_UNKNOWN, "boot": "", "clean": False}
            self.names_durable = node["clean"]
            self.last_stop = "clean" if node["clean"] else "kill"
            if not node["clean"] and node["boot"] != boot:
                self.power_failed = True
                # Once per boot: a start that fails before it is complete gives out no number.
                node["epoch"] += node.get("epoch_boot") != boot
                node["epoch_boot"] = boot
        elif self.files.list_directory(os.path.join(self.root, TOPICS_DIRECTORY)):
            logger.error(
                "%s is missing although %s exists: recovering as after a power failure", path, TOPICS_DIRECTORY
            )
            self.power_failed = True
            node.update(boot="", epoch_boot=boot)
        self.epoch = node["epoch"]
        self.boot = boot
        # Readers by position know the log by this name, wherever the directory is served from.
        self.node_name = node.setdefault("node", uuid.uuid4().hex)
        self.node = node
        self.write_node(boot=node["boot"] if self.power_failed else boot, clean=False)

    def journals(self) -> bool:
        """Return True if each OK waits until the journal has its message on stable storage."""
        return self.options.sync_every == 1

    def write_node(self, **changed: Any) -> None:
        """Write the description of the data directory, durably. Raises: StorageError."""
        self.node.update(changed)
        path = os.path.join(self.root, NODE_FILE)
        content = json.dumps(self.node).encode()
        try:
            self.files.write(path, content)
        except DiskFull:
            # A full disk must not keep the daemon from starting: it has to be drained.
            if not self.files.exists(path) and self.files.exists(path + BAD):
                self.files.rename(path + BAD, path)
            self.files.write_in_place(path, content)
        self.files.sync_directory(self.root)

    def new_log(
        self,
        directory: str | None,
        found: bool = False,
        exists: bool | None = None,
        known: tuple[int, int] = (0, 0),
    ) -> Log:
        """Open or make a log whose segments are prepared and removed in the background.

        found: the log was there before. exists: its directory is there, if the caller knows. known: (end, id of the
        last record) that the log had before a kill or clean stop; after a power failure it may have lost some.
        """
        log = Log(
            self.files,
            directory,
            self.options.max_bytes_per_file,
            self.epoch,
            self.power_failed,
            found or None,
            exists,
            (0, 0) if self.power_failed else known,
        )
        log.pool.jobs = self.segment_jobs
        for start, end in log.holes:
            log.damage.missing(start, end)
        log.damage.count_into(self.damage)
        return log

    def discard(self, directory: str) -> str:
        """Take a directory out of the tree at once, by a rename. Returns: its path now, for `remove_discarded`.

        Raises: StorageError.
        """
        assert directory.startswith(os.path.join(self.root, TOPICS_DIRECTORY) + os.sep), "not one of the broker's"
        discarded = os.path.join(self.root, DISCARDED_DIRECTORY)
        # A start has made it, or the disk was full then.
        self.files.make_directory(discarded)
        self.discarded_count += 1
        moved = os.path.join(discarded, str(self.discarded_count))
        self.files.rename(directory, moved)
        self.placeholders.forget(directory)
        return moved

    def remove_discarded(self, directory: str, moved: str, again: bool = False) -> None:
        """Remove in a thread the files that `discard` has moved out of a directory. again: a failure was
        logged before.
        """
        assert moved.startswith(os.path.join(self.root, DISCARDED_DIRECTORY) + os.sep), "the files are still in use"

        def remove() -> None:
            # First, or a power failure could bring a part of it back under its old name.
            sync_names(self.files, os.path.dirname(directory))
            self.files.remove_tree(moved)

        def done(_result: None, error: BaseException | None) -> None:
            if error is not None:
                self.removals_failed.append((directory, moved))
                if not again:
                    log_failure(None, error)

        self.in_background(remove, done)

    def retry_removals(self) -> None:
        """Retry failed removals; otherwise only the next start would reclaim their space."""
        failed, self.removals_failed = self.removals_failed, []
        for directory, moved in failed:
            self.remove_discarded(directory, moved, again=True)
        for directory in list(self.half_made):
            with contextlib.suppress(StorageError):
                self.remove_leftovers(directory)

    def remove_partial(self, directory: str) -> None:
        """Remove the directory of a topic or channel that could not be made; a failure is logged, and retried."""
        try:
            self.files.remove_tree(directory)
        except StorageError as error:
            self.half_made.add(directory)
            log_failure(None, error)

    def remove_leftovers(self, directory: str) -> None:
        """Before a topic or channel is made: remove the remains of a failed attempt. Raises: StorageError."""
        if directory in self.half_made:
            self.files.remove_tree(directory)
            self.half_made.discard(directory)

    def topic(self, name: str) -> Topic:
        """Return the topic of that name (valid), made if it is missing. Raises: StorageError, LimitReached."""
        topic = self.topics.get(name)
        if topic is None:
            limit = self.options.max_topics
            if limit and len(self.topics) >= limit:
                raise LimitReached("TOO_MANY_TOPICS", f"topic {name} exceeds limit of {limit}")
            self.capacity.check(f"topic {name}")
            directory = None
            if not is_ephemeral_str(name):
                directory = os.path.join(self.root, TOPICS_DIRECTORY, topic_dir(name))
            try:
                topic = self.new_topic(name, directory)
            except StorageError:
                if directory is not None:
                    self.remove_partial(directory)
                raise
            self.add_topic(topic)
            self.tracing.apply(topic)
            logger.info("TOPIC(%s): created", name)
            if self.observer is not None:
                self.observer.topic_created(topic)
        return topic

    def begin_drain(self) -> None:
        """Refuse new consumers and new topics from now on."""
        self.draining = True

    def is_refused(self, name: str) -> bool:
        """Return whether publishes to a topic are refused because the daemon drains.

        A new topic would not have the channels that lookup daemons know.
        """
        return self.refuses_publishes or (self.draining and name not in self.topics)

    def refuse_publishes(self) -> None:
        """Refuse publishes from now on: the end of a drain."""
        self.refuses_publishes = True
        for topic in self.topics.values():
            topic.refuse_publishes()

    def add_topic(self, topic: Topic) -> None:
        """Make a topic known by its name."""
        assert topic.name not in self.topics, "two topics have one name"
        if self.refuses_publishes:
            topic.refuse_publishes()
        self.topics[topic.name] = topic
        self.topic_names.add(topic.name)

    def topics_by_name(self) -> Iterator[Topic]:
        """Yield the topics in the order of their names. Topics may be created and deleted between two steps."""
        last = ""
        while names := list(islice(self.topic_names.irange(last, inclusive=(False, True)), NAMES_PER_SLICE)):
            for name in names:
                topic = self.topics.get(name)
                if topic is not None:
                    yield topic
            last = names[-1]

    def new_topic(self, name: str, directory: str | None) -> Topic:
        """Make a topic with its first segment. Raises: StorageError."""
        assert is_valid_name_str(name), "the caller checks names"
        if directory is None:
            return Topic(self, name, None)
        try:
            with self.reserve.claim(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MIN):
                self.remove_leftovers(directory)
                self.files.make_directory(directory)
                return Topic(self, name, directory)
        except DiskFull as error:
            raise DiskFull("create", f"topic {name}", errno.ENOSPC, str(error.strerror)) from error

    def topic_named(self, name: bytes) -> Topic:
        """Return the topic of a valid name as it stands on the wire."""
        return self.topic(name.decode("ascii"))

    def delete_topic(self, name: str) -> bool:
        """Delete a topic with its channels and all they hold, and close their clients. Returns: whether it was there.

        Raises: StorageError (nothing changed). A kill leaves the topic whole or none of it. Switches: no.
        """
        topic = self.topics.get(name)
        if topic is None or topic.exiting:
            return False
        logger.info("TOPIC(%s): deleting", name)
        directory, moved = topic.directory, ""
        if directory is not None:
            topic.hold_files()
            moved = self.discard(directory)
            topic.files_moved(moved)
        del self.topics[name]
        self.topic_names.remove(name)
        self.deleted_end += topic.log.end
        topic.trace_deleted()
        if self.observer is not None:
            self.observer.topic_deleted(topic)
        topic.abandon()
        if directory is not None:
            self.remove_discarded(directory, moved)
        self.short_of_room.discard(name)
        return True

    def health(self) -> str:
        """Return OK, or NOK with an error: of the last failed write or sync, until one has succeeded."""
        if self.draining:
            return "NOK - the daemon is draining"
        refusal = self.refusal()
        if refusal is not None:
            return f"NOK - {refusal}"
        if self.placeholders:
            path, *others = self.placeholders.paths
            return f"NOK - the disk has no room for {path} and {len(others)} more files, which are kept in memory"
        if self.failed_write is not None:
            error, accepted = self.failed_write
            if self.accepted_count() == accepted:
                return f"NOK - {error}"
            self.failed_write = None
        return "OK" if self.failed_sync is None else f"NOK - {self.failed_sync}"

    def refusal(self) -> str | None:
        """Return why publishing, or a new topic or channel, is refused for lack of space; None if it is not."""
        reached = self.capacity.refusal()
        if reached is not None:
            return reached
        try:
            if self.reserve.is_short():
                return f"less than {self.reserve.floor_bytes} bytes are free on the disk"
        except StorageError as error:
            return str(error)
        while self.short_of_room:
            name = self.short_of_room[0]
            topic = self.topics.get(name)
            if topic is None:
                self.short_of_room.remove(name)
            elif not topic.quota.recheck():
                return f"topic {name}: {topic.quota.refusal}"
        return None

    def accepted_count(self) -> int:
        """Return a number that grows by one with each message that a log takes in, and never falls."""
        return self.deleted_end + sum([topic.log.end for topic in self.topics.values()])

    def note_failed_write(self, error: StorageError) -> None:
        """Count and log a message that could not be stored, and report it in the broker's health.

        `refusal` notices the end of a lack of space. After other errors, health is bad until a write succeeds."""
        self.write_failure_count += 1
        if not self.short_of_room or not isinstance(error, DiskFull):
            self.failed_write = (str(error), self.accepted_count())
        logger.error("DISKQUEUE: cannot store a message: %s", error)

    def retry_write(self) -> None:
        """After a failed write, check in a thread whether the disk takes a segment; health is good again then.

        Otherwise health would stay bad until the next publish, and publishers that obey the health do not publish.
        """
        failed = self.failed_write
        if failed is None:
            return
        path = os.path.join(self.root, PROBE_FILE)

        def job() -> None:
            with self.reserve.claim(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MIN):
                mapping = self.files.new_mapped(path, SEGMENT_BYTES_MIN, False)
            try:
                self.files.sync(mapping, 0, PAGE_BYTES)
            finally:
                self.files.remove(path)

        def done(_result: None, error: BaseException | None) -> None:
            # Another failure meanwhile has its own next try.
            if error is None and self.failed_write is failed:
                self.failed_write = None

        self.in_background(job, done)

    def note_failed_sync(self, error: BaseException) -> None:
        """Report a failed sync in the broker's health; the syncer retries it."""
        self.sync_failure_count += 1
        self.failed_sync = str(error)
        # Also after a failed sync of a directory: `syncs` only notices those of mappings.
        self.syncs.leave_failure_note()
        logger.error("DISKQUEUE: cannot sync to stable storage: %s; the sync is retried", error)

    def note_synced(self) -> None:
        """Note a successful sync, and clear a failed one from the broker's health."""
        self.synced_at_ns = wall()
        self.failed_sync = None

    def close(self) -> None:
        """Leave the data directory as a clean stop leaves it."""
        self.close_topics()
        self.mark_clean()

    def mark_clean(self) -> None:
        """Mark the data directory as cleanly stopped; if power matters, also on stable storage. Logs a failure.

        Attempts that could not be saved do not count: the mark spares a start on another boot the recovery from a power
        failure, which would not bring them back.
        """
        try:
            # The next start would open the remains of a topic or channel, and count their names as durable.
            for directory in sorted(self.half_made):
                self.remove_leftovers(directory)
                sync_names(self.files, os.path.dirname(directory))
            # A deletion is not to be undone by a power failure: the job that makes it durable may not have run.
            self.files.sync_directory(os.path.join(self.root, TOPICS_DIRECTORY))
            self.syncs.withdraw_failure_note()
            self.journal.close()
            self.write_node(clean=True)
        except StorageError as error:
            logger.error(
                "cannot mark the stop as a clean one: %s; a start after a reboot recovers as from a power failure",
                error,
            )

    def close_topics(self) -> None:
        """Write the state of all topics to their files and close them, as a clean stop does. Failures are logged."""
        if not self.placeholders.settle():
            for topic in self.topics.values():
                topic.remove_spares()
            self.placeholders.settle()
        for path in self.placeholders.paths:
            logger.error(
                "cannot write %s: the disk is full; its messages are delivered again after the next start", path
            )
        self.tracing.note_stop()
        for topic in self.topics.values():
            topic.close()
            self.closed_count += 1
        self.tracing.close()
