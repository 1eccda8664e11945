"""A log against a list of bodies."""

import shutil
import tempfile
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pyqd.diskqueue.reliable_sync import ReliableSync
from pyqd.hot.diskqueue.log import Log
from pyqd.hot.diskqueue.rewrite import Rewrite, are_neighbours
from pyqd.hot.wire.record import span_bytes
from pyqd.primitives.errors import DiskFull
from tests.support.examples import examples
from tests.support.rewritten import chain
from tests.support.storage import SEGMENT_BYTES_MIN, SEGMENT_HEADER_BYTES, EagerJobs, FullFiles, body_of
from tests.support.structures import need

SIZES = st.one_of(
    st.integers(8, 100),
    st.integers(8, 30_000),
    st.sampled_from([SEGMENT_BYTES_MIN - SEGMENT_HEADER_BYTES - 48 + extra for extra in (-8, -1, 0, 1, 8)]),
    st.integers(60_000, 200_000),
)


class LogMachine(RuleBasedStateMachine):
    """Append, batch, roll, trim, run out of space and reopen; the model is a list of bodies by ordinal."""

    def __init__(self):
        super().__init__()
        self.directory = tempfile.mkdtemp()
        self.log: Any = None

    def teardown(self):
        self.log = None
        shutil.rmtree(self.directory)

    @initialize(kept=st.booleans(), ahead=st.booleans(), size=st.sampled_from([1, 1 << 17, 1 << 20]))
    def begin(self, kept, ahead, size):
        self.files = FullFiles()
        self.kept, self.ahead, self.size = kept, ahead, size
        self.bodies = []
        self.gone = set()
        self.floor = 0
        self.epoch = 0
        self.open()

    def open(self):
        self.log = Log(self.files, self.directory if self.kept else None, self.size, self.epoch)
        if self.ahead:
            self.log.pool.jobs = EagerJobs()

    @rule(size=SIZES, count=st.integers(1, 20), full=st.booleans())
    def append(self, size, count, full):
        self.files.room = 0 if full else None
        for _ in range(count):
            try:
                ordinal = self.log.append_message(len(self.bodies) + 1, body_of(len(self.bodies), size))
            except DiskFull:
                assert full
                break
            assert ordinal == len(self.bodies)
            self.bodies.append(body_of(ordinal, size))
        self.files.room = None

    @rule(sizes=st.lists(SIZES, max_size=12), full=st.booleans())
    def append_batch(self, sizes, full):
        self.files.room = 0 if full else None
        bodies = [body_of(len(self.bodies) + index, size) for index, size in enumerate(sizes)]
        try:
            self.log.append_batch([(1, body) for body in bodies])
        except DiskFull:
            assert full
        else:
            self.bodies += bodies
        self.files.room = None

    @rule(offset=st.integers(0, 60))
    def trim(self, offset):
        self.floor = max(self.floor, min(self.log.first.first_ordinal + offset, len(self.bodies)))
        self.log.trim_below(self.floor)

    @rule(first=st.integers(0, 3), count=st.integers(1, 3), kept=st.integers(0, (1 << 30) - 1), full=st.booleans())
    def rewrite(self, first, count, kept, full):
        segments = [segment for segment in chain(self.log)[:-1] if segment.count][first : first + count]
        for index, segment in enumerate(segments):
            if index and not are_neighbours(segments[index - 1], segment):
                del segments[index:]
                break
        if not segments:
            return
        rewrite = Rewrite(self.log, segments)
        needed = [ordinal for ordinal in range(rewrite.start, rewrite.end) if kept >> ordinal % 30 & 1]
        for ordinal in needed:
            need(rewrite, ordinal)
        self.files.room = 0 if full else None
        try:
            rewrite.make(ReliableSync(self.files, "/nowhere"))
        except DiskFull:
            assert full
            assert self.kept
        else:
            rewrite.take_place()
            for path in self.log.replaced_files:
                self.files.remove(path)
            self.log.replaced_files.clear()
            self.gone |= set(range(rewrite.start, rewrite.end)) - set(needed)
        self.files.room = None

    @rule()
    def trim_all(self):
        self.floor = len(self.bodies)
        self.log.trim_below(self.floor)
        assert self.log.first is self.log.active

    @precondition(lambda self: self.kept)
    @rule(later=st.booleans())
    def reopen(self, later):
        self.epoch += later
        self.open()

    @rule()
    def sync(self):
        ranges, end = self.log.dirty_ranges()
        for segment, start, length in ranges:
            self.files.sync(segment.mapping, start, length)
        self.log.mark_synced(ranges, end)
        assert self.log.dirty_ranges()[0] == []

    @invariant()
    def agrees(self):
        if self.log is None:
            return
        self.log.check()
        assert self.log.end == len(self.bodies)
        first = self.log.first.first_ordinal
        assert first <= self.floor
        assert [(record[0], record[4]) for record in self.log.records()] == self.model(first)
        middle = (first + len(self.bodies)) // 2
        assert [(record[0], record[4]) for record in self.log.records(middle)][:1] == self.model(middle)[:1]
        assert not self.gone.intersection(range(self.log.earliest, self.log.end))

    def model(self, start):
        """Return (ordinal, body) of the records from an ordinal on."""
        return [each for each in enumerate(self.bodies[start:], start) if each[0] not in self.gone]


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(max_examples=examples(60), stateful_step_count=25)


@settings(max_examples=examples(100))
@given(
    sizes=st.lists(st.integers(8, 200), min_size=1, max_size=12),
    lost=st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 64), st.sampled_from([0, 0xFF, 0x41])), min_size=1),
    more=st.lists(st.integers(8, 200), max_size=12),
)
def test_lost_pieces_leave_the_other_records_and_nothing_lost_comes_back(sizes, lost, more):
    with tempfile.TemporaryDirectory() as root:
        directory = f"{root}/log"
        files = FullFiles()
        log = Log(files, directory, 1)
        bodies = [body_of(index + 1, size) for index, size in enumerate(sizes)]
        ends = [SEGMENT_HEADER_BYTES]
        for index, body in enumerate(bodies):
            log.append_message(index + 1, body)
            ends.append(ends[-1] + span_bytes(len(body)))
        view = log.active.mapping.view()
        for offset, length, byte in lost:
            at = SEGMENT_HEADER_BYTES + offset % (ends[-1] - SEGMENT_HEADER_BYTES)
            view[at : at + length] = bytes([byte]) * length
        untouched = min(SEGMENT_HEADER_BYTES + offset % (ends[-1] - SEGMENT_HEADER_BYTES) for offset, _, _ in lost)
        log = Log(files, directory, 1)
        found = [record[4] for record in log.records()]
        rest = iter(bodies)
        assert all(body in rest for body in found), "in order, each once, and nothing else"
        assert found[: sum(end <= untouched for end in ends[1:])] == bodies[: sum(end <= untouched for end in ends[1:])]
        for index, size in enumerate(more):
            log.append_message(1, body_of(1000 + index, size))
            again = Log(files, directory, 1)
            fresh = [body_of(1000 + each, more[each]) for each in range(index + 1)]
            assert [record[4] for record in again.records()] == found + fresh
