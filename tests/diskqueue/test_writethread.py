"""Tests of pyqd.hot.diskqueue.writethread, and of the writer on the event loop that uses it."""

import contextlib
import errno
import mmap
import os

import gevent
import pytest
from gevent.event import Event

from pyqd.diskqueue.files import Files
from pyqd.diskqueue.journal import CommitPlace
from pyqd.durability.direct import AfterPoll, DirectWriter
from pyqd.hot.diskqueue.writethread import WriteThread
from pyqd.primitives.errors import StorageError
from tests.support.readiness import is_readable

BLOCK = 4096
FILE_BYTES = 16 * BLOCK
WAIT_S = 10.0


@pytest.fixture
def writer():
    writer = WriteThread()
    yield writer
    writer.close()


@pytest.fixture
def file(tmp_path):
    file = Files().new_journal_file(str(tmp_path / "1"), FILE_BYTES)
    yield file
    file.close()


def aligned(content):
    """Return the content in memory that begins at a multiple of a block."""
    memory = mmap.mmap(-1, len(content))
    memory[:] = content
    return memoryview(memory)


def blocks(letter, count=1):
    return aligned(letter * BLOCK * count)


def ended(writer):
    """Wait for the end of the write under way. Returns: its errno, 0 for none."""
    assert is_readable(writer.fileno, WAIT_S)
    return writer.collect()


def written(writer, file, content, offset):
    """Write, and wait for the end. Returns: as `ended`."""
    writer.submit(file.fileno, content, offset)
    return ended(writer)


def test_a_new_file_of_the_journal_has_its_size_in_blocks_and_zeros(file):
    found = os.stat(file.path)
    assert found.st_size == FILE_BYTES
    assert found.st_blocks * 512 >= FILE_BYTES
    with open(file.path, "rb") as content:
        assert not any(content.read())


def test_a_failed_file_leaves_no_name(tmp_path, monkeypatch):
    def refuse(*_args):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(StorageError):
        Files().new_journal_file(str(tmp_path / "1"), FILE_BYTES)
    assert os.listdir(tmp_path) == []


def test_a_blocking_write_puts_whole_blocks_at_their_offsets(file):
    file.write(2 * BLOCK, blocks(b"a", 2))
    with open(file.path, "rb") as content:
        assert content.read() == bytes(2 * BLOCK) + b"a" * 2 * BLOCK + bytes(12 * BLOCK)


def test_a_write_ends_with_the_eventfd_readable_and_the_content_there(writer, file):
    assert written(writer, file, blocks(b"a", 2), BLOCK) == 0
    with open(file.path, "rb") as content:
        assert content.read(4 * BLOCK) == bytes(BLOCK) + b"a" * 2 * BLOCK + bytes(BLOCK)
    # Read once: it does not wake the loop again.
    assert not is_readable(writer.fileno, 0)
    assert writer.collect() == -1


def test_writes_follow_one_another(writer, file):
    for number in range(16):
        assert written(writer, file, blocks(bytes([number + 1])), number * BLOCK) == 0
    with open(file.path, "rb") as content:
        assert content.read()[::BLOCK] == bytes(range(1, 17))


def test_nothing_has_ended_before_anything_was_begun(writer):
    assert writer.collect() == -1


def test_a_failed_write_is_reported_and_the_next_one_is_accepted(writer, file):
    writer.submit(999_999, blocks(b"a"), 0)
    assert ended(writer) == errno.EBADF
    with open(file.path, "rb") as other:
        writer.submit(other.fileno(), blocks(b"a"), 0)
        assert ended(writer) == errno.EBADF
    assert written(writer, file, blocks(b"b"), 0) == 0


def test_one_write_at_a_time_is_taken(writer, file):
    writer.submit(file.fileno, blocks(b"a"), 0)
    with pytest.raises(AssertionError):
        writer.submit(file.fileno, blocks(b"b"), 0)
    assert ended(writer) == 0


def test_closing_waits_for_the_write_under_way(writer, file):
    writer.submit(file.fileno, blocks(b"a", 8), 0)
    writer.close()
    with open(file.path, "rb") as found:
        assert found.read(8 * BLOCK) == b"a" * 8 * BLOCK
    writer.close()


# On the event loop.


class Waiting:
    """The end of one commit, and how often a thread was asked to write it."""

    def __init__(self, place):
        self.place = place
        self.ended = Event()
        self.error = None
        self.in_thread_count = 0

    def done(self, _result, error):
        assert not self.ended.is_set(), "told twice"
        self.error = error
        self.ended.set()

    def in_thread(self):
        self.in_thread_count += 1
        self.place.file.write(self.place.offset, self.place.content)
        self.done(None, None)


@pytest.fixture
def direct_writer():
    writer = DirectWriter(gevent.get_hub())
    yield writer
    writer.stop()


def commit(writer, file, content, offset=0):
    waiting = Waiting(CommitPlace(file, offset, content))
    writer.write(waiting.place, waiting.done, waiting.in_thread)
    return waiting


def content_of(file, length):
    with open(file.path, "rb") as content:
        return content.read(length)


def test_a_commit_is_written_and_its_end_reported_on_the_loop(direct_writer, file):
    for number in range(4):
        waiting = commit(direct_writer, file, blocks(bytes([number + 1])), number * BLOCK)
        assert waiting.ended.wait(WAIT_S)
        assert waiting.error is None
    assert content_of(file, 4 * BLOCK)[::BLOCK] == bytes([1, 2, 3, 4])


def test_with_pages_of_the_range_in_the_page_cache_the_commit_is_written_all_the_same(direct_writer, file):
    with (
        open(file.path, "r+b", buffering=0) as other,
        contextlib.closing(mmap.mmap(other.fileno(), FILE_BYTES)) as there,
    ):
        for at in range(0, FILE_BYTES, BLOCK):
            there[at] = 1
        waiting = commit(direct_writer, file, blocks(b"a", 4))
        assert waiting.ended.wait(WAIT_S)
        assert waiting.error is None
        assert waiting.in_thread_count <= 1
        assert content_of(file, 4 * BLOCK) == b"a" * 4 * BLOCK


class Other:
    """A file of the journal that is not written by its number."""

    def __init__(self, fileno, path):
        self.fileno, self.path = fileno, path
        self.content = b""

    def write(self, _offset, content):
        self.content = bytes(content)


def test_an_error_of_the_disk_names_the_file(direct_writer, file):
    with open(file.path, "rb") as read_only:
        waiting = commit(direct_writer, Other(read_only.fileno(), file.path), blocks(b"a"))
        assert waiting.ended.wait(WAIT_S)
    assert isinstance(waiting.error, StorageError)
    assert file.path in str(waiting.error)
    assert waiting.in_thread_count == 0


def test_a_file_without_a_number_is_written_some_other_way(direct_writer, file):
    other = Other(-1, file.path)
    waiting = commit(direct_writer, other, blocks(b"a"))
    assert (waiting.in_thread_count, other.content) == (1, b"a" * BLOCK)


def test_after_a_stop_the_write_under_way_is_complete_and_has_no_callback(file):
    writer = DirectWriter(gevent.get_hub())
    waiting = commit(writer, file, blocks(b"a", 8))
    writer.stop()
    gevent.sleep(0.01)
    assert not waiting.ended.is_set()
    assert content_of(file, 8 * BLOCK) == b"a" * 8 * BLOCK
    writer.stop()
    # A commit that comes now is not this writer's any more.
    assert commit(writer, file, blocks(b"b")).in_thread_count == 1


@pytest.mark.parametrize("busy", [False, True], ids=["idle loop", "a socket is always ready"])
def test_work_scheduled_after_a_poll_runs_although_the_loop_is_never_idle(busy):
    hub = gevent.get_hub()
    read_fd, write_fd = os.pipe()
    os.write(write_fd, b"x")
    seen: list[int] = []
    watcher = hub.loop.io(read_fd, 1)
    if busy:
        watcher.start(seen.append, 1)
    called = Event()
    before: list[int] = []

    def call() -> None:
        before.extend(seen)
        called.set()

    AfterPoll(hub).call(call)
    assert called.wait(WAIT_S)
    # The socket that was ready has been seen to before.
    assert bool(before) == busy
    watcher.stop()
    watcher.close()
    os.close(read_fd)
    os.close(write_fd)
