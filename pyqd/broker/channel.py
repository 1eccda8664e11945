"""A channel's name and life cycle: opened, recovered, closed, deleted. Its traffic is the compiled half's."""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping

from pyqd.broker.channel_files import CANCELLED_LEDGER, NOTES_DIRECTORY, ChannelFiles
from pyqd.broker.channel_settings import NO_LIMITS, ChannelSettings, apply_settings, decode_settings, encode_settings
from pyqd.broker.owners import NamedTopic, OwningTopic
from pyqd.hot.broker.channel import ChannelCore
from pyqd.hot.broker.recovery import (
    begin_at,
    cursor_position,
    end_recovery,
    note_attempts,
    recover,
    recover_queued,
    start_ledger,
)
from pyqd.hot.diskqueue.ledger import Ledger
from pyqd.hot.diskqueue.log import Position
from pyqd.hot.primitives.clock import mono
from pyqd.hot.primitives.guid import to_hex
from pyqd.primitives.errors import DiskFull, StorageError
from pyqd.primitives.names import is_ephemeral_str

logger = logging.getLogger(__name__)


class DeadLetterTarget:
    """Dead-letter topic of one channel, looked up by name when it is needed.

    topics: of the broker. topic_name: as the channel's settings say; "": none. error: the reason why dead letters wait;
    None: they do not.
    """

    def __init__(self, topics: Mapping[str, NamedTopic], channel_name: str) -> None:
        self.topics = topics
        self.channel_name = channel_name
        self.topic_name = ""
        self.error: str | None = None
        self.errno: int | None = None

    def find(self) -> NamedTopic | None:
        """Return the topic for dead letters, or None if it does not exist."""
        topic = self.topics.get(self.topic_name)
        return None if topic is None or topic.exiting else topic

    def is_deleted(self, topic: NamedTopic) -> bool:
        """Return True if a topic is no longer one of the broker's."""
        return self.topics.get(topic.name) is not topic

    def note_published(self, topic: NamedTopic, letters: list[tuple[int, int, int]], pending: int) -> None:
        """Log which message became which dead letter: it is recorded nowhere else. pending: dead letters that wait."""
        for guid, attempts, letter_guid in letters:
            logger.info(
                "CHANNEL(%s): message %s after %d attempts is %s of topic %s",
                self.channel_name,
                to_hex(guid).decode(),
                attempts,
                to_hex(letter_guid).decode(),
                topic.name,
            )
        self.note_pending(pending)

    def note_pending(self, pending: int) -> None:
        """Set the number of dead letters that wait."""
        if pending == 0:
            self.error = None

    def note_failed(self, error: StorageError | None, pending: int) -> None:
        """Warn of dead letters that cannot be published, once for each cause. error: None: there is no such topic."""
        reason = f"topic {self.topic_name} does not exist" if error is None else str(error)
        # Compare the kind of error: its text may name another file each time.
        kind = 0 if error is None else error.errno
        if self.error is None or kind != self.errno:
            logger.warning(
                "CHANNEL(%s): cannot publish %d dead letters: %s; they wait and are retried every second",
                self.channel_name,
                pending,
                reason,
            )
        self.error, self.errno = reason, kind


class Channel(ChannelCore):
    """One channel of a topic.

    found: the names of the files that an earlier run left, and `load_found` is to follow; None: the channel is new.
    Raises: StorageError, CorruptionError. Source: docs/storage.md, "Channel".
    """

    name: str
    topic: OwningTopic
    files: ChannelFiles
    directory: str | None

    def __init__(self, topic: OwningTopic, name: str, *, found: set[str] | None = None) -> None:
        self.name = name
        self.topic = topic
        files = ChannelFiles(topic, name, found)
        self.directory = files.directory
        ledger = files.ledger
        fresh = not ledger.started
        if fresh and ledger.replaces_lost:
            position = topic.log.locate(topic.log.first.first_ordinal)
            start_ledger(ledger, position)
            fresh = False
        elif fresh:
            # Behind the messages that other channels have been given; the first channel takes over all held ones.
            position = topic.end_position()
            start_ledger(ledger, position)
        else:
            if topic.broker.power_failed:
                ledger.drop_doubtful_bits()
            ledger.clamp(topic.log.first.first_ordinal, topic.log.end)
            files.note_if_outran(ledger)
        self.finish_unread(files)
        if not fresh:
            position = cursor_position(ledger, topic.log)
        options = topic.broker.options
        super().__init__(
            topic.readable,
            ledger,
            position,
            max_msg_timeout_ns=options.max_msg_timeout_ns,
            memory_count_max=options.mem_queue_size,
            ephemeral=is_ephemeral_str(name),
            files=files,
            dead_letter_target=DeadLetterTarget(topic.broker.topics, name),
        )
        if options.e2e_processing_latency_percentile:
            # Imported only if latencies are measured, for the reason given in that module.
            from pyqd.broker.latency import new_buffer

            self.latency = new_buffer(options.e2e_processing_latency_window_time_ns, mono())
        self.dead_letters.durable = topic.broker.has_syncer and self.directory is not None
        self.on_finished = None if self.directory is None else topic.broker.on_finished
        self.limits = decode_settings(ledger.settings)
        if self.limits != NO_LIMITS:
            apply_settings(self, self.limits)
        if found is None:
            if not fresh:
                self.load()
            self.note_all_names()

    def note_all_names(self) -> None:
        """Record that the names of the channel and of its files may not be on stable storage."""
        if self.directory is not None:
            self.topic.names.changed(os.path.dirname(self.directory))
            self.files.note_names(*self.ledgers())

    def begin_at(self, position: Position) -> None:
        """Move the channel's beginning to another place of the log, durably. Called before `load_found`."""
        begin_at(self, position)
        self.finish_unread(self.files)
        # Before any client learns of it: after a power failure another channel could otherwise get this channel's
        # messages.
        mapping, length_bytes = self.ledger.sync_target()
        self.topic.broker.syncs.sync(mapping, 0, length_bytes)

    def load_found(self) -> None:
        """Resume the state of an earlier run, once the topic knows the beginning of each channel."""
        self.load()
        if not self.topic.broker.names_durable:
            self.note_all_names()

    def finish_unread(self, files: ChannelFiles) -> None:
        """Finish messages that the log has lost or that were cancelled, as a kill may have come before that."""
        ledger, holes = files.ledger, list(self.topic.log.holes)
        if self.topic.broker.power_failed or ledger.rebuilt:
            # The ledger may be older than the rewriting of segments, after which only their gaps know what is finished.
            holes += self.topic.log.gaps(ledger.oldest)
        if not holes and CANCELLED_LEDGER not in files.found:
            return
        # The topic finishes a hole among the messages it holds: these are in no channel's depth yet.
        end = max(self.topic.end, ledger.cursor)
        unread = [(first, min(behind, end)) for first, behind in holes]
        if CANCELLED_LEDGER in files.found:
            self.cancelled = self.cancelled or files.open_cancelled()
            unread += [(ordinal, ordinal + 1) for ordinal in self.cancelled.marked(ledger.oldest, self.topic.log.end)]
        for start, end in unread:
            if not ledger.try_note_range(start, end):
                # The cursor steps over a hole that it meets; holes below it keep their segments until the next start.
                logger.warning(
                    "DISKQUEUE(%s): cannot record missing or cancelled messages: the disk is full; segments are kept",
                    ledger.path,
                )

    def load(self) -> None:
        """Resume the state of an earlier run."""
        files = self.files
        found, files.found = files.found, set()
        if NOTES_DIRECTORY in found:
            self.deferral.adopt(files.open_notes())
        recover(self, self.topic.broker.power_failed)
        recover_queued(self)
        self.ledger.note_recovered()
        end_recovery(self)

    def set_limits(self, limits: ChannelSettings) -> None:
        """Limit the channel from now on and over restarts."""
        self.ledger.settings = encode_settings(limits)
        self.limits = limits
        apply_settings(self, limits)
        self.dead_letters.target.note_pending(self.dead_letters_pending)

    @property
    def dead_letter_error(self) -> str | None:
        """Reason why dead letters wait in the channel; None: they do not."""
        error: str | None = self.dead_letters.target.error
        return error

    def ledgers(self) -> list[Ledger]:
        """Return the ledger, and the list of cancelled messages if there is one."""
        return [self.ledger] if self.cancelled is None else [self.ledger, self.cancelled]

    def hold_files(self) -> None:
        """Keep the ledgers mapped for good, as clients may hold the channel longer than it has files.

        Raises: StorageError.
        """
        for ledger in self.ledgers():
            ledger.sync_target()[0].hold()

    @contextlib.contextmanager
    def prepared_reset(
        self, wait: Callable[[], object] | None, target: int | None = None, reached: int = 0
    ) -> Iterator[None]:
        """Within: a reset to an ordinal blocks for no sync, unless much has changed since; deliveries wait.

        wait: called until the file of the reset is on stable storage, or the channel is closed; None: prepare nothing,
        so the reset blocks. If the disk refuses the file, the reset tries again. target: None for the end, as `empty`
        needs it. reached: an ordinal that the ledger's ring has to reach afterwards.
        """
        while wait is not None and self.grows and not self.is_closed():
            wait()
        if wait is None or self.directory is None or self.is_closed():
            yield
            return
        self.begin_reset(self.readable.end if target is None else target, reached)
        try:
            while self.waits.prepares_reset and not self.is_closed():
                wait()
            yield
        finally:
            self.leave_reset()

    def is_closed(self) -> bool:
        """Return True if the channel or its topic has been deleted, or the broker stops."""
        return self.exiting or self.topic.exiting

    def leave_reset(self) -> None:
        """Deliver again after `begin_reset`, and remove the prepared file unless the reset was made in it."""
        if not self.is_closed():
            with contextlib.suppress(StorageError):
                self.ledger.cancel_reset()
        self.waits.end_reset()

    def close(self) -> None:
        """Save how often the unfinished messages have been delivered; everything else is in the files already.

        A failure is logged and costs the attempts of this channel only: its messages come again as after a kill.
        """
        self.finish_trace()
        if self.directory is None:
            return
        with contextlib.suppress(StorageError):
            self.ledger.cancel_growth()
        for ledger in self.ledgers():
            ledger.seal()
        try:
            self.save_attempts()
        except StorageError as error:
            logger.error(
                'cannot save the attempts of %d messages of channel "%s" of topic "%s": %s;'
                " they are delivered again as after a kill, with attempts from 2",
                note_attempts(self, stores=False),
                self.name,
                self.topic.name,
                error,
            )

    def save_attempts(self) -> None:
        """Store notes of the deliveries so far; a full disk is given the spare segments of the topic.

        Raises: StorageError.
        """
        with self.topic.lifted_quota():
            try:
                note_attempts(self)
            except DiskFull:
                self.topic.remove_spares()
                note_attempts(self)
