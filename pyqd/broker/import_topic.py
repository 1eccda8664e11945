"""One topic of nsqd as one log and a ledger for each channel.

In nsqd every channel has a queue with copies of its own; here a channel is a set of records of the topic's log. So the
queues are merged into one log, oldest head first, and a channel's ledger has every record that is not its own marked as
finished:

    log       | e1 | e2 | e3 | e4 | e5 |   | h1 | h2        h: the topic's own queue, held from there on
    email     |      x    x         x  |                    x: its own; cursor before the first, the others finished
    archive   | x    x         x       |

The queues that hold a message are found by its id, so it is stored once, even if the queues differ in order. Of a
message that has been delivered already, the channel has a note with the deliveries so far.

Two kinds of messages are not taken over as they stand: a message without body (nsqd accepts none) is left out, and so
is the second copy of a message in one queue, which a killed nsqd leaves. A message whose id is no id, or that of
another message, gets a new id.

Invariants: 1. two records of one channel never have the same id. 2. a message of a queue is stored or counted as left
out.
"""

import heapq
import os
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter

from pyqd.broker.channel_files import LEDGER_FILE, NOTES_DIRECTORY
from pyqd.broker.topic import LOG_DIRECTORY, STATE_FILE
from pyqd.diskqueue.files import Files
from pyqd.diskqueue.interchange import NsqdMessage
from pyqd.diskqueue.space_limit import SpaceLimit
from pyqd.fallback.records import ORDINAL_BITS
from pyqd.hot.broker.recovery import start_ledger
from pyqd.hot.broker.topic import new_state
from pyqd.hot.diskqueue.ledger import Ledger
from pyqd.hot.diskqueue.log import Log
from pyqd.hot.diskqueue.notes import KIND_DELIVERED, Notes
from pyqd.hot.primitives.guid import from_hex
from pyqd.hot.primitives.idtable import IdMap
from pyqd.primitives.names import channel_dir

# Ids beyond, of the year 2049, are no ids: new ones are greater than all that were found, and need room.
GUID_MAX = 2**62
# Runs of other channels' records from this length on are marked as one: marking a range costs a pass over the ring.
LONG_RUN = 4096

Merged = tuple[int, "ChannelImport", NsqdMessage]


class RecordCounter:
    """Counter of the records of a log, for a dry run."""

    def __init__(self) -> None:
        self.end = 0

    def append_message(self, *_message: object) -> int:
        """Count a message. Returns: its ordinal."""
        self.end += 1
        return self.end - 1


class QueueCounts:
    """Counts of the messages of one queue by outcome."""

    def __init__(self) -> None:
        self.message_count = 0
        self.body_bytes = 0
        self.attempted_count = 0
        self.empty_count = 0
        self.duplicate_count = 0
        self.new_id_count = 0


class ChannelImport:
    """A channel while its topic is imported.

    own: a byte for each record of the topic's log, 1 if it is this channel's. attempts: deliveries so far of those that
    were delivered, by ordinal.
    """

    def __init__(self, name: str, paused: bool, messages: Iterator[NsqdMessage]) -> None:
        self.name = name
        self.paused = paused
        self.messages = messages
        self.counts = QueueCounts()
        self.own = bytearray()
        self.attempts: dict[int, int] = {}

    def owns(self, ordinal: int) -> bool:
        """Return whether a record of the topic's log belongs to this channel."""
        return ordinal < len(self.own) and self.own[ordinal] == 1

    def take(self, ordinal: int) -> None:
        """Make a record of the topic's log this channel's."""
        if ordinal >= len(self.own):
            self.own.extend(bytes(ordinal + 1 - len(self.own)))
        self.own[ordinal] = 1


class TopicImport:
    """One topic while it is imported.

    directory: of the topic, in the tree that is being made; None for a dry run. held: messages of its own queue.
    open_log: makes a log in a directory. fresh_guid: makes an id that is in no use. Raises: StorageError.
    """

    def __init__(
        self,
        files: Files,
        directory: str | None,
        channels: Sequence[ChannelImport],
        held: Iterator[NsqdMessage],
        open_log: Callable[[str], Log],
        fresh_guid: Callable[[], int],
    ) -> None:
        self.files = files
        self.directory = directory
        self.channels = channels
        self.held = held
        self.open_log = open_log
        self.fresh_guid = fresh_guid
        self.counts = QueueCounts()
        self.stored_count = 0
        self.stored_bytes = 0
        self.last_guid = 0
        self.logs: list[Log] = []
        self.ledgers: list[Ledger] = []
        self.notes: list[Notes] = []
        self.log: Log | RecordCounter = RecordCounter()
        self.held_from = 0
        # Ordinal of the first message with an id, and the fingerprint of its copies; by id and by ordinal.
        self._ordinals = IdMap()
        self._prints = array("I")

    def run(self, paused: bool) -> None:
        """Read all queues and, unless it is a dry run, write the topic's directory."""
        if self.directory is not None:
            self.files.make_directory(self.directory)
            self.log = self._open_log(LOG_DIRECTORY)
        for channel in self.channels:
            if self.directory is not None:
                self.files.make_directory(self._path(channel_dir(channel.name)))
        for _, channel, message in self._merged():
            self._import_queued(channel, message)
        self.held_from = self.log.end
        for message in self.held:
            self._import_held(message)
        if isinstance(self.log, Log):
            for channel in self.channels:
                self._write_channel(channel, self.log)
            self.files.write(self._path(STATE_FILE), new_state(paused, self.held_from, self.last_guid))

    def _path(self, *parts: str) -> str:
        assert self.directory is not None, "a dry run writes nothing"
        return os.path.join(self.directory, *parts)

    def _open_log(self, *parts: str) -> Log:
        log = self.open_log(self._path(*parts))
        self.logs.append(log)
        return log

    def _merged(self) -> Iterator[Merged]:
        """Yield the messages of all channels' queues, each queue in its order, of their heads the oldest first."""

        def stream(channel: ChannelImport) -> Iterator[Merged]:
            for message in channel.messages:
                yield message.timestamp_ns, channel, message

        return heapq.merge(*map(stream, self.channels), key=itemgetter(0))

    def _import_queued(self, channel: ChannelImport, message: NsqdMessage) -> None:
        counts = channel.counts
        if not message.body:
            counts.empty_count += 1
            return
        guid = usable_guid(message.id)
        fingerprint = fingerprint_of(message)
        ordinal = self._ordinals.get(guid) if guid else -1
        foreign = ordinal >= 0 and self._prints[ordinal] != fingerprint
        if not guid or foreign:
            counts.new_id_count += 1
            guid, ordinal = self._new_guid(), -1
        if ordinal >= 0 and channel.owns(ordinal):
            counts.duplicate_count += 1
            return
        counts.message_count += 1
        counts.body_bytes += len(message.body)
        self.last_guid = max(self.last_guid, guid)
        if ordinal < 0:
            ordinal = self._store(guid, message, fingerprint)
        channel.take(ordinal)
        if message.attempts:
            counts.attempted_count += 1
            channel.attempts[ordinal] = message.attempts

    def _import_held(self, message: NsqdMessage) -> None:
        if not message.body:
            self.counts.empty_count += 1
            return
        guid = usable_guid(message.id)
        fingerprint = fingerprint_of(message)
        ordinal = self._ordinals.get(guid) if guid else -1
        if ordinal >= self.held_from and self._prints[ordinal] == fingerprint:
            self.counts.duplicate_count += 1
            return
        # A channel that has the message already gets it once more with the held ones; never two of one id.
        if not guid or ordinal >= 0:
            self.counts.new_id_count += 1
            guid = self._new_guid()
        self.counts.message_count += 1
        self.counts.body_bytes += len(message.body)
        self.last_guid = max(self.last_guid, guid)
        self._store(guid, message, fingerprint)

    def _new_guid(self) -> int:
        while True:
            guid = self.fresh_guid()
            if self._ordinals.get(guid) < 0:
                return guid

    def _store(self, guid: int, message: NsqdMessage, fingerprint: int) -> int:
        ordinal = self.log.append_message(guid, message.body, message.timestamp_ns)
        self._ordinals.put(guid, ordinal)
        self._prints.append(fingerprint)
        self._note_stored(message)
        return ordinal

    def _note_stored(self, message: NsqdMessage) -> None:
        self.stored_count += 1
        self.stored_bytes += len(message.body)

    def _write_channel(self, channel: ChannelImport, log: Log) -> None:
        """Write a channel's ledger, and notes of the messages that were delivered before."""
        directory = channel_dir(channel.name)
        ledger = Ledger(self.files, self._path(directory, LEDGER_FILE))
        self.ledgers.append(ledger)
        start_ledger(ledger, log.locate(self.held_from), channel.paused)
        finish_all_but_own(ledger, channel.own, self.held_from)
        if channel.attempts:
            notes = Notes(self.files, self._path(directory, NOTES_DIRECTORY), SpaceLimit(), ledger.generation)
            self.notes.append(notes)
            for ordinal, attempts in channel.attempts.items():
                notes.add(log.epoch << ORDINAL_BITS | ordinal, KIND_DELIVERED, attempts)


def usable_guid(message_id: bytes) -> int:
    """Return the number that an id on the wire stands for; 0 when it is none."""
    try:
        guid = from_hex(message_id)
    except ValueError:
        return 0
    return guid if guid <= GUID_MAX else 0


def fingerprint_of(message: NsqdMessage) -> int:
    """Return a number that copies of a message share, and hardly any two messages with the same id."""
    return zlib.crc32(message.body, message.timestamp_ns & 0xFFFFFFFF)


def finish_all_but_own(ledger: Ledger, own: bytearray, end: int) -> None:
    """Make a ledger that was just started stand before its first own record, with all others below `end` finished."""
    first = own.find(1)
    if first < 0:
        return
    ledger.start_at(first)
    at = first + 1
    while at < end:
        run_end = own.find(1, at)
        run_end = end if run_end < 0 else run_end
        if run_end - at >= LONG_RUN:
            ledger.note_range(at, run_end)
        else:
            for ordinal in range(at, run_end):
                ledger.note_finished(ordinal)
        at = run_end + 1
