"""A ledger against a set of finished ordinals."""

import os
import shutil
import struct
import tempfile
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pyqd.diskqueue.files import Files
from pyqd.hot.diskqueue.ledger import Ledger, set_limits_for_tests
from tests.support.examples import examples

RING_BITS_MIN = 8 * 4096
HEADER_BYTES = 4096
FLOOR, ABSORB_FROM, ABSORB_TO = 24, 88, 96


class LedgerMachine(RuleBasedStateMachine):
    """Hand out, finish, skip, grow, clamp and reopen; the model is a set and a cursor."""

    def __init__(self):
        super().__init__()
        self.directory = tempfile.mkdtemp()
        self.path = self.directory + "/ledger"
        self.ledger: Any = None

    def teardown(self):
        self.ledger = None
        shutil.rmtree(self.directory)

    @initialize(kept=st.booleans(), start=st.sampled_from([0, 1, 63, 64, RING_BITS_MIN - 3, 1 << 47]))
    def begin(self, kept, start):
        self.kept = kept
        self.ledger = Ledger(Files(), self.path if kept else None)
        self.ledger.start_at(start)
        self.oldest = self.cursor = start
        self.finished = set()

    @property
    def floor(self):
        """The first record not finished, at most the cursor."""
        floor = self.oldest
        while floor < self.cursor and floor in self.finished:
            floor += 1
        return floor

    @rule(count=st.one_of(st.integers(1, 5), st.integers(1, 300), st.just(RING_BITS_MIN)))
    def hand_out(self, count):
        for _ in range(count):
            assert self.ledger.note_handed_out() == (self.cursor not in self.finished)
            self.cursor += 1

    @rule(offset=st.one_of(st.integers(0, 10), st.integers(0, 500), st.integers(RING_BITS_MIN - 70, 3 * RING_BITS_MIN)))
    def finish(self, offset):
        ordinal = self.floor + offset
        if ordinal not in self.finished:
            self.ledger.note_finished(ordinal)
            self.finished.add(ordinal)

    @rule(offset=st.integers(-10, 200), count=st.one_of(st.integers(0, 70), st.integers(0, 70_000)))
    def finish_range(self, offset, count):
        start = max(0, self.floor + offset)
        self.ledger.note_range(start, start + count)
        self.finished.update(range(max(start, self.floor), start + count))

    @rule(up=st.booleans())
    def finish_all_handed_out(self, up):
        some = set(range(self.floor, min(self.cursor, self.floor + 500)))
        for ordinal in sorted(some - self.finished, reverse=not up):
            self.ledger.note_finished(ordinal)
            self.finished.add(ordinal)

    @rule(offset=st.integers(-50, 50))
    def start_over(self, offset):
        self.oldest = self.cursor = max(0, self.cursor + offset)
        self.ledger.start_at(self.cursor)
        self.finished = set()

    @rule()
    def seal(self):
        self.ledger.seal()

    @precondition(lambda self: self.kept)
    @rule()
    def reopen(self):
        self.ledger = Ledger(Files(), self.path)

    @rule(oldest=st.integers(-20, 200), length=st.one_of(st.integers(0, 300), st.integers(0, 3 * RING_BITS_MIN)))
    def clamp(self, oldest, length):
        if self.kept:
            self.ledger = Ledger(Files(), self.path)
        floor = self.floor
        oldest = max(0, floor + oldest)
        end = oldest + length
        self.ledger.clamp(oldest, end)
        if self.cursor > end:
            self.cursor = end
            floor = min(floor, end)
        self.oldest = max(floor, oldest)
        self.cursor = max(self.cursor, oldest)
        self.finished = {ordinal for ordinal in self.finished if self.oldest <= ordinal < end}

    @invariant()
    def agrees(self):
        if self.ledger is None:
            return
        self.ledger.check()
        floor = self.floor
        assert (self.ledger.floor, self.ledger.cursor) == (floor, self.cursor)
        self.finished = {ordinal for ordinal in self.finished if ordinal >= floor}
        self.oldest = floor
        assert self.ledger.finished_count == len(self.finished)
        assert self.ledger.ahead == sum(ordinal >= self.cursor for ordinal in self.finished)
        end = max(self.cursor, max(self.finished, default=0)) + 3
        if end - floor < 2000:
            assert list(self.ledger.unfinished(end)) == [
                ordinal for ordinal in range(floor, end) if ordinal not in self.finished
            ]


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings(max_examples=examples(60), stateful_step_count=30)


SMALL = (64, 64, 1)
WORD = 8


class Disk(Files):
    """Files that remember the bytes of ledgers on stable storage. former: files that had the name since a sync."""

    def __init__(self):
        self.ledger: Any = None
        # Of a file that was opened.
        self.found = b""
        self.stable: dict[Any, bytes] = {}
        self.former: list[tuple[bytes, bytes]] = []

    def sync(self, mapping, start_bytes, length_bytes):
        content = bytes(mapping.view())
        behind = self.stable.get(mapping, self.found)[start_bytes + length_bytes :]
        self.stable[mapping] = content[: start_bytes + length_bytes] + behind

    def rename(self, source, target):
        if self.ledger is not None and target == self.ledger.path:
            mapping, _ = self.ledger.sync_target()
            self.former.append((self.stable[mapping], bytes(mapping.view())))
        super().rename(source, target)


class SmallWindowMachine(RuleBasedStateMachine):
    """A window so small that it gets exceptions all the time, while the ledger changes, is killed or loses power."""

    def __init__(self):
        super().__init__()
        self.limits = set_limits_for_tests(*SMALL)
        self.directory = tempfile.mkdtemp()
        self.path = self.directory + "/ledger"
        self.files = Disk()
        self.ledger: Any = None
        self.growth: Any = None

    def teardown(self):
        set_limits_for_tests(*self.limits)
        self.ledger = self.growth = None
        self.files.ledger = None
        shutil.rmtree(self.directory)

    @initialize(start=st.sampled_from([0, 1, 63, 1 << 47]), clears_late=st.booleans())
    def begin(self, start, clears_late):
        self.clears_late = clears_late
        self.open(False, b"")
        self.ledger.start_at(start)
        # Records before `oldest` are finished and trimmed; the log has those before `end`.
        self.oldest = self.cursor = self.end = start
        self.finished: set[int] = set()
        self.sync()

    def open(self, power_failed, stable):
        """Open the ledger after a kill or a power failure. stable: content of the file on stable storage."""
        self.growth = None
        self.files.ledger, self.files.found = None, stable
        self.ledger = Ledger(self.files, self.path, power_failed=power_failed)
        assert not self.ledger.rebuilt
        self.files.ledger = self.ledger
        mapping, _ = self.ledger.sync_target()
        self.files.stable.setdefault(mapping, stable)
        if power_failed:
            self.ledger.drop_doubtful_bits()
        self.ledger.clears_late = self.clears_late

    def unfinished(self):
        return [ordinal for ordinal in range(self.oldest, self.end) if ordinal not in self.finished]

    @rule(count=st.one_of(st.integers(1, 5), st.integers(1, 100)))
    def hand_out(self, count):
        for _ in range(count):
            assert self.ledger.note_handed_out() == (self.cursor not in self.finished)
            self.cursor += 1
        self.end = max(self.end, self.cursor)

    @rule(index=st.one_of(st.integers(0, 3), st.integers(-60, 60)))
    def finish(self, index):
        unfinished = self.unfinished()
        if unfinished:
            ordinal = unfinished[index % len(unfinished)]
            self.ledger.note_finished(ordinal)
            self.finished.add(ordinal)

    @rule(ahead=st.integers(0, 100))
    def finish_ahead(self, ahead):
        ordinal = self.cursor + ahead
        if ordinal not in self.finished:
            self.ledger.note_finished(ordinal)
            self.finished.add(ordinal)
            self.end = max(self.end, ordinal + 1)

    @rule(start=st.integers(0, 400), count=st.integers(0, 100))
    def finish_range(self, start, count):
        start = min(self.oldest + start, self.end)
        end = min(start + count, self.end)
        self.ledger.note_range(start, end)
        self.finished.update(range(start, end))

    @rule(count=st.integers(30, 90), kept=st.integers(5, 40), newest=st.integers(0, 20), grows=st.booleans())
    def deliver(self, count, kept, newest, grows):
        """Hand out some records and finish most of those handed out, but for the newest."""
        self.hand_out(count)
        for ordinal in self.unfinished():
            if ordinal % kept and ordinal < self.cursor - newest:
                self.ledger.note_finished(ordinal)
                self.finished.add(ordinal)
        if grows and self.growth is None:
            self.begin_growth(0)

    @precondition(lambda self: self.growth is None)
    @rule(beyond=st.one_of(st.just(0), st.integers(0, 200)))
    def begin_growth(self, beyond):
        self.growth = self.ledger.begin_growth(self.ledger.floor + self.ledger.capacity_bits + beyond)
        self.files.sync(self.growth, 0, self.growth.size_bytes)

    @precondition(lambda self: self.growth is not None)
    @rule(cancelled=st.sampled_from([False, False, False, True]))
    def end_growth(self, cancelled):
        if cancelled:
            self.ledger.cancel_growth(self.growth)
        else:
            self.ledger.end_growth(self.growth)
        self.growth = None

    @rule()
    def sync(self):
        self.ledger.seal()
        targets = self.ledger.sync_targets()
        floor, bits_from, resets = self.ledger.floor, self.ledger.bits_from, self.ledger.reset_count
        changes = self.ledger.change_count
        for mapping, length_bytes in targets:
            self.files.sync(mapping, 0, length_bytes)
        if self.ledger.has_bits_in_doubt():
            self.ledger.trust_bits(targets[0][0], self.ledger.window_from, resets)
            self.files.sync(targets[0][0], 0, HEADER_BYTES)
        self.ledger.note_synced(bits_from, resets, changes)
        self.ledger.note_floor_synced(floor, resets)
        self.files.former = []
        self.synced = {ordinal for ordinal in self.finished if ordinal >= self.oldest}
        self.synced_cursor = self.cursor

    @rule(offset=st.integers(-100, 100))
    def start_over(self, offset):
        self.cursor = self.oldest = max(self.oldest, min(self.cursor + offset, self.end))
        self.ledger.start_at(self.cursor)
        self.finished = set()
        # A power failure might bring back the state of before.
        self.sync()

    @rule(trims=st.booleans(), lost=st.one_of(st.just(0), st.integers(0, 100)))
    def kill(self, trims, lost):
        mapping, _ = self.ledger.sync_target()
        self.open(False, self.files.stable[mapping])
        self.restart(trims, lost)

    def restart(self, trims, lost):
        """The log has lost its last records, and may have trimmed those that are finished."""
        if trims:
            self.oldest = self.ledger.oldest
        self.end = max(self.oldest, self.end - lost)
        self.ledger.clamp(self.oldest, self.end)
        self.cursor = max(min(self.cursor, self.end), self.oldest)
        self.finished = {ordinal for ordinal in self.finished if ordinal < self.end}
        if lost:
            self.sync()

    @rule(data=st.data(), lost=st.one_of(st.just(0), st.integers(0, 100)))
    def cut_power(self, data, lost):
        """Give the name to one of the files since the last sync, with each page as of then or of now."""
        mapping, _ = self.ledger.sync_target()
        choices = [*self.files.former, (self.files.stable[mapping], bytes(mapping.view()))]
        synced, now = choices[data.draw(st.integers(0, len(choices) - 1))]
        sides = data.draw(st.lists(st.booleans(), min_size=1, max_size=40))
        parts = [(synced, now)[sides[0]][:HEADER_BYTES]]
        for place in range(HEADER_BYTES, len(now), WORD):
            parts.append((synced, now)[sides[place // WORD % len(sides)]][place : place + WORD])
        content = b"".join(parts)
        with open(self.path, "wb") as file:
            file.write(content)
        if os.path.exists(self.path + ".growing"):
            os.unlink(self.path + ".growing")
        unfinished, kept = set(self.unfinished()), self.synced
        self.open(True, content)
        self.ledger.clamp(self.oldest, self.end)
        found = set(self.ledger.unfinished(self.end))
        assert unfinished <= found, "a record counts as finished that is not"
        if self.clears_late:
            assert not found & kept, "a finished record that a sync had covered is lost"
        self.finished = set(range(self.oldest, self.end)) - found
        self.cursor = self.ledger.cursor
        self.restart(False, lost)
        self.sync()

    @invariant()
    def agrees(self):
        if self.ledger is None:
            return
        self.ledger.check()
        unfinished = self.unfinished()
        assert list(self.ledger.unfinished(self.end)) == unfinished
        assert self.ledger.cursor == self.cursor
        assert self.ledger.oldest == min([*unfinished, self.cursor])
        assert self.ledger.ahead == sum(ordinal >= self.cursor for ordinal in self.finished)
        below = [ordinal for ordinal in unfinished if ordinal < self.ledger.floor]
        assert self.ledger.exceptions_count == len(below)
        _, size_bytes = self.ledger.sync_target()
        assert size_bytes == os.path.getsize(self.path) or self.ledger.exceptions_count == 0


TestSmallWindowMachine = SmallWindowMachine.TestCase
TestSmallWindowMachine.settings = settings(max_examples=examples(150), stateful_step_count=40)


def torn_copy(path, stores, bits, cleared):
    """Store header words, and clear some bits of the ring, in the file."""
    with open(path, "r+b") as file:
        for offset, word in stores:
            file.seek(offset)
            file.write(struct.pack("<Q", word))
        file.seek(HEADER_BYTES)
        ring = int.from_bytes(file.read(RING_BITS_MIN // 8), "little")
        for bit in bits:
            if cleared(bit):
                ring &= ~(1 << bit % RING_BITS_MIN)
        file.seek(HEADER_BYTES)
        file.write(ring.to_bytes(RING_BITS_MIN // 8, "little"))


@settings(max_examples=examples(60))
@given(
    start=st.integers(0, 2 * RING_BITS_MIN),
    finished=st.sets(st.integers(0, 200), min_size=1),
    moved=st.booleans(),
    data=st.data(),
)
def test_a_kill_between_any_stores_of_a_moving_floor_is_completed(start, finished, moved, data):
    cursor = start + 150
    with tempfile.TemporaryDirectory() as directory:
        path = directory + "/ledger"
        ledger = Ledger(Files(), path)
        ledger.start_at(start)
        for _ in range(150):
            ledger.note_handed_out()
        finished = {start + 1 + offset for offset in finished}
        for ordinal in finished:
            ledger.note_finished(ordinal)
        floor = start + 1
        while floor < cursor and floor in finished:
            floor += 1
        stores = [(FLOOR, floor if moved else start + 1), (ABSORB_FROM, start + 1), (ABSORB_TO, floor)]
        torn_copy(path, stores, range(start + 1, floor), lambda bit: moved and data.draw(st.booleans()))
        again = Ledger(Files(), path)
        again.clamp(0, start + 1000)
        again.check()
        assert (again.floor, again.cursor) == (floor, cursor)
        expected = [ordinal for ordinal in range(floor, start + 300) if ordinal not in finished]
        assert list(again.unfinished(start + 300)) == expected
