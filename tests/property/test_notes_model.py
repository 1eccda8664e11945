"""Notes against a dict, through restarts of any kind."""

import shutil
import tempfile
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pyqd.diskqueue.files import Files
from pyqd.diskqueue.space_limit import SpaceLimit
from pyqd.hot.diskqueue.notes import KIND_DEFERRED, KIND_DELIVERED, Notes
from tests.support.examples import examples

FIRST_FILE_NOTES = (64 << 10) // 32 - 2

Row = tuple[int, int, int, int, int]


class NotesMachine(RuleBasedStateMachine):
    """Put, change, remove, reopen, tear; the model is a dict of rows by slot."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.mkdtemp()
        self.notes: Any = None
        self.rows: dict[int, Row] = {}
        self.next_seq = 1

    def teardown(self) -> None:
        self.notes = None
        shutil.rmtree(self.directory)

    def new_notes(self) -> Notes:
        return Notes(Files(), self.directory if self.kept else None, SpaceLimit(), self.generation)

    @initialize(kept=st.booleans(), generation=st.integers(1, 3))
    def begin(self, kept: bool, generation: int) -> None:
        self.kept, self.generation = kept, generation
        self.notes = self.new_notes()

    @rule(count=st.sampled_from([1, 1, 1, 5, FIRST_FILE_NOTES]), due=st.integers(0, 9))
    def put(self, count: int, due: int) -> None:
        for _ in range(count):
            kind = KIND_DEFERRED if due else KIND_DELIVERED
            row = (self.next_seq, kind, self.next_seq % 7, due, self.next_seq * 8)
            slot = self.notes.add(*row)
            assert slot not in self.rows, "a slot has two notes"
            self.rows[slot] = row
            self.next_seq += 1

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), attempts=st.integers(0, 65535))
    def change(self, data: Any, attempts: int) -> None:
        slot = data.draw(st.sampled_from(sorted(self.rows)[:50]))
        self.notes.change(slot, KIND_DELIVERED, attempts)
        seq, _, _, due, place = self.rows[slot]
        self.rows[slot] = (seq, KIND_DELIVERED, attempts, due, place)

    @precondition(lambda self: self.rows)
    @rule(share=st.sampled_from([1, 2, 3, 1000]), newest_first=st.booleans())
    def remove(self, share: int, newest_first: bool) -> None:
        for slot in sorted(self.rows, reverse=newest_first)[::share]:
            self.notes.free(slot)
            del self.rows[slot]

    @precondition(lambda self: self.kept)
    @rule(power_failed=st.booleans())
    def reopen(self, power_failed: bool) -> None:
        self.notes = self.new_notes()
        assert self.notes.load(power_failed) == []
        for slot, (seq, *_) in self.rows.items():
            assert self.notes.find(seq) == slot
        assert self.notes.find(self.next_seq) == 0
        self.notes.end_recovery()

    @precondition(lambda self: self.kept and self.rows)
    @rule(data=st.data(), offset=st.integers(0, 23))
    def tear(self, data: Any, offset: int) -> None:
        """Lose a part of a note in a power failure."""
        slot = data.draw(st.sampled_from(sorted(self.rows)[:50]))
        (number,) = [number for number in range(40) if slot < self.end_of(number)][:1]
        with open(f"{self.directory}/{number}", "r+b") as file:
            file.seek((slot - self.end_of(number - 1)) * 32 + offset)
            byte = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([byte[0] ^ 0xFF]))
        del self.rows[slot]
        self.reopen(True)

    @staticmethod
    def end_of(number: int) -> int:
        """Return the number behind the last slot of a file."""
        return 2048 * sum(1 << min(each, 4) for each in range(number + 1))

    @precondition(lambda self: self.notes is not None)
    @rule(synced=st.booleans())
    def begin_generation(self, synced: bool) -> None:
        self.generation += 1
        self.notes.begin_generation(self.generation)
        self.rows = {}
        if synced:
            self.notes.remove_dropped(self.notes.dropped_files())

    @invariant()
    def agrees(self) -> None:
        if self.notes is not None:
            self.notes.check()
            assert self.notes.count == len(self.rows)
            assert self.notes.rows() == self.rows


TestNotesMachine = NotesMachine.TestCase
TestNotesMachine.settings = settings(max_examples=examples(40), stateful_step_count=25)
