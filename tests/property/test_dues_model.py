"""Due times of a log against a list, through restarts of any kind."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.due_log import DueLog, rows_of
from tests.support.examples import examples

FIRST_FILE_ENTRIES = (64 << 10) // 32 - 2


class DuesMachine(RuleBasedStateMachine):
    """Publish, drop batches, trim, sync, kill, damage; the model is a list of (sequence number, due time)."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.rows: list[tuple[int, int]] = []

    def teardown(self) -> None:
        shutil.rmtree(self.directory)

    @initialize(epoch=st.integers(0, 3))
    def begin(self, epoch: int) -> None:
        self.topic = DueLog(self.directory / "t", epoch=epoch)
        self.log_first = 0

    @rule(count=st.sampled_from([1, 1, 5, 700, FIRST_FILE_ENTRIES]), every=st.integers(1, 3))
    def publish(self, count: int, every: int) -> None:
        seq = self.topic.log.epoch << 48 | self.topic.log.end
        self.topic.fill(count, every)
        self.rows += [(seq + number, 1000 + number) for number in range(0, count, every)]

    @rule(count=st.sampled_from([1, 5, FIRST_FILE_ENTRIES]), ends=st.sampled_from(["dropped", "killed"]))
    def batch(self, count: int, ends: str) -> None:
        log, dues = self.topic.log, self.topic.dues
        end = dues.end
        dues.reserve_files(count)
        for number in range(count):
            dues.add(log.epoch << 48 | log.end + number, 7)
        if ends == "dropped":
            dues.take_back(end)
        else:
            self.reopen(False)

    @rule(share=st.sampled_from([0.3, 0.9, 1]))
    def trim(self, share: float) -> None:
        self.topic.log.trim_below(int(self.topic.log.end * share))
        self.topic.dues.trim(self.topic.log.first.first_ordinal)

    @rule()
    def sync(self) -> None:
        self.topic.sync()

    @rule(power_failed=st.booleans())
    def reopen(self, power_failed: bool) -> None:
        self.topic.reopen(power_failed)

    @precondition(lambda self: self.topic.path.exists())
    @rule(data=st.data(), power_failed=st.booleans(), removed=st.booleans())
    def damage(self, data: Any, power_failed: bool, removed: bool) -> None:
        """Damage a file at a byte that is in use, or remove it; the log tells all that it still has."""
        self.topic.sync()
        paths = sorted(self.topic.path.iterdir())
        path = data.draw(st.sampled_from(paths)) if paths else None
        if path is not None and removed:
            path.unlink()
        elif path is not None:
            content = path.read_bytes()
            at = data.draw(st.integers(0, len(content.rstrip(b"\0")) or 1))
            with path.open("r+b") as file:
                file.seek(at)
                file.write(bytes([content[at] ^ 0xFF]))
        self.reopen(power_failed)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "topic"):
            return
        self.topic.dues.check()
        first = self.topic.log.first.first_ordinal
        kept = [row for row in self.rows if row[0] & 2**48 - 1 >= first]
        found = rows_of(self.topic.dues)
        # Entries of trimmed records stay until their file goes.
        assert found[-len(kept) :] == kept if kept else set(found) <= set(self.rows)
        assert set(found) <= set(self.rows)
        assert [self.topic.dues.lower_bound(row[0] & 2**48 - 1) for row in found[:3]] == list(
            range(self.topic.dues.first, self.topic.dues.first + len(found[:3]))
        )


TestDuesMachine = DuesMachine.TestCase
TestDuesMachine.settings = settings(max_examples=examples(40), stateful_step_count=20)
