"""A channel's files and life: opened, recovered, closed, deleted. Its traffic is the compiled half's."""

import errno
import logging
import os
import struct
from functools import partial
from typing import TYPE_CHECKING

from pyqd.broker.channel_limits import NO_LIMITS, ChannelLimits, decoded, encoded, put_in_force
from pyqd.diskqueue.files import MAKING
from pyqd.diskqueue.space_limit import SEGMENT_BYTES_MIN
from pyqd.diskqueue.standins import StandIns
from pyqd.hot.broker.limited import LimitedChannel
from pyqd.hot.broker.parked import Parked
from pyqd.hot.broker.recovery import (
    begin_at,
    cursor_position,
    finish_twins,
    has_moved_twins,
    recover,
    recover_parked,
    start_ledger,
)
from pyqd.hot.diskqueue.ledger import Ledger
from pyqd.hot.diskqueue.log import Log, Position
from pyqd.hot.primitives.clock import mono
from pyqd.hot.primitives.guid import to_hex
from pyqd.primitives.errors import DiskFull, StorageError
from pyqd.primitives.names import channel_dir, is_ephemeral_str

if TYPE_CHECKING:
    from pyqd.broker.topic import Topic

LEDGER_FILE = "ledger"
ATTEMPTS_FILE = "attempts"
PARKED_LOG = "parked"
PARKED_LEDGER = "parked.ledger"
CANCELLED_LEDGER = "cancelled.ledger"

ATTEMPTS_ENTRY = struct.Struct("<BQH")

logger = logging.getLogger(__name__)


class Channel(LimitedChannel):
    """One channel of a topic.

    Its directory holds the ledger, the parked log with a ledger of its own once something was parked, and after a clean
    stop the deliveries so far of what was unfinished. An ephemeral channel has no directory.
    found: the names of the files that an earlier run left, and `load_found` is to follow; None: the channel is new.
    Raises: StorageError, CorruptionError. Source: docs/storage.md, "Channel".
    """

    name: str
    topic: "Topic"
    directory: str | None

    def __init__(self, topic: "Topic", name: str, *, found: set[str] | None = None) -> None:
        self.name = name
        self.topic = topic
        self.files = topic.files
        self.directory = None
        ephemeral = is_ephemeral_str(name)
        if topic.directory is not None and not ephemeral:
            self.directory = f"{topic.directory}/{channel_dir(name)}"
        there = set() if found is None or self.directory is None else found
        ledger = self.watch(self.open_ledger(found))
        fresh = not ledger.started
        if fresh and ledger.knows_nothing:
            position = topic.log.locate(topic.log.first.first_ordinal)
            start_ledger(ledger, position)
            fresh = False
        elif fresh:
            # Behind what other channels have been given; the first channel takes over what the topic holds.
            position = topic.end_position()
            start_ledger(ledger, position)
        else:
            if topic.broker.power_failed:
                ledger.distrust()
            ledger.clamp(topic.log.first.first_ordinal, topic.log.end)
            self.note_if_outran(ledger)
        self.finish_unread(ledger, there)
        if not fresh:
            position = cursor_position(ledger, topic)
        options = topic.broker.options
        super().__init__(
            topic,
            ledger,
            position,
            max_msg_timeout_ns=options.max_msg_timeout_ns,
            memory_count_max=options.mem_queue_size,
            ephemeral=ephemeral,
        )
        if options.e2e_processing_latency_percentile:
            # Not imported otherwise: see there.
            from pyqd.broker.latency import LatencyWindow

            self.latency = LatencyWindow(options.e2e_processing_latency_window_time_ns, mono())
        self.parks_durably = topic.broker.parks_durably and self.directory is not None
        self.on_finished = None if self.directory is None else topic.broker.on_finished
        self.limits = decoded(ledger.settings)
        self.why_waiting: str | None = None
        self.kind_of_put_off: int | None = None
        if self.limits != NO_LIMITS:
            put_in_force(self, self.limits)
        # Of an earlier run's files, until they are taken up.
        self.found_files = there
        if found is None:
            if not fresh:
                self.load()
            self.note_all_names()

    def note_all_names(self) -> None:
        """Note that neither the channel's name nor those of its files may be on stable storage."""
        if self.directory is not None:
            self.topic.names.changed(os.path.dirname(self.directory))
            self.note_names(*self.ledgers())

    def begin_at(self, position: Position) -> None:
        """Begin at another place of the log than the earlier run said, durably, before `load_found`."""
        begin_at(self, position)
        self.finish_unread(self.ledger, self.found_files)
        # Before anybody is told of it: the next power failure would give to another channel what this one has now.
        mapping, length_bytes = self.ledger.sync_target()
        self.topic.broker.syncs.sync(mapping, 0, length_bytes)

    def load_found(self) -> None:
        """Take up where an earlier run left off, once the topic knows where each channel begins."""
        self.load()
        if not self.topic.broker.names_durable:
            self.note_all_names()

    def finish_unread(self, ledger: Ledger, there: set[str]) -> None:
        """Note what is missing from the log, or was cancelled, as finished; a kill may have come before that.

        there: the names of the channel's files.
        """
        # The topic sees to a hole among the messages it holds: these are in no channel's depth yet.
        end = max(self.topic.end, ledger.cursor)
        unread = [(first, min(behind, end)) for first, behind in self.topic.log.holes]
        if CANCELLED_LEDGER in there:
            self.cancelled = self.cancelled or self.open_cancelled()
            unread += [(ordinal, ordinal + 1) for ordinal in self.cancelled.marked(ledger.floor, self.topic.log.end)]
        for start, end in unread:
            if not ledger.try_note_range(start, end):
                # The cursor steps over a hole that it meets; what lies below keeps its segments until the next start.
                logger.warning(
                    "DISKQUEUE(%s): cannot record missing or cancelled messages: the disk is full; segments are kept",
                    ledger.path,
                )

    def open_ledger(self, found: set[str] | None) -> Ledger:
        """Open or make the channel's ledger, and its directory; on failure a new channel leaves none.

        found: the names of the files that the start has found; None: the channel is new. Without its ledger all that
        the log keeps is unfinished.
        """
        if self.directory is None:
            return Ledger(self.files, None)
        path = self.path_of(LEDGER_FILE)
        if found is None:
            self.make_directory(self.directory)
        missing = found is not None and LEDGER_FILE not in found
        stand_ins = None if found is None else self.topic.broker.stand_ins
        try:
            ledger = Ledger(self.files, path, stand_ins, missing, not missing)
        except StorageError:
            if found is None:
                self.topic.broker.remove_half_made(self.directory)
            raise
        ledger.clears_late = self.topic.broker.options.sync_fin
        if missing:
            logger.error("DISKQUEUE(%s): the ledger is missing; all messages in the log are delivered again", path)
        if ledger.rebuilt:
            self.note_names(ledger)
        return ledger

    def make_directory(self, directory: str) -> None:
        """Make a new channel's directory, with a ledger that begins where the channel does; a kill leaves all or none.

        The channel begins behind what other channels have been given; the first one takes over what the topic holds.
        """
        making = directory + MAKING
        self.topic.broker.clear_half_made(directory)
        self.files.remove_tree(making)
        try:
            self.files.make_directory(making)
            ledger = Ledger(self.files, os.path.join(making, LEDGER_FILE))
            start_ledger(ledger, self.topic.end_position())
            self.files.rename(making, directory)
        except StorageError:
            self.topic.broker.remove_half_made(making)
            raise

    def note_names(self, *ledgers: Ledger) -> None:
        """Note that entries of the channel's directory may not be on stable storage. ledgers: new ones among them."""
        assert self.directory is not None, "an ephemeral channel has no names"
        self.topic.names.changed(self.directory, *ledgers)

    def note_if_outran(self, ledger: Ledger) -> None:
        """Have the next sync cover a ledger that spoke of records which its log has lost.

        The next messages get the ordinals of these. After a power failure the ledger of before would count them as
        finished, and a publisher's sync writes no ledger otherwise.
        """
        if ledger.outran:
            self.note_names(ledger)

    def watch(self, ledger: Ledger) -> Ledger:
        """Have the directory noted as changed when a ledger grows into another file. Returns: the ledger."""
        if self.directory is not None:
            # Without a reference to the channel: a cycle would keep the files of a deleted one mapped.
            ledger.on_replaced = partial(self.topic.names.changed, self.directory)
        return ledger

    def path_of(self, file: str) -> str:
        """Return the path of one of the channel's files."""
        assert self.directory is not None, "an ephemeral channel has no files"
        return f"{self.directory}/{file}"

    def load(self) -> None:
        """Take up where an earlier run left off."""
        there, self.found_files = self.found_files, set()
        attempts_of = self.load_attempts() if ATTEMPTS_FILE in there else {}
        if PARKED_LOG in there:
            if PARKED_LEDGER not in there:
                # Or a kill came between making the two, and nothing is parked.
                logger.warning(
                    "DISKQUEUE(%s): the ledger is missing; all parked messages are delivered again",
                    self.path_of(PARKED_LEDGER),
                )
            self.parked = self.open_parked(self.topic.broker.stand_ins)
        if self.topic.broker.power_failed or self.ledger.knows_nothing or has_moved_twins(self):
            finish_twins(self)
        recover(self, attempts_of, self.topic.broker.power_failed)
        if self.parked is not None:
            recover_parked(self, attempts_of)
        self.ledger.note_recovered(0 if self.parked is None else self.parked.log.end)
        if ATTEMPTS_FILE in there:
            # Not before: until here a kill would take from the next start what this one has read.
            self.files.remove(self.path_of(ATTEMPTS_FILE))
            self.note_names()

    def load_attempts(self) -> dict[tuple[int, int], int]:
        """Return {(source, ordinal): deliveries so far} as a clean stop saved it."""
        path = self.path_of(ATTEMPTS_FILE)
        content = b""
        try:
            content = self.files.read(path)
        except StorageError as error:
            if error.errno != errno.EIO:
                raise
            logger.error("%s; messages are delivered again as after a kill, with attempts from 2", error)
        whole = len(content) // ATTEMPTS_ENTRY.size * ATTEMPTS_ENTRY.size
        return {
            (source, ordinal): attempts for source, ordinal, attempts in ATTEMPTS_ENTRY.iter_unpack(content[:whole])
        }

    def open_parked(self, stand_ins: StandIns | None = None) -> Parked:
        """Open the parked log, making it when it is not there. Raises: StorageError, where it may not take the room.

        stand_ins: given by a start, which goes on in memory where the disk has no room for the ledger.
        """
        broker, quota = self.topic.broker, self.topic.quota
        if self.directory is None:
            log = broker.new_log(None)
            log.pool.limit = quota
            return Parked(log, Ledger(self.files, None))
        path = self.path_of(PARKED_LOG)
        if self.files.exists(path):
            log = broker.new_log(path)
            if not broker.names_durable:
                self.sync_found(log, path)
        else:
            with quota.claim(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MIN):
                log = broker.new_log(path)
        log.pool.limit = quota
        missing = not self.files.exists(self.path_of(PARKED_LEDGER))
        ledger = self.watch(Ledger(self.files, self.path_of(PARKED_LEDGER), stand_ins))
        ledger.clears_late = broker.options.sync_fin
        if missing or ledger.rebuilt:
            self.note_names(ledger)
        if self.topic.broker.power_failed:
            ledger.distrust()
        if self.ledger.parked_from > log.end:
            # Ordinals that a power failure or a damage took away may be given again.
            self.ledger.parked_from = log.end
            self.note_names(self.ledger)
        parked = Parked(log, ledger, self.ledger.parked_from, self.ledger.origins_unknown_below)
        self.note_if_outran(ledger)
        return parked

    def sync_found(self, log: Log, path: str) -> None:
        """Sync what a killed run left in the parked log: the start finishes at once what that was parked from.

        So does the channel's name become durable, as the topic's log may then be trimmed.
        """
        assert self.topic.directory is not None
        ranges, end = log.dirty_ranges()
        for segment, start_bytes, length_bytes in ranges:
            self.topic.broker.syncs.sync(segment.mapping, start_bytes, length_bytes)
        if ranges:
            mapping, length_bytes = self.ledger.sync_target()
            self.topic.broker.syncs.sync(mapping, 0, length_bytes)
            for directory in (path, os.path.dirname(path), self.topic.directory):
                self.files.sync_directory(directory)
        log.mark_synced(ranges, end)

    def set_limits(self, limits: ChannelLimits) -> None:
        """Limit the channel from now on and over restarts."""
        self.ledger.settings = encoded(limits)
        self.limits = limits
        put_in_force(self, limits)
        if self.doomed_count == 0:
            self.why_waiting = None

    def dead_letter_topic(self) -> "Topic | None":
        """Return the topic for dead letters, or None where it does not exist."""
        topic = self.topic.broker.topic_of.get(self.limits.dead_letter_topic)
        return None if topic is None or topic.exiting else topic

    def is_deleted(self, topic: "Topic") -> bool:
        """Say whether a topic is not one of the broker's any more."""
        return self.topic.broker.topic_of.get(topic.name) is not topic

    def note_burials(self, topic: "Topic", letters: list[tuple[int, int, int]]) -> None:
        """Log which message became which dead letter: nowhere else does it stand. They are settled by the next sync."""
        for guid, attempts, letter_guid in letters:
            logger.info(
                "CHANNEL(%s): message %s after %d attempts is %s of topic %s",
                self.name,
                to_hex(guid).decode(),
                attempts,
                to_hex(letter_guid).decode(),
                topic.name,
            )
        if self.doomed_count == 0:
            self.why_waiting = None
        if self.burials:
            topic.buriers.add(self)

    def note_put_off(self, error: StorageError | None) -> None:
        """Warn of dead letters that cannot be published, once for each reason."""
        reason = f"topic {self.limits.dead_letter_topic} does not exist" if error is None else str(error)
        # The text may name a file that is another one each time.
        kind = 0 if error is None else error.errno
        if self.why_waiting is None or kind != self.kind_of_put_off:
            logger.warning(
                "CHANNEL(%s): cannot publish %d dead letters: %s; they wait and are retried every second",
                self.name,
                self.doomed_count,
                reason,
            )
        self.why_waiting, self.kind_of_put_off = reason, kind

    def note_stuck(self, error: Exception) -> None:
        """Warn of deferred messages that could not be parked."""
        logger.warning(
            'cannot park deferred messages of channel "%s" of topic "%s": %s; they stay in its queue',
            self.name,
            self.topic.name,
            error,
        )

    def logs(self) -> list[Log]:
        """Return the logs that are this channel's own."""
        return [] if self.parked is None else [self.parked.log]

    def ledgers(self) -> list[Ledger]:
        """Return the channel's ledgers."""
        parked = None if self.parked is None else self.parked.ledger
        return [ledger for ledger in (self.ledger, parked, self.cancelled) if ledger is not None]

    def open_cancelled(self) -> Ledger:
        """Open the list of the cancelled messages that the topic's log keeps, making it when it is not there."""
        if self.directory is None:
            return Ledger(self.files, None)
        path = self.path_of(CANCELLED_LEDGER)
        missing = not self.files.exists(path)
        ledger = self.watch(Ledger(self.files, path))
        if missing or ledger.rebuilt:
            self.note_names(ledger)
        if self.topic.broker.power_failed:
            ledger.distrust()
        ledger.clamp(self.topic.log.first.first_ordinal, self.topic.log.end)
        self.note_if_outran(ledger)
        return ledger

    def note_cancelled(self, ordinal: int) -> None:
        """Have a seek leave a record of the topic's log out. Raises: StorageError."""
        if self.cancelled is None:
            self.cancelled = self.open_cancelled()
        self.cancelled.mark(ordinal, self.topic.log.first.first_ordinal, self.topic.log.end)

    def hold_files(self) -> None:
        """Keep the ledgers mapped for good, as clients may hold the channel longer than it has files.

        Raises: StorageError.
        """
        for ledger in self.ledgers():
            ledger.sync_target()[0].hold()

    def files_moved(self, directory: str, moved: str) -> None:
        """Note that the channel's directory has another path until it is removed."""
        for log in self.logs():
            if log.directory is not None:
                log.files_moved(moved + log.directory.removeprefix(directory))

    def close(self) -> None:
        """Save how often the unfinished messages have been delivered; everything else is in the files already.

        A failure is logged and costs the attempts of this channel only: its messages come again as after a kill.
        """
        if self.directory is None:
            return
        entries = [
            ATTEMPTS_ENTRY.pack(source, ordinal, attempts)
            for (source, ordinal), attempts in self.attempts_noted().items()
        ]
        try:
            if entries:
                self.save_attempts(b"".join(entries))
                self.note_names()
        except StorageError as error:
            logger.error(
                'cannot save the attempts of %d messages of channel "%s" of topic "%s": %s;'
                " they are delivered again as after a kill, with attempts from 2",
                len(entries),
                self.name,
                self.topic.name,
                error,
            )

    def save_attempts(self, content: bytes) -> None:
        """Write the file of attempts; a full disk is given the spare segments of the topic. Raises: StorageError."""
        try:
            self.files.write(self.path_of(ATTEMPTS_FILE), content)
        except DiskFull:
            self.topic.remove_spares()
            self.files.write(self.path_of(ATTEMPTS_FILE), content)
