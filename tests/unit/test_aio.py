"""Tests of pyqd.hot.aio, and of the writer on the event loop that uses it."""

import contextlib
import errno
import mmap
import os
import select
import threading

import gevent
import pytest
from gevent.event import Event

from pyqd.diskqueue.files import Files
from pyqd.diskqueue.journal import Place
from pyqd.hot.aio import AsyncWriter
from pyqd.primitives.errors import StorageError
from pyqd.protocol import direct
from pyqd.protocol.direct import DirectWriter

BLOCK = 4096
FILE_BYTES = 16 * BLOCK
WAIT_S = 10.0
TRIES = 50


@pytest.fixture
def writer():
    try:
        writer = AsyncWriter()
    except OSError as error:
        pytest.skip(f"no asynchronous writes here: {error}")
    yield writer
    writer.close()


@pytest.fixture
def file(tmp_path):
    file = Files().new_journal_file(str(tmp_path / "1"), FILE_BYTES)
    if file.direct_fd < 0:
        file.close()
        pytest.skip("the file system of the temporary directory has no O_DIRECT")
    yield file
    file.close()


def aligned(content):
    """Return the content in memory that begins at a multiple of a block."""
    memory = mmap.mmap(-1, len(content))
    memory[:] = content
    return memoryview(memory)


def blocks(letter, count=1):
    return aligned(letter * BLOCK * count)


def submitted(writer, fd, content, offset):
    """Start a write; skip the test if the disk never takes one at once."""
    for _ in range(TRIES):
        if writer.submit(fd, content, offset):
            return
    pytest.skip("this file system starts no write without waiting")


def ended(writer):
    """Wait for the end of the write under way. Returns: its errno, 0 for none."""
    assert select.select([writer.fileno], [], [], WAIT_S)[0]
    return writer.collect()


def written(writer, file, content, offset):
    """Write, and skip the test if the kernel says each time that it would have to wait."""
    for _ in range(TRIES):
        submitted(writer, file.direct_fd, content, offset)
        failed = ended(writer)
        if failed != errno.EAGAIN:
            return failed
    pytest.skip("this file system finishes no write without waiting")


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


def test_a_blocking_write_puts_whole_blocks_where_they_belong(file):
    file.write(2 * BLOCK, blocks(b"a", 2))
    with open(file.path, "rb") as content:
        assert content.read() == bytes(2 * BLOCK) + b"a" * 2 * BLOCK + bytes(12 * BLOCK)


def test_a_write_ends_with_the_eventfd_readable_and_the_content_there(writer, file):
    assert written(writer, file, blocks(b"a", 2), BLOCK) == 0
    with open(file.path, "rb") as content:
        assert content.read(4 * BLOCK) == bytes(BLOCK) + b"a" * 2 * BLOCK + bytes(BLOCK)
    # Read once: it does not wake the loop again.
    assert not select.select([writer.fileno], [], [], 0)[0]
    assert writer.collect() == -1


def test_writes_follow_one_another(writer, file):
    for number in range(16):
        assert written(writer, file, blocks(bytes([number + 1])), number * BLOCK) == 0
    with open(file.path, "rb") as content:
        assert content.read()[::BLOCK] == bytes(range(1, 17))


def test_nothing_has_ended_before_anything_was_begun(writer):
    assert writer.collect() == -1


def test_a_write_that_cannot_be_done_like_this_is_not_begun(writer, file):
    assert not writer.submit(999_999, blocks(b"a"), 0)
    # Nothing is under way then: the next one is taken.
    assert written(writer, file, blocks(b"b"), 0) == 0


def test_a_file_that_is_not_open_for_writing_is_an_error(writer, file):
    with open(file.path, "rb") as other:
        assert not writer.submit(other.fileno(), blocks(b"a"), 0) or ended(writer) not in (0, errno.EAGAIN)


def test_a_write_behind_the_end_of_a_full_range_is_told_as_an_error_or_done_whole(writer, file):
    if writer.submit(file.direct_fd, blocks(b"a"), FILE_BYTES):
        assert ended(writer) in (0, errno.EAGAIN)


def test_closing_waits_for_the_write_under_way(writer, file):
    content = blocks(b"a", 8)
    submitted(writer, file.direct_fd, content, 0)
    writer.close()
    with open(file.path, "rb") as found:
        # All of it, or none where it would have had to wait.
        assert found.read(8 * BLOCK) in (b"a" * 8 * BLOCK, bytes(8 * BLOCK))
    writer.close()


def test_a_closed_file_does_not_disturb_the_write_under_way(tmp_path, writer):
    file = Files().new_journal_file(str(tmp_path / "2"), FILE_BYTES)
    if file.direct_fd < 0:
        pytest.skip("the file system of the temporary directory has no O_DIRECT")
    submitted(writer, file.direct_fd, blocks(b"a"), 0)
    file.close()
    assert ended(writer) in (0, errno.EAGAIN)


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
    waiting = Waiting(Place(file, offset, content))
    writer.write(waiting.place, waiting.done, waiting.in_thread)
    return waiting


def content_of(file, length):
    with open(file.path, "rb") as content:
        return content.read(length)


def test_a_commit_is_written_and_its_end_told_on_the_loop(direct_writer, file):
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


def answer(errno_told):
    """Return an AsyncWriter whose writes end with that errno, or are not begun for None."""

    class Answering:
        def __init__(self):
            self.fileno = os.eventfd(0, os.EFD_NONBLOCK)

        def submit(self, _fd, _content, _offset):
            if errno_told is not None:
                os.eventfd_write(self.fileno, 1)
            return errno_told is not None

        def collect(self):
            try:
                os.eventfd_read(self.fileno)
            except BlockingIOError:
                return -1
            return errno_told

        def close(self):
            os.close(self.fileno)

    return Answering


@pytest.mark.parametrize("told", [None, errno.EAGAIN], ids=["not begun", "would wait"])
def test_a_write_that_would_have_to_wait_is_left_to_a_thread(monkeypatch, file, told):
    monkeypatch.setattr(direct, "AsyncWriter", answer(told))
    writer = DirectWriter(gevent.get_hub())
    waiting = commit(writer, file, blocks(b"a"))
    assert waiting.ended.wait(WAIT_S)
    assert (waiting.error, waiting.in_thread_count) == (None, 1)
    assert content_of(file, BLOCK) == b"a" * BLOCK
    writer.stop()


def test_an_error_of_the_disk_names_the_file(monkeypatch, file):
    monkeypatch.setattr(direct, "AsyncWriter", answer(errno.EIO))
    writer = DirectWriter(gevent.get_hub())
    waiting = commit(writer, file, blocks(b"a"))
    assert waiting.ended.wait(WAIT_S)
    assert isinstance(waiting.error, StorageError)
    assert file.path in str(waiting.error)
    assert waiting.in_thread_count == 0
    writer.stop()


def test_without_asynchronous_writes_each_commit_is_left_to_a_thread(monkeypatch, file):
    def refuse():
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(direct, "AsyncWriter", refuse)
    writer = DirectWriter(gevent.get_hub())
    waiting = commit(writer, file, blocks(b"a"))
    assert (waiting.ended.is_set(), waiting.in_thread_count) == (True, 1)
    writer.stop()


def test_a_file_that_is_not_open_for_direct_writes_is_left_to_a_thread(direct_writer, tmp_path):
    class Cached:
        direct_fd = -1
        path = str(tmp_path / "cached")

        def write(self, _offset, content):
            self.content = bytes(content)

    file = Cached()
    waiting = commit(direct_writer, file, blocks(b"a"))
    assert (waiting.in_thread_count, file.content) == (1, b"a" * BLOCK)


def test_after_a_stop_nobody_is_told_of_the_write_that_was_under_way(file):
    writer = DirectWriter(gevent.get_hub())
    waiting = commit(writer, file, blocks(b"a", 8))
    told = waiting.ended.is_set()
    writer.stop()
    gevent.sleep(0.01)
    assert waiting.ended.is_set() == told
    writer.stop()
    # A commit that comes now goes to a thread, as any does without the kernel's help.
    assert commit(writer, file, blocks(b"b")).in_thread_count == 1


def test_the_loop_is_not_held_up_by_a_write(direct_writer, file):
    waiting = commit(direct_writer, file, blocks(b"a", 16))
    before = threading.active_count()
    assert waiting.ended.wait(WAIT_S)
    assert threading.active_count() == before
