"""A ledger against a set of finished ordinals."""

import shutil
import struct
import tempfile
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pyqd.diskqueue.files import Files
from pyqd.hot.diskqueue.ledger import Ledger
from tests.support.examples import examples

RING_BITS_MIN = 8 * 4096
HEADER_BYTES = 4096
FLOOR, ABSORB_FROM, ABSORB_TO = 24, 96, 104


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
