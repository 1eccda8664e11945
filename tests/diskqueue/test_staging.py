"""Tests of pyqd.hot.diskqueue.staging, by way of the log that uses it."""

import errno
import os

import pytest

from pyqd.diskqueue.files import Files
from pyqd.diskqueue.segment_jobs import SegmentJobs
from pyqd.hot.diskqueue.log import Log
from pyqd.hot.primitives.clock import wall
from pyqd.primitives.errors import DiskFull, StorageError
from tests.support.invariants import check_topic
from tests.support.storage import body_of, broker_on, frames_of

# The least size of a staged batch, the largest staged record, and the buffer.
BATCH_MIN, RECORD_MAX, BUFFER = 8 << 10, 16 << 10, 128 << 10
# Alignment of a write's end, the first segment, and its header.
BLOCK, FIRST_SEGMENT, HEADER = 16 << 10, 64 << 10, 128


class Counting(Files):
    """Count the requested descriptors; refuse them, or return failing ones, on request."""

    def __init__(self):
        self.opened = []
        self.refuse = False
        self.instead = None

    def open_for_writing(self, path):
        self.opened.append(path)
        if self.refuse:
            raise StorageError("open", path, errno.EMFILE, "Too many open files")
        return super().open_for_writing(self.instead or path)


@pytest.fixture
def files():
    return Counting()


@pytest.fixture
def log(files, tmp_path):
    return Log(files, str(tmp_path), 1 << 20)


def batch(sizes, first=1):
    return [(number, body_of(number, size)) for number, size in enumerate(sizes, first)]


def found_in(log):
    return [(guid, body) for _, guid, *_, body in log.records()]


def written_bytes():
    """Return the bytes that the thread has written by system calls."""
    with open("/proc/thread-self/io") as file:
        return int(dict(line.split(": ") for line in file)["wchar"])


def reopened(log):
    return Log(Files(), log.directory, 1 << 20)


@pytest.mark.parametrize(
    "sizes",
    [
        [200] * 50,
        [RECORD_MAX - 48] * 20,
        [RECORD_MAX - 47, 100],
        [100, RECORD_MAX - 47, 100],
        [50_000],
        [100, 200_000, 100] * 3,
        [BUFFER // 8 - 48] * 8,
        [BUFFER // 8 - 48] * 9,
        [8] * 3000,
    ],
    ids=lambda sizes: f"{len(sizes)} of {sizes[0]}",
)
@pytest.mark.parametrize("before", [1, 4001, 4040, 4096])
def test_a_large_batch_is_read_as_it_was_given_now_and_by_the_next_start(log, files, sizes, before):
    first = batch([before])
    messages = batch(sizes, 2)
    log.append_batch(first)
    log.append_batch(messages)
    log.append_message(9, b"behind it")
    assert len(files.opened) >= 1
    assert found_in(log) == [*first, *messages, (9, b"behind it")]
    log.check()
    assert found_in(reopened(log)) == [*first, *messages, (9, b"behind it")]


@pytest.mark.parametrize(
    "end", [*range(2 * BLOCK - 16, 2 * BLOCK + 24, 8), *range(FIRST_SEGMENT - 32, FIRST_SEGMENT + 8, 8)]
)
@pytest.mark.parametrize("record", [200, 2000, RECORD_MAX, 1 << 20])
def test_a_batch_may_end_wherever_blocks_and_segments_do(log, files, end, record):
    sizes = [record - 48] * ((end - HEADER) // record - 1)
    sizes.append(end - HEADER - record * len(sizes) - 48)
    log.append_batch(batch(sizes))
    assert len(files.opened) == 1
    assert log.end_position().offset == end
    log.check()
    log.append_batch(batch([300], 9))
    assert found_in(log) == found_in(reopened(log)) == [*batch(sizes), *batch([300], 9)]


def test_a_batch_is_followed_by_zeros_up_to_the_end_of_a_block_and_no_further(log, files):
    (name,) = os.listdir(log.directory)
    path = os.path.join(log.directory, name)
    rest = b"x" * (FIRST_SEGMENT - HEADER)
    with open(path, "r+b") as file:
        file.seek(HEADER)
        file.write(rest)
    log.append_batch(batch([1000] * 20))
    tail = log.end_position().offset
    with open(path, "rb") as file:
        found = file.read()
    assert BLOCK < tail < 2 * BLOCK
    assert found[tail:] == bytes(2 * BLOCK - tail) + rest[: FIRST_SEGMENT - 2 * BLOCK]


@pytest.mark.parametrize("sizes", [[50_000], [100, BLOCK - 200, 100], [100, 3 * BLOCK, 100], [100, 200_000] * 2])
def test_records_of_any_size_are_written_and_not_stored_through_the_mapping(log, sizes):
    messages = batch(sizes)
    before = written_bytes()
    log.append_batch(messages)
    assert written_bytes() - before >= sum(sizes)
    assert found_in(log) == messages


def test_a_small_batch_is_stored_through_the_mapping(log, files):
    log.append_batch(batch([200] * 20))
    assert files.opened == []


def test_a_file_is_opened_once_for_writing_and_closed_when_it_is_full(log, files):
    before = len(os.listdir("/proc/self/fd"))
    for number in range(100):
        log.append_batch(batch([1000] * 20, 1 + 20 * number))
        assert len(os.listdir("/proc/self/fd")) <= before + 1
    assert len(files.opened) == len(set(files.opened)) == len(os.listdir(log.directory))


@pytest.mark.slow
def test_many_logs_with_batches_keep_few_files_open(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    logs = [Log(Files(), str(tmp_path / str(number)), 1 << 20) for number in range(200)]
    for turn in range(2):
        for log in logs:
            log.append_batch(batch([1000] * 20, 1 + 20 * turn))
    assert len(os.listdir("/proc/self/fd")) <= before + 64
    for log in logs:
        assert found_in(log) == batch([1000] * 40)
    del log
    logs.clear()
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_if_no_file_can_be_opened_batches_are_stored_through_the_mapping(log, files):
    files.refuse = True
    for _ in range(3):
        log.append_batch(batch([1000] * 20))
    assert len(files.opened) == 1
    assert found_in(reopened(log)) == batch([1000] * 20) * 3


@pytest.mark.parametrize("sizes", [[1000] * 20, [1000] * 400, [1000, 1000, 50_000, 1000]])
def test_a_batch_that_cannot_be_written_is_refused_and_leaves_nothing(log, files, sizes):
    log.append_batch(batch([500] * 3))
    files.instead = "/dev/full"
    with pytest.raises(DiskFull, match=r"failed to write .*No space left on device"):
        log.append_batch(batch(sizes, 50))
    assert found_in(log) == found_in(reopened(log)) == batch([500] * 3)
    log.check()
    log.append_message(7, b"goes on")
    assert found_in(log) == found_in(reopened(log)) == [*batch([500] * 3), (7, b"goes on")]


def test_batches_in_memory_are_stored_there(files):
    log = Log(files, None, 1 << 20)
    log.append_batch(batch([1000] * 50))
    assert files.opened == []
    assert found_in(log) == batch([1000] * 50)


def test_reused_segments_are_stored_into_because_their_pages_are_present(log, files):
    for round_number in range(120):
        if round_number == 60:
            assert len(log.pool.spares) + 1 == len(os.listdir(log.directory))
            opened = len(files.opened)
        log.append_batch(batch([1000] * 60))
        log.trim_below(log.end)
    assert len(files.opened) == opened


@pytest.mark.parametrize("sizes", [[100, 100], [1000] * 20, [1000] * 400])
def test_whatever_goes_wrong_in_a_batch_leaves_nothing_of_it(log, files, sizes):
    log.append_batch(batch([500] * 3))
    with pytest.raises(OverflowError):
        log.append_batch([*batch(sizes, 50), (-1, b"no id")])
    assert found_in(log) == found_in(reopened(log)) == batch([500] * 3)
    log.append_batch(batch(sizes, 7))
    log.append_message(9, b"goes on")
    assert found_in(log) == found_in(reopened(log)) == [*batch([500] * 3), *batch(sizes, 7), (9, b"goes on")]


def test_a_batch_that_cannot_begin_is_over(log, files, monkeypatch):
    def fail(_files, _path):
        raise MemoryError

    log.append_batch(batch([500] * 3))
    with monkeypatch.context() as patch:
        patch.setattr(Counting, "open_for_writing", fail)
        with pytest.raises(MemoryError):
            log.append_batch(batch([1000] * 20))
    log.append_batch(batch([1000] * 20, 4))
    assert found_in(log) == found_in(reopened(log)) == [*batch([500] * 3), *batch([1000] * 20, 4)]


@pytest.mark.parametrize("due_ns", [0, 1 << 62])
@pytest.mark.parametrize("count", [20, 400])
def test_a_topic_undoes_a_batch_whatever_went_wrong(tmp_path, files, monkeypatch, due_ns, count):
    topic = broker_on(tmp_path, files, max_bytes_per_file=1 << 20).topic("t")
    # No page is there before it is written.
    topic.log.pool.jobs = SegmentJobs()
    bodies = [body_of(number, 1000) for number in range(count)]
    with monkeypatch.context() as patch:
        files.instead = "/dev/full"
        patch.setattr("pyqd.hot.diskqueue.staging.storage_error", lambda *_: MemoryError())
        with pytest.raises(MemoryError):
            topic.publish_frames(frames_of(bodies), wall(), due_ns)
        # The next segment's file is opened anew.
        files.instead = None
    assert (topic.log.end, topic.message_count, topic.depth) == (0, 0, 0)
    topic.log.shrink()
    topic.publish_body(b"single", wall())
    topic.publish_frames(frames_of(bodies), wall(), due_ns)
    assert [body for _, body in found_in(topic.log)] == [b"single", *bodies]
    assert topic.message_count == count + 1
    check_topic(topic)
