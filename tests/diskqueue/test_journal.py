"""Tests of pyqd.hot.diskqueue.journal and pyqd.diskqueue.journal."""

import errno
import os
import struct
from pathlib import Path
from types import SimpleNamespace

import pytest

from pyqd.diskqueue import journal as journal_module
from pyqd.diskqueue.files import NO_CLAIM, Files, no_rest
from pyqd.diskqueue.journal import FILES_MAX, ZEROS_AHEAD_BYTES, Journal
from pyqd.diskqueue.redo import Redo, commits_in, entries_of
from pyqd.diskqueue.space_limit import DiskReserve
from pyqd.hot.diskqueue.journal import BLOCK_SIZE, CommitBuffer
from pyqd.primitives.errors import DiskFull, StorageError, storage_error
from tests.support.storage import Jobs, broker_on, publish

FILE_BYTES = 4 * BLOCK_SIZE


@pytest.fixture
def broker(tmp_path):
    broker = broker_on(tmp_path, sync_every=1)
    yield broker
    broker.close()


@pytest.fixture
def topic(broker):
    return broker.topic("t")


def finished(buffer, generation=1, offset=0):
    """Return the commits in a buffer, as a start reads them from a file that begins with it."""
    content = bytes(buffer.finish(generation, 1, offset, 7, 1))
    return list(commits_in(content, "file"))


def entries(buffer):
    (commit,) = finished(buffer)
    return list(entries_of(commit, "file"))


def gathered(buffer, *topics):
    buffer.begin()
    for topic in topics:
        assert topic.journal_into(buffer, topic.name.encode())
    return buffer


# One commit.


def test_an_entry_has_the_bytes_of_the_segment_as_they_lie_there(topic):
    publish(topic, 3, 100)
    (found,) = finished(gathered(CommitBuffer(), topic))
    ((name, entry),) = entries_of(found, "file")
    segment = topic.log.active
    content = Path(segment.mapping.path).read_bytes()
    assert name == "t"
    assert (entry.segment_number, entry.first_number, entry.first_seq) == (1, 1, 0)
    assert f"{entry.file_number}.seg" == os.path.basename(segment.mapping.path)
    assert entry.file_bytes == segment.file_bytes
    assert (entry.start, entry.length) == (0, segment.tail)
    at = entry.at - found.start
    assert found.entries[at : at + entry.length] == content[: segment.tail]


def test_a_commit_has_only_records_of_no_earlier_commit(topic):
    buffer = CommitBuffer()
    publish(topic, 1, 100)
    gathered(buffer, topic).note_durable()
    before = topic.log.active.tail
    assert topic.log.synced_end == 1
    publish(topic, 1, 100)
    ((_, entry),) = entries(gathered(buffer, topic))
    assert (entry.start, entry.length) == (before, topic.log.active.tail - before)


def test_unwritten_records_are_in_the_next_commit_too(topic):
    buffer = CommitBuffer()
    publish(topic, 1, 100)
    gathered(buffer, topic)
    publish(topic, 1, 100)
    ((_, entry),) = entries(gathered(buffer, topic))
    assert (entry.start, entry.length) == (0, topic.log.active.tail)


def test_records_that_the_syncer_synced_are_in_no_commit(topic):
    publish(topic, 1, 100)
    ranges, end = topic.log.dirty_ranges()
    topic.log.mark_synced(ranges, end)
    assert gathered(CommitBuffer(), topic).entry_count == 0


def test_each_segment_has_an_entry_of_its_own(topic):
    publish(topic, 6, 20_000)
    found = [entry for _, entry in entries(gathered(CommitBuffer(), topic))]
    assert [entry.segment_number for entry in found] == [1, 2]
    assert [entry.start for entry in found] == [0, 0]


def test_all_topics_share_a_commit(broker):
    topics = [broker.topic(name) for name in ("a", "eleven_long", "x" * 64)]
    for topic in topics:
        publish(topic, 1, 100)
    found = dict(entries(gathered(CommitBuffer(), *topics)))
    assert list(found) == [topic.name for topic in topics]
    assert {entry.identity for entry in found.values()} == {topic.created_ns for topic in topics}


@pytest.mark.parametrize("size_bytes", [1, 7, 8, 3700, 3800, 3900, 4000, 5000])
def test_a_commit_is_written_in_whole_blocks_with_zeros_behind_the_entries(topic, size_bytes):
    publish(topic, 1, 5000)
    buffer = gathered(CommitBuffer(), topic)
    # The memory has had a longer commit before.
    buffer.finish(1, 1, 0, 0, 1)
    buffer.note_durable()
    topic.publish_body(b"x" * size_bytes, 1)
    gathered(buffer, topic)
    content = bytes(buffer.finish(1, 1, 0, 0, 1))
    assert len(content) == buffer.whole_bytes
    assert len(content) % BLOCK_SIZE == 0
    assert 0 <= len(content) - buffer.used < BLOCK_SIZE
    assert not any(content[buffer.used :])


def test_the_buffer_grows_with_a_commit_and_keeps_its_content(broker):
    small, large = broker.topic("small"), broker.topic("large")
    publish(small, 1, 100)
    publish(large, 20, 50_000)
    buffer = gathered(CommitBuffer(), small, large)
    found = entries(buffer)
    assert next(name for name, _ in found) == "small"
    assert sum(entry.length for name, entry in found if name == "large") > 1_000_000


def test_a_log_with_too_much_is_refused_and_leaves_the_commit_as_it_was(broker):
    small, large = broker.topic("small"), broker.topic("large")
    publish(small, 1, 100)
    publish(large, 80, 60_000)
    buffer = gathered(CommitBuffer(), small)
    used = buffer.used
    assert not large.journal_into(buffer, b"large")
    assert (buffer.used, buffer.entry_count) == (used, 1)
    assert [name for name, _ in entries(buffer)] == ["small"]
    buffer.note_durable()
    assert (small.log.synced_end, large.log.synced_end) == (1, 0)


def test_a_segment_that_was_recycled_while_its_commit_was_written_is_not_marked(topic):
    buffer = CommitBuffer()
    publish(topic, 4, 20_000)
    segment = topic.log.first
    gathered(buffer, topic)
    topic.log.trim_below(topic.log.active.first_ordinal)
    assert segment.number == 0
    buffer.note_durable()
    assert segment.journaled_bytes == 0
    assert topic.log.active.journaled_bytes == topic.log.active.tail


def test_an_ephemeral_topic_adds_nothing(broker):
    topic = broker.topic("t#ephemeral")
    publish(topic, 1, 100)
    assert gathered(CommitBuffer(), topic).entry_count == 0


def test_a_commit_with_a_changed_byte_is_none(topic):
    publish(topic, 1, 100)
    buffer = gathered(CommitBuffer(), topic)
    content = bytes(buffer.finish(1, 1, 0, 0, 1))
    for at in (0, 12, 16, 24, 32, 40, 48, 64, 200):
        changed = bytearray(content)
        changed[at] ^= 1
        assert list(commits_in(bytes(changed), "file")) == [], at


def test_a_commit_has_its_number_and_an_entry_the_words_of_its_state_and_a_kind(topic):
    publish(topic, 1, 100)
    buffer = gathered(CommitBuffer(), topic)
    content = bytes(buffer.finish(2, 1, 0, 7, 9))
    generation, oldest, offset, _, latest_ns, number = struct.unpack_from("<16x4QqQ", content)
    assert (generation, oldest, offset, latest_ns, number) == (2, 1, 0, 7, 9)
    name_bytes, state_words, kind = struct.unpack_from("<4xHBB", content, 64)
    assert (name_bytes, state_words, kind) == (1, 6, 0)
    created_ns, _, last_guid, count, body_bytes, producers_below = struct.unpack_from("<q5Q", content, 64 + 64 + 8)
    assert (created_ns, last_guid > 0, count, body_bytes, producers_below) == (topic.created_ns, True, 1, 100, 0)


# The files.


class JournalFiles(Files):
    """Files that may refuse to make or write files of a journal, and know which are open."""

    def __init__(self):
        self.full = False
        self.failing = False
        self.opened = {}
        # Given by the journal for each file: called between the writes that fill it.
        self.rests = []

    def new_journal_file(self, path, size_bytes, reserving=NO_CLAIM, rest=no_rest):
        if self.full:
            raise DiskFull("reserve", path, 28, "No space left on device")
        self.rests.append(rest)
        file = super().new_journal_file(path, size_bytes, reserving, rest)
        self.opened[path] = file
        return file


@pytest.fixture
def files():
    return JournalFiles()


@pytest.fixture
def jobs():
    return Jobs()


@pytest.fixture
def journal(tmp_path, files, jobs):
    journal = Journal(files, str(tmp_path / "files"), jobs.submit, FILE_BYTES)
    journal.start()
    jobs.run()
    yield journal
    jobs.run()
    journal.close()


def begun(journal, topic, size_bytes=100):
    """Publish, and return the place of the commit that has it; None if the journal has none."""
    publish(topic, 1, size_bytes)
    buffer = journal.begin()
    if buffer is None:
        return None
    assert topic.journal_into(buffer, topic.name.encode())
    return journal.place()


def test_a_file_is_filled_with_rests_unless_no_other_takes_commits_or_the_commits_come_near_it(
    journal, topic, jobs, files, monkeypatch
):
    naps: list[float] = []
    # The module's name only: a thread of a library that sleeps in a loop would fill the list without end.
    monkeypatch.setattr(journal_module, "time", SimpleNamespace(sleep=naps.append))
    far_bytes = ZEROS_AHEAD_BYTES + FILE_BYTES
    files.rests[0](far_bytes)
    assert naps == []
    assert begun(journal, topic)
    jobs.run()
    _, rest = files.rests
    rest(ZEROS_AHEAD_BYTES)
    assert naps == []
    rest(far_bytes)
    assert len(naps) == 1
    journal.note_written()
    journal.close()
    rest(far_bytes)
    assert len(naps) == 1


def write(journal, topic, size_bytes=100):
    """Publish, and have it in the journal. Returns: its place."""
    place = begun(journal, topic, size_bytes)
    assert place is not None
    place.file.write(place.offset, place.content)
    journal.note_written()
    return place


def names(journal):
    return sorted(int(name) for name in os.listdir(journal.directory))


def redo_of(journal):
    return Redo(Files(), journal.directory)


def generations(journal):
    return [generation for generation, _ in redo_of(journal).former]


def fd_is_open(file):
    return file._fd >= 0


def test_no_commit_is_taken_before_there_is_a_file(tmp_path, files, jobs, topic):
    journal = Journal(files, str(tmp_path / "files"), jobs.submit, FILE_BYTES)
    assert journal.begin() is None
    journal.start()
    assert journal.begin() is None
    jobs.run()
    assert write(journal, topic).offset == 0
    jobs.run()
    journal.close()


def test_commits_lie_behind_one_another_in_a_file_with_one_generation(journal, topic):
    places = [write(journal, topic) for _ in range(3)]
    assert [place.offset for place in places] == [0, BLOCK_SIZE, 2 * BLOCK_SIZE]
    assert generations(journal) == [1]
    content = Path(places[0].file.path).read_bytes()
    assert len(content) == FILE_BYTES
    assert [commit.generation for commit in commits_in(content, "file")] == [1, 1, 1]


def test_a_commit_that_does_not_fit_a_file_goes_to_another_with_the_next_generation(journal, jobs, topic):
    for _ in range(4):
        write(journal, topic)
    jobs.run()
    place = write(journal, topic)
    assert place.offset == 0
    assert generations(journal) == [1, 2]


def test_a_commit_larger_than_a_file_has_no_place(journal, topic):
    assert begun(journal, topic, FILE_BYTES) is None
    # It was synced otherwise; the journal goes on.
    ranges, end = topic.log.dirty_ranges()
    topic.log.mark_synced(ranges, end)
    assert write(journal, topic).offset == 0


def test_a_sync_is_wanted_when_the_second_file_is_begun_and_no_other_is_free(journal, jobs, topic):
    wanted = []
    journal.on_sync_wanted = lambda: wanted.append(True)
    for _ in range(4):
        write(journal, topic)
        jobs.run()
    # A start needs none: the first file is followed by one that is made meanwhile.
    assert wanted == []
    write(journal, topic)
    assert wanted == [True]


def test_a_sync_is_wanted_and_no_commit_is_taken_when_the_only_file_is_full(journal, files, jobs, topic):
    wanted = []
    journal.on_sync_wanted = lambda: wanted.append(True)
    files.full = True
    for _ in range(4):
        write(journal, topic)
        jobs.run()
    assert wanted == []
    assert begun(journal, topic) is None
    assert wanted == [True]
    files.full = False
    jobs.run()
    assert write(journal, topic).offset == 0


def test_a_full_disk_leaves_a_warning_and_no_file(tmp_path, files, jobs, caplog):
    files.full = True
    journal = Journal(files, str(tmp_path / "files"), jobs.submit, FILE_BYTES)
    journal.start()
    jobs.run()
    assert journal.begin() is None
    assert "cannot create a journal file: failed to reserve" in caplog.text
    assert names(journal) == []
    journal.close()


def test_no_file_is_made_of_the_space_that_is_to_stay_free(tmp_path, jobs, caplog):
    files = JournalFiles()
    reserve = DiskReserve(files, str(tmp_path), files.free_bytes(str(tmp_path)))
    journal = Journal(files, str(tmp_path / "files"), jobs.submit, FILE_BYTES, reserve)
    journal.start()
    jobs.run()
    assert journal.begin() is None
    assert "would be left free on the disk" in caplog.text
    assert names(journal) == []
    reserve.floor_bytes = 0
    journal.begin()
    journal.release(journal.rotate())
    jobs.run()
    assert journal.begin() is not None
    journal.close()


def test_no_more_files_are_made_than_the_most(journal, jobs, topic):
    for _ in range(FILES_MAX):
        for _ in range(4):
            write(journal, topic)
        jobs.run()
    assert begun(journal, topic) is None
    jobs.run()
    assert len(names(journal)) == FILES_MAX
    assert generations(journal) == list(range(1, FILES_MAX + 1))


def test_a_sync_releases_commits_written_before_it_began_and_no_later_ones(journal, jobs, topic):
    write(journal, topic)
    jobs.run()
    kept = journal.rotate()
    write(journal, topic)
    assert generations(journal) == [1, 2]
    jobs.run()
    journal.release(kept)
    jobs.run()
    # The file of the first generation has its content yet; a commit says that it does not count.
    write(journal, topic)
    assert generations(journal) == [2]


def test_a_sync_that_failed_gives_up_nothing(journal, jobs, topic):
    write(journal, topic)
    jobs.run()
    journal.rotate()
    write(journal, topic)
    jobs.run()
    kept = journal.rotate()
    write(journal, topic)
    assert generations(journal) == [1, 2, 3]
    journal.release(kept)
    write(journal, topic)
    assert generations(journal) == [3]


def test_a_cut_of_a_file_without_commits_begins_no_other(journal, jobs, topic):
    write(journal, topic)
    jobs.run()
    kept = journal.rotate()
    assert journal.rotate() == kept
    assert write(journal, topic).offset == 0


def test_a_cut_without_a_free_file_keeps_the_one_in_use(journal, files, jobs, topic):
    files.full = True
    write(journal, topic)
    jobs.run()
    kept = journal.rotate()
    assert write(journal, topic).offset == BLOCK_SIZE
    jobs.run()
    journal.release(kept)
    assert write(journal, topic).offset == 2 * BLOCK_SIZE
    assert generations(journal) == [1]


def test_files_are_used_again_and_no_more_are_kept_than_are_needed(journal, jobs, topic):
    for _ in range(6):
        for _ in range(4):
            write(journal, topic)
        jobs.run()
    assert len(names(journal)) == 7
    for _ in range(5):
        kept = journal.rotate()
        jobs.run()
        journal.release(kept)
        jobs.run()
        write(journal, topic)
    assert len(names(journal)) <= journal_module.FILES_KEPT
    assert len(generations(journal)) == 1


def test_commits_of_an_earlier_use_of_a_file_are_not_read(journal, jobs, topic):
    for _ in range(3):
        write(journal, topic)
    jobs.run()
    used = place = write(journal, topic)
    for _ in range(10):
        kept = journal.rotate()
        jobs.run()
        journal.release(kept)
        place = write(journal, topic)
        if place.file is used.file:
            break
    assert place.file is used.file
    content = Path(place.file.path).read_bytes()
    assert len(list(commits_in(content, "file"))) == 1
    # The commit behind it is whole, and of an earlier generation.
    assert content[BLOCK_SIZE : BLOCK_SIZE + 8] == content[:8]


def test_a_failed_write_refuses_commits_until_everything_was_synced_otherwise(journal, jobs, topic):
    write(journal, topic)
    jobs.run()
    wanted = []
    journal.on_sync_wanted = lambda: wanted.append(True)
    assert begun(journal, topic) is not None
    journal.note_failed()
    assert wanted == [True]
    assert journal.begin() is None
    # A sync that began before the failure covers nothing of the failed commit.
    kept = journal.rotate()
    assert journal.begin() is None
    journal.release(kept)
    jobs.run()
    assert write(journal, topic).offset == 0


def test_a_sync_that_began_before_a_write_failed_does_not_end_the_refusal(journal, jobs, topic):
    write(journal, topic)
    jobs.run()
    kept = journal.rotate()
    assert begun(journal, topic) is not None
    journal.note_failed()
    journal.release(kept)
    jobs.run()
    assert journal.begin() is None
    journal.release(journal.rotate())
    jobs.run()
    assert write(journal, topic).offset == 0


def test_a_commit_that_failed_marks_nothing_as_durable(journal, topic):
    assert begun(journal, topic) is not None
    journal.note_failed()
    assert (topic.log.synced_end, topic.log.active.journaled_bytes) == (0, 0)


def test_a_file_whose_write_is_under_way_is_neither_closed_nor_removed_by_a_release(journal, jobs, topic):
    for _ in range(3):
        for _ in range(4):
            write(journal, topic)
        jobs.run()
    place = begun(journal, topic)
    jobs.run()
    assert place is not None
    kept = journal.rotate()
    jobs.run()
    journal.release(kept)
    assert fd_is_open(place.file)
    assert Path(place.file.path).exists()
    place.file.write(place.offset, place.content)
    journal.note_written()


def test_files_are_closed_and_removed_in_a_thread_and_count_until_then(journal, files, jobs, topic):
    for _ in range(FILES_MAX):
        for _ in range(4):
            write(journal, topic)
        jobs.run()
    kept = journal.rotate()
    journal.release(kept)
    assert jobs.waiting
    assert all(fd_is_open(file) and os.path.exists(file.path) for file in files.opened.values())
    assert len(files.opened) == FILES_MAX
    jobs.run()
    remaining = [file for file in files.opened.values() if fd_is_open(file)]
    assert len(remaining) == journal_module.FILES_KEPT
    assert sorted(os.listdir(journal.directory)) == sorted(os.path.basename(file.path) for file in remaining)


def test_a_stop_removes_all_files_and_closes_all_but_the_one_that_is_written_to(journal, files, jobs, topic):
    for _ in range(3):
        for _ in range(4):
            write(journal, topic)
        jobs.run()
    place = begun(journal, topic)
    assert place is not None
    jobs.run()
    journal.close()
    assert not os.path.exists(journal.directory)
    assert [file for file in files.opened.values() if fd_is_open(file)] == [place.file]
    assert journal.begin() is None
    # The write that is under way ends whenever it likes.
    place.file.write(place.offset, place.content)
    journal.note_written()
    place.file.close()


def test_a_file_that_was_being_made_during_a_stop_is_not_used(tmp_path, files, jobs):
    journal = Journal(files, str(tmp_path / "files"), jobs.submit, FILE_BYTES)
    journal.start()
    (job, done), *_ = jobs.waiting
    jobs.waiting.clear()
    made = job()
    journal.close()
    done(made, None)
    assert journal.begin() is None
    assert not os.path.exists(journal.directory)


def test_journal_files_of_a_killed_process_stay_until_the_first_sync_and_count(tmp_path, journal, files, jobs, topic):
    write(journal, topic)
    jobs.run()
    left = redo_of(journal)
    successor = Journal(files, journal.directory, jobs.submit, FILE_BYTES)
    successor.keep_former(left.former, left.latest_created_ns, left.commit_number)
    assert successor.latest_created_ns == 0 == left.latest_created_ns
    assert left.commit_number == 1
    successor.start()
    jobs.run()
    place = write(successor, topic)
    assert place.file.path not in [path for _, path in left.former]
    assert generations(successor) == [1, 2]
    assert redo_of(successor).commit_number == 2
    jobs.run()
    kept = successor.rotate()
    jobs.run()
    successor.release(kept)
    jobs.run()
    assert not any(os.path.exists(path) for _, path in left.former)
    write(successor, topic)
    assert len(generations(successor)) == 1
    successor.close()


def test_a_file_that_cannot_be_removed_is_left_to_the_next_start(journal, files, jobs, topic, monkeypatch, caplog):
    write(journal, topic)
    left = redo_of(journal).former
    jobs.run()
    journal.keep_former(left, 0, 0)

    def refuse(path):
        raise StorageError("remove", path, 5, "Input/output error")

    monkeypatch.setattr(files, "remove", refuse)
    journal.release(journal.rotate())
    jobs.run()
    assert "failed to remove" in caplog.text
    monkeypatch.undo()


@pytest.mark.parametrize(("failed", "tries"), [(errno.EOPNOTSUPP, 1), (errno.ENOSPC, 3), (errno.EMFILE, 3)])
def test_a_file_that_cannot_be_created_is_reported_once_and_retried_if_that_may_help(tmp_path, caplog, failed, tries):
    class Refusing(Files):
        count = 0

        def new_journal_file(self, path, _size_bytes, _reserving=NO_CLAIM, _rest=no_rest):
            self.count += 1
            raise storage_error("write", path, OSError(failed, os.strerror(failed)))

    def at_once(job, done):
        done(job(), None)

    refusing = Refusing()
    journal = Journal(refusing, str(tmp_path / "journal"), at_once, FILE_BYTES)
    journal.start()
    assert journal.begin() is None
    journal.release(journal.rotate())
    journal.release(journal.rotate())
    assert refusing.count == tries
    assert caplog.text.count("cannot create a journal file") == 1
