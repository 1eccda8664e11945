"""A log and the due times of its records, as a topic keeps them in a directory, for tests."""

from pathlib import Path

from pyqd.diskqueue.files import Files
from pyqd.diskqueue.space_limit import SpaceLimit
from pyqd.hot.diskqueue.dues import Dues, open_dues
from pyqd.hot.diskqueue.log import Log
from pyqd.hot.diskqueue.logreader import LogReader
from tests.support.storage import SEGMENT_BYTES_MIN

EPOCH = 3

Row = tuple[int, int]


class DueLog:
    """A log and its due times, as a topic keeps them in a directory."""

    def __init__(self, directory: Path, files: Files | None = None, epoch: int = EPOCH) -> None:
        self.files = files or Files()
        self.directory = directory
        directory.mkdir(exist_ok=True)
        self.log = Log(self.files, str(directory / "log"), SEGMENT_BYTES_MIN, epoch)
        self.due_below = self.synced_below = 0
        self.dues = self.found()

    @property
    def path(self) -> Path:
        return self.directory / "dues"

    def found(self, power_failed: bool = False) -> Dues:
        """Return the due times that a start finds."""
        dues = open_dues(
            self.files,
            str(self.path),
            SpaceLimit(),
            self.log,
            due_below=self.due_below,
            synced_below=self.synced_below,
            power_failed=power_failed,
            found=self.path.exists(),
        )
        dues.check()
        return dues

    def reopen(self, power_failed: bool = False) -> None:
        """Start again."""
        self.log = Log(self.files, str(self.directory / "log"), SEGMENT_BYTES_MIN, 0, power_failed)
        self.dues = self.found(power_failed)
        self.due_below = self.dues.ordinal_end

    def publish(self, due_ns: int = 0, body: bytes = b"body") -> None:
        if due_ns:
            self.dues.add(self.log.epoch << 48 | self.log.end, due_ns, self.place())
        self.log.append_message(self.log.end + 1, body, 1, due_ns)
        if due_ns:
            self.due_below = self.log.end

    def place(self) -> int:
        """Return the hint for the next record."""
        position = self.log.end_position()
        return position.segment.number << 32 | position.offset // 8

    def fill(self, count: int, every: int = 1) -> None:
        """Publish so many messages, the first of each `every` with a due time."""
        for number in range(count):
            self.publish(0 if number % every else 1000 + number)

    def sync(self) -> None:
        """Sync what has changed, as a sync job does."""
        ranges, end = self.log.dirty_ranges()
        due_files, change_count = self.dues.store.dirty_files(), self.dues.store.change_count
        for segment, start, length in ranges:
            self.files.sync(segment.mapping, start, length)
        for file, _ in due_files:
            self.files.sync(file.mapping, 0, file.mapping.size_bytes)
        for directory in (self.directory / "log", self.path, self.directory):
            if directory.exists():
                self.files.sync_directory(str(directory))
        self.log.mark_synced(ranges, end)
        self.dues.store.note_synced(due_files, change_count)
        if self.dues.ordinal_end:
            self.synced_below = end


def rows_of(dues: Dues) -> list[Row]:
    return [row[:2] for row in dues.rows()]


def walked(log: Log) -> list[Row]:
    """Return (sequence number, due time) of the records of a log that have a due time."""
    reader = LogReader(log)
    return [(reader.position_of(ordinal), due_ns) for ordinal, _, _, due_ns, *_ in log.records() if due_ns]
