"""The broker: which topics exist, where they are kept, and what is shared between them."""

import errno
import json
import logging
import os
import uuid
from collections.abc import Callable
from typing import Any

from pyqd.broker.space import RESERVE_BYTES, SEGMENT_BYTES_MIN
from pyqd.broker.topic import Topic
from pyqd.diskqueue.damage import set_aside
from pyqd.diskqueue.files import PAGE_BYTES, Files
from pyqd.hot.log import Log
from pyqd.hot.schedule import Scheduler
from pyqd.hot.segment import Segment
from pyqd.primitives.errors import CorruptionError, DiskFull, StartupError, StorageError
from pyqd.primitives.names import is_ephemeral_str, topic_dir, topic_of_dir
from pyqd.primitives.options import Options

TOPICS_DIRECTORY = "topics"
DISCARDED_DIRECTORY = "discarded"
NODE_FILE = "node.json"
NODE_FORMAT = 1
EPOCH_MAX = 1 << 16
# Each log goes on above the highest epoch that it has.
EPOCH_UNKNOWN = 0
BOOT_ID = "/proc/sys/kernel/random/boot_id"

logger = logging.getLogger(__name__)

Job = Callable[[], Any]


def run_now(job: Job, done: Callable[[Any, BaseException | None], None]) -> None:
    """Run a blocking job on the spot: what a broker without an event loop does."""
    try:
        result = job()
    except StorageError as error:
        done(None, error)
    else:
        done(result, None)


def read_node(files: Files, path: str) -> dict[str, Any] | None:
    """Read the node file; None for a damaged one, which is set aside. Raises: StartupError for a later format."""
    try:
        node = json.loads(files.read(path))
        found = node["format"]
        if isinstance(found, int) and found > NODE_FORMAT:
            raise StartupError(f"{path} was written by a later pyqd - format {found}; this pyqd reads {NODE_FORMAT}")
        if (found, type(node["epoch"]), type(node["boot"]), type(node["clean"])) == (NODE_FORMAT, int, str, bool) and (
            0 <= node["epoch"] < EPOCH_MAX
        ):
            return dict(node)
        reason = "it contradicts itself"
    except (ValueError, KeyError, TypeError) as error:
        reason = str(error)
    wrong = CorruptionError(path, 0, f"not a node file: {reason}")
    set_aside(files, path, wrong, "sequence numbers go on in a new epoch, and the node has a new name")
    return None


class Broker:
    """All topics of one data directory.

    options: limits and sizes. files: the operating system. in_background: runs (job, done) with the job in a thread and
    done(result, error) on the loop; the default runs both on the spot.
    Raises: StartupError for a data directory that cannot be served.
    """

    def __init__(
        self,
        options: Options,
        files: Files | None = None,
        in_background: Callable[[Job, Callable[[Any, BaseException | None], None]], None] = run_now,
    ) -> None:
        self.options = options
        self.files = files or Files()
        self.in_background = in_background
        self.scheduler = Scheduler()
        self.topic_of: dict[str, Topic] = {}
        self.failed_write: tuple[str, int] | None = None
        self.short_of_room: set[str] = set()
        self.free_bytes_min = max(options.min_free_bytes, RESERVE_BYTES)
        self.failed_sync: str | None = None
        self.root = os.path.abspath(options.data_path or os.curdir)
        self.epoch = 0
        # A syncer sets it: what is parked then counts as parked once it is on stable storage.
        self.parks_durably = False
        self.power_failed = False
        self.boot = ""
        self.node_name = ""
        self.discarded_count = 0

    def load(self) -> None:
        """Open the data directory and every topic in it."""
        try:
            topics = os.path.join(self.root, TOPICS_DIRECTORY)
            self.files.make_directory(topics)
            self.load_node()
            self.files.remove_tree(os.path.join(self.root, DISCARDED_DIRECTORY))
            for entry in sorted(self.files.list_directory(topics)):
                name = topic_of_dir(entry)
                if name is None or not os.path.isdir(os.path.join(topics, entry)):
                    logger.warning("skipping %s in %s: not a topic", entry, topics)
                    continue
                topic = Topic(self, name, os.path.join(topics, entry))
                self.topic_of[name] = topic
                topic.load_channels()
            if self.power_failed:
                # Not before: a kill while the start mends what the power failure left is no reason to trust it.
                self.write_node(boot=self.boot)
        except (StorageError, CorruptionError) as error:
            raise StartupError(f"failed to load topics - {error}") from error

    def load_node(self) -> None:
        """Read what is known of the data directory; after a power failure begin a new epoch of sequence numbers.

        What a killed process wrote is still in the page cache, so its numbers are all known. After a power failure
        some may have been read by others and lost here: the epoch keeps numbers from being given twice.
        """
        path = os.path.join(self.root, NODE_FILE)
        boot = self.files.read(BOOT_ID).decode().strip() if self.files.exists(BOOT_ID) else ""
        node: dict[str, Any] = {"format": NODE_FORMAT, "epoch": 0, "boot": boot, "clean": True}
        if self.files.exists(path):
            node = read_node(self.files, path) or {**node, "epoch": EPOCH_UNKNOWN, "boot": "", "clean": False}
            if not node["clean"] and node["boot"] != boot:
                node["epoch"] += 1
                self.power_failed = True
        elif self.files.list_directory(os.path.join(self.root, TOPICS_DIRECTORY)):
            logger.error("%s is missing beside %s: recovering as after a power failure", path, TOPICS_DIRECTORY)
            self.power_failed = True
        self.epoch = node["epoch"]
        self.boot = boot
        # Readers by position know the log by this name, wherever the directory is served from.
        self.node_name = node.setdefault("node", uuid.uuid4().hex)
        self.node = node
        self.write_node(boot=node["boot"] if self.power_failed else boot, clean=False)

    def write_node(self, **changed: Any) -> None:
        """Write down what is known of the data directory, durably. Raises: StorageError."""
        self.node.update(changed)
        self.files.write(os.path.join(self.root, NODE_FILE), json.dumps(self.node).encode())
        self.files.sync_directory(self.root)

    def new_log(self, directory: str | None) -> Log:
        """Open or make a log whose segments are prepared and removed in the background."""
        log = Log(self.files, directory, self.options.max_bytes_per_file, self.epoch, self.power_failed)
        log.on_spare_wanted = self.prepare_spare
        log.on_dropped = self.drop_segment
        log.on_retired = self.retire_segment
        for start, end in log.holes:
            logger.error("DISKQUEUE(%s): records %d to %d are missing", directory, start, end - 1)
        return log

    def prepare_spare(self, log: Log, size_bytes: int) -> None:
        """Reserve, map and populate a log's next segment in a thread."""

        def job() -> Segment | StorageError:
            try:
                return self.new_spare(log, size_bytes)
            except StorageError as error:
                # Nothing to be alarmed by: whoever needs the segment gets an error then, if there is no room still.
                return error

        def done(made: Segment | StorageError | None, error: BaseException | None) -> None:
            log.offer_spare(made if isinstance(made, Segment) else None)
            if not isinstance(made, Segment):
                logger.warning("DISKQUEUE: preparing a segment ahead failed - %s", made or error)

        self.in_background(job, done)

    def new_spare(self, log: Log, size_bytes: int) -> Segment:
        """Make a segment of that size, or of a lesser one where the disk has no room for it. Raises: StorageError."""
        if log.directory is not None:
            room = self.room_bytes()
            while size_bytes > max(room, SEGMENT_BYTES_MIN):
                size_bytes //= 2
            size_bytes = max(size_bytes, SEGMENT_BYTES_MIN)
            if size_bytes > room:
                raise DiskFull("reserve", log.directory, errno.ENOSPC, self.no_room())
        return log.new_segment(size_bytes)

    def room_bytes(self) -> int:
        """Return the bytes that segments may still take of the disk; negative where too little is free already."""
        return self.files.free_bytes(self.root) - self.free_bytes_min

    def no_room(self) -> str:
        """Return the reason for refusing what would take too much of the disk."""
        return f"less than {self.free_bytes_min} bytes would be left free on the disk"

    def retire_segment(self, log: Log, segment: Segment) -> None:
        """Make it durable in a thread that a segment holds no record any more, then keep it as the next spare."""
        path = segment.mapping.path
        assert path is not None, "memory needs no sync"

        def retire() -> None:
            try:
                self.files.sync(segment.mapping, 0, PAGE_BYTES)
            except StorageError:
                self.files.remove(path)
                raise

        def done(_result: None, error: BaseException | None) -> None:
            log.offer_spare(segment if error is None else None)
            self.log_failure(None, error)

        self.in_background(retire, done)

    def drop_segment(self, _log: Log, segment: Segment) -> None:
        """Remove a drained segment's file in a thread."""
        path = segment.mapping.path
        if path is not None:
            self.in_background(lambda: self.files.remove(path), self.log_failure)

    def discard(self, directory: str) -> None:
        """Take a directory out of the tree at once, by a rename, and remove it in a thread."""
        discarded = os.path.join(self.root, DISCARDED_DIRECTORY)
        self.files.make_directory(discarded)
        self.discarded_count += 1
        moved = os.path.join(discarded, str(self.discarded_count))
        self.files.rename(directory, moved)
        self.in_background(lambda: self.files.remove_tree(moved), self.log_failure)

    def log_failure(self, _result: Any, error: BaseException | None) -> None:
        """Note that a job in the background failed where nothing hangs on it."""
        if error is not None:
            logger.warning("DISKQUEUE: %s", error)

    def topic(self, name: str) -> Topic:
        """Return the topic of that name (valid), made if it is missing. Raises: StorageError."""
        topic = self.topic_of.get(name)
        if topic is None:
            directory = None
            if not is_ephemeral_str(name):
                directory = os.path.join(self.root, TOPICS_DIRECTORY, topic_dir(name))
                if self.room_bytes() < SEGMENT_BYTES_MIN:
                    raise DiskFull("create", f"topic {name}", errno.ENOSPC, self.no_room())
                self.files.make_directory(directory)
            try:
                topic = Topic(self, name, directory)
            except StorageError:
                if directory is not None:
                    self.files.remove_tree(directory)
                raise
            self.topic_of[name] = topic
            logger.info("TOPIC(%s): created", name)
        return topic

    def topic_named(self, name: bytes) -> Topic:
        """Return the topic of a valid name as it stands on the wire."""
        return self.topic(name.decode("ascii"))

    def delete_topic(self, name: str) -> bool:
        """Delete a topic with its channels and all they hold. Returns: whether it was there."""
        topic = self.topic_of.get(name)
        if topic is None or topic.exiting:
            return False
        logger.info("TOPIC(%s): deleting", name)
        topic.exiting = True
        for channel in list(topic.channel_of):
            topic.delete_channel(channel)
        if topic.directory is not None:
            self.discard(topic.directory)
        del self.topic_of[name]
        self.short_of_room.discard(name)
        return True

    def health(self) -> str:
        """Return OK, or NOK with an error: of the last failed write or sync, until one has succeeded."""
        refusal = self.refusal()
        if refusal is not None:
            return f"NOK - {refusal}"
        if self.failed_write is not None:
            error, accepted = self.failed_write
            if self.accepted_count() == accepted:
                return f"NOK - {error}"
            self.failed_write = None
        return "OK" if self.failed_sync is None else f"NOK - {self.failed_sync}"

    def refusal(self) -> str | None:
        """Return why publishing is refused for want of room; None where it is not."""
        try:
            if self.room_bytes() < 0:
                return f"less than {self.free_bytes_min} bytes are free on the disk"
        except StorageError as error:
            return str(error)
        for name in sorted(self.short_of_room):
            topic = self.topic_of.get(name)
            if topic is None:
                self.short_of_room.discard(name)
            elif not topic.space.look_again():
                return f"topic {name}: {topic.space.refusal}"
        return None

    def accepted_count(self) -> int:
        """Return how many messages all logs have taken in: whether writing works again shows in it."""
        return sum(topic.log.end for topic in self.topic_of.values())

    def note_failed_write(self, error: StorageError) -> None:
        """Note that a message could not be accepted; how long a want of room lasts is known to `refusal`."""
        if not self.short_of_room or not isinstance(error, DiskFull):
            self.failed_write = (str(error), self.accepted_count())
        logger.error("DISKQUEUE: %s", error)

    def note_failed_sync(self, error: StorageError) -> None:
        """Note that something could not be made durable against power loss; it is tried again."""
        self.failed_sync = str(error)
        logger.error("DISKQUEUE: %s", error)

    def note_synced(self) -> None:
        """Note that a sync has succeeded."""
        self.failed_sync = None

    def close(self) -> None:
        """Leave the data directory as a clean stop leaves it."""
        self.close_topics()
        self.mark_clean()

    def mark_clean(self) -> None:
        """Note that all is on file as the next start wants it; where power matters, on stable storage."""
        self.write_node(clean=True)

    def close_topics(self) -> None:
        """Leave everything on file as the next start wants it."""
        for topic in self.topic_of.values():
            topic.close()
