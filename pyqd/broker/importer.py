"""Import of a data directory of Go's nsqd: complete or not at all, whenever the process is killed.

    importing/topics/...          the topics in pyqd's format, made and synced first
    importing/plan.json           nsqd's files with their targets, and the report
    importing/node.json           written last: from here on the import is completed, before it is undone
    topics/, node.json            renamed out of there; with node.json the directory is pyqd's
    imported-from-nsqd/           then nsqd's files are moved here, with the report

A start that finds `importing` without a node.json in it removes it and begins again; nsqd's files have not been touched
then. A start that finds it with a node.json, or finds that one moved already, completes the remaining renames.

nsqd's files are moved, because an nsqd that is started there by mistake would deliver everything again. They are not
removed: moving them back into an empty directory undoes the import for nsqd.
Rejected: hard links as a copy (nsqd appends to its files), reading nsqd's files in place (two formats in the hot path).

Source: docs/interchange.md.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

from pyqd.broker.broker import NODE_FILE, NODE_FORMAT, TOPICS_DIRECTORY, read_boot_id
from pyqd.broker.import_topic import ChannelImport, QueueCounts, TopicImport
from pyqd.config.options import Options
from pyqd.diskqueue.files import Files
from pyqd.diskqueue.interchange import (
    METADATA_FILE,
    NsqdChannel,
    NsqdDirectory,
    NsqdMessage,
    NsqdMetadata,
    NsqdQueue,
    NsqdTopic,
    parse_metadata,
    queue_name,
    split_queue,
)
from pyqd.hot.diskqueue.log import Log
from pyqd.hot.primitives.guid import GuidFactory
from pyqd.primitives.errors import CorruptionError, StartupError, StorageError
from pyqd.primitives.goquote import go_quote_str
from pyqd.primitives.names import is_ephemeral_str, is_valid_name_str, topic_dir

IMPORTING_DIRECTORY = "importing"
IMPORTED_DIRECTORY = "imported-from-nsqd"
PLAN_FILE = "plan.json"
REPORT_FILE = "report.txt"

UNNAMED_NOTE = "not in nsqd.dat, and has messages: imported"

logger = logging.getLogger(__name__)


class QueueReport(NamedTuple):
    """Counts of one imported queue: a topic's if channel is None."""

    topic: str
    channel: str | None
    paused: bool
    counts: QueueCounts


class ImportReport:
    """The report of one import. Notes are (queue or file, text), each said once."""

    def __init__(self, path: str, dry_run: bool) -> None:
        self.path = path
        self.dry_run = dry_run
        self.nsqd_version = ""
        self.queues: list[QueueReport] = []
        self.notes: list[tuple[str, str]] = []
        self.stored_count = 0
        self.stored_bytes = 0
        self.moved_to = ""
        # Names of the queues that were read.
        self.read: set[str] = set()

    def note(self, where: str, text: str) -> None:
        """Add a note for the operator to the report."""
        if (where, text) not in self.notes:
            self.notes.append((where, text))

    def check_complete(self, queues: Iterable[str]) -> None:
        """Check that each queue was read, or that a note tells that it is omitted. Raises: StartupError."""
        told = self.read | {where for where, text in self.notes if text != UNNAMED_NOTE}
        for queue in queues:
            if queue not in told:
                raise StartupError(
                    f"failed to import nsqd's data - the files of queue {queue} would not be read: move them elsewhere "
                    "to import without them"
                )

    def add(self, queue: QueueReport) -> None:
        """Add the result of one queue."""
        self.queues.append(queue)
        counts = queue.counts
        where = queue.topic if queue.channel is None else f"{queue.topic}:{queue.channel}"
        if counts.empty_count:
            self.note(where, f"{counts.empty_count} messages without a body: omitted")
        if counts.duplicate_count:
            self.note(where, f"{counts.duplicate_count} second copies of a message in the same queue: omitted")
        if counts.new_id_count:
            self.note(
                where, f"{counts.new_id_count} messages got a new id: their own is invalid or used by another message"
            )

    @property
    def message_count(self) -> int:
        """Number of messages in the queues; one that is in three channels counts three times, as in their depths."""
        return sum(queue.counts.message_count for queue in self.queues)

    @property
    def body_bytes(self) -> int:
        """Bytes of the bodies of these messages."""
        return sum(queue.counts.body_bytes for queue in self.queues)

    def lines(self) -> list[str]:
        """Return the report, line by line."""
        topics = sum(queue.channel is None for queue in self.queues)
        version = f" (nsqd {self.nsqd_version})" if self.nsqd_version else ""
        lines = [f"{'dry run of an import' if self.dry_run else 'import'} of nsqd's data in {self.path}{version}"]
        for queue in self.queues:
            name = f"topic {queue.topic}" if queue.channel is None else f"  channel {queue.channel}"
            counts = queue.counts
            what = f"{counts.message_count} messages, {counts.body_bytes} bytes"
            if counts.attempted_count:
                what += f", {counts.attempted_count} of them delivered before"
            lines.append(f"{name}: {what}{', paused' if queue.paused else ''}")
        lines.append(
            f"total: {topics} topics, {len(self.queues) - topics} channels, {self.message_count} messages of "
            f"{self.body_bytes} bytes; {self.stored_count} records of {self.stored_bytes} bytes"
        )
        lines += [f"note: {where}: {text}" for where, text in self.notes]
        if self.moved_to:
            lines.append(f"nsqd's files are in {self.moved_to}")
        return lines

    def text(self) -> str:
        """Return the report as a text."""
        return "\n".join(self.lines()) + "\n"


class Importer:
    """The import of one data directory, whose lock the caller holds.

    node_id: for ids that have to be made. segment_bytes_max: as the broker's. now: the wall clock, Unix ns.
    """

    def __init__(
        self, files: Files, root: str, *, node_id: int, segment_bytes_max: int, now: Callable[[], int]
    ) -> None:
        self.files = files
        self.root = root
        self.segment_bytes_max = segment_bytes_max
        self.now = now
        self.guids = GuidFactory(node_id)
        self.importing = os.path.join(root, IMPORTING_DIRECTORY)

    def run(self, dry_run: bool = False) -> ImportReport | None:
        """Import the directory, or complete an import that was interrupted.

        dry_run: read everything, change nothing. Returns: the report; None if there is nothing to import, because the
        directory is pyqd's already, or holds nothing of nsqd. Raises: StartupError, with nothing imported.
        """
        try:
            if not dry_run:
                self.resume()
            if self._exists(NODE_FILE):
                return None
            directory = NsqdDirectory(self.files, self.root)
            if not directory.originals:
                return None
            if self._exists(TOPICS_DIRECTORY) and not self._is_committed():
                raise StartupError(f"failed to import nsqd's data - {self.root} has topics of pyqd already")
            return self._import(directory, dry_run)
        except (StorageError, CorruptionError) as error:
            raise StartupError(f"failed to import nsqd's data - {error}") from error

    def resume(self) -> None:
        """Complete, or undo, a killed import. Raises: StorageError."""
        if not self.files.exists(self.importing):
            return
        if self._is_committed():
            self._carry_through()
        else:
            self.files.remove_tree(self.importing)

    def leftovers(self) -> list[str]:
        """Return the files of nsqd in a directory that is pyqd's already: they are not imported."""
        return NsqdDirectory(self.files, self.root).originals if self._exists(NODE_FILE) else []

    def _exists(self, name: str) -> bool:
        return self.files.exists(os.path.join(self.root, name))

    def _is_committed(self) -> bool:
        """Return whether an interrupted import has to be completed: its new tree is complete or already in place."""
        if self.files.exists(os.path.join(self.importing, NODE_FILE)):
            return True
        return self._exists(NODE_FILE) and not self.files.exists(os.path.join(self.importing, TOPICS_DIRECTORY))

    def _import(self, directory: NsqdDirectory, dry_run: bool) -> ImportReport:
        report = ImportReport(self.root, dry_run)
        metadata = self._read_metadata(directory)
        report.nsqd_version = metadata.version
        for name in directory.bad:
            report.note(name, "set aside by nsqd as unreadable: omitted")
        topics = known_topics(metadata, directory, report.note)
        try:
            if not dry_run:
                self.files.make_directory(self.importing)
                self.files.make_directory(os.path.join(self.importing, TOPICS_DIRECTORY))
            for topic in topics:
                self._import_topic(directory, topic, report, dry_run)
            report.check_complete(directory.segments)
            if not dry_run:
                self._commit(directory.originals, report)
        except (StorageError, CorruptionError, StartupError):
            if not dry_run and not self._is_committed():
                self.files.remove_tree(self.importing)
            raise
        if not dry_run:
            self._carry_through()
        return report

    def _read_metadata(self, directory: NsqdDirectory) -> NsqdMetadata:
        path = directory.path_of(METADATA_FILE)
        if not self.files.exists(path):
            return NsqdMetadata("", ())
        try:
            return parse_metadata(self.files.read(path))
        except ValueError as error:
            raise StartupError(
                f"failed to import nsqd's data - failed to parse metadata in {path} - {error}"
            ) from error

    def _import_topic(self, directory: NsqdDirectory, topic: NsqdTopic, report: ImportReport, dry_run: bool) -> None:
        def queue(channel: str | None) -> Iterator[NsqdMessage]:
            name = queue_name(topic.name, channel)
            report.read.add(name)
            return NsqdQueue(directory, name, partial(report.note, name)).messages()

        channels = [ChannelImport(channel.name, channel.paused, queue(channel.name)) for channel in topic.channels]
        path = None if dry_run else os.path.join(self.importing, TOPICS_DIRECTORY, topic_dir(topic.name))
        made = TopicImport(self.files, path, channels, queue(None), self._open_log, lambda: self.guids.next(self.now()))
        made.run(topic.paused)
        self._settle(made)
        report.stored_count += made.stored_count
        report.stored_bytes += made.stored_bytes
        report.add(QueueReport(topic.name, None, topic.paused, made.counts))
        for channel in channels:
            report.add(QueueReport(topic.name, channel.name, channel.paused, channel.counts))
        logger.info("IMPORT: topic %s has been read", topic.name)

    def _open_log(self, directory: str) -> Log:
        log = Log(self.files, directory, self.segment_bytes_max)
        # A log makes small segments on the spot so that the event loop is not held. An import has none.
        log.pool.on_the_spot_bytes_max = self.segment_bytes_max
        return log

    def _settle(self, topic: TopicImport) -> None:
        for log in topic.logs:
            ranges, _ = log.dirty_ranges()
            for segment, start, length in ranges:
                self.files.sync(segment.mapping, start, length)
        for ledger in topic.ledgers:
            mapping, length_bytes = ledger.sync_target()
            self.files.sync(mapping, 0, length_bytes)
        for notes in topic.notes:
            for file, _ in notes.store.dirty_files():
                self.files.sync(file.mapping, 0, file.mapping.size_bytes)

    def _commit(self, originals: list[str], report: ImportReport) -> None:
        """Write down the remaining steps, and with the node file the decision to carry them out."""
        for path, _, _ in os.walk(self.importing):
            self.files.sync_directory(path)
        target = IMPORTED_DIRECTORY
        suffix = 1
        while self._exists(target):
            suffix += 1
            target = f"{IMPORTED_DIRECTORY}-{suffix}"
        report.moved_to = target
        plan = {"originals": originals, "target": target, "report": report.text()}
        self.files.write(os.path.join(self.importing, PLAN_FILE), json.dumps(plan).encode())
        node = {"format": NODE_FORMAT, "epoch": 0, "term": 0, "boot": read_boot_id(self.files), "clean": True}
        self.files.write(os.path.join(self.importing, NODE_FILE), json.dumps(node).encode())
        self.files.sync_directory(self.importing)

    def _carry_through(self) -> None:
        """Do the renames of a committed import that have not been done yet."""
        for name in (TOPICS_DIRECTORY, NODE_FILE):
            source = os.path.join(self.importing, name)
            if self.files.exists(source):
                self.files.rename(source, os.path.join(self.root, name))
                self.files.sync_directory(self.root)
        path = os.path.join(self.importing, PLAN_FILE)
        # Without it all has been done, and `importing` is being removed.
        if self.files.exists(path):
            plan = json.loads(self.files.read(path))
            target = os.path.join(self.root, plan["target"])
            self.files.make_directory(target)
            for name in plan["originals"]:
                if self._exists(name):
                    self.files.rename(os.path.join(self.root, name), os.path.join(target, name))
            self.files.write(os.path.join(target, REPORT_FILE), plan["report"].encode())
            self.files.sync_directory(target)
            self.files.sync_directory(self.root)
        self.files.remove_tree(self.importing)


def known_topics(metadata: NsqdMetadata, directory: NsqdDirectory, note: Callable[[str, str], None]) -> list[NsqdTopic]:
    """Return the topics to import: those in nsqd.dat, and those that only have a queue, in the order of their names.

    nsqd would find such a queue again when a client uses its topic and channel. Left out, with a note: invalid names,
    and ephemeral ones, which pyqd keeps only in memory.
    """
    channels_of: dict[str, dict[str, bool]] = {}
    paused_of: dict[str, bool] = {}

    def usable(kind: str, name: str, where: str) -> bool:
        if not is_valid_name_str(name):
            note(where, f"skipping creation of invalid {kind} {go_quote_str(name)}")
            return False
        if is_ephemeral_str(name):
            note(where, f"{kind} {name} is ephemeral: omitted")
            return False
        return True

    for topic in metadata.topics:
        if usable("topic", topic.name, METADATA_FILE):
            paused_of[topic.name] = topic.paused
            channels = channels_of.setdefault(topic.name, {})
            channels.update(
                (channel.name, channel.paused)
                for channel in topic.channels
                if usable("channel", channel.name, METADATA_FILE)
            )
    for queue in directory.segments:
        name, channel = split_queue(queue)
        known = name in channels_of and (channel is None or channel in channels_of[name])
        if known or not usable("topic", name, queue) or (channel is not None and not usable("channel", channel, queue)):
            continue
        if next(NsqdQueue(directory, queue, lambda _text: None).messages(), None) is None:
            note(queue, "not in nsqd.dat, and empty: omitted")
            continue
        note(queue, UNNAMED_NOTE)
        channels_of.setdefault(name, {})
        if channel is not None:
            channels_of[name][channel] = False
    return [
        NsqdTopic(name, paused_of.get(name, False), tuple(NsqdChannel(*item) for item in sorted(channels.items())))
        for name, channels in sorted(channels_of.items())
    ]


def import_on_start(files: Files, root: str, options: Options) -> None:
    """Take over nsqd's data on the first start on a directory, and log the report. Raises: StartupError."""
    importer = Importer(
        files, root, node_id=options.node_id, segment_bytes_max=options.max_bytes_per_file, now=time.time_ns
    )
    report = importer.run()
    if report is not None:
        for line in report.lines():
            logger.log(logging.WARNING if line.startswith("note: ") else logging.INFO, "IMPORT: %s", line)
    elif leftovers := importer.leftovers():
        logger.warning(
            "IMPORT: %s is a directory of pyqd: %d files of nsqd in it are not imported", root, len(leftovers)
        )
