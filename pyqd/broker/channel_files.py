"""Files of a channel: its ledger, its notes and the list of cancelled messages.

The directory of a channel holds the ledger, and notes once a deferred message was delivered, a message was requeued
with a delay, or has survived a clean stop. An ephemeral channel has no directory; its ledgers and notes are in memory.
Source: docs/storage.md, "Channel".
"""

import logging
import os
from collections.abc import Callable
from functools import partial

from pyqd.broker.owners import OwningTopic
from pyqd.diskqueue.files import MAKING
from pyqd.hot.broker.recovery import start_ledger
from pyqd.hot.diskqueue.ledger import Ledger
from pyqd.hot.diskqueue.mapping import Mapping
from pyqd.hot.diskqueue.notes import Notes
from pyqd.primitives.errors import StorageError
from pyqd.primitives.names import channel_dir, is_ephemeral_str

LEDGER_FILE = "ledger"
NOTES_DIRECTORY = "notes"
CANCELLED_LEDGER = "cancelled.ledger"

logger = logging.getLogger(__name__)


class ChannelFiles:
    """Files of one channel. They hold no reference to the channel: a cycle would keep those of a deleted one mapped.

    found: names of the files that an earlier run left; None: the channel is new. directory: None for an ephemeral one.
    Raises: StorageError, CorruptionError.
    """

    directory: str | None

    def __init__(self, topic: OwningTopic, name: str, found: set[str] | None) -> None:
        self.topic = topic
        self.channel_name = name
        self.files = topic.files
        self.directory = None
        if topic.directory is not None and not is_ephemeral_str(name):
            self.directory = f"{topic.directory}/{channel_dir(name)}"
        # Names of an earlier run's files, until they are opened.
        self.found = set() if found is None or self.directory is None else found
        self.ledger = self.watch(self.open_ledger(found))

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
        placeholders = None if found is None else self.topic.broker.placeholders
        try:
            ledger = Ledger(self.files, path, placeholders, missing, not missing, self.topic.broker.power_failed)
        except StorageError:
            if found is None:
                self.topic.broker.remove_partial(self.directory)
            raise
        ledger.clears_late = self.topic.broker.options.sync_fin
        if missing:
            logger.error("DISKQUEUE(%s): the ledger is missing; all messages in the log are delivered again", path)
            self.topic.note_set_aside(self.channel_name, f"{path}: the ledger is missing")
        self.note_damage(ledger)
        if ledger.rebuilt:
            self.note_names(ledger)
        return ledger

    def note_damage(self, ledger: Ledger) -> None:
        """Report a ledger that was set aside, if it was."""
        if ledger.damage is not None:
            self.topic.note_set_aside(self.channel_name, ledger.damage)

    def make_directory(self, directory: str) -> None:
        """Create a new channel's directory, with a ledger that begins at the channel's start; a kill leaves all or
        none.

        The channel begins after the messages that other channels have been given; the first one takes over the held
        ones.
        """
        making = directory + MAKING
        self.topic.broker.remove_leftovers(directory)
        self.files.remove_tree(making)
        try:
            self.files.make_directory(making)
            ledger = Ledger(self.files, os.path.join(making, LEDGER_FILE))
            start_ledger(ledger, self.topic.end_position())
            self.files.rename(making, directory)
        except StorageError:
            self.topic.broker.remove_partial(making)
            raise

    def note_names(self, *ledgers: Ledger) -> None:
        """Record that entries of the channel's directory may not be on stable storage. ledgers: new ones among them."""
        assert self.directory is not None, "an ephemeral channel has no names"
        self.topic.names.changed(self.directory, *ledgers)

    def note_if_outran(self, ledger: Ledger) -> None:
        """Let the next sync write a ledger that referred to records which its log has lost.

        The next messages get the ordinals of these. After a power failure the ledger of before would count them as
        finished, and a publisher's sync writes no ledger otherwise.
        """
        if ledger.outran:
            self.note_names(ledger)

    def watch(self, ledger: Ledger) -> Ledger:
        """Record a change of the directory whenever a ledger grows into another file. Returns: the ledger."""
        if self.directory is not None:
            ledger.on_replaced = partial(self.topic.names.changed, self.directory)
        return ledger

    def grow(self, ledger: Ledger, ordinal: int, done: Callable[[bool], None]) -> None:
        """Grow a ledger until it reaches an ordinal, with the sync of its new file in a thread.

        done: called on the event loop with whether that was possible: False if a call failed. The caller then grows the
        ledger on the spot, or gets the reason.
        """
        self._sync_beside(ledger, partial(ledger.begin_growth, ordinal), ledger.end_growth, done)

    def prepare_reset(self, ledger: Ledger, ordinal: int, reached: int, done: Callable[[bool], None]) -> None:
        """Prepare the file of a ledger's reset, if that needs a file, with its sync in a thread.

        The arguments are those of `Ledger.begin_reset`, and `done` that of `grow`.
        """
        self._sync_beside(ledger, partial(ledger.begin_reset, ordinal, reached), ledger.note_reset_synced, done)

    def _sync_beside(
        self,
        ledger: Ledger,
        begin: Callable[[], Mapping | None],
        end: Callable[[Mapping], None],
        done: Callable[[bool], None],
    ) -> None:
        """Sync a file that `begin` makes for a ledger in a thread, and give it to `end` on the event loop."""

        def synced(_result: None, error: BaseException | None) -> None:
            if self.topic.exiting:
                # Its files have been moved away, and a new topic of that name may have a file of the same path.
                ledger.forget_growth()
                done(False)
                return
            try:
                # Another sync of the file may have got the error that this one did not report.
                if error is None and mapping.failed_syncs == 0:
                    end(mapping)
                    done(True)
                    return
                ledger.cancel_growth(mapping)
            except StorageError:
                # Growing on the spot fails likewise, and reports the reason; the file's name is used again then.
                pass
            done(False)

        try:
            begun = begin()
        except StorageError:
            done(False)
            return
        if begun is None:
            done(True)
            return
        mapping = begun
        try:
            self.topic.broker.in_background(lambda: self.files.sync(mapping, 0, mapping.size_bytes), synced)
        except BaseException:
            # Deliveries would wait for it.
            ledger.forget_growth()
            raise

    def read_in(self, mapping: Mapping, start_bytes: int, end_bytes: int, done: Callable[[], None]) -> None:
        """Bring whole pages of the topic's log into memory and into the page table, in a thread.

        done: called on the event loop when that has ended. A failure shows when the range is used.
        """
        self.topic.broker.read_in_background(
            lambda: self.files.read_in(mapping, start_bytes, end_bytes - start_bytes),
            lambda _result, _error: done(),
        )

    def path_of(self, file: str) -> str:
        """Return the path of one of the channel's files."""
        assert self.directory is not None, "an ephemeral channel has no files"
        return f"{self.directory}/{file}"

    def open_notes(self) -> Notes:
        """Open the channel's notes, with those of an earlier run. Raises: StorageError."""
        if self.directory is None:
            return Notes(self.files, None, self.topic.quota, self.ledger.generation)
        directory = self.path_of(NOTES_DIRECTORY)
        notes = Notes(self.files, directory, self.topic.quota, self.ledger.generation, self.topic.prepare_slots)
        if self.files.exists(directory):
            for problem in notes.load(self.topic.broker.power_failed, self.ledger.replaces_lost):
                self.topic.note_set_aside(self.channel_name, problem)
            self.ledger.generation = notes.generation
        return notes

    def open_cancelled(self) -> Ledger:
        """Open the list of the cancelled messages that the topic's log keeps, making it when it is not there."""
        if self.directory is None:
            return Ledger(self.files, None)
        path = self.path_of(CANCELLED_LEDGER)
        missing = not self.files.exists(path)
        ledger = self.watch(Ledger(self.files, path, power_failed=self.topic.broker.power_failed))
        self.note_damage(ledger)
        if missing or ledger.rebuilt:
            self.note_names(ledger)
        if self.topic.broker.power_failed:
            ledger.drop_doubtful_bits()
        ledger.clamp(self.topic.log.first.first_ordinal, self.topic.log.end)
        self.note_if_outran(ledger)
        return ledger
