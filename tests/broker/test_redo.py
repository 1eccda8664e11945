"""Tests of pyqd.diskqueue.redo: the records of a journal are restored into segments, and nowhere else."""

import errno
import os
import struct
import tracemalloc
from pathlib import Path
from typing import NamedTuple

import pytest

from pyqd.broker import replay
from pyqd.broker.broker import Broker
from pyqd.broker.inspection import Inspection
from pyqd.diskqueue.files import Files
from pyqd.diskqueue.redo import READ_AT_ONCE_BYTES, Redo
from pyqd.durability.syncer import Syncer, run_inline
from pyqd.hot.diskqueue.journal import (
    BLOCK_SIZE,
    CHECKED_FROM,
    ENTRY_SIZE,
    FORMAT_MAGIC,
    FORMAT_VERSION,
    HEADER_SIZE,
    CommitBuffer,
)
from pyqd.hot.diskqueue.log import Log
from pyqd.hot.primitives import crc32c
from pyqd.primitives.errors import DiskFull, LaterFormatError, StartupError, StorageError, storage_error
from tests.support.nsqd_data import snapshot
from tests.support.rewritten import chain, path_of, rewritten
from tests.support.storage import SEGMENT_HEADER_BYTES, broker_on, options_for

FILE_BYTES = 16 * BLOCK_SIZE
SEGMENT_BYTES = 64 << 10
MADE_NS = 1_000
HEADER = struct.Struct("<QIIQQQQqQ")
ENTRY = struct.Struct("<IHBB7Q")
STATE = struct.Struct("<q5Q")
SEGMENT = struct.Struct("<8sIIQQqQQQ")


def segment_header(number, first_seq=0, sealed=(0, 0)):
    """Return the header of a segment as it lies in its file."""
    checksum = crc32c.value(struct.pack("<QQQq", 2, number, first_seq, 5))
    header = SEGMENT.pack(b"PYQDSEG\0", 2, checksum, number, first_seq, 5, *sealed, 0)
    return header.ljust(SEGMENT_HEADER_BYTES, b"\0")


class Entry(NamedTuple):
    """One entry of a commit, with the parts of a state that tests look at."""

    content: bytes
    start: int = 0
    number: int = 1
    file_number: int = 0
    first_seq: int = 0
    first_number: int = 1
    name: str = "t"
    made_ns: int = MADE_NS
    message_count: int = 1
    kind: int = 0

    def packed(self):
        name, state = self.name.encode(), STATE.pack(self.made_ns, 0, 0, self.message_count, 0, 0)
        parts = [part.ljust(-(-len(part) // 8) * 8, b"\0") for part in (name, state, self.content)]
        size = ENTRY_SIZE + sum(map(len, parts))
        numbers = (self.file_number, self.number, self.first_seq, self.first_number, SEGMENT_BYTES)
        head = ENTRY.pack(size, len(name), len(state) // 8, self.kind, *numbers, self.start, len(self.content))
        return head + b"".join(parts)


def commit(generation, offset, *entries, oldest=1, version=FORMAT_VERSION, latest_ns=MADE_NS, number=1):
    """Return a commit as it lies in a file, in whole blocks."""
    body = b"".join(entry.packed() for entry in entries)
    size = HEADER_SIZE + len(body)
    content = HEADER.pack(FORMAT_MAGIC, version, 0, generation, oldest, offset, size, latest_ns, number) + body
    checksum = crc32c.value(content[CHECKED_FROM:], version)
    content = HEADER.pack(FORMAT_MAGIC, version, checksum, generation, oldest, offset, size, latest_ns, number) + body
    return content.ljust(-(-size // BLOCK_SIZE) * BLOCK_SIZE, b"\0")


def restored(redo, log_directory, made_ns=MADE_NS, state_lost=False, name="t"):
    """Restore a topic's records. Returns: the journal's copy of its state; None if there is none."""
    found = redo.take(name, made_ns, state_lost)
    if found is None:
        return None
    found.restore(log_directory)
    return found.state


class Place:
    """A journal, and the log of a topic."""

    def __init__(self, directory: Path) -> None:
        self.files = Files()
        self.journal = directory / "journal"
        self.log = directory / "log"
        self.journal.mkdir()
        self.log.mkdir()

    def journal_file(self, number, *commits):
        content = b"".join(commits).ljust(FILE_BYTES, b"\0")
        (self.journal / str(number)).write_bytes(content)
        return content

    def segment(self, content, file_number=0):
        path = self.log / f"{file_number}.seg"
        path.write_bytes(content.ljust(SEGMENT_BYTES, b"\0"))
        return path

    def redo(self, files=None):
        return Redo(files or self.files, str(self.journal))

    def restore(self, made_ns=MADE_NS, state_lost=False, name="t", files=None):
        return restored(self.redo(files), str(self.log), made_ns, state_lost, name)

    def content(self, file_number=0):
        return (self.log / f"{file_number}.seg").read_bytes()


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def count_in(state):
    """Return the message count of the journal's copy of a state."""
    return STATE.unpack(state)[3]


def rewritten_in(directory, count):
    """Return the file that has the place of the first segments of a log."""
    log = Log(Files(), str(directory), 1)
    for _ in range(count + 1):
        log.append_message(1, bytes(SEGMENT_BYTES - 1000))
    return rewritten([Path(path_of(segment)).read_bytes() for segment in chain(log)[:count]], set())


BEGINNING = Entry(segment_header(1) + b"first record, ")
BEHIND = Entry(b"second record", start=len(BEGINNING.content), message_count=2)
WHOLE = (BEGINNING.content + BEHIND.content).ljust(SEGMENT_BYTES, b"\0")


# The table in the module's docstring.


@pytest.mark.parametrize(("count", "number"), [(1, 1), (3, 1), (3, 2), (3, 3), (1, 2)])
def test_a_missing_file_whose_place_a_rewritten_one_has_is_not_re_created(place, tmp_path, count, number):
    place.segment(rewritten_in(tmp_path / "other", count), file_number=9)
    place.journal_file(1, commit(1, 0, Entry(segment_header(number) + b"first record", number=number)))
    place.restore()
    assert os.path.exists(place.log / "0.seg") == (number > count)


def test_a_missing_file_is_re_created_from_the_beginning_of_its_segment(place):
    place.journal_file(1, commit(1, 0, BEGINNING), commit(1, BLOCK_SIZE, BEHIND))
    assert count_in(place.restore()) == 2
    assert place.content() == WHOLE


def test_a_missing_file_is_not_made_from_bytes_within_its_segment(place):
    place.journal_file(1, commit(1, 0, BEHIND))
    assert place.restore() is not None
    assert list(place.log.iterdir()) == []


def test_a_missing_log_directory_is_made(place):
    place.log.rmdir()
    place.journal_file(1, commit(1, 0, BEGINNING))
    place.restore()
    assert place.content().startswith(BEGINNING.content)


@pytest.mark.parametrize("entry", [BEGINNING, BEHIND])
def test_a_later_segment_in_the_file_is_left_as_it_is(place, entry):
    later = segment_header(7, 100) + b"later"
    place.segment(later)
    place.journal_file(1, commit(1, 0, entry))
    place.restore()
    assert place.content().startswith(later)


def test_a_segment_that_was_begun_again_with_a_later_sequence_number_is_left_as_it_is(place):
    later = segment_header(1, 1 << 48) + b"of the next epoch"
    place.segment(later)
    place.journal_file(1, commit(1, 0, BEGINNING))
    place.restore()
    assert place.content().startswith(later)


@pytest.mark.parametrize(
    "former",
    [segment_header(1), segment_header(0), b"", b"nonsense" * 20],
    ids=["earlier", "spare", "empty", "damaged"],
)
def test_the_beginning_of_a_segment_takes_the_place_of_an_earlier_one(place, former):
    mine = Entry(segment_header(2, 50) + b"mine", number=2, first_seq=50)
    place.segment(former + b"former")
    place.journal_file(1, commit(1, 0, mine))
    place.restore()
    assert place.content().startswith(mine.content)


def test_bytes_within_a_segment_are_not_put_into_an_earlier_one(place):
    earlier = segment_header(1) + b"earlier"
    place.segment(earlier)
    place.journal_file(1, commit(1, 0, Entry(b"mine", start=200, number=2, first_seq=50)))
    place.restore()
    assert place.content() == earlier.ljust(SEGMENT_BYTES, b"\0")


def test_the_header_of_the_same_segment_stays_and_the_bytes_behind_it_are_written(place):
    sealed = segment_header(1, 0, (2, 300))
    place.segment(sealed)
    place.journal_file(1, commit(1, 0, BEGINNING), commit(1, BLOCK_SIZE, BEHIND))
    place.restore()
    assert place.content() == sealed + WHOLE[SEGMENT_HEADER_BYTES:]


def test_records_drained_before_the_last_entry_are_not_replayed(place):
    last = Entry(segment_header(2, 50) + b"mine", number=2, file_number=1, first_seq=50, first_number=2)
    place.journal_file(1, commit(1, 0, BEGINNING), commit(1, BLOCK_SIZE, last))
    place.restore()
    assert [path.name for path in place.log.iterdir()] == ["1.seg"]


def test_doing_it_twice_changes_nothing(place):
    place.journal_file(1, commit(1, 0, BEGINNING), commit(1, BLOCK_SIZE, BEHIND))
    first = place.restore()
    content = place.content()
    assert place.restore() == first
    assert place.content() == content


def test_a_topic_is_asked_for_once(place):
    place.journal_file(1, commit(1, 0, BEGINNING))
    redo = place.redo()
    assert restored(redo, str(place.log)) is not None
    assert restored(redo, str(place.log)) is None


# Which commits count.


def test_without_a_journal_nothing_is_put_back(place):
    place.journal.rmdir()
    assert place.redo().former == []
    assert place.restore() is None


@pytest.mark.parametrize("damaged_at", [BLOCK_SIZE, BLOCK_SIZE + 12, BLOCK_SIZE + HEADER_SIZE, BLOCK_SIZE + 180])
def test_a_torn_commit_ends_a_file(place, damaged_at):
    third = BEHIND._replace(start=BEHIND.start + len(BEHIND.content))
    content = bytearray(
        place.journal_file(1, commit(1, 0, BEGINNING), commit(1, BLOCK_SIZE, BEHIND), commit(1, 2 * BLOCK_SIZE, third))
    )
    content[damaged_at] ^= 0xFF
    (place.journal / "1").write_bytes(content)
    assert count_in(place.restore()) == 1
    assert place.content() == BEGINNING.content.ljust(SEGMENT_BYTES, b"\0")


def test_a_commit_that_lies_elsewhere_than_it_says_is_none(place):
    place.journal_file(1, commit(1, 0, BEGINNING), commit(1, 7 * BLOCK_SIZE, BEHIND))
    assert count_in(place.restore()) == 1


def test_a_commit_that_is_longer_than_the_file_is_none(place):
    content = place.journal_file(1, commit(1, 0, BEGINNING))
    (place.journal / "1").write_bytes(content[:100])
    assert place.redo().former == []


def test_commits_of_an_earlier_use_of_a_file_do_not_count(place):
    place.journal_file(1, commit(3, 0, BEGINNING, oldest=3), commit(1, BLOCK_SIZE, BEHIND))
    redo = place.redo()
    assert [generation for generation, _ in redo.former] == [3]
    assert count_in(restored(redo, str(place.log))) == 1


def test_of_a_file_only_the_part_with_commits_is_read(place):
    class CountingFiles(Files):
        read_bytes = 0

        def read_range(self, path, start_bytes, length_bytes):
            found = super().read_range(path, start_bytes, length_bytes)
            self.read_bytes += len(found)
            return found

    big = Entry(segment_header(1) + bytes(READ_AT_ONCE_BYTES * 2))
    place.journal_file(1, commit(1, 0, big), commit(1, READ_AT_ONCE_BYTES * 2 + BLOCK_SIZE, BEHIND))
    with (place.journal / "1").open("ab") as file:
        file.truncate(READ_AT_ONCE_BYTES * 32)
    files = CountingFiles()
    redo = place.redo(files)
    assert count_in(redo.take("t", MADE_NS, False).state) == 2
    assert files.read_bytes == READ_AT_ONCE_BYTES * 3


def test_files_are_applied_by_generation_and_not_by_name(place):
    place.journal_file(9, commit(1, 0, BEGINNING))
    place.journal_file(2, commit(2, 0, BEHIND))
    redo = place.redo()
    assert [(generation, Path(path).name) for generation, path in redo.former] == [(1, "9"), (2, "2")]
    assert count_in(restored(redo, str(place.log))) == 2
    assert place.content() == WHOLE


def test_files_that_the_last_commit_says_do_not_count_are_removed(place):
    place.journal_file(1, commit(1, 0, BEHIND._replace(content=b"stale"), oldest=1))
    place.journal_file(2, commit(2, 0, BEGINNING, oldest=1), commit(2, BLOCK_SIZE, BEHIND, oldest=2))
    place.journal_file(3)
    redo = place.redo()
    assert [Path(path).name for _, path in redo.former] == ["2"]
    assert [path.name for path in place.journal.iterdir()] == ["2"]


def test_the_latest_time_at_which_a_topic_was_made_is_known_again(place):
    place.journal_file(1, commit(1, 0, BEGINNING, latest_ns=9_000), commit(1, BLOCK_SIZE, BEHIND, latest_ns=8_000))
    assert place.redo().latest_created_ns == 9_000


def test_a_commit_of_a_later_format_refuses_the_start(place):
    place.journal_file(1, commit(1, 0, BEGINNING), commit(1, BLOCK_SIZE, BEHIND, version=FORMAT_VERSION + 1))
    with pytest.raises(LaterFormatError, match=r"journal/1.*journal format version 3; this pyqd reads 2"):
        place.redo()
    assert len(list(place.journal.iterdir())) == 1


def test_an_entry_of_a_later_kind_refuses_the_start(place):
    place.journal_file(1, commit(1, 0, BEGINNING, BEHIND._replace(kind=2)))
    with pytest.raises(LaterFormatError, match=r"journal/1 .*journal entry of kind 2; this pyqd reads kind 0"):
        place.redo()
    assert len(list(place.journal.iterdir())) == 1


def test_commits_are_numbered_on_after_those_of_an_earlier_run(place):
    place.journal_file(1, commit(1, 0, BEGINNING, number=6), commit(1, BLOCK_SIZE, BEHIND, number=7))
    assert place.redo().commit_number == 7


def test_a_damaged_version_of_a_commit_costs_no_message_and_no_start(place):
    place.journal_file(1, commit(1, 0, BEGINNING), commit(1, BLOCK_SIZE, BEHIND))
    path = place.journal / "1"
    content = bytearray(path.read_bytes())
    content[BLOCK_SIZE + 8] = 0xFF
    path.write_bytes(content)
    assert count_in(restored(place.redo(), str(place.log))) == 2
    assert place.content() == WHOLE


def test_other_files_in_the_directory_are_left_alone_with_a_warning(place, caplog):
    (place.journal / "notes").write_text("mine")
    place.journal_file(1, commit(1, 0, BEGINNING))
    assert len(place.redo().former) == 1
    assert "skipping notes in " in caplog.text
    assert (place.journal / "notes").read_text() == "mine"


def test_a_start_has_the_content_of_one_file_in_memory_at_a_time(place):
    part = 64 << 10
    content = b"".join(commit(1, 16 * part * at, Entry(bytes(16 * part - 200), start=200)) for at in range(2))
    size = len(content)
    for number in range(1, 9):
        (place.journal / str(number)).write_bytes(content)
    tracemalloc.start()
    try:
        redo = place.redo()
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(redo.former) == 8
    # The parts as they are read, joined, and one commit.
    assert peak < 4 * size
    assert kept < size // 10


# Disks that fail.


class FailingFiles(Files):
    """A disk of which ranges cannot be read, or files not be written."""

    def __init__(self, path, unreadable_from=None, number=errno.EIO, unwritable=False):
        self.path = str(path)
        self.unreadable_from = unreadable_from
        self.number = number
        self.unwritable = unwritable

    def read_range(self, path, start, length):
        if path == self.path and self.unreadable_from is not None and start + length > self.unreadable_from:
            if start >= self.unreadable_from:
                raise StorageError("read", path, self.number, "Input/output error")
            length = self.unreadable_from - start
        return super().read_range(path, start, length)

    def overwrite(self, path, start_bytes, content):
        if self.unwritable and path == self.path:
            raise StorageError("write", path, self.number, "Input/output error")
        super().overwrite(path, start_bytes, content)


def test_a_file_is_read_up_to_its_first_unreadable_byte(place, caplog):
    place.journal_file(1, commit(1, 0, BEGINNING), commit(1, BLOCK_SIZE, BEHIND))
    assert count_in(place.restore(files=FailingFiles(place.journal / "1", BLOCK_SIZE))) == 1
    assert f"the journal is not read after offset {BLOCK_SIZE}: acknowledged messages may be missing" in caplog.text


def test_a_file_of_which_nothing_can_be_read_is_kept_aside(place):
    place.journal_file(1, commit(1, 0, BEGINNING))
    content = (place.journal / "1").read_bytes()
    assert place.restore(files=FailingFiles(place.journal / "1", 0)) is None
    assert not (place.journal / "1").exists()
    assert (place.journal.parent / f"{place.journal.name}-1.bad").read_bytes() == content


def test_an_error_of_reading_that_may_pass_refuses_the_start(place):
    place.journal_file(1, commit(1, 0, BEGINNING))
    with pytest.raises(StorageError):
        place.redo(FailingFiles(place.journal / "1", 0, errno.EMFILE))


def test_a_segment_with_an_unreadable_header_is_re_created(place):
    path = place.segment(segment_header(1) + b"unreadable")
    place.journal_file(1, commit(1, 0, BEGINNING))
    place.restore(files=FailingFiles(path, 0))
    assert place.content().startswith(BEGINNING.content)


def test_a_segment_with_a_page_that_can_be_neither_read_nor_written_is_left_to_recovery(place, caplog):
    path = place.segment(segment_header(1))
    place.journal_file(1, commit(1, 0, BEGINNING), commit(1, BLOCK_SIZE, BEHIND))
    assert place.restore(files=FailingFiles(path, 0, unwritable=True)) is not None
    assert "bytes of acknowledged messages are not restored" in caplog.text


def test_a_segment_that_can_be_read_and_not_written_refuses_the_start(place):
    path = place.segment(segment_header(1))
    place.journal_file(1, commit(1, 0, BEGINNING))
    with pytest.raises(StorageError):
        place.restore(files=FailingFiles(path, unwritable=True))
    assert place.restore() is not None
    assert place.content().startswith(BEGINNING.content)


def test_a_full_disk_refuses_the_start(place):
    path = place.segment(segment_header(1))
    place.journal_file(1, commit(1, 0, BEGINNING))
    with pytest.raises(StorageError):
        place.restore(files=FailingFiles(path, number=errno.ENOSPC, unwritable=True))


class FullFiles(Files):
    """A disk with so much space for other files."""

    def __init__(self, space_bytes=0):
        self.space_bytes = space_bytes

    def new_mapped(self, path, size_bytes, populate):
        if size_bytes > self.space_bytes:
            raise DiskFull("reserve", path, errno.ENOSPC, "No space left on device")
        return super().new_mapped(path, size_bytes, populate)


def test_a_missing_segment_is_restored_in_less_space_than_it_had(place):
    place.journal_file(1, commit(1, 0, BEGINNING), commit(1, BLOCK_SIZE, BEHIND))
    assert place.restore(files=FullFiles(space_bytes=SEGMENT_BYTES - 1)) is not None
    [path] = place.log.iterdir()
    assert path.read_bytes() == (BEGINNING.content + BEHIND.content).ljust(4096, b"\0")


def test_a_missing_segment_gets_all_pages_that_its_entries_need(place):
    beginning = BEGINNING._replace(content=BEGINNING.content.ljust(4096, b"x"))
    place.journal_file(1, commit(1, 0, beginning), commit(1, 2 * BLOCK_SIZE, BEHIND._replace(start=4096)))
    with pytest.raises(DiskFull):
        place.restore(files=FullFiles(space_bytes=4096))
    place.restore(files=FullFiles(space_bytes=8192))
    [path] = place.log.iterdir()
    assert path.read_bytes() == (beginning.content + BEHIND.content).ljust(8192, b"\0")


@pytest.mark.parametrize("header", [segment_header(2, 5), segment_header(0, 5)], ids=["in use", "a spare since"])
def test_on_a_full_disk_a_file_that_was_removed_is_not_re_created(place, caplog, header):
    later = place.segment(header, file_number=3)
    place.journal_file(1, commit(1, 0, BEGINNING), commit(1, BLOCK_SIZE, BEHIND))
    assert place.restore(files=FullFiles()) is not None
    assert list(place.log.iterdir()) == [later]
    assert "0.seg is not restored: there is no space, and all of its messages were finished" in caplog.text


@pytest.mark.parametrize(
    "found",
    [
        None,
        (segment_header(2, 5), 1),
        (segment_header(0, 5), 1),
        (segment_header(1), 3),
        (segment_header(0), 3),
        (b"", 3),
        (b"no header", 3),
    ],
    ids=["none", "made before", "a spare made before", "an earlier segment", "its spare", "a new spare", "damaged"],
)
def test_on_a_full_disk_a_file_whose_name_may_have_been_lost_refuses_the_start(place, found):
    if found is not None:
        place.segment(*found)
    place.journal_file(1, commit(1, 0, Entry(segment_header(1) + b"first record", file_number=2)))
    with pytest.raises(DiskFull):
        place.restore(files=FullFiles())


# Whose entries they are.


def test_a_topic_takes_nothing_of_an_earlier_one_of_its_name(place):
    place.journal_file(1, commit(1, 0, BEGINNING))
    assert place.restore(made_ns=MADE_NS + 1) is None
    assert list(place.log.iterdir()) == []


def test_a_topic_takes_nothing_of_another_name(place):
    place.journal_file(1, commit(1, 0, BEGINNING._replace(name="other")))
    assert place.restore() is None


def test_a_re_created_topic_gets_only_the_entries_since_its_creation(place):
    later = BEGINNING._replace(content=segment_header(1) + b"of the second", made_ns=MADE_NS + 5)
    place.journal_file(1, commit(1, 0, BEGINNING), commit(1, BLOCK_SIZE, later))
    assert place.restore(made_ns=MADE_NS + 5) is not None
    assert place.content().startswith(later.content)


def test_a_blank_state_takes_nothing(place):
    place.journal_file(1, commit(1, 0, BEGINNING))
    assert place.restore(made_ns=0) is None


def test_without_a_valid_state_the_entries_of_the_last_topic_of_the_name_are_replayed(place):
    later = BEGINNING._replace(content=segment_header(1) + b"of the second", made_ns=MADE_NS + 5)
    place.journal_file(1, commit(1, 0, BEGINNING), commit(1, BLOCK_SIZE, later))
    assert place.restore(made_ns=0, state_lost=True) is not None
    assert place.content().startswith(later.content)


# A broker that finds a journal.


def fail_power(path):
    """Have the next start take the files for those of a power failure."""
    node = path / "node.json"
    node.write_text(node.read_text().replace('"clean": true', '"clean": false').replace('"boot": "', '"boot": "not '))


def journaled(path, bodies):
    """Leave a topic whose messages are in the journal, and in its log if the page cache survives. Returns: its log."""
    broker = broker_on(path, sync_every=1)
    topic = broker.topic("t")
    broker.journal.file_bytes = FILE_BYTES
    broker.journal.start()
    for body in bodies:
        topic.publish_body(body, 1)
        buffer = broker.journal.begin()
        assert topic.journal_into(buffer, b"t")
        place = broker.journal.place()
        place.file.write(place.offset, place.content)
        broker.journal.note_written()
    return Path(topic.log.active.mapping.path)


def bodies_on(path):
    broker = Broker(options_for(path, sync_every=1), Files())
    broker.load()
    topic = broker.topics["t"]
    return topic, [body for *_, body in topic.log.records()]


@pytest.mark.parametrize("lost", ["page", "file"])
def test_a_start_after_a_power_failure_has_the_messages_and_the_saved_state(tmp_path, lost):
    segment = journaled(tmp_path, [b"one", b"two"])
    state = tmp_path / "topics" / "t.topic" / "state"
    if lost == "page":
        segment.write_bytes(bytes(segment.stat().st_size))
    else:
        segment.unlink()
    content = bytearray(state.read_bytes())
    # deferred_below, last_guid, message_count and message_bytes, as they were when the topic was made.
    content[24:56] = bytes(32)
    state.write_bytes(content)
    fail_power(tmp_path)
    before = snapshot(tmp_path)
    inspection = Inspection(str(tmp_path), verify=True)
    assert [(row.records, row.depth) for row in inspection.rows] == [(2, 2)]
    assert inspection.problems == []
    assert snapshot(tmp_path) == before
    topic, bodies = bodies_on(tmp_path)
    assert bodies == [b"one", b"two"]
    assert (topic.message_count, topic.message_bytes) == (2, 6)


def test_a_damaged_state_does_not_lose_the_messages_in_a_start_that_fails_either(tmp_path):
    class Full(Files):
        def overwrite(self, path, _start_bytes, _content):
            raise storage_error("write", path, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))

    segment = journaled(tmp_path, [b"one", b"two"])
    segment.write_bytes(bytes(segment.stat().st_size))
    state = tmp_path / "topics" / "t.topic" / "state"
    state.write_bytes(b"damaged".ljust(state.stat().st_size, b"x"))
    fail_power(tmp_path)
    with pytest.raises(StartupError):
        broker_on(tmp_path, Full(), sync_every=1)
    topic, bodies = bodies_on(tmp_path)
    assert bodies == [b"one", b"two"]
    # Nor would a further power failure, before anything is synced.
    created_ns = topic.created_ns
    fail_power(tmp_path)
    segment.write_bytes(bytes(segment.stat().st_size))
    topic, bodies = bodies_on(tmp_path)
    assert (topic.created_ns, bodies) == (created_ns, [b"one", b"two"])


def test_a_start_after_a_kill_puts_nothing_back(tmp_path):
    segment = journaled(tmp_path, [b"one", b"two"])
    segment.unlink()
    topic, bodies = bodies_on(tmp_path)
    assert bodies == []
    assert topic.message_count == 2
    assert list((tmp_path / "journal").iterdir())


def test_a_start_after_a_clean_stop_removes_a_journal_unread(tmp_path):
    journaled(tmp_path, [b"one"])
    node = tmp_path / "node.json"
    node.write_text(node.read_text().replace('"clean": false', '"clean": true'))
    (tmp_path / "journal" / "1").write_bytes(commit(1, 0, BEGINNING, version=99))
    bodies_on(tmp_path)
    assert not (tmp_path / "journal").exists()


def test_a_damaged_state_after_a_kill_does_not_lose_the_messages_in_a_power_failure_before_a_sync(tmp_path):
    segment = journaled(tmp_path, [b"one", b"two"])
    state = tmp_path / "topics" / "t.topic" / "state"
    state.write_bytes(b"damaged".ljust(state.stat().st_size, b"x"))
    topic, bodies = bodies_on(tmp_path)
    created_ns = topic.created_ns
    assert (topic.message_count, bodies) == (2, [b"one", b"two"])
    fail_power(tmp_path)
    segment.write_bytes(bytes(segment.stat().st_size))
    topic, bodies = bodies_on(tmp_path)
    assert (topic.created_ns, bodies) == (created_ns, [b"one", b"two"])


def test_a_damaged_state_after_a_kill_takes_nothing_of_an_earlier_topic_of_the_name(tmp_path):
    journaled(tmp_path, [b"one"])
    earlier = broker_on(tmp_path, sync_every=1)
    created_ns = earlier.topics["t"].created_ns
    earlier.delete_topic("t")
    earlier.topic("t")
    state = tmp_path / "topics" / "t.topic" / "state"
    state.write_bytes(b"damaged".ljust(state.stat().st_size, b"x"))
    topic, bodies = bodies_on(tmp_path)
    assert (topic.created_ns != created_ns, bodies) == (True, [])


def test_journaled_records_count_as_durable_after_a_kill(tmp_path):
    journaled(tmp_path, [b"one", b"two"])
    bodies_on(tmp_path)[0].publish_body(b"not in the journal", 1)
    topic, bodies = bodies_on(tmp_path)
    assert len(bodies) == 3
    assert (topic.log.synced_end, topic.log.flushed_end) == (2, 0)
    buffer = CommitBuffer()
    buffer.begin()
    assert topic.journal_into(buffer, b"t")
    assert bytes(buffer.finish(9, 1, 0, 0, 1)).count(b"one") == 0
    assert bytes(buffer.finish(9, 1, 0, 0, 1)).count(b"not in the journal") == 1


@pytest.mark.parametrize("synced", [False, True], ids=["journaled", "synced"])
def test_readers_find_after_a_kill_every_record_that_they_have_seen(tmp_path, synced):
    journaled(tmp_path, [b"%d" % number * 9_000 for number in range(10)])
    if synced:
        killed = broker_on(tmp_path, sync_every=1)
        assert Syncer(killed, run_inline).sync_all()
        killed.journal.release(killed.journal.rotate())
        assert not list((tmp_path / "journal").iterdir())
    topic, bodies = bodies_on(tmp_path)
    assert topic.log.first is not topic.log.active
    assert replay.positions(topic, None, lambda: None)["next"] == len(bodies) == 10
