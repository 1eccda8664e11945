"""The broker: which topics exist, where they are kept, and what is shared between them."""

import json
import logging
import os
import uuid
from collections.abc import Callable
from typing import Any

from pyqd.broker.topic import Topic
from pyqd.diskqueue.files import Files
from pyqd.hot.log import Log
from pyqd.hot.schedule import Scheduler
from pyqd.hot.segment import Segment
from pyqd.primitives.errors import CorruptionError, StartupError, StorageError
from pyqd.primitives.names import is_ephemeral_str, topic_dir, topic_of_dir
from pyqd.primitives.options import Options

TOPICS_DIRECTORY = "topics"
DISCARDED_DIRECTORY = "discarded"
NODE_FILE = "node.json"
NODE_FORMAT = 1
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
        self.failed_sync: str | None = None
        self.root = os.path.abspath(options.data_path or os.curdir)
        self.epoch = 0
        self.node_name = ""
        self.discarded_count = 0

    def load(self) -> None:
        """Open the data directory and every topic in it."""
        try:
            self.load_node()
            topics = os.path.join(self.root, TOPICS_DIRECTORY)
            self.files.make_directory(topics)
            self.files.remove_tree(os.path.join(self.root, DISCARDED_DIRECTORY))
            for entry in sorted(self.files.list_directory(topics)):
                name = topic_of_dir(entry)
                if name is None:
                    logger.warning("skipping %s in %s: not a topic", entry, topics)
                    continue
                topic = Topic(self, name, os.path.join(topics, entry))
                self.topic_of[name] = topic
                topic.load_channels()
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
            try:
                node = json.loads(self.files.read(path))
                found = node["format"]
            except (ValueError, KeyError, TypeError) as error:
                raise StartupError(f"failed to read {path} - not a node file") from error
            if found != NODE_FORMAT:
                raise StartupError(f"{path} has format {found}; this pyqd reads {NODE_FORMAT}")
            if not node["clean"] and node["boot"] != boot:
                node["epoch"] += 1
        self.epoch = node["epoch"]
        # Readers by position know the log by this name, wherever the directory is served from.
        self.node_name = node.setdefault("node", uuid.uuid4().hex)
        self.node = {**node, "boot": boot, "clean": False}
        self.files.write(path, json.dumps(self.node).encode())

    def new_log(self, directory: str | None) -> Log:
        """Open or make a log whose segments are prepared and removed in the background."""
        log = Log(self.files, directory, self.options.max_bytes_per_file, self.epoch)
        log.on_spare_wanted = self.prepare_spare
        log.on_dropped = self.drop_segment
        for start, end in log.holes:
            logger.error("DISKQUEUE(%s): records %d to %d are missing", directory, start, end - 1)
        return log

    def prepare_spare(self, log: Log, size_bytes: int) -> None:
        """Reserve, map and populate a log's next segment in a thread."""

        def done(segment: Segment | None, error: BaseException | None) -> None:
            log.offer_spare(segment)
            if error is not None:
                logger.warning("DISKQUEUE: preparing a segment ahead failed - %s", error)

        self.in_background(lambda: log.new_segment(size_bytes), done)

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
                self.files.make_directory(directory)
            topic = Topic(self, name, directory)
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
        return True

    def health(self) -> str:
        """Return OK, or NOK with an error: of the last failed write or sync, until one has succeeded."""
        if self.failed_write is not None:
            error, accepted = self.failed_write
            if self.accepted_count() == accepted:
                return f"NOK - {error}"
            self.failed_write = None
        return "OK" if self.failed_sync is None else f"NOK - {self.failed_sync}"

    def accepted_count(self) -> int:
        """Return how many messages all logs have taken in: whether writing works again shows in it."""
        return sum(topic.log.end for topic in self.topic_of.values())

    def note_failed_write(self, error: StorageError) -> None:
        """Note that a message could not be accepted."""
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
        for topic in self.topic_of.values():
            topic.close()
        self.node["clean"] = True
        self.files.write(os.path.join(self.root, NODE_FILE), json.dumps(self.node).encode())
